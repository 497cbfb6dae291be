-- +goose Up
-- Secrets that all nodes share, and that the first of them makes.
CREATE TABLE stint_secrets (
    name       TEXT COLLATE "C" PRIMARY KEY,
    value      BYTEA NOT NULL,
    created_at TIMESTAMPTZ NOT NULL
);

-- +goose Down
DROP TABLE stint_secrets;
