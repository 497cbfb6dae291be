-- +goose Up
CREATE TABLE stint_alerts (
    id         TEXT COLLATE "C" PRIMARY KEY,
    body       JSONB NOT NULL,
    version    BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    updated_by TEXT NOT NULL
);
CREATE TABLE stint_webhooks (
    id         TEXT COLLATE "C" PRIMARY KEY,
    body       JSONB NOT NULL,
    version    BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    updated_by TEXT NOT NULL
);

-- Which node evaluates alerts and delivers messages, and until when. The last number of a message is beside it.
CREATE TABLE stint_alert_turn (
    one          BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
    node         TEXT NOT NULL,
    until        TIMESTAMPTZ NOT NULL,
    evaluated_at TIMESTAMPTZ,
    problem      TEXT NOT NULL,
    number       BIGINT NOT NULL
);
INSERT INTO stint_alert_turn (node, until, problem, number) VALUES ('', to_timestamp(0), '', 0);

CREATE TABLE stint_alert_causes (
    id       TEXT COLLATE "C" PRIMARY KEY,
    phase    TEXT NOT NULL,
    told     TEXT NOT NULL,
    last_at  TIMESTAMPTZ, -- of the last message
    since    TIMESTAMPTZ NOT NULL,
    fired_at TIMESTAMPTZ,
    body     JSONB NOT NULL,
    acked_at TIMESTAMPTZ,
    acked_by TEXT,
    ack_note TEXT
);
CREATE INDEX stint_alert_causes_phase ON stint_alert_causes (phase, fired_at);

CREATE TABLE stint_alert_silences (
    id         TEXT COLLATE "C" PRIMARY KEY,
    alert      TEXT NOT NULL,
    subject    TEXT NOT NULL,
    until      TIMESTAMPTZ NOT NULL,
    reason     TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    created_by TEXT NOT NULL
);

CREATE TABLE stint_deliveries (
    id         TEXT COLLATE "C" PRIMARY KEY,
    number     BIGINT NOT NULL, -- the order of messages
    webhook    TEXT COLLATE "C" NOT NULL,
    cause      TEXT COLLATE "C" NOT NULL, -- what messages are kept in order by
    state      TEXT NOT NULL, -- waiting, delivered or dead
    attempts   BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    first_at   TIMESTAMPTZ, -- of the first attempt
    next_at    TIMESTAMPTZ NOT NULL,
    done_at    TIMESTAMPTZ,
    status     BIGINT NOT NULL,
    problem    TEXT NOT NULL,
    body       JSONB NOT NULL
);
CREATE INDEX stint_deliveries_state ON stint_deliveries (state, webhook, cause, number);
CREATE INDEX stint_deliveries_number ON stint_deliveries (number);

-- What each node has decided by rule in each minute, for alerts. Events are a sample.
CREATE TABLE stint_rule_minutes (
    start    TIMESTAMPTZ NOT NULL,
    node     TEXT COLLATE "C" NOT NULL,
    rule     TEXT COLLATE "C" NOT NULL,
    requests BIGINT NOT NULL,
    denied   BIGINT NOT NULL,
    PRIMARY KEY (start, rule, node)
);

-- +goose Down
DROP TABLE stint_rule_minutes, stint_deliveries, stint_alert_silences, stint_alert_causes, stint_alert_turn, stint_webhooks, stint_alerts;
DELETE FROM stint_secrets WHERE name LIKE 'webhook/%';
