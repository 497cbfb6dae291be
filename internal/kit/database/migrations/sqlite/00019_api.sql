-- +goose Up
-- Answers to requests with an Idempotency-Key, for a day. The id and what encrypts the answer are derived from that key.
CREATE TABLE stint_answers (
    id      TEXT NOT NULL PRIMARY KEY,
    owner   TEXT NOT NULL, -- the id of a token
    at      INTEGER NOT NULL,
    request TEXT NOT NULL, -- hash
    answer  BLOB NOT NULL -- encrypted
);
CREATE INDEX stint_answers_owner ON stint_answers (owner, at);
CREATE INDEX stint_answers_at ON stint_answers (at);

-- The user that a token is for. Its role is user, which older programs do not know, so that they refuse it.
ALTER TABLE stint_tokens ADD COLUMN user_id TEXT;
CREATE INDEX stint_tokens_user ON stint_tokens (user_id) WHERE user_id IS NOT NULL;

-- Lists that are sorted by other fields than their ids.
CREATE INDEX stint_users_created ON stint_users (created_at, id);
CREATE INDEX stint_users_updated ON stint_users (updated_at, id);
CREATE INDEX stint_api_keys_created ON stint_api_keys (created_at, id);
CREATE INDEX stint_api_keys_updated ON stint_api_keys (updated_at, id);
CREATE INDEX stint_api_keys_name ON stint_api_keys (lower(COALESCE(body ->> 'name', '')), id);

-- +goose Down
DROP INDEX stint_api_keys_name;
DROP INDEX stint_api_keys_updated;
DROP INDEX stint_api_keys_created;
DROP INDEX stint_users_updated;
DROP INDEX stint_users_created;
DROP INDEX stint_tokens_user;
DELETE FROM stint_sessions WHERE token IN (SELECT id FROM stint_tokens WHERE user_id IS NOT NULL);
DELETE FROM stint_tokens WHERE user_id IS NOT NULL;
ALTER TABLE stint_tokens DROP COLUMN user_id;
DROP TABLE stint_answers;
