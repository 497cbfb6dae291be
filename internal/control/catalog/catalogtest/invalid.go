package catalogtest

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// checkInvalid writes values that are wrong by themselves.
func checkInvalid(s *suite) {
	s.prepare()
	defer s.unchanged()()
	ctx, long := s.t.Context(), strings.Repeat("x", 256)
	many := map[string]catalog.Override{}
	for i := range 1001 {
		many[strconv.Itoa(i)] = catalog.Override{Limit: "1/1s"}
	}
	user := func(u catalog.User) error {
		u.ID = "u"
		return failure(s.Users.Create(ctx, actor, u))
	}
	override := func(name, limit string) error {
		return user(catalog.User{Limits: map[string]catalog.Override{name: {Limit: limit}}})
	}
	key := func(k catalog.APIKey) error {
		if k.ID == "" {
			k.ID = "abcdefgh"
		}
		if k.Hash == "" {
			k.Hash = hashOf("a")
		}
		return failure(s.APIKeys.Create(ctx, actor, k))
	}
	ban := func(e catalog.Entry) error { return failure(s.Bans.Create(ctx, actor, e)) }
	tenant := func(t catalog.Tenant) error { return failure(s.Tenants.Create(ctx, actor, t)) }
	limits := []namedLimit{{Name: "x", Limit: "1/1s"}}
	for _, c := range []struct {
		err        error
		path, text string
	}{
		{failure(s.Users.Create(ctx, actor, catalog.User{})), "id", "want"},
		{failure(s.Users.Create(ctx, actor, catalog.User{ID: long})), "id", "255 bytes"},
		{user(catalog.User{Tier: "glod"}), "tier", `did you mean "gold"?`},
		{user(catalog.User{Tier: "silver"}), "tier", `"silver": want the name of a tier in the catalog`},
		{user(catalog.User{Tenant: long}), "tenant", "255 bytes"},
		{user(catalog.User{Blocked: &catalog.Blocked{Reason: strings.Repeat(long, 5)}}), "blocked.reason", "1024 bytes"},
		{override("request", "1/1s"), "limits.request", `did you mean "requests"?`},
		{override(limit, "-5/1s"), "limits.requests", `"-5": want`},
		{override(limit, "unlimted"), "limits.requests", `did you mean "unlimited"?`},
		{override(limit, ""), "limits.requests", "want"},
		{user(catalog.User{Limits: many}), "limits", "1001 limits"},
		{key(catalog.APIKey{User: "nobody"}), "user", `"nobody": want the id of a user in the catalog`},
		{key(catalog.APIKey{ID: "short"}), "id", "8 to 64 letters and digits"},
		{key(catalog.APIKey{ID: "with space"}), "id", "8 to 64 letters and digits"},
		{key(catalog.APIKey{ID: long}), "id", "8 to 64 letters and digits"},
		{key(catalog.APIKey{Hash: "stint_abcdefgh_secret"}), "hash", "64 hexadecimal digits"},
		{key(catalog.APIKey{Hash: "md5:00"}), "hash", "64 hexadecimal digits"},
		{key(catalog.APIKey{Tier: "glod"}), "tier", `did you mean "gold"?`},
		{key(catalog.APIKey{Name: long}), "name", "255 bytes"},
		{ban(catalog.Entry{}), "", "has 0 of ip, user, tenant and key"},
		{ban(catalog.Entry{User: "a", Tenant: "b"}), "", "has 2 of ip, user, tenant and key"},
		{ban(catalog.Entry{IP: "10.0.0.1/8"}), "ip", "10.0.0.0/8"},
		{ban(catalog.Entry{IP: "::ffff:10.0.0.1"}), "ip", "10.0.0.1"},
		{ban(catalog.Entry{IP: "localhost"}), "ip", "an address or a network"},
		{ban(catalog.Entry{User: long}), "user", "255 bytes"},
		{tenant(catalog.Tenant{ID: "t", Tier: "glod"}), "tier", `did you mean "gold"?`},
		{tenant(catalog.Tenant{ID: "t", Name: long}), "name", "255 bytes"},
		{failure(s.Rules.Create(ctx, actor, catalog.Rule{Limits: limits})), "name", ""},
		{failure(s.Rules.Create(ctx, actor, catalog.Rule{Name: long, Limits: limits})), "name", ""},
	} {
		s.problem(c.err, c.path, c.text)
	}
	for _, id := range []string{"bob", ""} {
		s.rejected(invalid, failure(s.Users.Modify(ctx, actor, owner, func(u *catalog.User) error { u.ID = id; return nil })), owner)
	}
	if err := failure(s.Users.Modify(ctx, actor, owner, func(*catalog.User) error { return errors.ErrUnsupported })); !errors.Is(err, errors.ErrUnsupported) {
		s.t.Errorf("got %v, want the error of the change", err)
	}
	checkLikeFile(s)
}

