package catalogtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// checkRuleChecks checks rules before they are stored: what is said then has to be what
// a write says.
func checkRuleChecks(h *house) {
	t := h.t
	h.furnish(t)
	ctx := t.Context()
	_, err := h.Tiers.Create(ctx, actor, catalog.Tier{Name: "silver", Limits: map[string]string{limit: "7/1s"}})
	check(t, err)
	_, err = h.Rules.Create(ctx, actor, catalog.Rule{
		Name: "login", Group: "g", Priority: 5, CountBy: []dimension{"ip"}, Match: rule.Match{Paths: []string{"/login"}},
		Limits: []namedLimit{{Name: "logins", Limit: "5/1m"}},
	})
	check(t, err)
	good := catalog.Rule{Name: "new", CountBy: []dimension{"user"}, Match: rule.Match{Paths: []string{"/new"}}, Limits: []namedLimit{{Name: "n", Limit: "1/1s"}}}
	with := func(change func(*catalog.Rule)) catalog.Rule {
		r := good
		change(&r)
		return r
	}
	dump := Dump(t, h.db)
	for _, c := range []struct {
		name      string
		rule      catalog.Rule
		replacing string
		paths     []string // of what is wrong; none: it is good
	}{
		{"new", good, "", nil},
		{"nothing", catalog.Rule{}, "", []string{"name", "limits"}},
		{"the same", with(func(r *catalog.Rule) { r.Name = "login" }), "login", nil},
		{"taken", with(func(r *catalog.Rule) { r.Name = "base" }), "", []string{"name"}},
		{"another name", good, "login", []string{"name"}},
		{"another's name", with(func(r *catalog.Rule) { r.Name = "base" }), "login", []string{"name"}},
		{"bad limit", with(func(r *catalog.Rule) { r.Limits = []namedLimit{{Name: "n", Limit: "zz"}} }), "", []string{"limits[0].limit"}},
		{"no such tier", with(func(r *catalog.Rule) { r.Match.Tiers = []string{"gone"} }), "", []string{"match.tiers[0]"}},
		{"no UTF-8", with(func(r *catalog.Rule) { r.Response.Message = "a\xff" }), "", []string{"response.message"}},
		{"never reached", with(func(r *catalog.Rule) {
			r.Group, r.Priority, r.CountBy, r.Match = "g", 6, []dimension{"ip"}, rule.Match{Paths: []string{"/login"}}
		}), "", []string{""}},
		// A tier has a value for the limit that goes.
		{"wanted by a tier", with(func(r *catalog.Rule) { r.Name = "base" }), "base", []string{`tier "silver".limits.requests`}},
	} {
		problems, err := h.CheckRule(ctx, c.rule, c.replacing)
		check(t, err)
		var paths []string
		for _, p := range problems {
			paths = append(paths, p.Path)
		}
		if !slices.Equal(paths, c.paths) {
			t.Errorf("%s: got %v, want problems with %q", c.name, problems, c.paths)
		}
		if c.replacing != "" && c.rule.Name != c.replacing {
			continue
		}
		// The same is said by a write.
		if c.replacing == "" {
			_, err = h.Trial().Rules.Create(ctx, actor, c.rule)
		} else {
			_, err = h.Trial().Rules.Modify(ctx, actor, c.replacing, func(r *catalog.Rule) error { *r = c.rule; return nil })
		}
		var said strict.Problems
		switch {
		case errors.As(err, new(*catalog.ConflictError)) && c.name == "taken":
		case errors.As(err, &said) && c.rule.Name == "": // of which a write says no more
		case errors.As(err, &said):
			equal(t, c.name, problems, said)
		default:
			if check(t, err); len(problems) > 0 {
				t.Errorf("%s: a write says nothing, and a check %v", c.name, problems)
			}
		}
	}
	for _, name := range []string{"gone", "a\x00", "\xff"} {
		if _, err := h.CheckRule(ctx, good, name); catalog.Status(err) != http.StatusNotFound {
			t.Errorf("in place of %q: got %v", name, err)
		}
	}
	if Dump(t, h.db) != dump {
		t.Error("a check has changed something")
	}
}

