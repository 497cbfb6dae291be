-- +goose Up
-- What became of the reservations of events, by rule. It has a partition for each month, such as
-- stint_settlements_2026_01, which the program creates with that of the events. Ids sort by the time of the event.
CREATE TABLE stint_settlements (
    id        UUID NOT NULL, -- of the event
    rule      TEXT COLLATE "C" NOT NULL,
    meter     TEXT COLLATE "C" NOT NULL,
    shadow    BOOLEAN NOT NULL,
    at        TIMESTAMPTZ NOT NULL,
    reserved  BIGINT NOT NULL,
    used      BIGINT NOT NULL,
    model     TEXT COLLATE "C" NOT NULL,
    estimated BOOLEAN NOT NULL,
    cancelled BOOLEAN NOT NULL,
    PRIMARY KEY (id, rule)
) PARTITION BY RANGE (id);

-- +goose Down
DROP TABLE stint_settlements;
