-- +goose Up
-- What each node has decided in each minute by rules that are rolled out. Events are a sample.
CREATE TABLE stint_rollout_minutes (
    start    TIMESTAMPTZ NOT NULL,
    node     TEXT COLLATE "C" NOT NULL,
    rule     TEXT COLLATE "C" NOT NULL,
    requests BIGINT NOT NULL,
    denied   BIGINT NOT NULL,
    PRIMARY KEY (start, rule, node)
);

-- +goose Down
DROP TABLE stint_rollout_minutes;
