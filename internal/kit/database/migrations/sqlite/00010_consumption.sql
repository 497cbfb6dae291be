-- +goose Up
-- What requests have used under rules with a meter, by whom and of which model. Nodes add to the rows of an hour; old
-- hours are added up to days. Rows without a rule count each request once, however many rules have the same meter.

CREATE TABLE stint_consumption (
    level      INTEGER NOT NULL, -- 1 hour, 2 day
    start      INTEGER NOT NULL,
    rule       TEXT NOT NULL,
    meter      TEXT NOT NULL,
    shadow     INTEGER NOT NULL,
    tenant     TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    model      TEXT NOT NULL,
    requests   INTEGER NOT NULL,
    reserved   INTEGER NOT NULL,
    used       INTEGER NOT NULL,
    given_back INTEGER NOT NULL,
    overshoot  INTEGER NOT NULL,
    estimated  INTEGER NOT NULL,
    PRIMARY KEY (level, start, rule, meter, shadow, tenant, user_id, key_id, model)
) WITHOUT ROWID;

-- What was added, so that a write that is repeated is not added twice. It is forgotten after a day.
CREATE TABLE stint_consumption_batches (
    id TEXT PRIMARY KEY NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;

-- +goose Down
DROP TABLE stint_consumption_batches;
DROP TABLE stint_consumption;
