package catalog

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
)

// TicketKey returns the key of tickets, 32 random bytes that all nodes of the database share. The first call
// makes it, and of several at once all return the same. It is in no document, export or log entry.
func (c *Catalog) TicketKey(ctx context.Context) (key []byte, err error) {
	defer func() { err = c.wrap(withCause(ctx, err)) }()
	const name, size = "ticket_key", 32
	read := func() error {
		return c.db.QueryRowContext(ctx, "SELECT value FROM stint_secrets WHERE name = $1", name).Scan(&key)
	}
	if err = read(); !errors.Is(err, sql.ErrNoRows) {
		return key, err
	}
	made := make([]byte, size)
	_, _ = rand.Read(made) // it never fails
	_, err = c.db.ExecContext(ctx, "INSERT INTO stint_secrets (name, value, created_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
		name, made, c.dialect.Time(c.options.Now()))
	if err != nil {
		return nil, err
	}
	err = read()
	return key, err
}
