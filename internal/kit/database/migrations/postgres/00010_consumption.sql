-- +goose Up
-- What requests have used under rules with a meter, by whom and of which model. Nodes add to the rows of an hour; old
-- hours are added up to days. Rows without a rule count each request once, however many rules have the same meter.

CREATE TABLE stint_consumption (
    level      SMALLINT NOT NULL, -- 1 hour, 2 day
    start      TIMESTAMPTZ NOT NULL,
    rule       TEXT COLLATE "C" NOT NULL,
    meter      TEXT COLLATE "C" NOT NULL,
    shadow     BOOLEAN NOT NULL,
    tenant     TEXT COLLATE "C" NOT NULL,
    user_id    TEXT COLLATE "C" NOT NULL,
    key_id     TEXT COLLATE "C" NOT NULL,
    model      TEXT COLLATE "C" NOT NULL,
    requests   BIGINT NOT NULL,
    reserved   BIGINT NOT NULL,
    used       BIGINT NOT NULL,
    given_back BIGINT NOT NULL,
    overshoot  BIGINT NOT NULL,
    estimated  BIGINT NOT NULL,
    PRIMARY KEY (level, start, rule, meter, shadow, tenant, user_id, key_id, model)
);

-- What was added, so that a write that is repeated is not added twice. It is forgotten after a day.
CREATE TABLE stint_consumption_batches (
    id TEXT COLLATE "C" PRIMARY KEY,
    at TIMESTAMPTZ NOT NULL
);

-- +goose Down
DROP TABLE stint_consumption_batches, stint_consumption;
