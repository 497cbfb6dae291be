package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/stintdev/stint/internal/kit/presence"
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

// gone is the revision of a node that has left. Its row stays for a while, so that the others need not
// wait for its heartbeat.
const gone = -1

// beat writes a heartbeat with what the node serves, and notes those of the other nodes.
func (n *Node) beat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.c.limit(askLimit))
	defer cancel()
	s, d := n.Status(), n.c.dialect
	_, err := n.c.db.ExecContext(ctx, `INSERT INTO stint_nodes (id, name, version, started_at, seen_at, revision, problem, state)
		VALUES ($1, $2, $3, $4, `+d.Now()+`, $5, $6, $7)
		ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, revision = excluded.revision, problem = excluded.problem, state = excluded.state`,
		n.id, n.o.Name, n.o.Version, d.Time(n.started), s.Revision, s.Problem, nullJSON(n.state()))
	var beats []presence.Beat
	var left []string
	if err == nil {
		beats, left, err = n.heartbeats(ctx)
	}
	switch {
	case err == nil:
		n.nodes.Seen(ctx, beats, left)
		_, _ = n.c.db.ExecContext(ctx, "DELETE FROM stint_nodes WHERE seen_at < "+d.Ago(forgotten)) // or the next time
		_, _ = n.c.db.ExecContext(ctx, "DELETE FROM stint_answers WHERE at < "+d.Ago(OnceTime))     // as above
	case errors.Is(ctx.Err(), context.Canceled): // the node stops
	default:
		n.nodes.Failed(ctx, err)
	}
}

// heartbeats returns the recent heartbeats of all nodes, by the clock of the database, and who has left.
func (n *Node) heartbeats(ctx context.Context) (beats []presence.Beat, left []string, err error) {
	rows, err := n.c.db.QueryContext(ctx, "SELECT id, seen_at, revision FROM stint_nodes WHERE revision = $1 OR seen_at > "+
		n.c.dialect.Ago(n.nodes.Lifetime()), gone)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var seen stamp
		var revision int64
		if err := rows.Scan(&id, &seen, &revision); err != nil {
			return nil, nil, err
		}
		if revision == gone {
			left = append(left, id)
		} else {
			beats = append(beats, presence.Beat{Node: id, At: seen.UnixMicro()})
		}
	}
	return beats, left, rows.Err()
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

// leave says that the node is gone. Its row is deleted an hour later.
func (n *Node) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = n.c.db.ExecContext(ctx, "UPDATE stint_nodes SET revision = $1, state = NULL, seen_at = "+
		n.c.dialect.Ago(forgotten-time.Hour)+" WHERE id = $2", gone, n.id) // if it fails, the others miss its heartbeat
}

// Nodes returns the nodes that have been seen within a time, by name.
func (c *Catalog) Nodes(ctx context.Context, within time.Duration) ([]NodeInfo, error) {
	rows, err := c.reading.QueryContext(ctx, `SELECT id, name, version, started_at, seen_at, revision, problem, state FROM stint_nodes
		WHERE revision <> $1 AND seen_at > `+c.dialect.Ago(within)+` ORDER BY name, id`, gone)
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
