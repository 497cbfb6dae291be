-- +goose Up
CREATE TABLE stint_alerts (
    id         TEXT PRIMARY KEY,
    body       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT NOT NULL
);
CREATE TABLE stint_webhooks (
    id         TEXT PRIMARY KEY,
    body       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT NOT NULL
);

-- Which node evaluates alerts and delivers messages, and until when. The last number of a message is beside it.
CREATE TABLE stint_alert_turn (
    one          INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    node         TEXT NOT NULL,
    until        INTEGER NOT NULL,
    evaluated_at INTEGER,
    problem      TEXT NOT NULL,
    number       INTEGER NOT NULL
);
INSERT INTO stint_alert_turn (node, until, problem, number) VALUES ('', 0, '', 0);

CREATE TABLE stint_alert_causes (
    id       TEXT PRIMARY KEY,
    phase    TEXT NOT NULL,
    told     TEXT NOT NULL,
    last_at  INTEGER, -- of the last message
    since    INTEGER NOT NULL,
    fired_at INTEGER,
    body     TEXT NOT NULL,
    acked_at INTEGER,
    acked_by TEXT,
    ack_note TEXT
);
CREATE INDEX stint_alert_causes_phase ON stint_alert_causes (phase, fired_at);

CREATE TABLE stint_alert_silences (
    id         TEXT PRIMARY KEY,
    alert      TEXT NOT NULL,
    subject    TEXT NOT NULL,
    until      INTEGER NOT NULL,
    reason     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL
);

CREATE TABLE stint_deliveries (
    id         TEXT PRIMARY KEY,
    number     INTEGER NOT NULL, -- the order of messages
    webhook    TEXT NOT NULL,
    cause      TEXT NOT NULL, -- what messages are kept in order by
    state      TEXT NOT NULL, -- waiting, delivered or dead
    attempts   INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    first_at   INTEGER, -- of the first attempt
    next_at    INTEGER NOT NULL,
    done_at    INTEGER,
    status     INTEGER NOT NULL,
    problem    TEXT NOT NULL,
    body       TEXT NOT NULL
);
CREATE INDEX stint_deliveries_state ON stint_deliveries (state, webhook, cause, number);
CREATE INDEX stint_deliveries_number ON stint_deliveries (number);

-- What each node has decided by rule in each minute, for alerts. Events are a sample.
CREATE TABLE stint_rule_minutes (
    start    INTEGER NOT NULL,
    node     TEXT NOT NULL,
    rule     TEXT NOT NULL,
    requests INTEGER NOT NULL,
    denied   INTEGER NOT NULL,
    PRIMARY KEY (start, rule, node)
);

-- +goose Down
DROP TABLE stint_rule_minutes;
DROP TABLE stint_deliveries;
DROP TABLE stint_alert_silences;
DROP TABLE stint_alert_causes;
DROP TABLE stint_alert_turn;
DROP TABLE stint_webhooks;
DROP TABLE stint_alerts;
DELETE FROM stint_secrets WHERE name LIKE 'webhook/%';
