package catalogtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

const invalid = http.StatusUnprocessableEntity

// checkRefused writes what is wrong by itself.
func checkRefused(h *house) {
	t := h.t
	h.furnish(t)
	long := strings.Repeat("x", 256)
	many := map[string]catalog.Override{}
	for i := range 1001 {
		many[strconv.Itoa(i)] = catalog.Override{Limit: "1/1s"}
	}
	user := func(u catalog.User) func(context.Context) error {
		return func(ctx context.Context) error { _, err := h.Users.Create(ctx, actor, u); return err }
	}
	key := func(k catalog.APIKey) func(context.Context) error {
		if k.ID == "" {
			k.ID = "abcdefgh"
		}
		if k.Hash == "" {
			k.Hash = hashOf("a")
		}
		return func(ctx context.Context) error { _, err := h.APIKeys.Create(ctx, actor, k); return err }
	}
	ban := func(e catalog.Entry) func(context.Context) error {
		return func(ctx context.Context) error { _, err := h.Bans.Create(ctx, actor, e); return err }
	}
	for _, c := range []struct {
		write func(context.Context) error
		path  string
		says  string
	}{
		{user(catalog.User{}), "id", "want"},
		{user(catalog.User{ID: long}), "id", "255 bytes"},
		{user(catalog.User{ID: "u", Tier: "glod"}), "tier", `did you mean "gold"?`},
		{user(catalog.User{ID: "u", Tier: "silver"}), "tier", `"silver": want the name of a tier in the catalog`},
		{user(catalog.User{ID: "u", Tenant: long}), "tenant", "255 bytes"},
		{user(catalog.User{ID: "u", Blocked: &catalog.Blocked{Reason: strings.Repeat(long, 5)}}), "blocked.reason", "1024 bytes"},
		{user(catalog.User{ID: "u", Limits: map[string]catalog.Override{"request": {Limit: "1/1s"}}}), "limits.request", `did you mean "requests"?`},
		{user(catalog.User{ID: "u", Limits: map[string]catalog.Override{limit: {Limit: "-5/1s"}}}), "limits.requests", `"-5": want`},
		{user(catalog.User{ID: "u", Limits: map[string]catalog.Override{limit: {Limit: "unlimted"}}}), "limits.requests", `did you mean "unlimited"?`},
		{user(catalog.User{ID: "u", Limits: map[string]catalog.Override{limit: {}}}), "limits.requests", "want"},
		{user(catalog.User{ID: "u", Limits: many}), "limits", "1001 limits"},
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
		{func(ctx context.Context) error {
			_, err := h.Tenants.Create(ctx, actor, catalog.Tenant{ID: "t", Tier: "glod"})
			return err
		}, "tier", `did you mean "gold"?`},
		{func(ctx context.Context) error {
			_, err := h.Tenants.Create(ctx, actor, catalog.Tenant{ID: "t", Name: long})
			return err
		}, "name", "255 bytes"},
	} {
		h.refuses(t, invalid, func(ctx context.Context) error {
			err := c.write(ctx)
			if !names(err, c.path) {
				t.Errorf("got %v, want a problem with %q", err, c.path)
			}
			return err
		}, c.says)
	}
	checkAsInFile(h)
}

