package catalog_test

import (
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/rule"
)

// TestCheckPeople reads files that are wrong in one place each.
func TestCheckPeople(t *testing.T) {
	t.Parallel()
	const base = `
		rules = [ { name = "r", limits = [ { name = "requests", limit = "1/1s" } ] } ]
		tiers = [ { name = "gold" } ]
	`
	hash := "sha256:" + strings.Repeat("0a", 32)
	for _, c := range []struct{ text, path, says string }{
		{`users = [ { id = "a" }, { id = "b", tier = "gold", limits = { requests = "unlimited" } } ]`, "", ""},
		{`users = [ { id = "a" }, { id = "a" } ]`, "users[1].id", "it only once"},
		{`tenants = [ { id = "a" }, { id = "a" } ]`, "tenants[1].id", "it only once"},
		{`users = [ { id = "a" } ]
		  tenants = [ { id = "a" } ]`, "", ""},
		{`users = [ { id = "a\u0000" } ]`, "users[0].id", "UTF-8 without control characters"},
		{`users = [ { id = "" } ]`, "users[0].id", "1 to 255 bytes"},
		{`users = [ { id = "a", tier = "glod" } ]`, "users[0].tier", `did you mean "gold"?`},
		{`users = [ { id = "a", limits = { request = "1/1s" } } ]`, "users[0].limits.request", `did you mean "requests"?`},
		{`users = [ { id = "a", limits = { requests = "1/1x" } } ]`, "users[0].limits.requests", "want"},
		{`users = [ { id = "a", blocked = { reason = "a\nb" } } ]`, "users[0].blocked.reason", "without control characters"},
		{`tenants = [ { id = "a", tier = "free" } ]`, "tenants[0].tier", `"free": want the name of a tier in this file`},
		{`api_keys = [ { id = "abcdefgh", hash = "` + hash + `" } ]`, "", ""},
		{`api_keys = [ { id = "abcdefgh", hash = "hmac-` + hash + `" } ]`, "api_keys[0].hash", "identity.pepper"},
		{`api_keys = [ { id = "abcdefgh", hash = "hunter2" } ]`, "api_keys[0].hash", "64 hexadecimal digits"},
		{`api_keys = [ { id = "a_b", hash = "` + hash + `" } ]`, "api_keys[0].id", "8 to 64 letters and digits"},
		{`bans = [ { ip = "10.0.0.1" }, { ip = "10.0.0.1/32" } ]`, "bans[1].ip", "it only once"},
		{`bans = [ { ip = "10.0.0.1" } ]
		  exemptions = [ { ip = "10.0.0.1" } ]`, "", ""},
		{`exemptions = [ { user = "a", tenant = "b" } ]`, "exemptions[0]", "has 2 of ip, user, tenant and key"},
		{`exemptions = [ { reason = "x" } ]`, "exemptions[0]", "has 0 of ip, user, tenant and key"},
	} {
		var d catalog.Document
		if _, problems := strict.TOML("", []byte(base+c.text), &d); problems != nil {
			t.Fatal(problems)
		}
		got := d.CheckPeople(true, false)
		if c.says == "" && got == nil {
			continue
		}
		if len(got) != 1 || got[0].Path != c.path || !strings.Contains(got[0].String(), c.says) || strings.Contains(got[0].String(), "hunter2") {
			t.Errorf("%s: got %v, want a problem with %s that says %q", c.text, got, c.path, c.says)
		}
	}
}

// TestCheckPeopleOfPart checks people of a file whose rules could not be read: nothing is
// said of what they refer to.
func TestCheckPeopleOfPart(t *testing.T) {
	t.Parallel()
	d := catalog.Document{
		Users:   []catalog.User{{ID: "a", Tier: "gone", Limits: map[string]catalog.Override{"gone": {Limit: "1/1s"}}}},
		Tenants: []catalog.Tenant{{ID: "\x00", Tier: "gone"}},
		APIKeys: []catalog.APIKey{{ID: "abcdefgh", Hash: "hmac-sha256:" + strings.Repeat("0", 64)}},
	}
	if got := d.CheckPeople(false, true); len(got) != 1 || got[0].Path != "tenants[0].id" {
		t.Errorf("got %v, want one problem with tenants[0].id", got)
	}
}

