package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// asking is what the questions are asked of: rules, a directory, and counters.
type asking struct {
	*catalog.Catalog
	rules *rule.Set
	who   *identity.Resolver
	store stint.Store
	*engine.Engine
}

const askedRules = `
[[tiers]]
name = "pro"
limits = { burst = "20/1m", day = "unlimited" }
[[tiers]]
name = "free"

[[rules]]
name = "all"
limits = [{ name = "all", limit = "1000/1h" }]

[[rules]]
name = "search"
match = { paths = ["/search", "/find/*"] }
count_by = ["user", "endpoint"]
limits = [{ name = "burst", limit = "10/1m" }, { name = "day", limit = "500/1d" }]

[[rules]]
name = "tenant"
count_by = ["tenant"]
limits = [{ name = "shared", limit = "300/1h" }]

[[rules]]
name = "key"
count_by = ["api_key"]
limits = [{ name = "per-key", limit = "200/1h" }]

[[rules]]
name = "address"
count_by = ["ip"]
limits = [{ name = "per-address", limit = "400/1h" }]

[[rules]]
name = "method"
count_by = ["user", "method"]
limits = [{ name = "per-method", limit = "600/1h" }]

[[rules]]
name = "writes-pro"
group = "writes"
match = { methods = ["POST"], tiers = ["pro"] }
count_by = ["user"]
cost = 2
limits = [{ name = "writes", limit = "100/1h" }]

[[rules]]
name = "writes"
group = "writes"
match = { methods = ["POST"] }
count_by = ["user"]
limits = [{ name = "writes", limit = "5/1h" }]
penalty = { threshold = 2, within = "1h", cooldown = "10m" }

[[rules]]
name = "off"
enabled = false
limits = [{ name = "all", limit = "1/1h" }]

[[rules]]
name = "health"
action = "allow"
priority = -1
match = { paths = ["/healthz"] }
`