// checkLikeFile writes rules and tiers that are wrong. The problems are those that a file with
// them would have.
func checkLikeFile(s *suite) {
	ctx := s.t.Context()
	base, err := s.Rules.Get(ctx, "base")
	s.check(err)
	for _, text := range []string{
		`{"name":"r"}`,
		`{"name":"r","limits":[{"name":"x","limit":"10/1x"}]}`,
		`{"name":"r","limits":[{"name":"x","limit":"-10/1s"},{"name":"x","limit":"10 per second"}]}`,
		`{"name":"r","limits":[{"name":"x","limit":"1/1s"},{"name":"x","limit":"1/1s"}]}`,
		`{"name":"r","limits":[{"name":"x","limit":"5/1s","lease":"2s","split":6},{"name":"y","limit":"5/1s","lease":"1h","split":65}]}`,
		`{"name":"r","limits":[{"name":"x","limit":"5/1s"}],"regions":"gossip","credit":6,"on_credit":"never","weights":"fixed"}`,
		`{"name":"a b","limits":[{"name":"x","limit":"1/1s"}]}`,
		`{"name":"r","limits":[{"name":"x","limit":"1/1s","algorithm":"tokenbucket"}],"action":"rejct"}`,
		`{"name":"r","limits":[{"name":"x","limit":"1/1s"}],"count_by":["user","usr","endpoint"]}`,
		`{"name":"r","limits":[{"name":"x","limit":"1/1s"}],"match":{"tiers":["glod"],"paths":["a","//"],"methods":["get"],"ip_ranges":["10.0.0.1/8"],"headers":{"a b":"c"}}}`,
		`{"name":"r","limits":[{"name":"x","limit":"5/1s"}],"cost":9,"response":{"status":200,"message":"a\nb"}}`,
		`{"name":"r","action":"block","limits":[{"name":"x","limit":"1/1s"}],"group":"g h"}`,
	} {
		var r catalog.Rule
		s.check(json.Unmarshal([]byte(text), &r))
		s.likeFile(failure(s.Rules.Create(ctx, actor, r)), rule.File{Rules: []rule.Rule{base.Value, r}, Tiers: []rule.Tier{{Name: tier}}}, "rules[1]")
	}
	for _, text := range []string{
		`{"name":"t","limits":{"request":"1/1s","requests":"x","other":"unlimted"}}`,
		`{"name":"t.","display_name":"a\nb"}`,
		`{"name":"t","price":"` + strings.Repeat("9", 300) + `"}`,
	} {
		var v catalog.Tier
		s.check(json.Unmarshal([]byte(text), &v))
		s.likeFile(failure(s.Tiers.Create(ctx, actor, v)), rule.File{Rules: []rule.Rule{base.Value}, Tiers: []rule.Tier{{Name: tier}, v}}, "tiers[1]")
	}
}

