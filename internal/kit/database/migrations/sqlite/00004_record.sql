-- +goose Up
-- Decisions. It has no rows: there is a table like it for each month, such as
-- stint_events_2026_01, which the program creates when it is needed.
CREATE TABLE stint_events (
    id             BLOB NOT NULL,
    at             INTEGER NOT NULL,
    outcome        INTEGER NOT NULL, -- 0 allowed, 1 throttled, 2 exempt, 3 denied, 4 banned, 5 blocked, 6 unauthorized, 7 unavailable
    shadow         INTEGER NOT NULL,
    cached         INTEGER NOT NULL,
    user_id        TEXT NOT NULL,
    tenant         TEXT NOT NULL,
    key_id         TEXT NOT NULL,
    tier           TEXT NOT NULL,
    ip             TEXT NOT NULL,
    rule           TEXT NOT NULL,
    limit_name     TEXT NOT NULL,
    endpoint       TEXT NOT NULL,
    method         TEXT NOT NULL,
    used           INTEGER NOT NULL,
    max            INTEGER NOT NULL,
    cost           INTEGER NOT NULL,
    status         INTEGER NOT NULL,
    retry_after_us INTEGER NOT NULL, -- -1: never
    waited_us      INTEGER NOT NULL,
    latency_us     INTEGER NOT NULL,
    region         TEXT NOT NULL,
    node           TEXT NOT NULL,
    weight         INTEGER NOT NULL,
    PRIMARY KEY (at, id)
) WITHOUT ROWID;
CREATE INDEX stint_events_user ON stint_events (user_id, at);
CREATE INDEX stint_events_rule ON stint_events (rule, at) WHERE outcome >= 3;

-- Months that were dropped. Their roll-ups stay as they are.
CREATE TABLE stint_dropped_months (
    start  INTEGER PRIMARY KEY NOT NULL,
    events INTEGER NOT NULL -- that it had
);

-- Minutes and hours with events that are not rolled up. Each writer has its own rows, so that
-- none waits for another, and new events are not marked as done.
CREATE TABLE stint_rollup_todo (
    level INTEGER NOT NULL, -- 0 minute, 1 hour
    start INTEGER NOT NULL,
    token INTEGER NOT NULL,
    PRIMARY KEY (level, start, token)
) WITHOUT ROWID;

CREATE TABLE stint_rollups (
    level    INTEGER NOT NULL, -- 0 minute, 1 hour, 2 day
    start    INTEGER NOT NULL,
    rule     TEXT NOT NULL,
    tier     TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    region   TEXT NOT NULL,
    outcome  INTEGER NOT NULL,
    shadow   INTEGER NOT NULL,
    total    INTEGER NOT NULL, -- decisions
    events   INTEGER NOT NULL, -- those of which there is an event
    cached   INTEGER NOT NULL, -- decisions
    latency  BLOB NOT NULL,  -- a sketch
    PRIMARY KEY (level, start, rule, tier, endpoint, region, outcome, shadow)
) WITHOUT ROWID;

-- Refusals. What is in an hour is in no minute.
CREATE TABLE stint_subject_rollups (
    level   INTEGER NOT NULL, -- 0 minute, 1 hour, 2 day
    kind    INTEGER NOT NULL, -- 0 user, 1 tenant, 2 key, 3 ip
    start   INTEGER NOT NULL,
    subject TEXT NOT NULL,
    rule    TEXT NOT NULL,
    denied  INTEGER NOT NULL, -- by a limit
    refused INTEGER NOT NULL, -- whatever the outcome
    PRIMARY KEY (level, kind, start, subject, rule)
) WITHOUT ROWID;
CREATE INDEX stint_subject_rollups_subject ON stint_subject_rollups (subject, kind, start);

-- +goose Down
DROP TABLE stint_subject_rollups;
DROP TABLE stint_rollups;
DROP TABLE stint_rollup_todo;
DROP TABLE stint_dropped_months;
DROP TABLE stint_events;
