package catalog

import (
	"cmp"
	"context"
	"slices"

	"github.com/stintdev/stint/internal/kit/strict"
)

// CheckRule returns the problems that a rule would have if it was stored: in place of the rule
// with the name replacing or, if that is empty, as a new one. Paths are relative to the rule.
// It writes nothing.
func (c *Catalog) CheckRule(ctx context.Context, r Rule, replacing string) (problems strict.Problems, err error) {
	defer func() { err = withCause(ctx, err) }()
	tx, err := c.reading.BeginTx(ctx, c.dialect.ReadOnly())
	if err != nil {
		return nil, c.wrap(err)
	}
	defer tx.Rollback() //nolint:errcheck // it was only read
	at, err := current(ctx, tx)
	if err != nil {
		return nil, c.wrap(err)
	}
	file, err := c.file(ctx, tx, at.Revision, false)
	if err != nil {
		return nil, c.wrap(err)
	}
	c.memory.Store(&rulesAt{at, file})
	file.Rules = slices.Clone(file.Rules)
	var k checker
	if err := k.checkRule("", &r); err != nil || len(k.Problems) > 0 {
		return k.Problems, err
	}
	name, taken := cmp.Or(replacing, r.Name), false
	i := slices.IndexFunc(file.Rules, func(other Rule) bool { return other.Name == name })
	switch {
	case replacing != "" && i < 0:
		return nil, &NotFoundError{kindRule, replacing}
	case replacing != "" && r.Name != replacing:
		k.Refuse("name", r.Name, strict.Quote(replacing)+": a rule cannot be renamed; create another one and delete this one", "")
		r.Name = replacing
	case replacing == "" && i >= 0:
		k.Add("name", "there is a rule "+strict.Quote(name)+" already", "")
		taken = true
	}
	if i < 0 {
		file.Rules = append(file.Rules, r)
	} else {
		file.Rules[i] = r
	}
	touched := []touch{{kindRule, r.Name, ""}}
	found := c.checkFile(&file, touched)
	if taken { // problems of other rules come from the rule that it has replaced here
		found = slices.DeleteFunc(found, func(p strict.Problem) bool {
			kind, name, _, ok := ruleOf(&file, p.Path)
			return !ok || kind != kindRule || name != r.Name
		})
	}
	return append(k.Problems, relate(&file, touched, found)...), nil
}

// OrderRules gives the named rules the priorities 10, 20, ... in this order, in one write, and
// returns the revision. Other rules keep theirs.
func (c *Catalog) OrderRules(ctx context.Context, actor string, names []string) (revision int64, err error) {
	return c.write(ctx, actor, func(x *tx) error {
		if len(names) == 0 {
			return strict.Problems{{Path: "names", Message: "missing, want the names of rules, in their order"}}
		}
		first := map[string]bool{}
		for i, name := range names {
			path := strict.Item("names", i)
			if first[name] {
				x.problems = append(x.problems, strict.Problem{Path: path, Message: strict.Quote(name) + " is given twice"})
			}
			first[name] = true
			found, err := x.find(ctx, c.Rules.table, name)
			if err != nil {
				return err
			}
			if found == nil {
				x.problems = append(x.problems, strict.Problem{Path: path, Message: "there is no rule " + strict.Quote(name)})
			}
			if len(x.problems) >= strict.MaxProblems {
				break
			}
			if len(x.problems) > 0 {
				continue // to report all problems
			}
			var r Rule
			if err := c.Rules.decode(found.body, true, &r); err != nil {
				return &unreadableError{kindRule, name, err}
			}
			const step = 10
			r.Priority = step * (i + 1)
			if err := x.put(ctx, &c.Rules.kind, name, found, &r, kindRule+" "+strict.Quote(name)); err != nil {
				return err
			}
		}
		return x.problems.Err()
	})
}

// PromoteRule puts what is tried out in the place of a rule, with the counters that it has: the candidates of its limits or, if it has
// none, the rule that replaces it, and then the rule is deleted. It returns the revision.
func (c *Catalog) PromoteRule(ctx context.Context, actor, name string) (revision int64, err error) {
	return c.write(ctx, actor, func(x *tx) error {
		found, err := x.find(ctx, c.Rules.table, name)
		if err != nil {
			return err
		}
		if found == nil {
			return &NotFoundError{kindRule, name}
		}
		put := func(found *row, r *Rule, change func() error) error {
			if err := c.Rules.decode(found.body, true, r); err != nil {
				return &unreadableError{kindRule, r.Name, err}
			}
			if err := change(); err != nil {
				return err
			}
			return x.put(ctx, &c.Rules.kind, r.Name, found, r, kindRule+" "+strict.Quote(r.Name))
		}
		file, err := x.read(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(file.Rules, func(r Rule) bool { return r.Replaces == name })
		var r Rule
		some := false
		err = put(found, &r, func() error {
			if some = r.Promote(); !some && i < 0 {
				return strict.Problems{{Path: "name", Message: "the rule " + strict.Quote(name) + " has nothing that could take its place: want a limit with a candidate, or another rule with replaces = " + strict.Quote(name)}}
			}
			return nil
		})
		if err != nil || some {
			return err
		}
		by := file.Rules[i].Name
		successor, err := x.find(ctx, c.Rules.table, by)
		if err == nil && successor == nil {
			err = &NotFoundError{kindRule, by}
		}
		if err != nil {
			return err
		}
		var next Rule
		if err := put(successor, &next, func() error { next.Replaces = ""; return nil }); err != nil {
			return err
		}
		if found, err = x.find(ctx, c.Rules.table, name); err != nil {
			return err
		}
		return x.remove(ctx, &c.Rules.kind, name, found)
	})
}
