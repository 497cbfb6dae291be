package catalogtest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

type (
	dimension  = rule.Dimension
	namedLimit = rule.Limit
)

// kind is the operations on one kind of records, whatever their type. A record is given by a
// name, from which its id is derived, and a number, which makes its other fields differ.
type kind struct {
	name   string
	id     func(name string) string
	value  func(name string, n int) any
	create func(name string, n int) (int64, error)
	get    func(name string) (catalog.Record[any], error)
	update func(name string, n int, seen int64) (int64, error) // by another actor
	modify func(name string, n int) (int64, error)
	remove func(name string, seen int64) error
	list   func(catalog.Query) (ids []string, err error)
}

const another = "another"

func kindOf[T any](ctx context.Context, name string, table *catalog.Table[T], id func(*T) string, value func(name string, n int) T) kind {
	idOf := func(name string) string {
		v := value(name, 0)
		return id(&v)
	}
	return kind{
		name: name, id: idOf,
		value:  func(name string, n int) any { return value(name, n) },
		create: func(name string, n int) (int64, error) { return table.Create(ctx, actor, value(name, n)) },
		get: func(name string) (catalog.Record[any], error) {
			r, err := table.Get(ctx, idOf(name))
			return catalog.Record[any]{Value: r.Value, Version: r.Version, Created: r.Created, Updated: r.Updated, By: r.By}, err
		},
		update: func(name string, n int, seen int64) (int64, error) {
			return table.Update(ctx, another, value(name, n), seen)
		},
		modify: func(name string, n int) (int64, error) {
			return table.Modify(ctx, actor, idOf(name), func(v *T) error { *v = value(name, n); return nil })
		},
		remove: func(name string, seen int64) error { return table.Delete(ctx, actor, idOf(name), seen) },
		list: func(q catalog.Query) (ids []string, err error) {
			records, err := table.List(ctx, q)
			for i := range records {
				ids = append(ids, id(&records[i].Value))
			}
			return ids, err
		},
	}
}

// The indexes of kinds.
const (
	rules = iota
	tiers
	tenants
	users
	keys
	exemptions
	bans
)

// kinds returns all kinds.
func (s *suite) kinds() []kind {
	ctx := s.t.Context()
	entry := func(name string, n int) catalog.Entry { return catalog.Entry{User: name, Reason: strconv.Itoa(n)} }
	return []kind{
		rules: kindOf(ctx, "rule", s.Rules, func(r *catalog.Rule) string { return r.Name }, newRule),
		tiers: kindOf(ctx, "tier", s.Tiers, func(t *catalog.Tier) string { return t.Name }, func(name string, n int) catalog.Tier {
			return catalog.Tier{Name: name, Price: strconv.Itoa(n), Limits: map[string]string{limit: "7/1s"}}
		}),
		tenants: kindOf(ctx, "tenant", s.Tenants, func(t *catalog.Tenant) string { return t.ID }, func(name string, n int) catalog.Tenant {
			return catalog.Tenant{ID: name, Name: strconv.Itoa(n), Tier: tier}
		}),
		users: kindOf(ctx, "user", s.Users, func(u *catalog.User) string { return u.ID }, func(name string, n int) catalog.User {
			return catalog.User{ID: name, Tenant: "acme", Limits: map[string]catalog.Override{limit: {Limit: strconv.Itoa(n+1) + "/1s"}}}
		}),
		keys: kindOf(ctx, "api_key", s.APIKeys, func(k *catalog.APIKey) string { return k.ID }, func(name string, n int) catalog.APIKey {
			return catalog.APIKey{ID: "keykey" + name, Hash: hashOf(name), Name: strconv.Itoa(n), User: owner}
		}),
		exemptions: kindOf(ctx, "exemption", s.Exemptions, (*catalog.Entry).ID, entry),
		bans:       kindOf(ctx, "ban", s.Bans, (*catalog.Entry).ID, entry),
	}
}

func newRule(name string, n int) catalog.Rule {
	return catalog.Rule{
		Name: name, Match: rule.Match{Paths: []string{"/" + name}}, CountBy: []dimension{"user"},
		Limits: []namedLimit{{Name: limit, Limit: strconv.Itoa(n+1) + "/1m"}},
	}
}

func hashOf(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }

// checkKinds creates, changes and deletes a record of each kind.
func checkKinds(s *suite) {
	s.prepare()
	for i, k := range s.kinds() {
		s.t.Run(k.name, func(t *testing.T) {
			s := &suite{Catalog: s.Catalog, db: s.db, t: t}
			checkKind(s, s.kinds()[i])
		})
	}
}