// TestCheckIsBounded checks a document with very much wrong.
func TestCheckIsBounded(t *testing.T) {
	t.Parallel()
	d := catalog.Document{File: rule.File{Tiers: []rule.Tier{{Name: "gold"}}}}
	for range 5_000 {
		d.Users = append(d.Users, catalog.User{Tier: strings.Repeat("glod", 100), Tenant: "\xff"})
	}
	if got := d.CheckPeople(true, false); len(got) != strict.MaxProblems {
		t.Errorf("got %d problems, want %d", len(got), strict.MaxProblems)
	}
}

// TestWorld writes rules and tiers to a catalog that knows of three regions, or of none: what is
// written must fit them, and what was there before need not.
func TestWorld(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), testdatabase.SQLite(t)
	before := open(t, url)
	in := func(w rule.World) *catalog.Catalog {
		c, err := catalog.Open(url, catalog.Options{World: &w})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	quota := func(name, limit string) catalog.Rule {
		return catalog.Rule{Name: name, Limits: []rule.Limit{{Name: name, Limit: limit}}, Regions: rule.RegionsQuota}
	}
	tier := func(name, limit, value string) catalog.Tier {
		return catalog.Tier{Name: name, Limits: map[string]string{limit: value}}
	}
	for _, err := range []error{
		failure(before.Rules.Create(ctx, writer, quota("old", "2/1s"))),
		failure(before.Rules.Create(ctx, writer, catalog.Rule{Name: "new", Limits: []rule.Limit{{Name: "new", Limit: "5/1s"}}})),
		failure(before.Tiers.Create(ctx, writer, tier("free", "new", "2/1s"))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	none, three := in(rule.World{}), in(rule.World{Regions: 3})
	gossip := quota("gossip", "1/1s")
	gossip.Regions = rule.RegionsGossip
	central := gossip
	central.Name, central.Regions = "central", rule.RegionsCentral
	for _, c := range []struct {
		what string
		err  error
		want string
	}{
		{"gossip without regions", failure(none.Rules.Create(ctx, writer, gossip)), `regions: "gossip": this is no region: add [region] with a name and peers, or remove regions`},
		{"gossip", failure(three.Rules.Create(ctx, writer, gossip)), ""},
		{"central without one", failure(three.Rules.Create(ctx, writer, central)), `regions: "central": no region has the counters: set region.central to the name of one`},
		{"a small quota", failure(three.Rules.Create(ctx, writer, quota("few", "2/1s"))), `limits[0].limit: "2/1s": want at least 3, one unit for each region`},
		{"a rule that divides a tier's value", failure(three.Rules.Modify(ctx, writer, "new", func(r *catalog.Rule) error { r.Regions = rule.RegionsQuota; return nil })), `tier "free".limits.new: after this change: the rule "new" gives each region a part (quota)`},
		{"a tier", failure(three.Tiers.Create(ctx, writer, tier("pro", "old", "1/1s"))), `limits.old: the rule "old" gives each region a part (quota)`},
		{"a tier that fits", failure(three.Tiers.Create(ctx, writer, tier("pro", "old", "3/1s"))), ""},
	} {
		if (c.err == nil) != (c.want == "") || c.err != nil && !strings.HasPrefix(c.err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.what, c.err, c.want)
		}
	}
	if problems, err := three.CheckRule(ctx, quota("old", "1/1s"), "old"); err != nil || len(problems) != 1 || problems[0].Path != "limits[0].limit" {
		t.Errorf("%v, %v", problems, err)
	}
}

func failure[T any](_ T, err error) error { return err }
