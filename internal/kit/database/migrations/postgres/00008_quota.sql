-- +goose Up
-- The weights of regions, for rules whose parts follow demand.
CREATE TABLE stint_quota_weights (
    rule     TEXT COLLATE "C" NOT NULL,
    recovery BIGINT NOT NULL, -- seconds: of the limits of the rule, those that have recovered after this time
    number   BIGINT NOT NULL, -- goes up with each change
    settled  BOOLEAN NOT NULL, -- no: each region has the smaller of its two weights
    weights  TEXT NOT NULL, -- JSON: region, before, after, in parts per million
    began_at TIMESTAMPTZ NOT NULL, -- when the last change began
    seen_at  TIMESTAMPTZ, -- since when all regions can read it; null: it is not known yet
    PRIMARY KEY (rule, recovery)
);

-- How much nodes were asked for.
CREATE TABLE stint_quota_demand (
    rule     TEXT COLLATE "C" NOT NULL,
    recovery BIGINT NOT NULL,
    region   TEXT COLLATE "C" NOT NULL,
    node     TEXT COLLATE "C" NOT NULL,
    units    BIGINT NOT NULL, -- smoothed
    at       TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (rule, recovery, region, node)
);

-- +goose Down
DROP TABLE stint_quota_demand;
DROP TABLE stint_quota_weights;
