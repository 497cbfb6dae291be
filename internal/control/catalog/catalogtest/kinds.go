package catalogtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

type (
	dimension  = rule.Dimension
	namedLimit = rule.Limit
)

// kind is one kind of things, whatever their type.
type kind interface {
	// key returns the id of the thing that has a name.
	key(name string) string
	// value returns the nth form of it.
	value(name string, n int) any
	kindName() string
	create(ctx context.Context, h *house, name string, n int) (int64, error)
	get(ctx context.Context, h *house, name string) (value any, r stamps, err error)
	update(ctx context.Context, h *house, name string, n int, seen int64) (int64, error)
	modify(ctx context.Context, h *house, name string, n int) (int64, error)
	remove(ctx context.Context, h *house, name string, seen int64) error
	list(ctx context.Context, h *house, q catalog.Query) (ids []string, err error)
}

// stamps are what a record has beside its value.
type stamps struct {
	version          int64
	created, updated time.Time
	by               string
}

// of is a kind of things of a type.
type of[T any] struct {
	name  string
	table func(*catalog.Catalog) *catalog.Table[T]
	make  func(name string, n int) T
	id    func(*T) string
}

var kinds = []kind{
	of[catalog.Rule]{"rule", func(c *catalog.Catalog) *catalog.Table[catalog.Rule] { return c.Rules }, func(name string, n int) catalog.Rule {
		return catalog.Rule{
			Name: name, Match: rule.Match{Paths: []string{"/" + name}}, CountBy: []dimension{"user"},
			Limits: []namedLimit{{Name: limit, Limit: strconv.Itoa(n+1) + "/1m"}},
		}
	}, func(r *catalog.Rule) string { return r.Name }},
	of[catalog.Tier]{"tier", func(c *catalog.Catalog) *catalog.Table[catalog.Tier] { return c.Tiers }, func(name string, n int) catalog.Tier {
		return catalog.Tier{Name: name, Price: strconv.Itoa(n), Limits: map[string]string{limit: "7/1s"}}
	}, func(t *catalog.Tier) string { return t.Name }},
	of[catalog.Tenant]{"tenant", func(c *catalog.Catalog) *catalog.Table[catalog.Tenant] { return c.Tenants }, func(name string, n int) catalog.Tenant {
		return catalog.Tenant{ID: name, Name: strconv.Itoa(n), Tier: tier}
	}, func(t *catalog.Tenant) string { return t.ID }},
	of[catalog.User]{"user", func(c *catalog.Catalog) *catalog.Table[catalog.User] { return c.Users }, func(name string, n int) catalog.User {
		return catalog.User{ID: name, Tenant: "acme", Limits: map[string]catalog.Override{limit: {Limit: strconv.Itoa(n+1) + "/1s"}}}
	}, func(u *catalog.User) string { return u.ID }},
	of[catalog.APIKey]{"api_key", func(c *catalog.Catalog) *catalog.Table[catalog.APIKey] { return c.APIKeys }, func(name string, n int) catalog.APIKey {
		return catalog.APIKey{ID: "keykey" + name, Hash: hashOf(name), Name: strconv.Itoa(n), User: owner}
	}, func(k *catalog.APIKey) string { return k.ID }},
	of[catalog.Entry]{"exemption", func(c *catalog.Catalog) *catalog.Table[catalog.Entry] { return c.Exemptions }, entry, (*catalog.Entry).ID},
	of[catalog.Entry]{"ban", func(c *catalog.Catalog) *catalog.Table[catalog.Entry] { return c.Bans }, entry, (*catalog.Entry).ID},
}

func entry(name string, n int) catalog.Entry {
	return catalog.Entry{User: name, Reason: strconv.Itoa(n)}
}

func hashOf(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }

func (k of[T]) key(name string) string {
	v := k.make(name, 0)
	return k.id(&v)
}

func (k of[T]) value(name string, n int) any { return k.make(name, n) }
func (k of[T]) kindName() string             { return k.name }

