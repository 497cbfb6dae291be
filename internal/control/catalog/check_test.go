package catalog_test

import (
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
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
	for range 50_000 {
		d.Users = append(d.Users, catalog.User{Tier: strings.Repeat("glod", 100), Tenant: "\xff"})
	}
	if got := d.CheckPeople(true, false); len(got) != strict.MaxProblems {
		t.Errorf("got %d problems, want %d", len(got), strict.MaxProblems)
	}
}
