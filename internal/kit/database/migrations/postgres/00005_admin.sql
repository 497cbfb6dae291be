-- +goose Up
-- Tokens of the admin API. Only hashes of secrets are stored.
CREATE TABLE stint_tokens (
    id           TEXT COLLATE "C" PRIMARY KEY,
    hash         TEXT NOT NULL, -- SHA-256 of its secret
    name         TEXT NOT NULL,
    role         TEXT NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL,
    created_by   TEXT NOT NULL,
    expires_at   TIMESTAMPTZ, -- null: never
    last_used_at TIMESTAMPTZ  -- about
);

-- A session has the name and the role of its token, which may be one that is in no table.
CREATE TABLE stint_sessions (
    hash       TEXT COLLATE "C" PRIMARY KEY, -- SHA-256 of its text
    token      TEXT COLLATE "C" NOT NULL,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX stint_sessions_token ON stint_sessions (token, created_at);
CREATE INDEX stint_sessions_expires ON stint_sessions (expires_at);

-- For all queries of the log of changes.
DROP INDEX stint_changes_subject;
CREATE INDEX stint_changes_subject ON stint_changes (kind, subject, revision, place);
CREATE INDEX stint_changes_kind ON stint_changes (kind, revision, place);
CREATE INDEX stint_changes_actor ON stint_changes (actor, kind, revision, place);

ALTER TABLE stint_nodes ADD COLUMN state TEXT; -- JSON that the node reports; may be null

-- +goose Down
ALTER TABLE stint_nodes DROP COLUMN state;
DROP INDEX stint_changes_actor, stint_changes_kind, stint_changes_subject;
CREATE INDEX stint_changes_subject ON stint_changes (kind, subject, revision);
DROP TABLE stint_sessions, stint_tokens;
