package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A database continues the history of a node if its log of changes has the node's mark: the
// revision, with the random stamp of the write that made it. An emptied database has a lower
// revision. One that was restored from a backup has one, too, until others have written to it:
// then it has the revision again, with another stamp.
//
// Anything else is refused, since it may be a mistake, and an empty database is no limits at
// all. What the node knows stays in use, until the database is as before, or someone accepts
// it: for one node with [Node.Look], and for all with [ApplyOptions].AcceptHistory. That is a
// write like any other, of the kind history, and its stamp is new to all nodes that have not
// followed it. A node remembers the acceptances that it has followed, so one that is in a
// backup is not mistaken for one of the backup.

// kindHistory is the kind of acceptances in the log of changes, and accepted their id.
const (
	kindHistory = "history"
	accepted    = "accepted"
)

// maxAccepted is how many acceptances are remembered.
const maxAccepted = 1000

// refusedHistory begins the text of a HistoryError, by which it is found in the reports of nodes.
const refusedHistory = "the history of the database is refused: "

// acceptAdvice says how to accept a history.
const acceptAdvice = "stint apply --accept-history accepts it as it is, and a reload (SIGHUP) does so for one node"

// HistoryError means that the database does not continue the history that a node has in use.
type HistoryError struct {
	Revision int64 // of the database; 0: it is empty
	Served   int64 // the revision in use, which the database lacks
	tables   bool  // there are none
}

// Error implements error.
func (e *HistoryError) Error() string {
	found := fmt.Sprintf("it is at revision %d, which is not a later one of revision %d: it was set back or replaced, and written to since", e.Revision, e.Served)
	switch {
	case e.tables:
		found = fmt.Sprintf("it has no tables of Stint, and was at revision %d: it was emptied or replaced", e.Served)
	case e.Revision < e.Served:
		found = fmt.Sprintf("it is at revision %d, and was at %d: it was set back, emptied or replaced", e.Revision, e.Served)
	}
	return refusedHistory + found + ". Restore what is missing; or, if this is right, " + acceptAdvice
}

// refuse makes the news those of a database that is refused.
func (n *news) refuse(p position, noTables bool) {
	n.extent = refused
	n.refusal = &HistoryError{Revision: n.Revision, Served: p.Revision, tables: noTables}
}

// continues reports whether a database that is at a mark continues the history of a position.
func continues(ctx context.Context, q querier, p position, at mark) (bool, error) {
	switch {
	case at.Revision < p.Revision:
		return false, nil
	case p.logged.Revision <= 0: // nothing was written yet
		return true, nil
	}
	return logHas(ctx, q, p.logged)
}

// lastLogged returns the last mark in the log, or none.
func lastLogged(ctx context.Context, q querier) (m mark, err error) {
	err = q.QueryRowContext(ctx, "SELECT revision, stamp FROM stint_changes ORDER BY revision DESC LIMIT 1").Scan(&m.Revision, &m.Stamp)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return m, err
}

// accepts reports whether the log has an acceptance that is new at a position.
func (n *news) accepts(p position) bool {
	return len(n.accepted) > 0 && !slices.Contains(p.accepted, n.accepted[0])
}

// remember returns the acceptances that are known at the end of the news.
func (n *news) remember(known []string) []string {
	for _, one := range slices.Backward(n.accepted) {
		if !slices.Contains(known, one) {
			known = append(slices.Clip(known), one)
		}
	}
	return known[max(0, len(known)-maxAccepted):]
}

// acceptances returns the stamps of the acceptances in the log, newest first.
func acceptances(ctx context.Context, q querier) (out []string, err error) {
	rows, err := q.QueryContext(ctx, "SELECT stamp FROM stint_changes WHERE kind = $1 ORDER BY revision DESC LIMIT $2", kindHistory, maxAccepted)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, rows.Err()
}

// noCatalog reports whether an error means that the catalog has no tables, or no row.
func (c *Catalog) noCatalog(err error) bool {
	return errors.Is(err, sql.ErrNoRows) || c.dialect.NoTable(err)
}

// accept notes that the history is right, however it came about.
func (t *tx) accept() {
	body, _ := json.Marshal(map[string]int64{"revision": t.revision - 1}) // always possible
	t.note(Change{Kind: kindHistory, ID: accepted, After: body}, "")
}

// permitted returns an error if the node of this process refuses the history: what is
// written would not be in use. Tokens are needed to accept it.
func (t *tx) permitted() error {
	refusal := t.c.refusal.Load()
	if refusal == nil || !slices.ContainsFunc(t.changes, func(ch Change) bool { return ch.Kind != kindToken }) ||
		slices.ContainsFunc(t.changes, func(ch Change) bool { return ch.Kind == kindHistory }) {
		return nil
	}
	return refusal
}

// RefusesHistory reports whether the node refuses the history of the database.
func (n *NodeInfo) RefusesHistory() bool { return strings.HasPrefix(n.Problem, refusedHistory) }

// checkNodes returns an error if a live node refuses the history.
func (c *Catalog) checkNodes(ctx context.Context) error {
	const recent = time.Minute
	nodes, err := c.Nodes(ctx, recent)
	if c.noCatalog(err) {
		return nil // the write says so
	}
	if err != nil {
		return err
	}
	for i := range nodes {
		if n := &nodes[i]; n.RefusesHistory() {
			return &RefusingNodeError{Node: n.Name, Problem: n.Problem}
		}
	}
	return nil
}

// RefusingNodeError means that a node refuses the history of the database, so what is
// applied would not be in use there.
type RefusingNodeError struct{ Node, Problem string }

// Error implements error.
func (e *RefusingNodeError) Error() string { return "the node " + e.Node + " reports: " + e.Problem }

// CheckHistory returns a [HistoryError] if a node with the last good rules in a directory
// would refuse the database. Without any, nothing is refused.
func (c *Catalog) CheckHistory(ctx context.Context, dir string) error {
	good, _, err := newLastGood(dir, c.dialect.Place()).load(c.options.Case)
	if err != nil {
		return nil //nolint:nilerr // there is nothing to compare with
	}
	n, err := c.since(ctx, c.reading, good.position())
	if err == nil && n.refusal != nil {
		err = n.refusal
	}
	return err
}
