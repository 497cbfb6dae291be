-- +goose Up
-- Nothing reads it: the roll-ups have the same counts.
DROP TABLE stint_violations;

-- +goose Down
CREATE TABLE stint_violations (
    hour    BIGINT NOT NULL, -- since 1970
    rule    TEXT COLLATE "C" NOT NULL,
    user_id TEXT COLLATE "C" NOT NULL,
    denied  BIGINT NOT NULL,
    PRIMARY KEY (hour, rule, user_id)
);
CREATE INDEX stint_violations_user ON stint_violations (user_id, hour);
