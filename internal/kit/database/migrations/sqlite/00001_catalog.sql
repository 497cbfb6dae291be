-- +goose Up
-- Times are microseconds since 1970.
--
-- The body is a record as JSON, as in the API and in files. The generated columns are for
-- searches and references.

CREATE TABLE stint_catalog (
    one      INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    revision INTEGER NOT NULL,
    stamp    TEXT   NOT NULL -- of the write that made the revision: tells histories apart
);
INSERT INTO stint_catalog (revision, stamp) VALUES (0, '');

CREATE TABLE stint_rules (
    id         TEXT PRIMARY KEY,
    body       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE stint_tiers (
    id         TEXT PRIMARY KEY,
    body       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE stint_tenants (
    id         TEXT PRIMARY KEY,
    body       TEXT NOT NULL,
    tier       TEXT GENERATED ALWAYS AS (body ->> 'tier') STORED REFERENCES stint_tiers (id),
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT NOT NULL
);
CREATE INDEX stint_tenants_tier ON stint_tenants (tier);

CREATE TABLE stint_users (
    id          TEXT PRIMARY KEY,
    body        TEXT NOT NULL,
    tier        TEXT GENERATED ALWAYS AS (body ->> 'tier') STORED REFERENCES stint_tiers (id),
    tenant      TEXT GENERATED ALWAYS AS (body ->> 'tenant') STORED,
    blocked     TEXT GENERATED ALWAYS AS (body ->> 'blocked') STORED,
    upgraded_at INTEGER, -- when the tier last changed
    version     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    updated_by  TEXT NOT NULL
);
CREATE INDEX stint_users_tier ON stint_users (tier, id);
CREATE INDEX stint_users_tenant ON stint_users (tenant, id);
CREATE INDEX stint_users_blocked ON stint_users (id) WHERE blocked IS NOT NULL;

CREATE TABLE stint_api_keys (
    id         TEXT PRIMARY KEY,
    body       TEXT NOT NULL,
    user_id    TEXT GENERATED ALWAYS AS (body ->> 'user') STORED REFERENCES stint_users (id),
    tier       TEXT GENERATED ALWAYS AS (body ->> 'tier') STORED REFERENCES stint_tiers (id),
    tenant     TEXT GENERATED ALWAYS AS (body ->> 'tenant') STORED,
    hash       TEXT NOT NULL GENERATED ALWAYS AS (body ->> 'hash') STORED UNIQUE,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT NOT NULL
);
CREATE INDEX stint_api_keys_user ON stint_api_keys (user_id, id);
CREATE INDEX stint_api_keys_tier ON stint_api_keys (tier, id);
CREATE INDEX stint_api_keys_tenant ON stint_api_keys (tenant, id);

CREATE TABLE stint_exemptions (
    id         TEXT PRIMARY KEY,
    body       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE stint_bans (
    id         TEXT PRIMARY KEY,
    body       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE stint_changes (
    revision INTEGER NOT NULL,
    place    INTEGER NOT NULL, -- within the revision
    stamp    TEXT   NOT NULL,
    at       INTEGER NOT NULL,
    actor    TEXT   NOT NULL,
    kind     TEXT   NOT NULL,
    subject  TEXT   NOT NULL,
    before   TEXT, -- null: it was created
    after    TEXT, -- null: it was deleted
    PRIMARY KEY (revision, place)
);
CREATE INDEX stint_changes_subject ON stint_changes (kind, subject, revision);

-- +goose Down
DROP TABLE stint_changes;
DROP TABLE stint_bans;
DROP TABLE stint_exemptions;
DROP TABLE stint_api_keys;
DROP TABLE stint_users;
DROP TABLE stint_tenants;
DROP TABLE stint_tiers;
DROP TABLE stint_rules;
DROP TABLE stint_catalog;
