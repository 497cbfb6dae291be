-- +goose Up
-- A search finds ids and names by what begins a word in them, whatever the case of A to Z. What begins an id is in the first
-- indexes, and what begins later, or in a name, is in stint_words. The program writes it with the records: see search.go.
CREATE INDEX stint_users_search ON stint_users (lower(id), id);
CREATE INDEX stint_api_keys_search ON stint_api_keys (lower(id), id);
CREATE INDEX stint_tenants_search ON stint_tenants (lower(id), id);

CREATE TABLE stint_words (
    kind TEXT COLLATE "C" NOT NULL,
    word TEXT COLLATE "C" NOT NULL, -- and what follows it, 64 characters in all
    id   TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, word, id)
);
INSERT INTO stint_words (kind, word, id)
WITH texts (kind, id, text, first) AS (
    SELECT 'user', id, id, 2 FROM stint_users
    UNION ALL SELECT 'tenant', id, id, 2 FROM stint_tenants
    UNION ALL SELECT 'tenant', id, body ->> 'name', 1 FROM stint_tenants WHERE body ->> 'name' <> ''
    UNION ALL SELECT 'api_key', id, body ->> 'name', 1 FROM stint_api_keys WHERE body ->> 'name' <> ''
), words (kind, id, word, number) AS (
    SELECT kind, id, lower(substr(text, n, 64) COLLATE "C"), row_number() OVER (PARTITION BY kind, id, first ORDER BY n)
    FROM texts, LATERAL generate_series(first, char_length(text)) AS n
    WHERE (substr(text, n, 1) ~ '[0-9A-Za-z]' OR ascii(substr(text, n, 1)) > 127)
    AND (n = 1 OR NOT (substr(text, n - 1, 1) ~ '[0-9A-Za-z]' OR ascii(substr(text, n - 1, 1)) > 127))
)
SELECT DISTINCT kind, word, id FROM words WHERE number <= 8;

-- Clients that sent requests, whether the catalog has them or not.
CREATE TABLE stint_seen (
    kind SMALLINT NOT NULL, -- 0 user, 1 tenant, 2 key, 3 ip
    name TEXT COLLATE "C" NOT NULL,
    at   TIMESTAMPTZ NOT NULL, -- the last time, to a day
    PRIMARY KEY (kind, name)
);
CREATE INDEX stint_seen_search ON stint_seen (kind, lower(name), name);
CREATE INDEX stint_seen_at ON stint_seen (at);

-- All changes of a revision have the same time and actor.
CREATE INDEX stint_changes_revision ON stint_changes (revision) WHERE place = 0;
CREATE INDEX stint_changes_author ON stint_changes (actor, revision) WHERE place = 0;
CREATE INDEX stint_changes_at ON stint_changes (at, revision) WHERE place = 0;

-- +goose Down
DROP INDEX stint_changes_at, stint_changes_author, stint_changes_revision;
DROP TABLE stint_seen;
DROP TABLE stint_words;
DROP INDEX stint_tenants_search, stint_api_keys_search, stint_users_search;
