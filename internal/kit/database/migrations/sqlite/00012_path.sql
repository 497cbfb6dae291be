-- +goose Up
-- The path of the request. Empty or null: it is not known. =: it is the same as the endpoint. The tables of months get this column
-- from the program.
ALTER TABLE stint_events ADD COLUMN path TEXT;

-- +goose Down
ALTER TABLE stint_events DROP COLUMN path;