func (k of[T]) create(ctx context.Context, h *house, name string, n int) (int64, error) {
	return k.table(h.Catalog).Create(ctx, actor, k.make(name, n))
}

func (k of[T]) get(ctx context.Context, h *house, name string) (any, stamps, error) {
	r, err := k.table(h.Catalog).Get(ctx, k.key(name))
	return r.Value, stamps{r.Version, r.Created, r.Updated, r.By}, err
}

func (k of[T]) update(ctx context.Context, h *house, name string, n int, seen int64) (int64, error) {
	return k.table(h.Catalog).Update(ctx, "another", k.make(name, n), seen)
}

func (k of[T]) modify(ctx context.Context, h *house, name string, n int) (int64, error) {
	return k.table(h.Catalog).Modify(ctx, actor, k.key(name), func(v *T) error {
		*v = k.make(name, n)
		return nil
	})
}

func (k of[T]) remove(ctx context.Context, h *house, name string, seen int64) error {
	return k.table(h.Catalog).Delete(ctx, actor, k.key(name), seen)
}

func (k of[T]) list(ctx context.Context, h *house, q catalog.Query) (ids []string, err error) {
	records, err := k.table(h.Catalog).List(ctx, q)
	for i := range records {
		ids = append(ids, k.id(&records[i].Value))
	}
	return ids, err
}

// checkKinds walks a thing of each kind through its life.
func checkKinds(h *house) {
	t := h.t
	h.furnish(t)
	for _, k := range kinds {
		t.Run(k.kindName(), func(t *testing.T) { checkKind(&house{Catalog: h.Catalog, db: h.db, t: t}, k) })
	}
}

func checkKind(h *house, k kind) {
	t := h.t
	ctx, name := t.Context(), "alice"
	h.refuses(t, http.StatusNotFound, func(ctx context.Context) error { _, _, err := k.get(ctx, h, name); return err }, k.kindName(), k.key(name))
	h.refuses(t, http.StatusNotFound, func(ctx context.Context) error { _, err := k.update(ctx, h, name, 1, 1); return err })
	h.refuses(t, http.StatusNotFound, func(ctx context.Context) error { _, err := k.modify(ctx, h, name, 1); return err })
	h.refuses(t, http.StatusNotFound, func(ctx context.Context) error { return k.remove(ctx, h, name, 1) })

	start := h.revision(t)
	earliest := time.Now().Truncate(time.Microsecond)
	created, err := k.create(ctx, h, name, 0)
	check(t, err)
	latest := time.Now()
	value, first, err := k.get(ctx, h, name)
	check(t, err)
	equal(t, "created", value, k.value(name, 0))
	if created != start+1 || first.version != created || first.by != actor || first.created != first.updated ||
		first.created.Before(earliest) || first.created.After(latest) || first.created.Location() != time.UTC {
		t.Errorf("created as revision %d after %d, between %v and %v: got %+v", created, start, earliest, latest, first)
	}

	h.refuses(t, http.StatusConflict, func(ctx context.Context) error { _, err := k.create(ctx, h, name, 1); return err },
		"already", k.kindName(), k.key(name), strconv.FormatInt(created, 10))

	same, err := k.update(ctx, h, name, 0, created)
	check(t, err)
	if same != created || h.revision(t) != created {
		t.Errorf("an update that changes nothing made version %d and revision %d of %d", same, h.revision(t), created)
	}

	updated, err := k.update(ctx, h, name, 1, created)
	check(t, err)
	value, second, err := k.get(ctx, h, name)
	check(t, err)
	equal(t, "updated", value, k.value(name, 1))
	if updated != created+1 || second.version != updated || second.by != "another" || second.created != first.created || second.updated.Before(first.updated) {
		t.Errorf("updated as revision %d after %d: got %+v after %+v", updated, created, second, first)
	}

	for _, stale := range []int64{created, updated + 1, 0, -1} {
		h.refuses(t, http.StatusConflict, func(ctx context.Context) error { _, err := k.update(ctx, h, name, 2, stale); return err },
			k.key(name), strconv.FormatInt(updated, 10))
		h.refuses(t, http.StatusConflict, func(ctx context.Context) error { return k.remove(ctx, h, name, stale) })
	}

	modified, err := k.modify(ctx, h, name, 2)
	check(t, err)
	same, err = k.modify(ctx, h, name, 2)
	check(t, err)
	if modified != updated+1 || same != modified || h.revision(t) != modified {
		t.Errorf("modified as %d, then as %d: want %d, and the same", modified, same, updated+1)
	}

	check(t, k.remove(ctx, h, name, modified))
	if ids, err := k.list(ctx, h, catalog.Query{Prefix: k.key(name)}); err != nil || ids != nil {
		t.Errorf("deleted, and there are %q, %v", ids, err)
	}
	if n := h.revision(t); n != modified+1 {
		t.Errorf("deleted as revision %d, want %d", n, modified+1)
	}

	var want []change
	for i, c := range []change{
		{actor: actor, after: k.value(name, 0)},
		{actor: "another", before: k.value(name, 0), after: k.value(name, 1)},
		{actor: actor, before: k.value(name, 1), after: k.value(name, 2)},
		{actor: actor, before: k.value(name, 2)},
	} {
		c.revision, c.kind, c.id, c.stamped, c.timed = start+1+int64(i), k.kindName(), k.key(name), true, true
		c.before, c.after = jsonOf(t, c.before), jsonOf(t, c.after)
		want = append(want, c)
	}
	if got := h.changes(t, start); !reflect.DeepEqual(got, want) {
		t.Errorf("the log of changes\ngot  %+v\nwant %+v", got, want)
	}
}

