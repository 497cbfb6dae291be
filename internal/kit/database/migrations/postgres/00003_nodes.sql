-- +goose Up
CREATE TABLE stint_nodes (
    id         TEXT COLLATE "C" PRIMARY KEY,
    name       TEXT   NOT NULL,
    version    TEXT   NOT NULL, -- of the program
    started_at TIMESTAMPTZ NOT NULL,
    seen_at    TIMESTAMPTZ NOT NULL,
    revision   BIGINT NOT NULL, -- that it serves
    problem    TEXT   NOT NULL
);

-- +goose Down
DROP TABLE stint_nodes;