func checkKind(s *suite, k kind) {
	const name = "alice"
	unchanged := s.unchanged()
	s.rejected(http.StatusNotFound, failure(k.get(name)), k.name, k.id(name))
	s.rejected(http.StatusNotFound, failure(k.update(name, 1, 1)))
	s.rejected(http.StatusNotFound, failure(k.modify(name, 1)))
	s.rejected(http.StatusNotFound, k.remove(name, 1))
	unchanged()

	start, earliest := s.revision(), time.Now().Truncate(time.Microsecond)
	created := s.must(k.create(name, 0))
	latest := time.Now()
	first, err := k.get(name)
	s.check(err)
	s.equal("created", first.Value, k.value(name, 0))
	if created != start+1 || first.Version != created || first.By != actor || first.Created != first.Updated ||
		first.Created.Before(earliest) || first.Created.After(latest) || first.Created.Location() != time.UTC {
		s.t.Errorf("created as revision %d after %d, between %v and %v: got %+v", created, start, earliest, latest, first)
	}
	unchanged = s.unchanged()
	s.rejected(http.StatusConflict, failure(k.create(name, 1)), "already", k.name, k.id(name), strconv.FormatInt(created, 10))
	if same := s.must(k.update(name, 0, created)); same != created {
		s.t.Errorf("an update that changes nothing made version %d of %d", same, created)
	}
	unchanged()

	updated := s.must(k.update(name, 1, created))
	second, err := k.get(name)
	s.check(err)
	s.equal("updated", second.Value, k.value(name, 1))
	if updated != created+1 || second.Version != updated || second.By != another || second.Created != first.Created || second.Updated.Before(first.Updated) {
		s.t.Errorf("updated as revision %d after %d: got %+v after %+v", updated, created, second, first)
	}
	unchanged = s.unchanged()
	for _, stale := range []int64{created, updated + 1, 0, -1} {
		s.rejected(http.StatusConflict, failure(k.update(name, 2, stale)), k.id(name), strconv.FormatInt(updated, 10))
		s.rejected(http.StatusConflict, k.remove(name, stale))
	}
	unchanged()

	modified := s.must(k.modify(name, 2))
	if same := s.must(k.modify(name, 2)); modified != updated+1 || same != modified || s.revision() != modified {
		s.t.Errorf("modified as %d, then as %d, want %d both times", modified, same, updated+1)
	}
	s.check(k.remove(name, modified))
	if ids, err := k.list(catalog.Query{Prefix: k.id(name)}); err != nil || ids != nil {
		s.t.Errorf("after it was deleted: %q, %v", ids, err)
	}
	var want []change
	for i, c := range []change{
		{actor: actor, after: k.value(name, 0)},
		{actor: another, before: k.value(name, 0), after: k.value(name, 1)},
		{actor: actor, before: k.value(name, 1), after: k.value(name, 2)},
		{actor: actor, before: k.value(name, 2)},
	} {
		c.revision, c.kind, c.id, c.stamped, c.timed = start+1+int64(i), k.name, k.id(name), true, true
		c.before, c.after = s.decoded(c.before), s.decoded(c.after)
		want = append(want, c)
	}
	if got := s.changes(start); !reflect.DeepEqual(got, want) || s.revision() != modified+1 {
		s.t.Errorf("the log of changes\ngot  %+v\nwant %+v", got, want)
	}

	// Deleted and created again as it was, it is another version.
	if again := s.must(k.create(name, 2)); again <= modified {
		s.t.Errorf("version %d after %d", again, modified)
	}
	unchanged = s.unchanged()
	s.rejected(http.StatusConflict, failure(k.update(name, 1, modified)))
	s.rejected(http.StatusConflict, k.remove(name, modified))
	unchanged()
}

// at is a time that both databases and JSON can store.
var at = catalog.Time{Time: time.Date(2031, time.December, 31, 23, 59, 59, 999_999_999, time.FixedZone("", 5*3600+1800))}