// checkABA makes a thing, deletes it, and makes it again just as it was: who has seen
// the first has not seen the second.
func checkABA(h *house) {
	t := h.t
	h.furnish(t)
	for _, k := range kinds {
		first, err := k.create(t.Context(), h, "alice", 0)
		check(t, err)
		check(t, k.remove(t.Context(), h, "alice", first))
		second, err := k.create(t.Context(), h, "alice", 0)
		check(t, err)
		if second <= first {
			t.Errorf("%s: version %d after %d", k.kindName(), second, first)
		}
		h.refuses(t, http.StatusConflict, func(ctx context.Context) error { _, err := k.update(ctx, h, "alice", 1, first); return err })
		h.refuses(t, http.StatusConflict, func(ctx context.Context) error { return k.remove(ctx, h, "alice", first) })
	}
}

// checkIDStays has an id changed on the way, which would be a write to another thing.
func checkIDStays(h *house) {
	t := h.t
	h.furnish(t)
	for _, id := range []string{"alice", "bob"} {
		_, err := h.Users.Create(t.Context(), actor, catalog.User{ID: id})
		check(t, err)
	}
	for _, id := range []string{"bob", "carol", ""} {
		h.refuses(t, http.StatusUnprocessableEntity, func(ctx context.Context) error {
			_, err := h.Users.Modify(ctx, actor, "alice", func(u *catalog.User) error { u.ID, u.Tenant = id, "acme"; return nil })
			return err
		}, "alice")
	}
	mine := errors.New("no")
	_, err := h.Users.Modify(t.Context(), actor, "alice", func(*catalog.User) error { return mine })
	if !errors.Is(err, mine) {
		t.Errorf("got %v, want the error of the change", err)
	}
}

// at is a time that both databases, and JSON, have room for.
var at = catalog.Time{Time: time.Date(2031, time.December, 31, 23, 59, 59, 999_999_999, time.FixedZone("", 5*3600+1800))}