// checkOrder gives rules an order.
func checkOrder(h *house) {
	t := h.t
	h.furnish(t)
	ctx := t.Context()
	all := []string{"base"}
	for i := range 30 {
		all = append(all, fmt.Sprintf("r%02d", i))
		_, err := h.Rules.Create(ctx, actor, kinds[0].value(all[i+1], 0).(catalog.Rule))
		check(t, err)
	}
	slices.Reverse(all)
	before := h.revision(t)
	revision, err := h.OrderRules(ctx, "orderly", all[1:])
	check(t, err)
	if revision != before+1 || len(h.changes(t, before)) != 30 {
		t.Errorf("made revision %d of %d, and %d changes", revision, before, len(h.changes(t, before)))
	}
	for i, name := range all {
		r, err := h.Rules.Get(ctx, name)
		check(t, err)
		want := kinds[0].value(name, 0).(catalog.Rule)
		if want.Priority = 10 * i; name == "base" {
			want.Limits, want.Match = r.Value.Limits, r.Value.Match
		}
		equal(t, name, r.Value, want)
	}
	if same, err := h.OrderRules(ctx, "orderly", all[1:]); err != nil || same != revision {
		t.Errorf("the same order made revision %d of %d, %v", same, revision, err)
	}
	for _, c := range []struct {
		names []string
		path  string
	}{
		{nil, "names"},
		{[]string{"base", "gone"}, "names[1]"},
		{[]string{"base", "r01", "base"}, "names[2]"},
		{[]string{"base", "\x00"}, "names[1]"},
		{[]string{""}, "names[0]"},
		{slices.Repeat([]string{"gone"}, 5000), "names[400]"},
	} {
		h.refuses(t, invalid, func(ctx context.Context) error {
			_, err := h.OrderRules(ctx, actor, c.names)
			if !names(err, c.path) {
				t.Errorf("got %.300v, want a problem with %s", err, c.path)
			}
			return err
		})
	}
}

// checkRuleFilters lists rules by what they say.
func checkRuleFilters(h *house) {
	t := h.t
	ctx := t.Context()
	yes, no := true, false
	var rules []catalog.Rule
	for i, r := range []catalog.Rule{
		{Name: "Login"},
		{Name: "login-slow", Action: rule.Throttle, MaxDelay: rule.Duration(time.Second)},
		{Name: "r.100", Action: rule.LogOnly, Enabled: &no},
		{Name: "block_all", Action: rule.Block, Enabled: &no},
		{Name: "r_200", Action: rule.Reject, Enabled: &yes},
		{Name: "lo"},
	} {
		r.Match.Paths = []string{fmt.Sprintf("/%d", i)}
		if r.Action != rule.Block {
			r.Group, r.Limits = []string{"", "g", "G"}[i%3], []namedLimit{{Name: "l", Limit: "1/1s"}}
		}
		rules = append(rules, r)
		_, err := h.Rules.Create(ctx, actor, r)
		check(t, err)
	}
	slices.SortFunc(rules, func(a, b catalog.Rule) int { return strings.Compare(a.Name, b.Name) })
	lists := func(q catalog.Query, has func(r *catalog.Rule) bool) {
		t.Helper()
		var want []string
		for i := range rules {
			if has(&rules[i]) {
				want = append(want, rules[i].Name)
			}
		}
		got, err := kinds[0].list(ctx, h, q)
		if check(t, err); !slices.Equal(got, want) {
			t.Errorf("%+v: got %q, want %q", q, got, want)
		}
	}
	for _, text := range []string{"l", "LOGIN", "gin", "%", "_", "-", ".", "lo%", "none", "0", "'", "LOGIN-SLOW-NOT"} {
		lists(catalog.Query{Contains: text}, func(r *catalog.Rule) bool {
			return strings.Contains(strings.ToLower(r.Name), strings.ToLower(text))
		})
	}
	// Only A to Z are the same as a to z.
	_, err := h.Bans.Create(ctx, actor, catalog.Entry{User: "äpfel%"})
	check(t, err)
	for text, want := range map[string]int{"äPFEL": 1, "Äpfel": 0, "USER:ä": 1, "l%": 1, "p%": 0} {
		if ids, err := kinds[6].list(ctx, h, catalog.Query{Contains: text}); err != nil || len(ids) != want {
			t.Errorf("%s: got %q, %v, want %d", text, ids, err, want)
		}
	}
	for _, action := range []rule.Action{rule.Reject, rule.Throttle, rule.LogOnly, rule.Block, rule.Allow, "Reject"} {
		lists(catalog.Query{Filters: map[string]string{"action": string(action)}}, func(r *catalog.Rule) bool {
			return r.Action == action || r.Action == "" && action == rule.Reject
		})
	}
	for _, group := range []string{"g", "G", "none"} {
		lists(catalog.Query{Filters: map[string]string{"group": group, "enabled": "true"}}, func(r *catalog.Rule) bool {
			return r.Group == group && (r.Enabled == nil || *r.Enabled)
		})
	}
	lists(catalog.Query{Filters: map[string]string{"enabled": "false"}, Contains: "0"}, func(r *catalog.Rule) bool { return r.Name == "r.100" })
	for _, c := range []struct {
		err  error
		path string
	}{
		{listErr(kinds[0], h, catalog.Query{Filters: map[string]string{"enabled": "1"}}), "enabled"},
		{listErr(kinds[0], h, catalog.Query{Filters: map[string]string{"body": "x"}}), "body"},
		{listErr(kinds[0], h, catalog.Query{Contains: "\xff"}), "contains"},
		{listErr(kinds[1], h, catalog.Query{Filters: map[string]string{"action": "reject"}}), "action"},
		{listErr(kinds[3], h, catalog.Query{Contains: "a"}), "contains"},
		{listErr(kinds[4], h, catalog.Query{Contains: "a"}), "contains"},
	} {
		if !names(c.err, c.path) {
			t.Errorf("got %v, want a problem with %s", c.err, c.path)
		}
	}
}

