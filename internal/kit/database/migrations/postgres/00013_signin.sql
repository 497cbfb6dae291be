-- +goose Up
-- The tenants that a token is for, as a JSON list. Null: all.
ALTER TABLE stint_tokens ADD COLUMN tenants TEXT;
ALTER TABLE stint_sessions ADD COLUMN tenants TEXT;
-- Of a person who has signed in with an identity provider: until when the provider vouches for the person, what is
-- needed to ask it again, encrypted by a key that only the browser has, and until when a node is about to ask.
ALTER TABLE stint_sessions ADD COLUMN valid_until TIMESTAMPTZ;
ALTER TABLE stint_sessions ADD COLUMN sealed BYTEA;
ALTER TABLE stint_sessions ADD COLUMN renewing_until TIMESTAMPTZ;

-- +goose Down
-- Without the column, they would be for all tenants.
DELETE FROM stint_sessions WHERE tenants IS NOT NULL OR valid_until IS NOT NULL;
DELETE FROM stint_tokens WHERE tenants IS NOT NULL;
ALTER TABLE stint_sessions DROP COLUMN renewing_until;
ALTER TABLE stint_sessions DROP COLUMN sealed;
ALTER TABLE stint_sessions DROP COLUMN valid_until;
ALTER TABLE stint_sessions DROP COLUMN tenants;
ALTER TABLE stint_tokens DROP COLUMN tenants;
