package catalog

import (
	"context"
	"sync"

	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// memory is what writers know of rules and tiers, which all that they write is checked
// against: to read and check ten thousand for each user that is written would take longer
// than anything else.
type memory struct {
	mu   sync.Mutex
	last read

	checking sync.Mutex
	compiler rule.Compiler
}

// read is the rules and tiers of a revision. They do not change.
type read struct {
	mark
	rule.File
}

// check returns what is wrong with rules and tiers, which must not be changed any more.
func (m *memory) check(f rule.File) strict.Problems {
	m.checking.Lock()
	defer m.checking.Unlock()
	return m.compiler.Check(f)
}

// keep keeps what was read for the next who writes.
func (m *memory) keep(r read) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = r
}

// file returns all rules and tiers, by their names, as they are at a revision, but for
// those that were touched since. They are shared, and only to be read.
func (c *Catalog) file(ctx context.Context, q querier, revision int64, touched []touch) (f rule.File, err error) {
	c.memory.mu.Lock()
	had := c.memory.last
	c.memory.mu.Unlock()
	changed, err := changedSince(ctx, q, had.mark, revision)
	if err != nil {
		return f, c.wrap(err)
	}
	if changed != nil {
		for _, t := range touched {
			if storable(t.id) { // or there is none
				changed[t.kind] = append(changed[t.kind], t.id)
			}
		}
		if len(changed[kindRule])+len(changed[kindTier]) > few {
			changed = nil
		}
	}
	if f.Rules, err = c.Rules.lenient(ctx, q, had.Rules, changed); err != nil {
		return f, err
	}
	f.Tiers, err = c.Tiers.lenient(ctx, q, had.Tiers, changed)
	return f, err
}

// changedSince returns the ids of rules and tiers that have changed from a revision to
// another, or nil if that cannot be told.
func changedSince(ctx context.Context, q querier, last mark, revision int64) (map[string][]string, error) {
	const most = 1000 // revisions: of more it is quicker to read all
	if last.Revision == 0 || revision < last.Revision || revision > last.Revision+most {
		return nil, nil
	}
	if gone, err := apart(ctx, q, last); err != nil || gone {
		return nil, err
	}
	rows, err := q.QueryContext(ctx, "SELECT revision, kind, subject FROM stint_changes WHERE revision > $1 AND revision <= $2 ORDER BY revision LIMIT $3", last.Revision, revision, mostChanges+1)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	changed, at := map[string][]string{}, last.Revision
	for count := 0; rows.Next(); count++ {
		var of int64
		var kind, id string
		if err := rows.Scan(&of, &kind, &id); err != nil {
			return nil, err
		}
		if of > at+1 || count == mostChanges {
			return nil, nil // of each revision something is logged, or the log does not tell
		}
		at = of
		if kind == kindRule || kind == kindTier {
			changed[kind] = append(changed[kind], id)
		}
	}
	if at != revision {
		return nil, rows.Err()
	}
	return changed, rows.Err()
}

// lenient returns all that there is, by id: what was had, with what has changed since in
// its place, or, if that is nil, what is read. What a newer program has written and this
// one does not know is no reason not to write anything else.
func (t *Table[T]) lenient(ctx context.Context, q querier, had []T, changed map[string][]string) ([]T, error) {
	if changed == nil {
		all, err := t.read(ctx, q, false, "ORDER BY id")
		if err != nil {
			return nil, err
		}
		out := make([]T, len(all))
		for i := range all {
			out[i] = all[i].Value
		}
		return out, nil
	}
	return t.replaced(ctx, q, had, changed[t.name], false)
}