// checkFields stores records in which every field is set.
func checkFields(s *suite) {
	s.prepare()
	yes, no := true, false
	overrides := map[string]catalog.Override{limit: {Limit: "5/1h", Until: at}, "other": {Limit: "unlimited"}}
	stores(s, s.Rules, func(r *catalog.Rule) string { return r.Name }, catalog.Rule{
		Name: "all", Match: rule.Match{
			Paths: []string{"/a/*", "/<b>&'\"/**"}, Methods: []string{"GET", "POST"}, Tiers: []string{tier},
			IPRanges: []string{"10.0.0.0/8", "2001:db8::/32"}, Headers: map[string]string{"X-App": "mobile", "X-Any": "*"},
		},
		CountBy:  []dimension{"user", "endpoint", "header:X-App", "claim:org"},
		Limits:   []namedLimit{{Name: limit, Limit: "100/1h", Algorithm: "sliding_window"}, {Name: "other", Limit: "10/1s", Algorithm: "token_bucket", Burst: 20, Lease: rule.Duration(150 * time.Millisecond), Split: 2}},
		Cost:     rule.Cost{Header: "X-Cost", Max: 9},
		Action:   rule.Throttle,
		MaxDelay: rule.Duration(1500 * time.Millisecond), Priority: -100, Group: "per-user", Enforce: 12_05,
		Penalty:        &rule.Penalty{Threshold: 3, Within: rule.Duration(time.Hour), Cooldown: rule.Duration(time.Minute), Multipliers: []int64{1, 2, 4}},
		OnStoreFailure: rule.Closed, Regions: rule.RegionsGossip, Credit: 10, OnCredit: rule.CreditDeny, Response: rule.Response{Status: 503, RetryAfter: rule.Duration(30 * time.Second), Message: `Später, "Ann" <3 & \ ☂ 🦔`}, Enabled: &yes,
	}, catalog.Rule{
		Name: "units", Match: rule.Match{Paths: []string{"/units"}}, Regions: rule.RegionsQuota, Weights: rule.WeightsFollow, Limits: []namedLimit{{Name: "units", Limit: "2501999792983/1h"}},
		Cost: rule.Cost{Units: 1 << 40}, Action: rule.LogOnly, Enabled: &no,
	}, catalog.Rule{
		Name: "tried", Match: rule.Match{Paths: []string{"/tried"}}, Limits: []namedLimit{{Name: "tried", Limit: "7/1s", Candidate: "20/1s burst=30 token_bucket", Counter: 3}},
	}, catalog.Rule{
		Name: "tried-2", Match: rule.Match{Paths: []string{"/tried"}}, Replaces: "tried", Limits: []namedLimit{{Name: "tried-2", Limit: "7/1s"}},
	}, catalog.Rule{
		Name: "metered", Match: rule.Match{Paths: []string{"/metered"}}, Limits: []namedLimit{{Name: "metered", Limit: "1000/1h"}},
		Cost: rule.Cost{Meter: "llm.total_tokens", Reserve: 10, Max: 500, OnError: rule.OnErrorRefund, OnOverrun: rule.OnOverrunCut}, Response: rule.Response{Style: rule.StyleAuto},
	}, catalog.Rule{
		Name: "rolled", Match: rule.Match{Paths: []string{"/rolled"}}, CountBy: []dimension{"ip"}, Limits: []namedLimit{{Name: "rolled", Limit: "1000/1h"}},
		Rollout: &rule.Rollout{Steps: []rule.Percent{50, 100_00}, Every: rule.Duration(time.Hour), Start: at, BackIf: 2_50, Stopped: &rule.Stopped{At: at, Share: 50, Reason: "später"}},
	}, catalog.Rule{Name: "block", Match: rule.Match{Methods: []string{"TRACE"}}, Action: rule.Block})
	stores(s, s.Tiers, func(v *catalog.Tier) string { return v.Name },
		catalog.Tier{Name: "T.1_x-y", DisplayName: "Größe L", Price: "49 €", Limits: map[string]string{limit: "1/day", "other": "unlimited"}})
	stores(s, s.Tenants, func(v *catalog.Tenant) string { return v.ID }, catalog.Tenant{ID: "acme", Name: "ACME, Inc.", Tier: tier})
	stores(s, s.Users, func(v *catalog.User) string { return v.ID },
		catalog.User{ID: "alice", Tenant: "acme", Tier: tier, Limits: overrides, Blocked: &catalog.Blocked{Reason: "unpaid", Until: at}},
		catalog.User{ID: "blocked for good", Blocked: &catalog.Blocked{}})
	stores(s, s.APIKeys, func(v *catalog.APIKey) string { return v.ID }, catalog.APIKey{
		ID: "abcDEF1234567890", Hash: "hmac-" + hashOf("x"), Prefix: "stint_abcD", Name: "CI", User: "alice", Tenant: "acme", Tier: tier,
		Limits: overrides, Disabled: true, Expires: at, Revoked: at, RevokedBy: "root", Replaces: "h2mzt5xc", ReplacedBy: "p9wd4ktb",
	})
	entries := []catalog.Entry{
		{IP: "2001:db8::/32", Reason: "abuse", Until: at},
		{IP: "192.0.2.1"},
		{User: "alice"},
		{Tenant: "acme"},
		{Key: "abcDEF1234567890"},
		{User: "ip:192.0.2.1"},
	}
	stores(s, s.Exemptions, (*catalog.Entry).ID, entries...)
	stores(s, s.Bans, (*catalog.Entry).ID, entries...)
}

