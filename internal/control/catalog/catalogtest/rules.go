package catalogtest

import (
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

// checkRuleChecks checks rules without storing them. The problems are those of a write.
func checkRuleChecks(s *suite) {
	s.prepare()
	ctx := s.t.Context()
	s.must(s.Tiers.Create(ctx, actor, catalog.Tier{Name: "silver", Limits: map[string]string{limit: "7/1s"}}))
	s.must(s.Rules.Create(ctx, actor, catalog.Rule{
		Name: "login", Group: "g", Priority: 5, CountBy: []dimension{"ip"}, Match: rule.Match{Paths: []string{"/login"}},
		Limits: []namedLimit{{Name: "logins", Limit: "5/1m"}},
	}))
	good := catalog.Rule{Name: "new", CountBy: []dimension{"user"}, Match: rule.Match{Paths: []string{"/new"}}, Limits: []namedLimit{{Name: "n", Limit: "1/1s"}}}
	with := func(change func(*catalog.Rule)) catalog.Rule {
		r := good
		change(&r)
		return r
	}
	named := func(name string) catalog.Rule { return with(func(r *catalog.Rule) { r.Name = name }) }
	defer s.unchanged()()
	for _, c := range []struct {
		name      string
		rule      catalog.Rule
		replacing string
		paths     []string // of the problems
	}{
		{"new", good, "", nil},
		{"empty", catalog.Rule{}, "", []string{"name", "limits"}},
		{"the same", named("login"), "login", nil},
		{"taken", named("base"), "", []string{"name"}},
		{"another name", good, "login", []string{"name"}},
		{"another's name", named("base"), "login", []string{"name"}},
		{"bad limit", with(func(r *catalog.Rule) { r.Limits = []namedLimit{{Name: "n", Limit: "zz"}} }), "", []string{"limits[0].limit"}},
		{"no such tier", with(func(r *catalog.Rule) { r.Match.Tiers = []string{"gone"} }), "", []string{"match.tiers[0]"}},
		{"no UTF-8", with(func(r *catalog.Rule) { r.Response.Message = "a\xff" }), "", []string{"response.message"}},
		{"never reached", with(func(r *catalog.Rule) {
			r.Group, r.Priority, r.CountBy, r.Match = "g", 6, []dimension{"ip"}, rule.Match{Paths: []string{"/login"}}
		}), "", []string{""}},
		{"a tier refers to its old limit", named("base"), "base", []string{`tier "silver".limits.requests`}},
	} {
		problems, err := s.CheckRule(ctx, c.rule, c.replacing)
		s.check(err)
		var paths []string
		for _, p := range problems {
			paths = append(paths, p.Path)
		}
		if !slices.Equal(paths, c.paths) {
			s.t.Errorf("%s: got %v, want problems with %q", c.name, problems, c.paths)
		}
		if c.replacing != "" && c.rule.Name != c.replacing {
			continue
		}
		if c.replacing == "" {
			_, err = s.Trial().Rules.Create(ctx, actor, c.rule)
		} else {
			_, err = s.Trial().Rules.Modify(ctx, actor, c.replacing, func(r *catalog.Rule) error { *r = c.rule; return nil })
		}
		var written strict.Problems
		switch {
		case errors.As(err, new(*catalog.ConflictError)) && c.name == "taken":
		case errors.As(err, &written) && c.rule.Name == "": // a write stops there
		default:
			if written == nil {
				s.check(err)
			}
			s.equal(c.name, problems, written)
		}
	}
	for _, name := range []string{"gone", "a\x00", "\xff"} {
		s.rejected(http.StatusNotFound, failure(s.CheckRule(ctx, good, name)))
	}
}

// checkOrder sets the order of rules.
func checkOrder(s *suite) {
	s.prepare()
	ctx := s.t.Context()
	names := []string{"base"}
	for i := range 30 {
		names = append(names, fmt.Sprintf("r%02d", i))
		s.must(s.Rules.Create(ctx, actor, newRule(names[i+1], 0)))
	}
	slices.Reverse(names)
	before := s.revision()
	revision := s.must(s.OrderRules(ctx, another, names[:30]))
	if n := len(s.changes(before)); revision != before+1 || n != 30 {
		s.t.Errorf("got revision %d after %d, and %d changes", revision, before, n)
	}
	for i, name := range names[:30] {
		r, err := s.Rules.Get(ctx, name)
		s.check(err)
		want := newRule(name, 0)
		want.Priority = 10 * (i + 1)
		s.equal(name, r.Value, want)
	}
	defer s.unchanged()()
	if same := s.must(s.OrderRules(ctx, another, names[:30])); same != revision {
		s.t.Errorf("the same order made revision %d of %d", same, revision)
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
		s.problem(failure(s.OrderRules(ctx, actor, c.names)), c.path)
	}
}

// checkRuleFilters lists rules by their fields.
func checkRuleFilters(s *suite) {
	ctx, all := s.t.Context(), s.kinds()
	yes, no := true, false
	var created []catalog.Rule
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
		created = append(created, r)
		s.must(s.Rules.Create(ctx, actor, r))
	}
	slices.SortFunc(created, func(a, b catalog.Rule) int { return strings.Compare(a.Name, b.Name) })
	lists := func(q catalog.Query, matches func(r *catalog.Rule) bool) {
		s.t.Helper()
		var want []string
		for i := range created {
			if matches(&created[i]) {
				want = append(want, created[i].Name)
			}
		}
		if got, err := all[rules].list(q); err != nil || !slices.Equal(got, want) {
			s.t.Errorf("%+v: got %q, %v, want %q", q, got, err, want)
		}
	}
	for _, text := range []string{"l", "LOGIN", "gin", "%", "_", "-", ".", "lo%", "none", "0", "'", "LOGIN-SLOW-NOT"} {
		lists(catalog.Query{Contains: text}, func(r *catalog.Rule) bool {
			return strings.Contains(strings.ToLower(r.Name), strings.ToLower(text))
		})
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

	// Only A to Z equal a to z.
	s.must(s.Bans.Create(ctx, actor, catalog.Entry{User: "äpfel%"}))
	for text, want := range map[string]int{"äPFEL": 1, "Äpfel": 0, "USER:ä": 1, "l%": 1, "p%": 0} {
		if ids, err := all[bans].list(catalog.Query{Contains: text}); err != nil || len(ids) != want {
			s.t.Errorf("%s: got %q, %v, want %d", text, ids, err, want)
		}
	}
}

// checkSubjects finds users, keys and tenants by a prefix.
func checkSubjects(s *suite) {
	s.prepare()
	ctx := s.t.Context()
	for _, id := range []string{"alberta", "albert", "customer_42", "stint_bot"} {
		s.must(s.Users.Create(ctx, actor, catalog.User{ID: id, Tier: tier, Tenant: "acme"}))
	}
	for _, id := range []string{"albemarle", "acme"} {
		s.must(s.Tenants.Create(ctx, actor, catalog.Tenant{ID: id, Name: "Inc.", Tier: tier}))
	}
	text, made, _, err := s.CreateKey(ctx, actor, catalog.APIKey{Name: "CI", User: owner})
	s.check(err)
	for _, k := range []catalog.APIKey{
		{ID: "albekeyalbekey", Hash: hashOf("1")},
		{ID: "importedkey", Hash: hashOf("2"), Prefix: "acme_live_impo"},
		{ID: "importedtwo", Hash: hashOf("3"), Prefix: "acme_test_impo"},
	} {
		s.must(s.APIKeys.Create(ctx, actor, k))
	}
	mine := []string{"key " + made.ID}
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
		{made.ID, 20, mine},
		{made.ID[:6], 20, mine},
		{made.Prefix, 20, mine},
		{text[:len(text)-25], 20, mine},
		{text[:len(text)-32], 20, mine},
		{text, 20, mine},
		{strings.Replace(text, made.ID, made.ID[1:]+made.ID[:1], 1), 20, nil},
		{"acme_live_impo", 20, []string{"key importedkey"}},
		{"acme_live_importedkey_" + strings.Repeat("s", 40), 20, []string{"key importedkey"}},
		{"acme_live_importedtwo", 20, nil},
		{"importe", 20, []string{"key importedkey", "key importedtwo"}},
		{"none", 20, nil},
		{strings.Repeat("_", 1000), 20, nil},
		{strings.Repeat("x_", 1000), 20, nil},
	} {
		found, err := s.FindSubjects(ctx, c.text, c.limit)
		s.check(err)
		var got []string
		for _, f := range found {
			got = append(got, f.Kind+" "+f.ID)
		}
		if !slices.Equal(got, c.want) || found == nil { // nil would be null in JSON
			s.t.Errorf("%.100q: got %q, want %q", c.text, got, c.want)
		}
	}
	for _, f := range []catalog.Found{
		{Kind: "user", ID: "alberta", Tier: tier, Tenant: "acme"},
		{Kind: "tenant", ID: "acme", Name: "Inc.", Tier: tier},
		{Kind: "key", ID: made.ID, Name: "CI", User: owner, Prefix: made.Prefix},
	} {
		got, err := s.FindSubjects(ctx, f.ID, 1)
		s.check(err)
		s.equal(f.ID, got, []catalog.Found{f})
	}
	if all, err := s.FindSubjects(ctx, "", 1000); err != nil || len(all) != 11 {
		s.t.Errorf("got %d subjects, %v, want 11", len(all), err)
	}
}
