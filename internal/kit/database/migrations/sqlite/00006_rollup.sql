-- +goose Up
-- Roll-ups are kept by the time that they are about, and not one row for each number: most
-- of the time went into rows and their indexes.

-- What was rolled up is counted anew from its events. Of months whose events are gone, it
-- stays in the old tables until the program has moved it.
ALTER TABLE stint_rollups RENAME TO stint_old_rollups;
ALTER TABLE stint_subject_rollups RENAME TO stint_old_subject_rollups;

INSERT INTO stint_rollup_todo (level, start, token)
SELECT DISTINCT 0, r.start, 0 FROM stint_old_rollups r WHERE r.level = 0
AND NOT EXISTS (SELECT 1 FROM stint_dropped_months d WHERE r.start >= d.start AND r.start < 1000000 * CAST(strftime('%s', d.start / 1000000, 'unixepoch', '+1 month') AS INTEGER))
ON CONFLICT DO NOTHING;

DELETE FROM stint_old_rollups AS r WHERE r.level = 0
OR NOT EXISTS (SELECT 1 FROM stint_dropped_months d WHERE r.start >= d.start AND r.start < 1000000 * CAST(strftime('%s', d.start / 1000000, 'unixepoch', '+1 month') AS INTEGER));
DELETE FROM stint_old_subject_rollups AS r WHERE r.level = 0
OR NOT EXISTS (SELECT 1 FROM stint_dropped_months d WHERE r.start >= d.start AND r.start < 1000000 * CAST(strftime('%s', d.start / 1000000, 'unixepoch', '+1 month') AS INTEGER));

-- Of stint_rollup_todo, level 0 is what has events that are not counted. Who counts them
-- notes the hour (1) and the day (2) that are to be made of it.

-- How many decisions there were of which kind.
CREATE TABLE stint_rollup_counts (
    level INTEGER NOT NULL, -- 0 minute, 1 hour, 2 day, 3 five minutes
    dim   INTEGER NOT NULL, -- 0 all, 1 rule, 2 tier, 3 endpoint, 4 region, 5 to 9 two of these: apart from them it is a sum; 16 to 47 a part of all
    start INTEGER NOT NULL,
    data  BLOB NOT NULL,
    PRIMARY KEY (level, start, dim)
);

-- Who was refused how often by which rule, sorted by a hash of the name, in pages.
CREATE TABLE stint_rollup_lists (
    level    INTEGER NOT NULL, -- 0 minute, 1 hour, 2 day, 4 the last 24 hours (part 1 only)
    kind     INTEGER NOT NULL, -- 0 user, 1 tenant, 2 key, 3 ip
    start    INTEGER NOT NULL,
    page     INTEGER NOT NULL,
    part     INTEGER NOT NULL, -- 0 some of all, 1 those who were denied most, once more, 2 some of all where there is no 1
    low      INTEGER NOT NULL, -- the first hash
    high     INTEGER NOT NULL, -- the last
    at_most  INTEGER NOT NULL, -- in part 1: who is not in it was not denied more often
    data     BLOB NOT NULL,
    PRIMARY KEY (level, start, kind, page)
);

-- Before this, roll-ups of a level were deleted.
CREATE TABLE stint_rollup_since (
    level INTEGER PRIMARY KEY NOT NULL,
    start INTEGER NOT NULL
);

-- +goose Down
DROP TABLE stint_rollup_since;
DROP TABLE stint_rollup_lists;
DROP TABLE stint_rollup_counts;
DELETE FROM stint_rollup_todo WHERE level = 2;
ALTER TABLE stint_old_subject_rollups RENAME TO stint_subject_rollups;
ALTER TABLE stint_old_rollups RENAME TO stint_rollups;