// checkAsInFile writes rules and tiers that are wrong: what is said of each is what is
// said of it in a file.
func checkAsInFile(h *house) {
	t := h.t
	base, err := h.Rules.Get(t.Context(), "base")
	check(t, err)
	for _, text := range []string{
		`{"name":"r"}`,
		`{"name":"r","limits":[{"name":"x","limit":"10/1x"}]}`,
		`{"name":"r","limits":[{"name":"x","limit":"-10/1s"},{"name":"x","limit":"10 per second"}]}`,
		`{"name":"r","limits":[{"name":"x","limit":"1/1s"},{"name":"x","limit":"1/1s"}]}`,
		`{"name":"a b","limits":[{"name":"x","limit":"1/1s"}]}`,
		`{"name":"r","limits":[{"name":"x","limit":"1/1s","algorithm":"tokenbucket"}],"action":"rejct"}`,
		`{"name":"r","limits":[{"name":"x","limit":"1/1s"}],"count_by":["user","usr","endpoint"]}`,
		`{"name":"r","limits":[{"name":"x","limit":"1/1s"}],"match":{"tiers":["glod"],"paths":["a","//"],"methods":["get"],"ip_ranges":["10.0.0.1/8"],"headers":{"a b":"c"}}}`,
		`{"name":"r","limits":[{"name":"x","limit":"5/1s"}],"cost":9,"response":{"status":200,"message":"a\nb"}}`,
		`{"name":"r","action":"block","limits":[{"name":"x","limit":"1/1s"}],"group":"g h"}`,
	} {
		var r catalog.Rule
		check(t, json.Unmarshal([]byte(text), &r))
		h.refuses(t, invalid, func(ctx context.Context) error {
			_, err := h.Rules.Create(ctx, actor, r)
			same(t, err, rule.File{Rules: []rule.Rule{base.Value, r}, Tiers: []rule.Tier{{Name: tier}}}, "rules[1]")
			return err
		})
	}
	for _, text := range []string{
		`{"name":"t","limits":{"request":"1/1s","requests":"x","other":"unlimted"}}`,
		`{"name":"t.","display_name":"a\nb"}`,
		`{"name":"t","price":"` + strings.Repeat("9", 300) + `"}`,
	} {
		var v catalog.Tier
		check(t, json.Unmarshal([]byte(text), &v))
		h.refuses(t, invalid, func(ctx context.Context) error {
			_, err := h.Tiers.Create(ctx, actor, v)
			same(t, err, rule.File{Rules: []rule.Rule{base.Value}, Tiers: []rule.Tier{{Name: tier}, v}}, "tiers[1]")
			return err
		})
	}
	for name, v := range map[string]catalog.Rule{
		"missing": {Limits: []namedLimit{{Name: "x", Limit: "1/1s"}}},
		"long":    {Name: strings.Repeat("x", 300), Limits: []namedLimit{{Name: "x", Limit: "1/1s"}}},
	} {
		h.refuses(t, invalid, func(ctx context.Context) error {
			_, err := h.Rules.Create(ctx, actor, v)
			if !names(err, "name") {
				t.Errorf("%s: got %v, want a problem with the name", name, err)
			}
			return err
		})
	}
}