// checkFields stores things that have everything.
func checkFields(h *house) {
	t := h.t
	h.furnish(t)
	yes, no := true, false
	overrides := map[string]catalog.Override{limit: {Limit: "5/1h", Until: at}, "other": {Limit: "unlimited"}}
	rules := []catalog.Rule{{
		Name: "all", Match: rule.Match{
			Paths: []string{"/a/*", "/<b>&'\"/**"}, Methods: []string{"GET", "POST"}, Tiers: []string{tier},
			IPRanges: []string{"10.0.0.0/8", "2001:db8::/32"}, Headers: map[string]string{"X-App": "mobile", "X-Any": "*"},
		},
		CountBy:  []dimension{"user", "endpoint", "header:X-App", "claim:org"},
		Limits:   []namedLimit{{Name: limit, Limit: "100/1h", Algorithm: "sliding_window"}, {Name: "other", Limit: "10/1s", Algorithm: "token_bucket", Burst: 20}},
		Cost:     rule.Cost{Header: "X-Cost", Max: 9},
		Action:   rule.Throttle,
		MaxDelay: rule.Duration(1500 * time.Millisecond), Priority: -100, Group: "per-user",
		Penalty:        &rule.Penalty{Threshold: 3, Within: rule.Duration(time.Hour), Cooldown: rule.Duration(time.Minute), Multipliers: []int64{1, 2, 4}},
		OnStoreFailure: rule.Closed, Response: rule.Response{Status: 503, Message: `Später, "Ann" <3 & \ ☂ 🦔`}, Enabled: &yes,
	}, {
		Name: "units", Match: rule.Match{Paths: []string{"/units"}}, Limits: []namedLimit{{Name: "units", Limit: "2501999792983/1h"}},
		Cost: rule.Cost{Units: 1 << 40}, Action: rule.LogOnly, Enabled: &no,
	}, {Name: "block", Match: rule.Match{Methods: []string{"TRACE"}}, Action: rule.Block}}
	stores(t, h.Rules, rules, func(r *catalog.Rule) string { return r.Name })
	stores(t, h.Tiers, []catalog.Tier{{Name: "T.1_x-y", DisplayName: "Größe L", Price: "49 €", Limits: map[string]string{limit: "1/day", "other": "unlimited"}}},
		func(v *catalog.Tier) string { return v.Name })
	stores(t, h.Tenants, []catalog.Tenant{{ID: "acme", Name: "ACME, Inc.", Tier: tier}}, func(v *catalog.Tenant) string { return v.ID })
	stores(t, h.Users, []catalog.User{
		{ID: "alice", Tenant: "acme", Tier: tier, Limits: overrides, Blocked: &catalog.Blocked{Reason: "unpaid", Until: at}},
		{ID: "for good", Blocked: &catalog.Blocked{}},
	}, func(v *catalog.User) string { return v.ID })
	stores(t, h.APIKeys, []catalog.APIKey{{
		ID: "abcDEF1234567890", Hash: "hmac-" + hashOf("x"), Prefix: "stint_abcD", Name: "CI", User: "alice", Tenant: "acme", Tier: tier,
		Limits: overrides, Disabled: true, Expires: at, Revoked: at, RevokedBy: "root",
	}}, func(v *catalog.APIKey) string { return v.ID })
	entries := []catalog.Entry{
		{IP: "2001:db8::/32", Reason: "abuse", Until: at},
		{IP: "192.0.2.1"},
		{User: "alice"},
		{Tenant: "acme"},
		{Key: "abcDEF1234567890"},
		{User: "ip:192.0.2.1"},
	}
	stores(t, h.Exemptions, entries, (*catalog.Entry).ID)
	stores(t, h.Bans, entries, (*catalog.Entry).ID)
}

