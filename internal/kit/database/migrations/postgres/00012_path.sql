-- +goose Up
-- The path of the request. Empty or null, as nodes of earlier versions write it: it is not known. =: it is the same as the endpoint.
ALTER TABLE stint_events ADD COLUMN path TEXT COLLATE "C";

-- +goose Down
ALTER TABLE stint_events DROP COLUMN path;
