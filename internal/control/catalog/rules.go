package catalog

import (
	"cmp"
	"context"
	"slices"

	"github.com/stintdev/stint/internal/kit/strict"
)

// CheckRule returns what is wrong with a rule that is to be stored, in place of the one
// that has a name or, if that is empty, as a new one, together with all other rules and
// tiers. Paths are those of the rule. It writes nothing.
func (c *Catalog) CheckRule(ctx context.Context, r Rule, replacing string) (problems strict.Problems, err error) {
	defer func() { err = ended(ctx, err) }()
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
		k.Refuse("name", r.Name, strict.Quote(replacing)+": a name stays; to have another, make another rule and delete this one", "")
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
	found := file.Check()
	if taken { // what it would mean for others that the one before it were gone does not matter
		found = slices.DeleteFunc(found, func(p strict.Problem) bool {
			kind, name, _, ok := whose(&file, p.Path)
			return !ok || kind != kindRule || name != r.Name
		})
	}
	return append(k.Problems, relate(&file, []touch{{kindRule, r.Name, ""}}, found)...), nil
}

// OrderRules gives rules priorities that rise by 10, in the order of their names, in one
// write. Others keep theirs. It returns the revision.
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
				continue // with what else is wrong
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
