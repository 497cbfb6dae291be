-- +goose Up
-- What nodes tell each other while someone looks at live traffic. Nothing here needs to survive a crash.
CREATE UNLOGGED TABLE stint_asks (
    topic TEXT COLLATE "C" PRIMARY KEY,
    until TIMESTAMPTZ NOT NULL
);
CREATE UNLOGGED TABLE stint_notes (
    node  TEXT COLLATE "C" PRIMARY KEY,
    until TIMESTAMPTZ NOT NULL,
    data  BYTEA NOT NULL
);

-- +goose Down
DROP TABLE stint_notes, stint_asks;
