-- +goose Up
-- Tokens of the admin API. Only hashes of secrets are stored.
CREATE TABLE stint_tokens (
    id           TEXT PRIMARY KEY,
    hash         TEXT NOT NULL, -- SHA-256 of its secret
    name         TEXT NOT NULL,
    role         TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    created_by   TEXT NOT NULL,
    expires_at   INTEGER, -- null: never
    last_used_at INTEGER  -- about
);

-- A session has the name and the role of its token, which may be one that is in no table.
CREATE TABLE stint_sessions (
    hash       TEXT PRIMARY KEY, -- SHA-256 of its text
    token      TEXT NOT NULL,
    name       TEXT NOT NULL,
    role       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
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
DROP INDEX stint_changes_actor;
DROP INDEX stint_changes_kind;
DROP INDEX stint_changes_subject;
CREATE INDEX stint_changes_subject ON stint_changes (kind, subject, revision);
DROP TABLE stint_sessions;
DROP TABLE stint_tokens;
