-- +goose Up
-- Secrets that all nodes share, and that the first of them makes.
CREATE TABLE stint_secrets (
    name       TEXT PRIMARY KEY,
    value      BLOB NOT NULL,
    created_at INTEGER NOT NULL
);

-- +goose Down
DROP TABLE stint_secrets;