func listErr(k kind, h *house, q catalog.Query) error {
	_, err := k.list(h.t.Context(), h, q)
	return err
}

// checkSubjects finds users, keys and tenants by how they begin.
func checkSubjects(h *house) {
	t := h.t
	h.furnish(t)
	ctx := t.Context()
	for _, id := range []string{"alberta", "albert", "customer_42", "stint_bot"} {
		_, err := h.Users.Create(ctx, actor, catalog.User{ID: id, Tier: tier, Tenant: "acme"})
		check(t, err)
	}
	for _, id := range []string{"albemarle", "acme"} {
		_, err := h.Tenants.Create(ctx, actor, catalog.Tenant{ID: id, Name: "Inc.", Tier: tier})
		check(t, err)
	}
	text, made, _, err := h.CreateKey(ctx, actor, catalog.APIKey{Name: "CI", User: owner})
	check(t, err)
	for _, k := range []catalog.APIKey{
		{ID: "albekeyalbekey", Hash: hashOf("1")},
		{ID: "importedkey", Hash: hashOf("2"), Prefix: "acme_live_impo"},
		{ID: "importedtwo", Hash: hashOf("3"), Prefix: "acme_test_impo"},
	} {
		_, err := h.APIKeys.Create(ctx, actor, k)
		check(t, err)
	}
	mine := "key " + made.ID
	for _, c := range []struct {
		text  string
		limit int
		want  []string
	}{
		{"albe", 20, []string{"user albert", "user alberta", "key albekeyalbekey", "tenant albemarle"}},
		{"albe", 3, []string{"user albert", "key albekeyalbekey", "tenant albemarle"}},
		{"albe", 2, []string{"user albert", "key albekeyalbekey"}},
		{"alberta", 20, []string{"user alberta"}},
		{"ALBE", 20, nil},
		{"a%", 20, nil},
		{"customer_", 20, []string{"user customer_42"}},
		{"customer_42", 20, []string{"user customer_42"}},
		{"acme", 20, []string{"tenant acme"}},
		{made.ID, 20, []string{mine}},
		{made.ID[:6], 20, []string{mine}},
		{made.Prefix, 20, []string{mine}},
		{text[:len(text)-25], 20, []string{mine}},
		{text[:len(text)-32], 20, []string{mine}},
		{text, 20, []string{mine}},
		{strings.Replace(text, made.ID, made.ID[1:]+made.ID[:1], 1), 20, nil},
		{"acme_live_impo", 20, []string{"key importedkey"}},
		{"acme_live_importedkey_" + strings.Repeat("s", 40), 20, []string{"key importedkey"}},
		{"acme_live_importedtwo", 20, nil},
		{"importe", 20, []string{"key importedkey", "key importedtwo"}},
		{"none", 20, nil},
		{strings.Repeat("_", 1000), 20, nil},
		{strings.Repeat("x_", 1000), 20, nil},
	} {
		found, err := h.FindSubjects(ctx, c.text, c.limit)
		check(t, err)
		var got []string
		for _, f := range found {
			got = append(got, f.Kind+" "+f.ID)
		}
		if !slices.Equal(got, c.want) || found == nil { // which JSON would show
			t.Errorf("%.100q: got %q, want %q", c.text, got, c.want)
		}
	}
	for _, f := range []catalog.Found{
		{Kind: "user", ID: "alberta", Tier: tier, Tenant: "acme"},
		{Kind: "tenant", ID: "acme", Name: "Inc.", Tier: tier},
		{Kind: "key", ID: made.ID, Name: "CI", User: owner, Prefix: made.Prefix},
	} {
		got, err := h.FindSubjects(ctx, f.ID, 1)
		check(t, err)
		equal(t, f.ID, got, []catalog.Found{f})
	}
	all, err := h.FindSubjects(ctx, "", 1000)
	if err != nil || len(all) != 11 {
		t.Errorf("there are %d, %v", len(all), err)
	}
	for _, c := range []struct {
		text  string
		limit int
	}{{"\xff", 5}, {"a\x00", 5}, {"a", -1}, {"a", 1001}} {
		h.refuses(t, invalid, func(ctx context.Context) error { _, err := h.FindSubjects(ctx, c.text, c.limit); return err })
	}
}
