-- +goose Up
-- Decisions. It has a partition for each month, such as stint_events_2026_01, which the program
-- creates when it is needed.
CREATE TABLE stint_events (
    id             UUID NOT NULL,
    at             TIMESTAMPTZ NOT NULL,
    outcome        SMALLINT NOT NULL, -- 0 allowed, 1 throttled, 2 exempt, 3 denied, 4 banned, 5 blocked, 6 unauthorized, 7 unavailable
    shadow         BOOLEAN NOT NULL,
    cached         BOOLEAN NOT NULL,
    user_id        TEXT COLLATE "C" NOT NULL,
    tenant         TEXT COLLATE "C" NOT NULL,
    key_id         TEXT COLLATE "C" NOT NULL,
    tier           TEXT COLLATE "C" NOT NULL,
    ip             TEXT COLLATE "C" NOT NULL,
    rule           TEXT COLLATE "C" NOT NULL,
    limit_name     TEXT COLLATE "C" NOT NULL,
    endpoint       TEXT COLLATE "C" NOT NULL,
    method         TEXT COLLATE "C" NOT NULL,
    used           BIGINT NOT NULL,
    max            BIGINT NOT NULL,
    cost           BIGINT NOT NULL,
    status         BIGINT NOT NULL,
    retry_after_us BIGINT NOT NULL, -- -1: never
    waited_us      BIGINT NOT NULL,
    latency_us     BIGINT NOT NULL,
    region         TEXT COLLATE "C" NOT NULL,
    node           TEXT COLLATE "C" NOT NULL,
    weight         BIGINT NOT NULL,
    PRIMARY KEY (at, id)
) PARTITION BY RANGE (at);
CREATE INDEX stint_events_user ON stint_events (user_id, at);
CREATE INDEX stint_events_rule ON stint_events (rule, at) WHERE outcome >= 3;

-- Months that were dropped. Their roll-ups stay as they are.
CREATE TABLE stint_dropped_months (
    start  TIMESTAMPTZ PRIMARY KEY,
    events BIGINT NOT NULL -- that it had
);

-- Minutes and hours with events that are not rolled up. Each writer has its own rows, so that
-- none waits for another, and new events are not marked as done.
CREATE TABLE stint_rollup_todo (
    level SMALLINT NOT NULL, -- 0 minute, 1 hour
    start TIMESTAMPTZ NOT NULL,
    token BIGINT NOT NULL,
    PRIMARY KEY (level, start, token)
);

CREATE TABLE stint_rollups (
    level    SMALLINT NOT NULL, -- 0 minute, 1 hour, 2 day
    start    TIMESTAMPTZ NOT NULL,
    rule     TEXT COLLATE "C" NOT NULL,
    tier     TEXT COLLATE "C" NOT NULL,
    endpoint TEXT COLLATE "C" NOT NULL,
    region   TEXT COLLATE "C" NOT NULL,
    outcome  SMALLINT NOT NULL,
    shadow   BOOLEAN NOT NULL,
    total    BIGINT NOT NULL, -- decisions
    events   BIGINT NOT NULL, -- those of which there is an event
    cached   BIGINT NOT NULL, -- decisions
    latency  BYTEA NOT NULL,  -- a sketch
    PRIMARY KEY (level, start, rule, tier, endpoint, region, outcome, shadow)
);

-- Refusals. What is in an hour is in no minute.
CREATE TABLE stint_subject_rollups (
    level   SMALLINT NOT NULL, -- 0 minute, 1 hour, 2 day
    kind    SMALLINT NOT NULL, -- 0 user, 1 tenant, 2 key, 3 ip
    start   TIMESTAMPTZ NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    rule    TEXT COLLATE "C" NOT NULL,
    denied  BIGINT NOT NULL, -- by a limit
    refused BIGINT NOT NULL, -- whatever the outcome
    PRIMARY KEY (level, kind, start, subject, rule)
);
CREATE INDEX stint_subject_rollups_subject ON stint_subject_rollups (subject, kind, start);

-- +goose Down
DROP TABLE stint_subject_rollups, stint_rollups, stint_rollup_todo, stint_dropped_months, stint_events;