// likeFile compares an error with the problems of a file, which are all about one item.
func (s *suite) likeFile(err error, file rule.File, item string) {
	s.t.Helper()
	s.rejected(invalid, err)
	text, marshalErr := json.Marshal(&file)
	s.check(marshalErr)
	_, fileErr := rule.ParseJSON("", text)
	var got, want strict.Problems
	errors.As(err, &got)
	errors.As(fileErr, &want)
	found := map[string]bool{}
	for _, p := range got {
		found[p.Path+": "+p.Message+p.Hint] = true
	}
	for _, p := range want {
		path := strings.TrimPrefix(strings.TrimPrefix(p.Path, item), ".")
		if line := path + ": " + p.Message + p.Hint; !found[line] {
			s.t.Errorf("got\n%v\nwant %s, as for a file", err, line)
		}
	}
	if len(got) != len(want) || len(want) == 0 {
		s.t.Errorf("got %d problems, want %d:\n%v\n%v", len(got), len(want), err, fileErr)
	}
}

// checkReferences writes and deletes records that others refer to.
func checkReferences(s *suite) {
	s.prepare()
	ctx := s.t.Context()
	groups := []catalog.Rule{
		{Name: "narrow", Group: "g", Priority: 1, Match: rule.Match{Paths: []string{"/a/b"}}, Limits: []namedLimit{{Name: "n", Limit: "1/1s"}}},
		{Name: "wide", Group: "g", Priority: 2, Match: rule.Match{Paths: []string{"/a/**"}}, Limits: []namedLimit{{Name: "w", Limit: "1/1s"}}},
		{Name: "of-tier", Match: rule.Match{Tiers: []string{tier}, Paths: []string{"/t"}}, Limits: []namedLimit{{Name: "t", Limit: "1/1s"}}},
	}
	for _, r := range groups {
		s.must(s.Rules.Create(ctx, actor, r))
	}
	s.must(s.Tiers.Create(ctx, actor, catalog.Tier{Name: "plan", Limits: map[string]string{"w": "5/1s"}}))
	s.must(s.Tenants.Create(ctx, actor, catalog.Tenant{ID: "acme", Tier: "plan"}))
	s.must(s.APIKeys.Create(ctx, actor, catalog.APIKey{ID: "abcdefgh", Hash: hashOf("a"), User: owner}))

	unchanged := s.unchanged()
	modify := func(change func(*catalog.Rule)) error {
		return failure(s.Rules.Modify(ctx, actor, "wide", func(r *catalog.Rule) error { change(r); return nil }))
	}
	s.rejected(invalid, modify(func(r *catalog.Rule) { r.Priority = 0 }), `rule "narrow"`, "can never apply", `"wide"`)
	s.rejected(invalid, modify(func(r *catalog.Rule) { r.Limits[0].Name = "v" }), `tier "plan".limits.w`, `want the name of a limit of a rule`)
	s.rejected(invalid, remove(s, s.Rules, "wide"), `tier "plan".limits.w`)
	s.rejected(invalid, remove(s, s.Tiers, tier), `rule "of-tier".match.tiers[0]`, `"gold"`)
	s.rejected(invalid, remove(s, s.Tiers, "plan"), `the tier "plan" cannot be deleted`, `tenant "acme"`)
	s.rejected(invalid, remove(s, s.Users, owner), `the user "owner" cannot be deleted`, `API key "abcdefgh"`)
	s.problem(failure(s.APIKeys.Create(ctx, actor, catalog.APIKey{ID: "abcdefgi", Hash: hashOf("a")})), "hash", "abcdefgh")
	unchanged()

	// In the other order, everything can be deleted.
	s.check(remove(s, s.APIKeys, "abcdefgh"))
	s.check(remove(s, s.Users, owner))
	s.check(remove(s, s.Tenants, "acme"))
	s.check(remove(s, s.Tiers, "plan"))
	for _, r := range groups {
		s.check(remove(s, s.Rules, r.Name))
	}
	s.check(remove(s, s.Tiers, tier))
}

// remove deletes the current version of a record.
func remove[T any](s *suite, table *catalog.Table[T], id string) error {
	s.t.Helper()
	r, err := table.Get(s.t.Context(), id)
	s.check(err)
	return table.Delete(s.t.Context(), actor, id, r.Version)
}
