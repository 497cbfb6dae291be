-- +goose Up
-- Counts of users and keys are written in the background, apart from the records: they have no
-- versions and make no revision.

CREATE TABLE stint_user_usage (
    id         TEXT COLLATE "C" PRIMARY KEY REFERENCES stint_users (id) ON DELETE CASCADE,
    day        BIGINT NOT NULL, -- of UTC, since 1970
    today      BIGINT NOT NULL,
    month      BIGINT NOT NULL, -- of UTC, since January 1970
    this_month BIGINT NOT NULL,
    total      BIGINT NOT NULL,
    exceeded   BIGINT NOT NULL,
    last_seen  TIMESTAMPTZ NOT NULL
);

CREATE TABLE stint_key_usage (
    id        TEXT COLLATE "C" PRIMARY KEY REFERENCES stint_api_keys (id) ON DELETE CASCADE,
    total     BIGINT NOT NULL,
    last_used TIMESTAMPTZ NOT NULL
);

CREATE TABLE stint_violations (
    hour    BIGINT NOT NULL, -- since 1970
    rule    TEXT COLLATE "C" NOT NULL,
    user_id TEXT COLLATE "C" NOT NULL,
    denied  BIGINT NOT NULL,
    PRIMARY KEY (hour, rule, user_id)
);
CREATE INDEX stint_violations_user ON stint_violations (user_id, hour);

-- +goose Down
DROP TABLE stint_violations, stint_key_usage, stint_user_usage;