// same compares an error with what is wrong with one item of a file.
func same(t *testing.T, err error, file rule.File, item string) {
	t.Helper()
	text, marshalErr := json.Marshal(&file)
	check(t, marshalErr)
	_, fileErr := rule.ParseJSON("", text)
	var got, want strict.Problems
	if !errors.As(err, &got) || !errors.As(fileErr, &want) {
		t.Errorf("got %v, want the problems %v", err, fileErr)
		return
	}
	said := map[string]bool{}
	for _, p := range got {
		said[p.Path+": "+p.Message+p.Hint] = true
	}
	for _, p := range want {
		path := strings.TrimPrefix(strings.TrimPrefix(p.Path, item), ".")
		if line := path + ": " + p.Message + p.Hint; !said[line] {
			t.Errorf("a file says %s, and the catalog says\n%v", line, err)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d problems, want %d:\n%v\n%v", len(got), len(want), err, fileErr)
	}
}

// checkRefusedWithOthers writes what is wrong only beside what is there.
func checkRefusedWithOthers(h *house) {
	t := h.t
	h.furnish(t)
	ctx := t.Context()
	rules := map[string]catalog.Rule{}
	for _, r := range []catalog.Rule{
		{Name: "narrow", Group: "g", Priority: 1, Match: rule.Match{Paths: []string{"/a/b"}}, Limits: []namedLimit{{Name: "n", Limit: "1/1s"}}},
		{Name: "wide", Group: "g", Priority: 2, Match: rule.Match{Paths: []string{"/a/**"}}, Limits: []namedLimit{{Name: "w", Limit: "1/1s"}}},
		{Name: "of-tier", Match: rule.Match{Tiers: []string{tier}, Paths: []string{"/t"}}, Limits: []namedLimit{{Name: "t", Limit: "1/1s"}}},
	} {
		rules[r.Name] = r
		_, err := h.Rules.Create(ctx, actor, r)
		check(t, err)
	}
	_, err := h.Tiers.Create(ctx, actor, catalog.Tier{Name: "plan", Limits: map[string]string{"w": "5/1s"}})
	check(t, err)
	_, err = h.Tenants.Create(ctx, actor, catalog.Tenant{ID: "acme", Tier: "plan"})
	check(t, err)
	_, err = h.APIKeys.Create(ctx, actor, catalog.APIKey{ID: "abcdefgh", Hash: hashOf("a"), User: owner})
	check(t, err)

	modify := func(name string, change func(*catalog.Rule)) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := h.Rules.Modify(ctx, actor, name, func(r *catalog.Rule) error { change(r); return nil })
			return err
		}
	}
	removeRule := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			r, err := h.Rules.Get(ctx, name)
			check(t, err)
			return h.Rules.Delete(ctx, actor, name, r.Version)
		}
	}
	removeTier := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			r, err := h.Tiers.Get(ctx, name)
			check(t, err)
			return h.Tiers.Delete(ctx, actor, name, r.Version)
		}
	}
	h.refuses(t, invalid, modify("wide", func(r *catalog.Rule) { r.Priority = 0 }), `rule "narrow"`, "can never apply", `"wide"`)
	h.refuses(t, invalid, modify("wide", func(r *catalog.Rule) { r.Limits[0].Name = "v" }), `tier "plan".limits.w`, `want the name of a limit of a rule`)
	h.refuses(t, invalid, removeRule("wide"), `tier "plan".limits.w`)
	h.refuses(t, invalid, removeTier(tier), `rule "of-tier".match.tiers[0]`, `"gold"`)
	h.refuses(t, invalid, removeTier("plan"), `the tier "plan" cannot be deleted`, `tenant "acme"`)
	h.refuses(t, invalid, func(ctx context.Context) error {
		r, err := h.Users.Get(ctx, owner)
		check(t, err)
		return h.Users.Delete(ctx, actor, owner, r.Version)
	}, `the user "owner" cannot be deleted`, `API key "abcdefgh"`)
	h.refuses(t, invalid, func(ctx context.Context) error {
		_, err := h.APIKeys.Create(ctx, actor, catalog.APIKey{ID: "abcdefgi", Hash: hashOf("a")})
		if !names(err, "hash") {
			t.Errorf("got %v, want a problem with the hash", err)
		}
		return err
	}, "abcdefgh")

	// With what they refer to gone, all can go.
	check(t, h.APIKeys.Delete(ctx, actor, "abcdefgh", versionOf(t, h.APIKeys, "abcdefgh")))
	check(t, h.Users.Delete(ctx, actor, owner, versionOf(t, h.Users, owner)))
	check(t, h.Tenants.Delete(ctx, actor, "acme", versionOf(t, h.Tenants, "acme")))
	check(t, h.Tiers.Delete(ctx, actor, "plan", versionOf(t, h.Tiers, "plan")))
	for name := range rules {
		check(t, removeRule(name)(ctx))
	}
	check(t, removeTier(tier)(ctx))
}

func versionOf[T any](t *testing.T, table *catalog.Table[T], id string) int64 {
	t.Helper()
	r, err := table.Get(t.Context(), id)
	check(t, err)
	return r.Version
}