// stores writes values and reads them back, one by one and in a list. Among them they
// must have every field.
func stores[T any](t *testing.T, table *catalog.Table[T], values []T, id func(*T) string) {
	t.Helper()
	filled := map[string]bool{}
	for i := range values {
		_, err := table.Create(t.Context(), actor, values[i])
		check(t, err)
		r, err := table.Get(t.Context(), id(&values[i]))
		check(t, err)
		equal(t, id(&values[i]), r.Value, values[i])
		same, err := table.Update(t.Context(), actor, r.Value, r.Version)
		if err != nil || same != r.Version {
			t.Errorf("%s: what was read was written as version %d of %d, %v", id(&values[i]), same, r.Version, err)
		}
		fields(reflect.ValueOf(values[i]), "", filled)
		list, err := table.List(t.Context(), catalog.Query{Prefix: id(&values[i]), Limit: 1})
		check(t, err)
		if len(list) != 1 || list[0].Version != r.Version {
			t.Errorf("%s: it is listed as %+v", id(&values[i]), list)
			continue
		}
		equal(t, "in a list", list[0].Value, values[i])
	}
	for path, ok := range filled {
		if !ok {
			t.Errorf("%T: no value has %s, so it is not checked", *new(T), path)
		}
	}
}

// fields notes which fields of a struct have a value.
func fields(v reflect.Value, path string, filled map[string]bool) {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		filled[path] = true
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || v.Type() == reflect.TypeFor[catalog.Time]() {
		filled[path] = filled[path] || !v.IsZero()
		return
	}
	for i := range v.NumField() {
		fields(v.Field(i), path+"."+v.Type().Field(i).Name, filled)
	}
}

// checkPages lists things page by page. They are sorted by their bytes: neither language
// nor case matters.
func checkPages(h *house) {
	t := h.t
	h.furnish(t)
	ids := []string{
		"!", "%", "%a", "A", "B", "Z", "[", "_", "__", "a", "a b", "a%", "a%b", "a_b", "aa", "ab", "axb", "az", "a~", "a~~", "b",
		"e", "é", "éa", "éz", "ê", "ü", "z", "~", "Ω", "\ud7ff", "\ue000", "\U0010ffff", "\U0010ffffa", "日本", "日本語", "🦔",
	}
	for _, id := range ids {
		_, err := h.Tenants.Create(t.Context(), actor, catalog.Tenant{ID: id})
		check(t, err)
	}
	slices.Sort(ids)
	tenants := kinds[2]
	for _, size := range []int{1, 2, 7, len(ids), 1000} {
		var got []string
		for after := ""; ; {
			page, err := tenants.list(t.Context(), h, catalog.Query{After: after, Limit: size})
			check(t, err)
			if got = append(got, page...); len(page) < size {
				break
			}
			after = page[len(page)-1]
		}
		if !slices.Equal(got, ids) {
			t.Errorf("in pages of %d: got %q, want %q", size, got, ids)
		}
	}
	prefixes := append([]string{"", "no", "a\x7f", "é", "\U0010ffff", "\U0010ffff\U0010ffff", "\ud7ff", "日"}, ids...)
	for _, prefix := range prefixes {
		for _, after := range []string{"", "a", prefix, "é"} {
			var want []string
			for _, id := range ids {
				if len(id) >= len(prefix) && id[:len(prefix)] == prefix && id > after {
					want = append(want, id)
				}
			}
			got, err := tenants.list(t.Context(), h, catalog.Query{Prefix: prefix, After: after})
			check(t, err)
			if !slices.Equal(got, want) {
				t.Errorf("prefix %q after %q: got %q, want %q", prefix, after, got, want)
			}
		}
	}
	for range 150 - len(ids) {
		ids = append(ids, fmt.Sprintf("more-%03d", len(ids)))
		_, err := h.Tenants.Create(t.Context(), actor, catalog.Tenant{ID: ids[len(ids)-1]})
		check(t, err)
	}
	got, err := tenants.list(t.Context(), h, catalog.Query{})
	check(t, err)
	if slices.Sort(ids); !slices.Equal(got, ids[:100]) {
		t.Errorf("without a limit there are %d, want the first 100", len(got))
	}
}

