-- +goose Up
-- A roll-up of a time is one row of encoded counts rather than a row for each number: most of
-- the time went into rows and their indexes.

-- The old roll-ups are counted again from their events. Those of months whose events were
-- dropped are lost.
INSERT INTO stint_rollup_todo (level, start, token)
SELECT DISTINCT 0, r.start, 0 FROM stint_rollups r WHERE r.level = 0
AND NOT EXISTS (SELECT 1 FROM stint_dropped_months d WHERE r.start >= d.start AND r.start < 1000000 * CAST(strftime('%s', d.start / 1000000, 'unixepoch', '+1 month') AS INTEGER))
ON CONFLICT DO NOTHING;
DROP TABLE stint_subject_rollups;
DROP TABLE stint_rollups;

-- In stint_rollup_todo, level 0 is a minute with events that are not counted yet. Counting it
-- adds the hour (1) and the day (2) that have to be rolled up again.

-- The number of decisions, by what they have in common.
CREATE TABLE stint_rollup_counts (
    level INTEGER NOT NULL, -- 0 minute, 1 hour, 2 day, 3 five minutes
    dim   INTEGER NOT NULL, -- 0 all, 1 rule, 2 tier, 3 endpoint, 4 region, 5 to 9 two of these; 16 to 47 a part of all
    start INTEGER NOT NULL,
    data  BLOB NOT NULL,
    PRIMARY KEY (level, start, dim)
);

-- How often clients were refused by rules, in pages sorted by a hash of the name.
CREATE TABLE stint_rollup_lists (
    level    INTEGER NOT NULL, -- 0 minute, 1 hour, 2 day, 4 the last 24 hours (part 1 only)
    kind     INTEGER NOT NULL, -- 0 user, 1 tenant, 2 key, 3 ip
    start    INTEGER NOT NULL,
    page     INTEGER NOT NULL,
    part     INTEGER NOT NULL, -- 0 a page of all clients, 1 the clients denied most, again, 2 like 0 in a list without a 1
    low      INTEGER NOT NULL, -- the first hash
    high     INTEGER NOT NULL, -- the last
    at_most  INTEGER NOT NULL, -- in part 1: the most denials of any client that is not in it
    data     BLOB NOT NULL,
    PRIMARY KEY (level, start, kind, page)
);

-- Roll-ups of a level before this time were deleted.
CREATE TABLE stint_rollup_since (
    level INTEGER PRIMARY KEY NOT NULL,
    start INTEGER NOT NULL
);

-- +goose Down
DROP TABLE stint_rollup_since;
DROP TABLE stint_rollup_lists;
DROP TABLE stint_rollup_counts;
DELETE FROM stint_rollup_todo WHERE level = 2;
-- Earlier editions of this migration kept the old tables under these names.
DROP TABLE IF EXISTS stint_old_subject_rollups;
DROP TABLE IF EXISTS stint_old_rollups;
CREATE TABLE stint_rollups (
    level    INTEGER NOT NULL,
    start    INTEGER NOT NULL,
    rule     TEXT NOT NULL,
    tier     TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    region   TEXT NOT NULL,
    outcome  INTEGER NOT NULL,
    shadow   INTEGER NOT NULL,
    total    INTEGER NOT NULL,
    events   INTEGER NOT NULL,
    cached   INTEGER NOT NULL,
    latency  BLOB NOT NULL,
    PRIMARY KEY (level, start, rule, tier, endpoint, region, outcome, shadow)
) WITHOUT ROWID;
CREATE TABLE stint_subject_rollups (
    level   INTEGER NOT NULL,
    kind    INTEGER NOT NULL,
    start   INTEGER NOT NULL,
    subject TEXT NOT NULL,
    rule    TEXT NOT NULL,
    denied  INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    PRIMARY KEY (level, kind, start, subject, rule)
) WITHOUT ROWID;
CREATE INDEX stint_subject_rollups_subject ON stint_subject_rollups (subject, kind, start);
