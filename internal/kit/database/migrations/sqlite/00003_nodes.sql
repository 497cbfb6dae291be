-- +goose Up
CREATE TABLE stint_nodes (
    id         TEXT PRIMARY KEY,
    name       TEXT   NOT NULL,
    version    TEXT   NOT NULL, -- of the program
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    revision   INTEGER NOT NULL, -- that it serves
    problem    TEXT   NOT NULL
);

-- +goose Down
DROP TABLE stint_nodes;
