package catalog

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/kit/strict"
)

// Overlay is a document over another one: what would be in force with it.
type Overlay struct {
	Document
	own          *Document
	rules, tiers int // how many are of the other: they come first
}

// Over returns the document over another one, which stays as it is. The records of the other stay that this one does not have. A whole
// document has all rules, and all records of each other kind that it has any of. Tiers of the other lose their values of limits that no
// rule has any more.
func (d *Document) Over(other *Document, whole bool) *Overlay {
	o := &Overlay{Document: *d, own: d}
	if !whole {
		o.Rules, o.rules = over(d.Rules, other.Rules, func(r *Rule) string { return r.Name }, false)
	}
	o.Tiers, o.tiers = over(d.Tiers, other.Tiers, func(t *Tier) string { return t.Name }, whole)
	o.Tenants, _ = over(d.Tenants, other.Tenants, func(t *Tenant) string { return t.ID }, whole)
	o.Users, _ = over(d.Users, other.Users, func(u *User) string { return u.ID }, whole)
	o.APIKeys, _ = over(d.APIKeys, other.APIKeys, func(k *APIKey) string { return k.ID }, whole)
	o.Exemptions, _ = over(d.Exemptions, other.Exemptions, (*Entry).ID, whole)
	o.Bans, _ = over(d.Bans, other.Bans, (*Entry).ID, whole)
	names := namesOf(&o.File, "")
	for i := range o.Tiers[:o.tiers] {
		limits := maps.Clone(o.Tiers[i].Limits)
		maps.DeleteFunc(limits, func(name, _ string) bool { _, known := slices.BinarySearch(names.limits, name); return !known })
		o.Tiers[i].Limits = limits
	}
	return o
}

// over returns records over others, and how many of these there are, which come first.
func over[T any](mine, others []T, id func(*T) string, whole bool) (out []T, of int) {
	if whole && len(mine) > 0 {
		return mine, 0
	}
	has := make(map[string]bool, len(mine))
	for i := range mine {
		has[id(&mine[i])] = true
	}
	for i := range others {
		if !has[id(&others[i])] {
			out = append(out, others[i])
		}
	}
	return append(out, mine...), len(out)
}

// Check returns the problems of the document, by its paths, and those that it causes in rules and tiers of the other, by their names.
func (o *Overlay) Check() (own, caused strict.Problems) {
	for _, p := range o.File.Check() {
		kind, name, rest, ok := ruleOf(&o.File, p.Path)
		section, number, _ := strings.Cut(strings.TrimSuffix(p.Path, rest), "[")
		n, _ := strconv.Atoi(strings.TrimSuffix(number, "]"))
		of := o.rules
		if kind == kindTier {
			of = o.tiers
		}
		switch {
		case !ok:
			caused = append(caused, p)
		case n < of:
			p.Path = kind + " " + strict.Quote(name) + rest
			caused = append(caused, p)
		default:
			p.Path = strict.Item(section, n-of) + rest
			own = append(own, p)
		}
	}
	return append(own, o.own.CheckPeople(false, true)...), caused
}

// Shared returns the rules, tiers, exemptions and bans at one moment.
func (c *Catalog) Shared(ctx context.Context) (*Document, error) {
	tx, err := c.reading.BeginTx(ctx, c.dialect.ReadOnly())
	if err != nil {
		return nil, c.wrap(err)
	}
	defer tx.Rollback() //nolint:errcheck // it was only read
	d, err := c.readShared(ctx, tx, nil)
	return &d, c.wrap(err)
}

// People adds those users, API keys and tenants to a document that there are of these ids, with the owners of the keys, and the
// tenants of all.
func (c *Catalog) People(ctx context.Context, d *Document, users, keys, tenants map[string]bool) (err error) {
	if d.APIKeys, err = c.APIKeys.some(ctx, keys); err != nil {
		return err
	}
	users, tenants = maps.Clone(users), maps.Clone(tenants)
	for i := range d.APIKeys {
		users[d.APIKeys[i].User], tenants[d.APIKeys[i].Tenant] = true, true
	}
	if d.Users, err = c.Users.some(ctx, users); err != nil {
		return err
	}
	for i := range d.Users {
		tenants[d.Users[i].Tenant] = true
	}
	d.Tenants, err = c.Tenants.some(ctx, tenants)
	return err
}

// among returns the condition that an id is one of these, of which there are not too many for a query. If args is empty, none can be.
func among(ids []string) (where string, args []any) {
	var holes []string
	for _, id := range ids {
		if storable(id) {
			args = append(args, id)
			holes = append(holes, "$"+strconv.Itoa(len(args)))
		}
	}
	return "WHERE id IN (" + strings.Join(holes, ", ") + ")", args
}

// some returns the values of the ids that exist.
func (t *Table[T]) some(ctx context.Context, ids map[string]bool) (out []T, err error) {
	for part := range slices.Chunk(slices.Sorted(maps.Keys(ids)), chunk) {
		where, args := among(part)
		if len(args) == 0 {
			continue
		}
		found, err := t.values(t.query(ctx, t.c.reading, where, args...))
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}
