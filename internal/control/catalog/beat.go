package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"
)

// NodeInfo is a node as it has reported itself.
type NodeInfo struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Seen     time.Time `json:"seen"`
	Revision int64     `json:"revision"` // that it serves
	Problem  string    `json:"problem,omitempty"`
	// State is what NodeOptions.State returned. Nil: nothing.
	State json.RawMessage `json:"state,omitempty"`
}

// maxState is the size limit of State, in bytes.
const maxState = 64 << 10

// forgotten is how long a node without heartbeats is kept in the table.
const forgotten = 24 * time.Hour

// beats sends heartbeats at every poll, and when the node has moved on. It does not share a
// goroutine with looks, since a heartbeat may have to wait for other writers.
func (n *Node) beats(ctx context.Context) {
	tick := time.NewTicker(n.o.Poll)
	defer tick.Stop()
	for {
		n.beat(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-n.moved:
		}
	}
}

// beat writes a heartbeat with what the node serves, and counts the live nodes, by the
// clock of the database. While the database is down the count stays.
func (n *Node) beat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	s, d := n.Status(), n.c.dialect
	_, err := n.c.db.ExecContext(ctx, `INSERT INTO stint_nodes (id, name, version, started_at, seen_at, revision, problem, state)
		VALUES ($1, $2, $3, $4, `+d.Now()+`, $5, $6, $7)
		ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, revision = excluded.revision, problem = excluded.problem, state = excluded.state`,
		n.id, n.o.Name, n.o.Version, d.Time(n.started), s.Revision, s.Problem, nullJSON(n.state()))
	if err != nil {
		return // the next look reports the problem
	}
	var live int64
	err = n.c.db.QueryRowContext(ctx, "SELECT count(*) FROM stint_nodes WHERE seen_at > "+d.Ago(3*n.o.Poll+time.Second)).Scan(&live)
	if err == nil {
		n.replicas.Store(max(1, live))
		_, _ = n.c.db.ExecContext(ctx, "DELETE FROM stint_nodes WHERE seen_at < "+d.Ago(forgotten)) // or the next time
	}
}

// state returns NodeOptions.State, if it can be stored.
func (n *Node) state() json.RawMessage {
	if n.o.State == nil {
		return nil
	}
	s := n.o.State()
	if len(s) > maxState || !json.Valid(s) || !storable(string(s)) {
		return nil
	}
	return s
}

// leave deletes the node's row.
func (n *Node) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = n.c.db.ExecContext(ctx, "DELETE FROM stint_nodes WHERE id = $1", n.id) // if it fails, the row expires
}

// Nodes returns the nodes that have been seen within a time, by name.
func (c *Catalog) Nodes(ctx context.Context, within time.Duration) ([]NodeInfo, error) {
	rows, err := c.reading.QueryContext(ctx, `SELECT id, name, version, started_at, seen_at, revision, problem, state FROM stint_nodes
		WHERE seen_at > `+c.dialect.Ago(within)+` ORDER BY name, id`)
	if err != nil {
		return nil, c.wrap(err)
	}
	defer rows.Close()
	var out []NodeInfo
	for rows.Next() {
		var n NodeInfo
		var started, seen stamp
		var state sql.NullString
		if err := rows.Scan(&n.ID, &n.Name, &n.Version, &started, &seen, &n.Revision, &n.Problem, &state); err != nil {
			return nil, c.wrap(err)
		}
		if state.Valid {
			n.State = json.RawMessage(state.String)
		}
		n.Started, n.Seen = started.Time, seen.Time
		out = append(out, n)
	}
	return out, c.wrap(rows.Err())
}
