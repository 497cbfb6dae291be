package catalog

import (
	"context"
	"slices"
	"time"
)

// Board is where nodes leave notes for each other, in the database. What it has may be lost in a crash.
type Board struct{ c *Catalog }

// Board returns the board of the catalog's database.
func (c *Catalog) Board() *Board { return &Board{c} }

// Ask asks all nodes for notes about a topic, for some time from now on.
func (b *Board) Ask(ctx context.Context, topic string, during time.Duration) error {
	d := b.c.dialect
	_, err := b.c.db.ExecContext(ctx, "INSERT INTO stint_asks (topic, until) VALUES ($1, "+d.Ago(-during)+`)
		ON CONFLICT (topic) DO UPDATE SET until = excluded.until`, topic)
	if err == nil { // of nodes that are gone
		_, err = b.c.db.ExecContext(ctx, "DELETE FROM stint_notes WHERE until < "+d.Ago(time.Minute))
	}
	return b.c.wrap(err)
}

// Asked returns those of the topics that anyone asks for.
func (b *Board) Asked(ctx context.Context, topics ...string) (out []string, err error) {
	rows, err := b.c.db.QueryContext(ctx, "SELECT topic FROM stint_asks WHERE until > "+b.c.dialect.Now())
	if err != nil {
		return nil, b.c.wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		var topic string
		if err := rows.Scan(&topic); err != nil {
			return nil, b.c.wrap(err)
		}
		if slices.Contains(topics, topic) {
			out = append(out, topic)
		}
	}
	return out, b.c.wrap(rows.Err())
}

// Post leaves the note of a node, in place of the one before, for some time.
func (b *Board) Post(ctx context.Context, node string, note []byte, during time.Duration) error {
	_, err := b.c.db.ExecContext(ctx, "INSERT INTO stint_notes (node, until, data) VALUES ($1, "+b.c.dialect.Ago(-during)+`, $2)
		ON CONFLICT (node) DO UPDATE SET until = excluded.until, data = excluded.data`, node, note)
	return b.c.wrap(err)
}

// Notes returns the notes of all nodes.
func (b *Board) Notes(ctx context.Context, _ string) (map[string][]byte, error) {
	rows, err := b.c.db.QueryContext(ctx, "SELECT node, data FROM stint_notes WHERE until > "+b.c.dialect.Now())
	if err != nil {
		return nil, b.c.wrap(err)
	}
	defer rows.Close()
	out := map[string][]byte{}
	for rows.Next() {
		var node string
		var note []byte
		if err := rows.Scan(&node, &note); err != nil {
			return nil, b.c.wrap(err)
		}
		out[node] = note
	}
	return out, b.c.wrap(rows.Err())
}