// stores writes values and reads them back, one by one and in a list. Together the values
// must set every field.
func stores[T any](s *suite, table *catalog.Table[T], id func(*T) string, values ...T) {
	s.t.Helper()
	ctx := s.t.Context()
	set := map[string]bool{}
	for i := range values {
		id := id(&values[i])
		version := s.must(table.Create(ctx, actor, values[i]))
		r, err := table.Get(ctx, id)
		s.check(err)
		s.equal(id, r.Value, values[i])
		if same := s.must(table.Update(ctx, actor, r.Value, version)); same != version {
			s.t.Errorf("%s: written as it was read, it is version %d of %d", id, same, version)
		}
		list, err := table.List(ctx, catalog.Query{Prefix: id, Limit: 1})
		s.check(err)
		s.equal("list", list, []catalog.Record[T]{r})
		fieldsSet(reflect.ValueOf(values[i]), "", set)
	}
	for path, ok := range set {
		if !ok {
			s.t.Errorf("%T: no value sets %s, so it is not checked", *new(T), path)
		}
	}
}

// fieldsSet notes which fields of a struct are set.
func fieldsSet(v reflect.Value, path string, set map[string]bool) {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		set[path] = true
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || v.Type() == reflect.TypeFor[catalog.Time]() {
		set[path] = set[path] || !v.IsZero()
		return
	}
	for i := range v.NumField() {
		fieldsSet(v.Field(i), path+"."+v.Type().Field(i).Name, set)
	}
}

// checkPages lists records page by page. They are sorted by their bytes, whatever the locale.
func checkPages(s *suite) {
	s.prepare()
	ids := []string{
		"!", "%", "%a", "A", "B", "Z", "[", "_", "__", "a", "a b", "a%", "a%b", "a_b", "aa", "ab", "axb", "az", "a~", "a~~", "b",
		"e", "é", "éa", "éz", "ê", "ü", "z", "~", "Ω", "\ud7ff", "\ue000", "\U0010ffff", "\U0010ffffa", "日本", "日本語", "🦔",
	}
	create := func(ids []string) {
		d := &catalog.Document{}
		for _, id := range ids {
			d.Tenants = append(d.Tenants, catalog.Tenant{ID: id})
		}
		s.check(failure(s.Apply(s.t.Context(), d, catalog.ApplyOptions{Actor: actor})))
	}
	create(ids)
	slices.Sort(ids)
	list := s.kinds()[tenants].list
	for _, size := range []int{1, 2, 7, len(ids), 1000} {
		var got []string
		for after := ""; ; {
			page, err := list(catalog.Query{After: after, Limit: size})
			s.check(err)
			if got = append(got, page...); len(page) < size {
				break
			}
			after = page[len(page)-1]
		}
		if !slices.Equal(got, ids) {
			s.t.Errorf("in pages of %d: got %q, want %q", size, got, ids)
		}
	}
	for _, prefix := range append([]string{"", "no", "a\x7f", "é", "\U0010ffff", "\U0010ffff\U0010ffff", "\ud7ff", "日"}, ids...) {
		for _, after := range []string{"", "a", prefix, "é"} {
			var want []string
			for _, id := range ids {
				if strings.HasPrefix(id, prefix) && id > after {
					want = append(want, id)
				}
			}
			got, err := list(catalog.Query{Prefix: prefix, After: after})
			s.check(err)
			if !slices.Equal(got, want) {
				s.t.Errorf("prefix %q after %q: got %q, want %q", prefix, after, got, want)
			}
		}
	}
	var more []string
	for i := range 150 {
		more = append(more, fmt.Sprintf("more-%03d", i))
	}
	create(more)
	ids = append(ids, more...)
	slices.Sort(ids)
	if got, err := list(catalog.Query{}); err != nil || !slices.Equal(got, ids[:100]) {
		s.t.Errorf("without a limit: %d records, %v, want the first 100", len(got), err)
	}
}

