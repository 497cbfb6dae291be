package catalog

import (
	"context"
	"sync/atomic"

	"github.com/stintdev/stint/rule"
)

// memory is the rules and tiers as the last writer read them, or nil. Users and keys are
// checked against them, and reading ten thousand rules for each would take longer than the
// write.
type memory = atomic.Pointer[rulesAt]

// rulesAt is the rules and tiers at a mark. They are shared and must not be changed.
type rulesAt struct {
	mark
	rule.File
}

// file returns all rules and tiers by name, at a revision or, if the transaction has
// written some, with those. They are shared and must not be changed. Fields that a newer
// version has written are ignored: they are no reason to reject other writes.
func (c *Catalog) file(ctx context.Context, q querier, revision int64, written bool) (f rule.File, err error) {
	known := c.memory.Load()
	if known == nil {
		known = new(rulesAt)
	}
	changed, err := changesSince(ctx, q, known.mark, revision)
	switch {
	case err != nil:
		return f, c.wrap(err)
	case changed.extent == otherHistory:
		known = new(rulesAt)
	case changed.extent == listed && !written && !changed.has(kindRule, kindTier):
		return known.File, nil
	}
	f.Case = c.options.Case
	if f.Rules, err = c.Rules.readSince(ctx, q, false, known.Rules, known.Revision); err != nil {
		return f, err
	}
	f.Tiers, err = c.Tiers.readSince(ctx, q, false, known.Tiers, known.Revision)
	return f, err
}
