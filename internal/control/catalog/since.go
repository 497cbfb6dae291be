package catalog

import (
	"context"
	"database/sql"
	"errors"
)

// mark is a point in the history of a database: a revision, and the random stamp of the
// write that made it. A database that was restored from a backup, and then written to, has
// the same revisions again with other stamps.
type mark struct {
	Revision int64  `json:"revision"`
	Stamp    string `json:"stamp"`
}

// position is how far a node has followed the database.
type position struct {
	// mark is the last point that the node has followed: all changes up to it are in use.
	mark
	// logged is the last point up to mark that is in the log: mark, unless someone has raised
	// the revision with other tools.
	logged mark
	// accepted are the acceptances of histories that the node knows: see [Catalog.Apply].
	accepted []string
	// unread means that nothing was read there yet, so that all is.
	unread bool
	// snapshot is the last one in use, if it is of the same history as mark. Records that
	// have not changed are taken from it.
	snapshot *Snapshot
	// unconfirmed means that a replica was read, and nothing else is known: the database could not
	// be asked whether it has this position.
	unconfirmed bool
	// stale means that the rules and lists of mark could not be used, and older ones are in
	// use. The next revision is tried again.
	stale bool
}

// nowhere is the position of a node that knows nothing yet.
var nowhere = position{mark: mark{Revision: -1}, unread: true}

// extent is how much has changed.
type extent int

const (
	// listed: the ids in the log are all that has changed, if anything has.
	listed extent = iota
	// anything: there are more changes than are read one by one.
	anything
	// otherHistory: the log does not lead here, so nothing that is known can be relied on.
	otherHistory
	// refused: the database was emptied, set back or replaced. It may be a mistake, so nothing
	// is read.
	refused
)

// news is what has changed since a position.
type news struct {
	mark        // of the database now
	logged mark // the last one in the log
	changes
	// shared is the rules and lists of mark, if they may have changed. Nil: they have not, or
	// could not be read because of broken.
	shared *Document
	broken error
	// accepted are the acceptances in the log, newest first, if they were read: unless all
	// changes are listed, and none is one.
	accepted []string
	// refusal is why nothing was read. Nil: the extent is not refused.
	refusal *HistoryError
	// away is why the database could not be asked: the replica was, in its place.
	away error
	// waiting means that nothing was read yet: the replica is about to have it.
	waiting bool
}

// since returns what a database, or a replica, says has changed since a position, as of one moment: it asks for the
// current mark, and only if that is another one reads the log of changes and, if the log
// says so or does not reach back, the rules and lists.
//
// A database that does not have the position any more is refused, unless someone has
// accepted it since: see history.go.
func (c *Catalog) since(ctx context.Context, db *sql.DB, p position) (n news, err error) {
	// Usually nothing is new, and the answer comes at once or not at all.
	brief, cancel := context.WithTimeout(ctx, c.limit(askLimit))
	n.mark, err = current(brief, db)
	cancel()
	if p.Revision > 0 && c.noCatalog(err) {
		n.refuse(p, true)
		return n, nil
	}
	if err != nil || (n.mark == p.mark && !p.unread) {
		return n, c.wrap(err)
	}
	tx, err := db.BeginTx(ctx, c.dialect.ReadOnly())
	if err != nil {
		return n, c.wrap(err)
	}
	defer tx.Rollback() //nolint:errcheck // it was only read
	if n.mark, err = current(ctx, tx); err != nil {
		return n, c.wrap(err)
	}
	if n.changes, err = changesSince(ctx, tx, p.mark, n.Revision); err != nil {
		return n, c.wrap(err)
	}
	if n.extent == listed && n.mark != p.mark && n.stamps[n.Revision] != n.Stamp {
		n.extent = otherHistory
	}
	n.logged = n.mark
	if n.extent != listed || n.has(kindHistory) || p.unread {
		if n.accepted, err = acceptances(ctx, tx); err != nil {
			return n, c.wrap(err)
		}
		if n.logged, err = lastLogged(ctx, tx); err != nil {
			return n, c.wrap(err)
		}
		if continued, err := continues(ctx, tx, p, n.mark); err != nil {
			return n, c.wrap(err)
		} else if !continued && !n.accepts(p) {
			n.refuse(p, false)
			return n, nil
		}
	}
	if n.extent == listed && !p.stale && !p.unread && !n.has(kindRule, kindTier, kindExemption, kindBan) {
		return n, nil
	}
	base := p.snapshot
	if n.extent == otherHistory {
		base = nil
	}
	switch d, err := c.readShared(ctx, tx, base); {
	case errors.As(err, new(*unreadableError)):
		n.broken = err
	case err != nil:
		return n, c.wrap(err)
	default:
		n.shared = &d
	}
	return n, nil
}

// current returns the mark of the last write.
func current(ctx context.Context, q querier) (m mark, err error) {
	err = q.QueryRowContext(ctx, "SELECT revision, stamp FROM stint_catalog").Scan(&m.Revision, &m.Stamp)
	return m, err
}

// changes is what the log has after a mark.
type changes struct {
	extent extent
	// These are complete if the extent is listed.
	ids    map[string][]string // of what has changed, by kind
	stamps map[int64]string    // of the revisions
}

// has reports whether something of one of the kinds has changed.
func (c *changes) has(kinds ...string) bool {
	for _, kind := range kinds {
		if len(c.ids[kind]) > 0 {
			return true
		}
	}
	return false
}

// maxListed is how many changes are read one by one.
const maxListed = 10_000

// changesSince reads the log of changes after a mark, up to a revision. The history is
// another one if the log does not have the mark, or if a revision is missing from it: each
// write logs at least one change.
func changesSince(ctx context.Context, q querier, last mark, to int64) (c changes, err error) {
	if same, err := logHas(ctx, q, last); err != nil || !same {
		c.extent = otherHistory
		return c, err
	}
	c.ids, c.stamps = map[string][]string{}, map[int64]string{}
	rows, err := q.QueryContext(ctx, "SELECT revision, stamp, kind, subject FROM stint_changes WHERE revision > $1 AND revision <= $2 ORDER BY revision LIMIT $3",
		last.Revision, to, maxListed+1)
	if err != nil {
		return c, err
	}
	defer rows.Close()
	for count := 1; rows.Next(); count++ {
		var at mark
		var kind, id string
		if err := rows.Scan(&at.Revision, &at.Stamp, &kind, &id); err != nil {
			return c, err
		}
		if count > maxListed {
			c.extent = anything
			return c, nil
		}
		c.ids[kind] = append(c.ids[kind], id)
		c.stamps[at.Revision] = at.Stamp
	}
	if int64(len(c.stamps)) != to-last.Revision {
		c.extent = otherHistory
	}
	return c, rows.Err()
}

// logHas reports whether the mark is in the log of changes.
func logHas(ctx context.Context, q querier, m mark) (bool, error) {
	var stamp string
	err := q.QueryRowContext(ctx, "SELECT stamp FROM stint_changes WHERE revision = $1 LIMIT 1", m.Revision).Scan(&stamp)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return stamp == m.Stamp, err
}
