-- +goose Up
-- The body is a record as JSON, as in the API and in files. The generated columns are for
-- searches and references.

CREATE TABLE stint_catalog (
    one      BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
    revision BIGINT NOT NULL,
    stamp    TEXT   NOT NULL -- of the write that made the revision: tells histories apart
);
INSERT INTO stint_catalog (revision, stamp) VALUES (0, '');

CREATE TABLE stint_rules (
    id         TEXT COLLATE "C" PRIMARY KEY,
    body       JSONB NOT NULL,
    version    BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE stint_tiers (
    id         TEXT COLLATE "C" PRIMARY KEY,
    body       JSONB NOT NULL,
    version    BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE stint_tenants (
    id         TEXT COLLATE "C" PRIMARY KEY,
    body       JSONB NOT NULL,
    tier       TEXT GENERATED ALWAYS AS (body ->> 'tier') STORED REFERENCES stint_tiers (id),
    version    BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    updated_by TEXT NOT NULL
);
CREATE INDEX stint_tenants_tier ON stint_tenants (tier);

CREATE TABLE stint_users (
    id          TEXT COLLATE "C" PRIMARY KEY,
    body        JSONB NOT NULL,
    tier        TEXT GENERATED ALWAYS AS (body ->> 'tier') STORED REFERENCES stint_tiers (id),
    tenant      TEXT GENERATED ALWAYS AS (body ->> 'tenant') STORED,
    blocked     TEXT GENERATED ALWAYS AS (body ->> 'blocked') STORED,
    upgraded_at TIMESTAMPTZ, -- when the tier last changed
    version     BIGINT NOT NULL,
    created_at  TIMESTAMPTZ NOT NULL,
    updated_at  TIMESTAMPTZ NOT NULL,
    updated_by  TEXT NOT NULL
);
CREATE INDEX stint_users_tier ON stint_users (tier, id);
CREATE INDEX stint_users_tenant ON stint_users (tenant, id);
CREATE INDEX stint_users_blocked ON stint_users (id) WHERE blocked IS NOT NULL;

CREATE TABLE stint_api_keys (
    id         TEXT COLLATE "C" PRIMARY KEY,
    body       JSONB NOT NULL,
    user_id    TEXT GENERATED ALWAYS AS (body ->> 'user') STORED REFERENCES stint_users (id),
    tier       TEXT GENERATED ALWAYS AS (body ->> 'tier') STORED REFERENCES stint_tiers (id),
    tenant     TEXT GENERATED ALWAYS AS (body ->> 'tenant') STORED,
    hash       TEXT NOT NULL GENERATED ALWAYS AS (body ->> 'hash') STORED UNIQUE,
    version    BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    updated_by TEXT NOT NULL
);
CREATE INDEX stint_api_keys_user ON stint_api_keys (user_id, id);
CREATE INDEX stint_api_keys_tier ON stint_api_keys (tier, id);
CREATE INDEX stint_api_keys_tenant ON stint_api_keys (tenant, id);

CREATE TABLE stint_exemptions (
    id         TEXT COLLATE "C" PRIMARY KEY,
    body       JSONB NOT NULL,
    version    BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE stint_bans (
    id         TEXT COLLATE "C" PRIMARY KEY,
    body       JSONB NOT NULL,
    version    BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    updated_by TEXT NOT NULL
);

CREATE TABLE stint_changes (
    revision BIGINT NOT NULL,
    place    BIGINT NOT NULL, -- within the revision
    stamp    TEXT   NOT NULL,
    at       TIMESTAMPTZ NOT NULL,
    actor    TEXT   NOT NULL,
    kind     TEXT   NOT NULL,
    subject  TEXT COLLATE "C" NOT NULL,
    before   JSONB, -- null: it was created
    after    JSONB, -- null: it was deleted
    PRIMARY KEY (revision, place)
);
CREATE INDEX stint_changes_subject ON stint_changes (kind, subject, revision);

-- +goose Down
DROP TABLE stint_changes, stint_bans, stint_exemptions, stint_api_keys, stint_users, stint_tenants, stint_tiers, stint_rules, stint_catalog;