// checkFilters lists users and keys by their fields.
func checkFilters(s *suite) {
	s.prepare()
	ctx, all := s.t.Context(), s.kinds()
	s.must(s.Tiers.Create(ctx, actor, catalog.Tier{Name: "free"}))
	var created []catalog.User
	for i := range 24 {
		u := catalog.User{ID: fmt.Sprintf("u%02d", i), Tier: []string{"", tier, "free"}[i%3], Tenant: []string{"", "acme"}[i%2]}
		if i%4 == 1 {
			u.Blocked = &catalog.Blocked{Until: []catalog.Time{{}, at}[i/4%2]}
		}
		created = append(created, u)
		s.must(s.Users.Create(ctx, actor, u))
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
				for _, u := range created {
					if (tierName == "" || u.Tier == tierName) && (tenant == "" || u.Tenant == tenant) && (!blocked || u.Blocked != nil) {
						want = append(want, u.ID)
					}
				}
				if got, err := all[users].list(q); err != nil || !slices.Equal(got, want) {
					s.t.Errorf("%+v: got %q, %v, want %q", q, got, err, want)
				}
			}
		}
	}
	s.must(s.APIKeys.Create(ctx, actor, catalog.APIKey{ID: "12345678", Hash: hashOf("1"), User: "u00", Tier: tier}))
	s.must(s.APIKeys.Create(ctx, actor, catalog.APIKey{ID: "12345679", Hash: hashOf("2"), User: "u01", Tenant: "acme"}))
	for filter, value := range map[string]string{"user_id": "u00", "tier": tier} {
		if ids, err := all[keys].list(catalog.Query{Filters: map[string]string{filter: value}}); err != nil || !slices.Equal(ids, []string{"12345678"}) {
			s.t.Errorf("keys by %s: got %q, %v", filter, ids, err)
		}
	}
}

// checkBadQueries sends queries with invalid fields.
func checkBadQueries(s *suite) {
	s.prepare()
	defer s.unchanged()()
	filter := func(name, value string) catalog.Query { return catalog.Query{Filters: map[string]string{name: value}} }
	for _, c := range []struct {
		kind int
		q    catalog.Query
		path string
	}{
		{users, catalog.Query{Limit: -1}, "limit"},
		{users, catalog.Query{Limit: 1001}, "limit"},
		{users, catalog.Query{After: "a\x00"}, "after"},
		{users, catalog.Query{After: "\xff"}, "after"},
		{users, catalog.Query{Prefix: "\x00"}, "prefix"},
		{users, catalog.Query{Prefix: "a\xc3"}, "prefix"},
		{users, catalog.Query{Contains: "a"}, "contains"},
		{keys, catalog.Query{Contains: "a"}, "contains"},
		{rules, catalog.Query{Contains: "\xff"}, "contains"},
		{users, filter("tier", "\x00"), "tier"},
		{users, filter("tenant", "\xed\xa0\x80"), "tenant"},
		{users, filter("id", "a"), "id"},
		{users, filter("blocked", "{}"), "blocked"},
		{users, filter("1=1 OR tier", "a"), "1=1 OR tier"},
		{rules, filter("enabled", "1"), "enabled"},
		{rules, filter("body", "x"), "body"},
		{tiers, filter("action", "reject"), "action"},
		{bans, filter("tier", tier), "tier"},
		{bans, catalog.Query{Blocked: true}, "blocked"},
	} {
		s.problem(failure(s.kinds()[c.kind].list(c.q)), c.path)
	}
	changes := func(q catalog.ChangeQuery) error {
		_, _, err := s.Changes(s.t.Context(), q)
		return err
	}
	for _, c := range []struct {
		q    catalog.ChangeQuery
		path string
	}{
		{catalog.ChangeQuery{Limit: -1}, "limit"},
		{catalog.ChangeQuery{Limit: 1001}, "limit"},
		{catalog.ChangeQuery{Kind: "rul"}, "kind"},
		{catalog.ChangeQuery{ID: "alice"}, "kind"},
		{catalog.ChangeQuery{Kind: "user", ID: "\x00"}, "id"},
		{catalog.ChangeQuery{Kind: "user", ID: "\xff"}, "id"},
		{catalog.ChangeQuery{Actor: "a\x00"}, "actor"},
		{catalog.ChangeQuery{Before: "x"}, "before"},
		{catalog.ChangeQuery{Before: "1.x"}, "before"},
		{catalog.ChangeQuery{Before: "."}, "before"},
		{catalog.ChangeQuery{Before: "99999999999999999999"}, "before"},
	} {
		s.problem(changes(c.q), c.path)
	}
	for _, before := range []string{"-5", "0", "-9223372036854775808.-1"} {
		if items, next, err := s.Changes(s.t.Context(), catalog.ChangeQuery{Before: before}); err != nil || items != nil || next != "" {
			s.t.Errorf("before %s: got %v, %q, %v, want nothing", before, items, next, err)
		}
	}
	for _, c := range []struct {
		text  string
		limit int
	}{{"\xff", 5}, {"a\x00", 5}, {"a", -1}, {"a", 1001}} {
		s.rejected(invalid, failure(s.FindSubjects(s.t.Context(), c.text, c.limit)))
	}
}

