-- +goose Up
-- How the client was identified, and why its credentials were not accepted. Null: it is not known. The tables of months get these columns
-- from the program.
ALTER TABLE stint_events ADD COLUMN source TEXT;
ALTER TABLE stint_events ADD COLUMN unaccepted TEXT;

-- +goose Down
ALTER TABLE stint_events DROP COLUMN unaccepted;
ALTER TABLE stint_events DROP COLUMN source;