func newAsking(t *testing.T) *asking {
	t.Helper()
	now := func() time.Time { return midnight }
	c, err := catalog.Open("sqlite::memory:", catalog.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	f, err := rule.ParseTOML("test.toml", []byte(askedRules))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := rule.Compile(f)
	if err != nil {
		t.Fatal(err)
	}
	d := &catalog.Document{
		File:    f,
		Tenants: []catalog.Tenant{{ID: "acme", Tier: "pro"}},
		Users: []catalog.User{
			{ID: "ann", Tenant: "acme", Limits: map[string]catalog.Override{
				"writes": {Limit: "70/1h"}, "all": {Limit: "1/1h", Until: catalog.Time{Time: midnight}}, // which is over
			}},
			{ID: "bob", Tier: "free", Blocked: &catalog.Blocked{}},
		},
		APIKeys: []catalog.APIKey{{
			ID: "0123456789", Hash: "sha256:" + strings.Repeat("00", 32), User: "ann", Limits: map[string]catalog.Override{"per-key": {Limit: "7/1h"}},
		}},
	}
	if problems := d.CheckPeople(true, false); len(problems) > 0 {
		t.Fatal(problems)
	}
	banned, err := identity.NewList([]identity.Entry{{Kind: identity.KindIP, Value: "192.0.2.66"}})
	if err != nil {
		t.Fatal(err)
	}
	who, err := identity.New(identity.Options{Directory: d.Directory(now), DefaultTier: "free", IPv6Prefix: 48, Lists: identity.Lists{Banned: banned}})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return &asking{c, rules, who, store, e}
}

// TestQuotaOf decides requests, and compares what they were charged with quotas.
func TestQuotaOf(t *testing.T) {
	t.Parallel()
	q := newAsking(t)
	address := netip.MustParseAddr("2001:db8:1:2::3")
	ann := identity.Subject{User: "ann", Key: "0123456789", IP: address}
	others := []identity.Subject{{User: "eve"}, {User: "eve", Tenant: "acme", IP: netip.MustParseAddr("2001:db8:1:4::5")}} // of the same network
	charged := map[string]int64{}
	counted := func(r *rule.Compiled, name, endpoint string, s *identity.Subject) string {
		out := r.Name + ":" + name
		for _, by := range r.CountBy() {
			switch by {
			case "user":
				out += " " + s.User
			case "tenant":
				out += " " + s.Tenant
			case "api_key":
				out += " " + s.Key
			case "ip":
				out += " " + s.Net.String()
			case "endpoint":
				out += " " + endpoint
			default:
				out += " ?"
			}
		}
		return out
	}
	decide := func(s identity.Subject, method, path string) {
		t.Helper()
		v, err := q.Decide(t.Context(), engine.Request{Subject: &s, Method: method, Path: path})
		if err != nil {
			t.Fatal(err)
		}
		if v.Outcome != engine.Allowed {
			return
		}
		for _, l := range v.Limits {
			if l.Penalty == nil {
				charged[counted(l.Rule, l.Name, l.Endpoint, &v.Subject)] += l.Cost
			}
		}
	}
	for range 3 {
		for _, s := range append(others, ann) {
			decide(s, "GET", "/search")
			decide(s, "POST", "/find/it")
			decide(s, "DELETE", "/healthz")
		}
	}
	for _, s := range append(others, ann) {
		if err := q.who.Describe(t.Context(), midnight, &s); err != nil {
			t.Fatal(err)
		}
		got, err := q.QuotaOf(t.Context(), q.rules, q.who, q.store, s)
		if err != nil {
			t.Fatal(err)
		}
		used := 0
		for _, x := range got {
			if x.Unknown != "" || x.Penalty || x.Limit == "unlimited" {
				continue
			}
			r := q.rules.Rules()[slices.IndexFunc(q.rules.Rules(), func(r *rule.Compiled) bool { return r.Name == x.Rule })]
			at := counted(r, x.Name, x.Endpoint, &s)
			if x.Used != charged[at] || x.Remaining != x.Max-x.Used {
				t.Errorf("%s: %+v, want %d", at, x, charged[at])
			}
			if x.Used > 0 {
				used++
			}
		}
		if want := map[string]int{"ann": 7, "eve": 5}[s.User]; used < want {
			t.Errorf("%s: only %d of %d are used", s.User, used, want)
		}
	}

	var lines []string
	got, err := q.QuotaOf(t.Context(), q.rules, q.who, q.store, identity.Subject{User: "ann", IP: address})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range got {
		lines = append(lines, fmt.Sprintf("%s:%s%s %s %s%s %d-%d=%d %v %v", x.Rule, x.Name, x.Endpoint, x.Limit, x.Source, x.Unknown, x.Max, x.Used, x.Remaining, x.Reset, x.Retry))
	}
	is(t, "quotas of ann", strings.Join(lines, "\n"), `address:per-address 400/1h rule 400-12=388 2h0m0s 0s
all:all 1000/1h rule 1000-18=982 2h0m0s 0s
key:per-key 200/1h ruleapi_key 0-0=0 0s 0s
method:per-method 600/1h rulemethod 0-0=0 0s 0s
search:burst/search 20/1m tier pro 20-3=17 2m0s 0s
search:day/search unlimited tier pro 0-0=0 0s 0s
search:burst/find/* 20/1m tier pro 20-3=17 2m0s 0s
search:day/find/* unlimited tier pro 0-0=0 0s 0s
tenant:shared 300/1h rule 300-12=288 2h0m0s 0s
writes-pro:writes 70/1h user 70-6=64 2h0m0s 0s`)

	// What is used up, and a ban that comes of asking for more.
	for range 10 {
		decide(identity.Subject{User: "eve"}, "POST", "/")
	}
	got, err = q.QuotaOf(t.Context(), q.rules, q.who, q.store, identity.Subject{User: "eve"})
	if err != nil {
		t.Fatal(err)
	}
	lines = nil
	for _, x := range got {
		if x.Rule == "writes" {
			lines = append(lines, fmt.Sprintf("%s %d-%d=%d %v %t", x.Name, x.Max, x.Used, x.Remaining, x.Retry, x.Penalty))
		}
	}
	is(t, "quotas of eve", strings.Join(lines, "\n"), "writes 5-5=0 2h0m0s false\npenalty! 2-2=0 10m0s true")
}

// TestAskingWithout has what the questions rest on fail.
func TestAskingWithout(t *testing.T) {
	t.Parallel()
	q := newAsking(t)
	failing, err := identity.New(identity.Options{Directory: silent{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []identity.Subject{{User: "ann"}, {Key: "0123456789"}, {Tenant: "acme"}} {
		if _, err := q.QuotaOf(t.Context(), q.rules, failing, q.store, s); !errors.Is(err, errSilent) {
			t.Errorf("quotas: %v", err)
		}
	}
	if err := q.store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := q.QuotaOf(t.Context(), q.rules, q.who, q.store, identity.Subject{User: "ann"}); err == nil {
		t.Error("quotas without a store")
	}
}

// silent is a directory that cannot tell.
type silent struct{}

var errSilent = errors.New("no answer")

func (silent) Key(context.Context, string) (*identity.Key, error)       { return nil, errSilent }
func (silent) User(context.Context, string) (*identity.User, error)     { return nil, errSilent }
func (silent) Tenant(context.Context, string) (*identity.Tenant, error) { return nil, errSilent }
