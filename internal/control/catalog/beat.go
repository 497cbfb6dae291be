package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"
)

// NodeInfo is a node as the others see it.
type NodeInfo struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Seen     time.Time `json:"seen"`
	Revision int64     `json:"revision"` // that it serves
	Problem  string    `json:"problem,omitempty"`
	// State is what the node says of itself. Nil: nothing.
	State json.RawMessage `json:"state,omitempty"`
}

// maxState is how much a node may say of itself, in bytes.
const maxState = 64 << 10

// forgotten is how long a node that is gone is listed.
const forgotten = 24 * time.Hour

// beats beats every so often, and when something has changed. A beat is a write, and may
// have to wait for others, for which no look is to wait.
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

// beat says that the node is there and what it serves, and counts those that are. How
// long ago that was is by the clock of the database. While that is away, there are as
// many nodes as there were.
func (n *Node) beat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	s, d := n.Status(), n.c.dialect
	_, err := n.c.db.ExecContext(ctx, `INSERT INTO stint_nodes (id, name, version, started_at, seen_at, revision, problem, state)
		VALUES ($1, $2, $3, $4, `+d.Now()+`, $5, $6, $7)
		ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, revision = excluded.revision, problem = excluded.problem, state = excluded.state`,
		n.id, n.o.Name, n.o.Version, d.Time(n.started), s.Revision, s.Problem, nullJSON(n.state()))
	if err != nil {
		return // whoever looks will say so
	}
	var live int64
	err = n.c.db.QueryRowContext(ctx, "SELECT count(*) FROM stint_nodes WHERE seen_at > "+d.Ago(3*n.o.Poll+time.Second)).Scan(&live)
	if err == nil {
		n.replicas.Store(max(1, live))
		_, _ = n.c.db.ExecContext(ctx, "DELETE FROM stint_nodes WHERE seen_at < "+d.Ago(forgotten)) // or the next time
	}
}

// state returns what the node says of itself, if that can be shown.
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

// leave says that the node is not there any more.
func (n *Node) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = n.c.db.ExecContext(ctx, "DELETE FROM stint_nodes WHERE id = $1", n.id) // or it is forgotten
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
