-- +goose Up
-- How the client was identified, and why its credentials were not accepted. Null, as nodes of earlier versions write it: it is not known.
ALTER TABLE stint_events ADD COLUMN source TEXT COLLATE "C";
ALTER TABLE stint_events ADD COLUMN unaccepted TEXT COLLATE "C";

-- +goose Down
ALTER TABLE stint_events DROP COLUMN unaccepted;
ALTER TABLE stint_events DROP COLUMN source;
