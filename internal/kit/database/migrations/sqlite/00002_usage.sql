-- +goose Up
-- Counts of users and keys are written in the background, apart from the records: they have no
-- versions and make no revision.

CREATE TABLE stint_user_usage (
    id         TEXT PRIMARY KEY REFERENCES stint_users (id) ON DELETE CASCADE,
    day        INTEGER NOT NULL, -- of UTC, since 1970
    today      INTEGER NOT NULL,
    month      INTEGER NOT NULL, -- of UTC, since January 1970
    this_month INTEGER NOT NULL,
    total      INTEGER NOT NULL,
    exceeded   INTEGER NOT NULL,
    last_seen  INTEGER NOT NULL
);

CREATE TABLE stint_key_usage (
    id        TEXT PRIMARY KEY REFERENCES stint_api_keys (id) ON DELETE CASCADE,
    total     INTEGER NOT NULL,
    last_used INTEGER NOT NULL
);

CREATE TABLE stint_violations (
    hour    INTEGER NOT NULL, -- since 1970
    rule    TEXT   NOT NULL,
    user_id TEXT   NOT NULL,
    denied  INTEGER NOT NULL,
    PRIMARY KEY (hour, rule, user_id)
);
CREATE INDEX stint_violations_user ON stint_violations (user_id, hour);

-- +goose Down
DROP TABLE stint_violations;
DROP TABLE stint_key_usage;
DROP TABLE stint_user_usage;
