package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Snapshot is what every node holds in full: the rules, tiers, exemptions and bans of one
// revision. It does not change.
type Snapshot struct {
	mark
	Rules *rule.Set
	Lists identity.Lists

	document Document // what it was made of: no tenants, users and keys
	accepted []string // the acceptances that were known
}

// at returns the snapshot for a later position, at which its content is the same, to save
// it: a node that starts with it looks for its mark in the log.
func (s *Snapshot) at(p *position) *Snapshot {
	later := *s
	later.mark, later.accepted = p.logged, p.accepted
	return &later
}

// position returns the position of a node that begins with the last good snapshot.
func (s *Snapshot) position() position {
	return position{mark: s.mark, logged: s.mark, accepted: s.accepted, snapshot: s}
}

// newSnapshot compiles what was read.
func newSnapshot(at mark, d Document) (*Snapshot, error) {
	s := &Snapshot{mark: at, document: d}
	var err error
	if s.Rules, err = rule.Compile(d.File); err != nil {
		return nil, named(&d.File, err)
	}
	if s.Lists, err = d.Lists(); err != nil {
		return nil, err
	}
	return s, nil
}

// named puts the names of rules and tiers in the paths of problems, in place of their indexes,
// which mean nothing to readers.
func named(file *rule.File, err error) error {
	problems := strict.Problems(nil)
	if !errors.As(err, &problems) {
		return err
	}
	for i := range problems {
		if kind, name, rest, ok := ruleOf(file, problems[i].Path); ok {
			problems[i].Path = kind + " " + strict.Quote(name) + rest
		}
	}
	return problems
}

// readShared reads the rules, tiers, exemptions and bans. Rows that have not changed since
// base, a snapshot of the same history, are taken from it; if base is nil, all are read.
func (c *Catalog) readShared(ctx context.Context, q querier, base *Snapshot) (d Document, err error) {
	if base == nil {
		base = &Snapshot{}
	}
	d.Case = c.options.Case
	known, since := &base.document, base.Revision
	if d.Rules, err = c.Rules.readSince(ctx, q, c.Rules.strict, known.Rules, since); err != nil {
		return d, err
	}
	if d.Tiers, err = c.Tiers.readSince(ctx, q, c.Tiers.strict, known.Tiers, since); err != nil {
		return d, err
	}
	if d.Exemptions, err = c.Exemptions.readSince(ctx, q, c.Exemptions.strict, known.Exemptions, since); err != nil {
		return d, err
	}
	d.Bans, err = c.Bans.readSince(ctx, q, c.Bans.strict, known.Bans, since)
	return d, err
}

// readSince returns all values by id. It decodes only the rows that were written after a
// revision, and takes the others from known, the values at that revision: of ten thousand
// rules, usually one has changed.
func (t *Table[T]) readSince(ctx context.Context, q querier, strict bool, known []T, revision int64) ([]T, error) {
	rows, err := q.QueryContext(ctx, "SELECT id, CASE WHEN version > $1 THEN body END FROM "+t.table+" ORDER BY id", revision)
	if err != nil {
		return nil, fmt.Errorf("%ss: %w", t.name, t.c.wrap(err))
	}
	defer rows.Close()
	byID := make(map[string]*T, len(known))
	for i := range known {
		byID[t.id(&known[i])] = &known[i]
	}
	out := make([]T, 0, len(known))
	for rows.Next() {
		var id string
		var body sql.NullString
		if err := rows.Scan(&id, &body); err != nil {
			return nil, t.c.wrap(err)
		}
		var v T
		switch before := byID[id]; {
		case body.Valid:
			if err := t.decode(body.String, strict, &v); err != nil {
				return nil, &unreadableError{t.name, id, err}
			}
		case before == nil: // another program wrote the row, with an old version
			if err := rows.Close(); err != nil {
				return nil, t.c.wrap(err)
			}
			return t.readSince(ctx, q, strict, nil, 0)
		default:
			v = *before
		}
		out = append(out, v)
	}
	return out, t.c.wrap(rows.Err())
}