// checkSpellings writes one network in several ways: a list that has it twice could not
// be served.
func checkSpellings(h *house) {
	t := h.t
	for _, spellings := range [][]string{
		{"10.0.0.1", "10.0.0.1/32"},
		{"2001:db8::1/128", "2001:db8::1", "2001:DB8:0:0::1", "2001:0db8::0001/128"},
		{"2001:db8::/32", "2001:DB8:0::/32"},
	} {
		version, err := h.Bans.Create(t.Context(), actor, catalog.Entry{IP: spellings[0]})
		check(t, err)
		for _, s := range spellings[1:] {
			e := catalog.Entry{IP: s}
			h.refuses(t, http.StatusConflict, func(ctx context.Context) error { _, err := h.Bans.Create(ctx, actor, e); return err })
			version, err = h.Bans.Update(t.Context(), actor, e, version)
			check(t, err)
		}
	}
	all, err := h.Bans.List(t.Context(), catalog.Query{})
	check(t, err)
	if len(all) != 3 {
		t.Errorf("there are %d bans, want 3: %+v", len(all), all)
	}
}

// checkUpgraded changes tiers of a user, and other things.
func checkUpgraded(h *house) {
	t := h.t
	h.furnish(t)
	upgraded := func() any {
		t.Helper()
		var at any
		check(t, h.db.QueryRowContext(t.Context(), "SELECT upgraded_at FROM stint_users WHERE id = 'u'").Scan(&at))
		return at
	}
	_, err := h.Users.Create(t.Context(), actor, catalog.User{ID: "u"})
	check(t, err)
	if got := upgraded(); got != nil {
		t.Errorf("a user without a tier was upgraded at %v", got)
	}
	set := func(change func(*catalog.User)) {
		t.Helper()
		_, err := h.Users.Modify(t.Context(), actor, "u", func(u *catalog.User) error { change(u); return nil })
		check(t, err)
	}
	set(func(u *catalog.User) { u.Tier = tier })
	first := upgraded()
	if first == nil {
		t.Error("a user who got a tier was not upgraded")
	}
	set(func(u *catalog.User) { u.Tenant = "acme" })
	if got := upgraded(); fmt.Sprint(got) != fmt.Sprint(first) {
		t.Errorf("a user whose tier stayed was upgraded at %v and %v", first, got)
	}
	set(func(u *catalog.User) { u.Tier = "" })
	if got := upgraded(); fmt.Sprint(got) == fmt.Sprint(first) {
		t.Errorf("a user who lost the tier was upgraded at %v as before", got)
	}
}

// checkKeys makes a key. Its text must be nowhere.
func checkKeys(h *house) {
	t := h.t
	h.furnish(t)
	ctx := t.Context()
	text, made, version, err := h.CreateKey(ctx, actor, catalog.APIKey{ID: "ignored!", Hash: "ignored", Name: "CI", User: owner})
	check(t, err)
	parts := strings.Split(text, "_")
	if len(parts) != 3 || parts[1] != made.ID || !strings.HasPrefix(text, made.Prefix) || len(made.Prefix) > len(text)/2 {
		t.Fatalf("made a key of %d parts: %+v", len(parts), made)
	}
	r, err := h.APIKeys.Get(ctx, made.ID)
	check(t, err)
	equal(t, "made", r.Value, made)
	if r.Version != version || made.Name != "CI" || made.User != owner || made.Hash != hashOf(parts[2]) {
		t.Errorf("made %+v, of version %d: got %+v", made, version, r)
	}

	// What fails after the key is made does not say it either.
	h.refuses(t, invalid, func(ctx context.Context) error {
		text, k, _, err := h.CreateKey(ctx, actor, catalog.APIKey{User: "nobody"})
		if text != "" || k.ID != "" {
			t.Error("a key that was not stored was returned")
		}
		return err
	}, "nobody")
	stolen := made
	stolen.Hash = text
	h.refuses(t, invalid, func(ctx context.Context) error {
		_, err := h.APIKeys.Update(ctx, actor, stolen, r.Version)
		if strings.Contains(err.Error(), parts[2]) {
			t.Error("an error shows the secret of a key")
		}
		return err
	}, "hash")
	if dump := Dump(t, h.db); !strings.Contains(dump, made.Hash) || strings.Contains(dump, parts[2]) {
		t.Error("the hash of a key is in no table, or its secret in one")
	}
}
