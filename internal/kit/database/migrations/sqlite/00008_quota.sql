-- +goose Up
-- The weights of regions, for rules whose parts follow demand.
CREATE TABLE stint_quota_weights (
    rule     TEXT NOT NULL,
    recovery INTEGER NOT NULL, -- seconds: of the limits of the rule, those that have recovered after this time
    number   INTEGER NOT NULL, -- goes up with each change
    settled  INTEGER NOT NULL, -- no: each region has the smaller of its two weights
    weights  TEXT NOT NULL, -- JSON: region, before, after, in parts per million
    began_at INTEGER NOT NULL, -- when the last change began
    seen_at  INTEGER, -- since when all regions can read it; null: it is not known yet
    PRIMARY KEY (rule, recovery)
);

-- How much nodes were asked for.
CREATE TABLE stint_quota_demand (
    rule     TEXT NOT NULL,
    recovery INTEGER NOT NULL,
    region   TEXT NOT NULL,
    node     TEXT NOT NULL,
    units    INTEGER NOT NULL, -- smoothed
    at       INTEGER NOT NULL,
    PRIMARY KEY (rule, recovery, region, node)
);

-- +goose Down
DROP TABLE stint_quota_demand;
DROP TABLE stint_quota_weights;
