package engine_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/storetest"
)

const (
	tokenSecret = "a secret of at least thirty-two bytes"
	keySecret   = "0123456789012345678901234567"
)

// team is a directory with a key for each of its users: alicekey is alice's. The key of
// gone is revoked.
type team struct{}

func (team) Key(_ context.Context, id string) (*identity.Key, error) {
	user, ok := strings.CutSuffix(id, "key")
	if !ok {
		return nil, nil
	}
	k := &identity.Key{ID: id, User: strings.TrimRight(user, "x")}
	k.Hash, k.Hashing = identity.HashSecret(keySecret, "")
	if k.User == "gone" {
		k.Revoked = time.Unix(1, 0)
	}
	return k, nil
}

func (team) User(context.Context, string) (*identity.User, error)     { return nil, nil }
func (team) Tenant(context.Context, string) (*identity.Tenant, error) { return nil, nil }

// with is a request of a stranger with a key and a token, of which either may be empty.
func with(tb testing.TB, key, user string, headers ...string) engine.Request {
	tb.Helper()
	h := map[string][]string{}
	if key != "" {
		h["X-Api-Key"] = []string{"stint_" + key + "_" + keySecret}
	}
	if user != "" {
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": user, "exp": 1 << 33}).SignedString([]byte(tokenSecret))
		if err != nil {
			tb.Fatal(err)
		}
		h["Authorization"] = []string{"Bearer " + token}
	}
	for i := 0; i < len(headers); i += 2 {
		h[headers[i]] = []string{headers[i+1]}
	}
	return engine.Request{Method: "GET", Path: "/", Peer: netip.MustParseAddr("192.0.2.1"), Headers: h}
}

// TestBansOfAll checks that a ban of one identity of a request holds, whoever wins: by a
// penalty, or by Ban.
func TestBansOfAll(t *testing.T) {
	t.Parallel()
	const rules = `
[[rules]]
name = "user"
count_by = ["user"]
limits = [ { name = "user", limit = "1/1h fixed_window" } ]
penalty = { threshold = 1, within = "1h", cooldown = "1m" }
`
	clock := storetest.NewClock()
	who := func(first bool) *identity.Resolver {
		return resolver(t, identity.Options{Directory: team{}, FirstWins: first, JWT: &identity.JWTOptions{Secret: tokenSecret}})
	}
	e := start(t, rules, engine.Options{Now: clock.Now, Identity: who(true)})
	check := func(about string, q engine.Request, want string) {
		t.Helper()
		if got := summary(decide(t, e, q)); got != want {
			t.Errorf("%s: %s; want %s", about, got, want)
		}
	}
	for range 2 {
		decide(t, e, with(t, "", "mallory"))
	}
	check("mallory", with(t, "", "mallory"), "banned by user:user 0/1 429 retry 1h0m0s")
	check("another's key", with(t, "alicexxkey", "mallory"), "banned by user 429 retry 1m0s")
	check("alice was not charged", with(t, "alicexxkey", ""), "allowed by user:user 0/1")
	check("another's key, exhausted", with(t, "alicexxkey", "mallory"), "banned by user 429 retry 1m0s")
	check("no one is banned", with(t, "daveyxxkey", "bob"), "allowed by user:user 0/1")
	check("the first is charged", with(t, "daveyxxkey", ""), "banned by user:user 0/1 429 retry 1h0m0s")
	check("the other is not", with(t, "", "bob"), "allowed by user:user 0/1")
	clock.Add(time.Minute)
	check("the ban is over", with(t, "carolxxkey", "mallory"), "allowed by user:user 0/1")

	if err := e.Ban(identity.Entry{Kind: identity.KindUser, Value: "eve", Reason: "spam"}); err != nil {
		t.Fatal(err)
	}
	check("a ban of the other", with(t, "frankxxkey", "eve"), "banned 403 never")
	check("named by a caller", engine.Request{Path: "/", Subject: &identity.Subject{User: "grace", Key: "evexxxxkey"}}, "banned 403 never")
	if err := e.Use(e.Rules(), who(false)); err != nil {
		t.Fatal(err)
	}
	check("both, and one is banned", with(t, "frankxxkey", "eve"), "unauthorized 401")
	check("both", with(t, "frankxxkey", "heidi"), "unauthorized 401")
	check("the same", with(t, "heidixxkey", "heidi"), "allowed by user:user 0/1")
}

// TestRefusedIsNotExempt checks that an exemption does not make bad credentials good.
func TestRefusedIsNotExempt(t *testing.T) {
	t.Parallel()
	exempt, err := identity.NewList([]identity.Entry{
		{Kind: identity.KindUser, Value: "gone"}, {Kind: identity.KindUser, Value: "alice"}, {Kind: identity.KindIP, Value: "192.0.2.0/24"},
	})
	if err != nil {
		t.Fatal(err)
	}
	e := start(t, everyRule, engine.Options{Identity: resolver(t, identity.Options{
		Directory: team{}, Lists: identity.Lists{Exempt: exempt}, JWT: &identity.JWTOptions{Secret: tokenSecret},
	})})
	named := func(s identity.Subject) engine.Request { return engine.Request{Path: "/free", Subject: &s} }
	for about, c := range map[string]struct {
		q    engine.Request
		want string
	}{
		"a good key":           {with(t, "alicexxkey", ""), "exempt"},
		"a named user":         {named(identity.Subject{User: "gone"}), "exempt"},
		"a named good key":     {named(identity.Subject{Key: "alicexxkey"}), "exempt"},
		"a revoked key":        {with(t, "gonexxxkey", ""), "unauthorized"},
		"a named revoked key":  {named(identity.Subject{Key: "gonexxxkey"}), "unauthorized"},
		"a named key, an user": {named(identity.Subject{Key: "gonexxxkey", User: "alice"}), "unauthorized"},
		"a bad token":          {with(t, "", "", "Authorization", "Bearer x"), "unauthorized"},
		"a key, a bad token":   {with(t, "alicexxkey", "", "Authorization", "Bearer\tx"), "unauthorized"},
	} {
		if got := summary(decide(t, e, c.q)); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s; want %s", about, got, c.want)
		}
	}
}

// TestCostsOfStrangers names the user: the cost in a header counts only from a trusted proxy.
func TestCostsOfStrangers(t *testing.T) {
	t.Parallel()
	e := start(t, everyRule, engine.Options{})
	stranger := netip.MustParseAddr("192.0.2.1")
	for about, c := range map[string]struct {
		peer    netip.Addr
		subject identity.Subject
		cost    int64
		want    int64
	}{
		"a stranger":                 {stranger, identity.Subject{User: "a", IP: stranger}, 0, 2},
		"no address":                 {netip.Addr{}, identity.Subject{User: "b"}, 0, 2},
		"a proxy":                    {proxy, identity.Subject{User: "c", IP: proxy}, 0, 1},
		"the caller says so":         {stranger, identity.Subject{User: "d", IP: stranger}, 3, 3},
		"the caller trusts a header": {stranger, identity.Subject{User: "e", IP: stranger, Trusted: true}, 0, 1},
	} {
		q := engine.Request{Method: "GET", Path: "/export", Headers: map[string][]string{"X-Cost": {"1"}}, Peer: c.peer, Subject: &c.subject, Cost: c.cost}
		var got int64
		for _, l := range decide(t, e, q).Limits {
			if l.Rule.Name == "export" {
				got = l.Cost
			}
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d", about, got, c.want)
		}
	}
}