// checkUpgraded checks when upgraded_at changes: with the tier of a user and nothing else.
func checkUpgraded(s *suite) {
	s.prepare()
	ctx := s.t.Context()
	upgraded := func() string { return lines(s.t, s.db, "SELECT upgraded_at FROM stint_users WHERE id = 'u'")[0] }
	set := func(change func(*catalog.User)) string {
		s.must(s.Users.Modify(ctx, actor, "u", func(u *catalog.User) error { change(u); return nil }))
		return upgraded()
	}
	s.must(s.Users.Create(ctx, actor, catalog.User{ID: "u"}))
	never := upgraded()
	first := set(func(u *catalog.User) { u.Tier = tier })
	same := set(func(u *catalog.User) { u.Tenant = "acme" })
	last := set(func(u *catalog.User) { u.Tier = "" })
	if never != "" || first == "" || same != first || last == first || last == "" {
		s.t.Errorf("upgraded at %q without a tier, %q with one, %q after another change, %q without one again", never, first, same, last)
	}
}

// checkSpellings writes one network in several ways. A list with two of them could not be used.
func checkSpellings(s *suite) {
	ctx := s.t.Context()
	for _, spellings := range [][]string{
		{"10.0.0.1", "10.0.0.1/32"},
		{"2001:db8::1/128", "2001:db8::1", "2001:DB8:0:0::1", "2001:0db8::0001/128"},
		{"2001:db8::/32", "2001:DB8:0::/32"},
	} {
		version := s.must(s.Bans.Create(ctx, actor, catalog.Entry{IP: spellings[0]}))
		for _, spelling := range spellings[1:] {
			s.rejected(http.StatusConflict, failure(s.Bans.Create(ctx, actor, catalog.Entry{IP: spelling})))
			version = s.must(s.Bans.Update(ctx, actor, catalog.Entry{IP: spelling}, version))
		}
	}
	if all, err := s.Bans.List(ctx, catalog.Query{}); err != nil || len(all) != 3 {
		s.t.Errorf("got %d bans, %v, want 3: %+v", len(all), err, all)
	}
}

// checkKeys creates a key. Its text must not be stored, logged or shown in an error.
func checkKeys(s *suite) {
	s.prepare()
	ctx := s.t.Context()
	text, made, version, err := s.CreateKey(ctx, actor, catalog.APIKey{ID: "ignored!", Hash: "ignored", Name: "CI", User: owner})
	s.check(err)
	parts := strings.Split(text, "_")
	if len(parts) != 3 || parts[1] != made.ID || !strings.HasPrefix(text, made.Prefix) || len(made.Prefix) > len(text)/2 {
		s.t.Fatalf("created a key of %d parts: %+v", len(parts), made)
	}
	r, err := s.APIKeys.Get(ctx, made.ID)
	s.check(err)
	s.equal("created", r.Value, made)
	if r.Version != version || made.Name != "CI" || made.User != owner || made.Hash != hashOf(parts[2]) {
		s.t.Errorf("created %+v, of version %d: got %+v", made, version, r)
	}
	defer s.unchanged()()
	text, none, _, err := s.CreateKey(ctx, actor, catalog.APIKey{User: "nobody"})
	if s.problem(err, "user", "nobody"); text != "" || none.ID != "" {
		s.t.Error("a key that was not stored was returned")
	}
	made.Hash = strings.Join(parts, "_")
	err = failure(s.APIKeys.Update(ctx, actor, made, version))
	if s.problem(err, "hash"); err != nil && strings.Contains(err.Error(), parts[2]) {
		s.t.Error("an error shows the secret of a key")
	}
	if dump := Dump(s.t, s.db); !strings.Contains(dump, r.Value.Hash) || strings.Contains(dump, parts[2]) {
		s.t.Error("the hash of a key is in no table, or its secret is in one")
	}
}