// checkFilters lists what has values.
func checkFilters(h *house) {
	t := h.t
	h.furnish(t)
	ctx := t.Context()
	_, err := h.Tiers.Create(ctx, actor, catalog.Tier{Name: "free"})
	check(t, err)
	var users []catalog.User
	for i := range 24 {
		u := catalog.User{ID: fmt.Sprintf("u%02d", i), Tier: []string{"", tier, "free"}[i%3], Tenant: []string{"", "acme"}[i%2]}
		if i%4 == 1 {
			u.Blocked = &catalog.Blocked{Until: []catalog.Time{{}, at}[i/4%2]}
		}
		users = append(users, u)
		_, err := h.Users.Create(ctx, actor, u)
		check(t, err)
	}
	for _, tierName := range []string{"", tier, "free", "none"} {
		for _, tenant := range []string{"", "acme", "none", "acm", "acme%", "ACME"} {
			for _, blocked := range []bool{false, true} {
				q := catalog.Query{Blocked: blocked, Prefix: "u", Filters: map[string]string{}}
				if tierName != "" {
					q.Filters["tier"] = tierName
				}
				if tenant != "" {
					q.Filters["tenant"] = tenant
				}
				var want []string
				for _, u := range users {
					if (tierName == "" || u.Tier == tierName) && (tenant == "" || u.Tenant == tenant) && (!blocked || u.Blocked != nil) {
						want = append(want, u.ID)
					}
				}
				got, err := kinds[3].list(ctx, h, q)
				check(t, err)
				if !slices.Equal(got, want) {
					t.Errorf("%+v: got %q, want %q", q, got, want)
				}
			}
		}
	}
	_, err = h.APIKeys.Create(ctx, actor, catalog.APIKey{ID: "12345678", Hash: hashOf("1"), User: "u00", Tier: tier})
	check(t, err)
	_, err = h.APIKeys.Create(ctx, actor, catalog.APIKey{ID: "12345679", Hash: hashOf("2"), User: "u01", Tenant: "acme"})
	check(t, err)
	for filter, value := range map[string]string{"user_id": "u00", "tier": tier} {
		if ids, err := kinds[4].list(ctx, h, catalog.Query{Filters: map[string]string{filter: value}}); err != nil || !slices.Equal(ids, []string{"12345678"}) {
			t.Errorf("keys by %s: got %q, %v", filter, ids, err)
		}
	}
}

// checkBadQueries asks what cannot be answered.
func checkBadQueries(h *house) {
	t := h.t
	h.furnish(t)
	for _, c := range []struct {
		q    catalog.Query
		path string
	}{
		{catalog.Query{Limit: -1}, "limit"},
		{catalog.Query{Limit: 1001}, "limit"},
		{catalog.Query{After: "a\x00"}, "after"},
		{catalog.Query{After: "\xff"}, "after"},
		{catalog.Query{Prefix: "\x00"}, "prefix"},
		{catalog.Query{Prefix: "a\xc3"}, "prefix"},
		{catalog.Query{Filters: map[string]string{"tier": "\x00"}}, "tier"},
		{catalog.Query{Filters: map[string]string{"tenant": "\xed\xa0\x80"}}, "tenant"},
		{catalog.Query{Filters: map[string]string{"id": "a"}}, "id"},
		{catalog.Query{Filters: map[string]string{"blocked": "{}"}}, "blocked"},
		{catalog.Query{Filters: map[string]string{"1=1 OR tier": "a"}}, "1=1 OR tier"},
	} {
		h.refuses(t, http.StatusUnprocessableEntity, func(ctx context.Context) error {
			_, err := h.Users.List(ctx, c.q)
			if !names(err, c.path) {
				t.Errorf("%+v: got %v, want a problem with %q", c.q, err, c.path)
			}
			return err
		})
	}
	for _, q := range []catalog.Query{{Blocked: true}, {Filters: map[string]string{"tier": tier}}} {
		h.refuses(t, http.StatusUnprocessableEntity, func(ctx context.Context) error { _, err := h.Bans.List(ctx, q); return err }, "filter")
	}
}
