-- +goose Up
-- Nothing reads it: the roll-ups have the same counts.
DROP TABLE stint_violations;

-- +goose Down
CREATE TABLE stint_violations (
    hour    INTEGER NOT NULL, -- since 1970
    rule    TEXT   NOT NULL,
    user_id TEXT   NOT NULL,
    denied  INTEGER NOT NULL,
    PRIMARY KEY (hour, rule, user_id)
);
CREATE INDEX stint_violations_user ON stint_violations (user_id, hour);
