-- +goose Up
-- What each node has decided in each minute by rules that are rolled out. Events are a sample.
CREATE TABLE stint_rollout_minutes (
    start    INTEGER NOT NULL,
    node     TEXT NOT NULL,
    rule     TEXT NOT NULL,
    requests INTEGER NOT NULL,
    denied   INTEGER NOT NULL,
    PRIMARY KEY (start, rule, node)
);

-- +goose Down
DROP TABLE stint_rollout_minutes;
