-- +goose Up
-- What nodes tell each other while someone looks at live traffic. Nothing here needs to survive a crash.
CREATE TABLE stint_asks (
    topic TEXT NOT NULL PRIMARY KEY,
    until INTEGER NOT NULL
);
CREATE TABLE stint_notes (
    node  TEXT NOT NULL PRIMARY KEY,
    until INTEGER NOT NULL,
    data  BLOB NOT NULL
);

-- +goose Down
DROP TABLE stint_notes;
DROP TABLE stint_asks;
