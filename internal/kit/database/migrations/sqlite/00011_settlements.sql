-- +goose Up
-- What became of the reservations of events, by rule. Ids sort by the time of the event.
CREATE TABLE stint_settlements (
    id        BLOB NOT NULL, -- of the event
    rule      TEXT NOT NULL,
    meter     TEXT NOT NULL,
    shadow    INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    reserved  INTEGER NOT NULL,
    used      INTEGER NOT NULL,
    model     TEXT NOT NULL,
    estimated INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    PRIMARY KEY (id, rule)
) WITHOUT ROWID;

-- +goose Down
DROP TABLE stint_settlements;
