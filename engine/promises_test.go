package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

func newStore(tb testing.TB, now func() time.Time) stint.Store {
	tb.Helper()
	s, err := memstore.New(memstore.Options{Now: now})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// TestViolationsOnce has a rule that throttles beside one that rejects: a refusal is
// one violation of the rule that refused, and none of the other.
func TestViolationsOnce(t *testing.T) {
	t.Parallel()
	const penalty = "penalty = { threshold = 4, within = \"1h\", cooldown = \"1m\" }\n"
	clock := storetest.NewClock()
	for _, c := range []struct{ slow, login, banned string }{
		{"1000/1h", "1/1h", "login"},
		{"1/1h", "1000/1h", "slow"},
	} {
		e := start(t, `
[[rules]]
name = "login"
count_by = ["user"]
limits = [ { name = "login", limit = "`+c.login+` fixed_window" } ]
`+penalty+`
[[rules]]
name = "slow"
count_by = ["user"]
action = "throttle"
max_delay = "1s"
limits = [ { name = "slow", limit = "`+c.slow+` fixed_window" } ]
`+penalty, engine.Options{Now: clock.Now})
		decide(t, e, from("alice", "GET", "/"))
		for i := range 4 {
			v := decide(t, e, from("alice", "GET", "/"))
			if want := i == 3; v.Outcome == engine.Banned != want {
				t.Errorf("%s: refusal %d: %s", c.banned, i+1, summary(v))
			}
		}
		usage, err := e.Usage(t.Context(), identity.Subject{User: "alice"})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range usage {
			if l.Penalty != nil && l.Decision.Allowed == (l.Rule.Name == c.banned) {
				t.Errorf("%s: %s: %+v", c.banned, l.Rule.Name, l.Decision)
			}
		}
	}
}

// TestBannedIsRemembered floods a rule that throttles with requests of one who is
// banned: the deny cache answers.
func TestBannedIsRemembered(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	var calls counted
	cached, err := layer.DenyCache(&calls, layer.DenyCacheOptions{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	calls.Store = newStore(t, clock.Now)
	r := new(recorder)
	e := start(t, `
[[rules]]
name = "slow"
count_by = ["user"]
action = "throttle"
max_delay = "1ms"
limits = [ { name = "slow", limit = "1/1h fixed_window" } ]
penalty = { threshold = 1, within = "1h", cooldown = "1h" }
`, engine.Options{Now: clock.Now, Store: cached, Recorder: r})
	for range 1000 {
		decide(t, e, from("alice", "GET", "/"))
	}
	if calls.n > 5 {
		t.Errorf("%d calls of the store for 1000 requests", calls.n)
	}
	if first, last := r.events[0], r.events[999]; first.Cached || !last.Cached {
		t.Errorf("cached: %v, then %v; want what was remembered to say so", first.Cached, last.Cached)
	}
}

// counted counts takes.
type counted struct {
	stint.Store
	n int
}

func (s *counted) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	s.n++
	return s.Store.Take(ctx, asks, ds)
}

// down is a store that cannot be reached.
type down struct{ stint.Store }

func (down) Take(context.Context, []stint.Ask, []stint.Decision) error {
	return fmt.Errorf("%w: %w", stint.ErrUnavailable, stint.ErrNotApplied)
}

func (down) Adjust(context.Context, []stint.Ask, []stint.Decision) error {
	return fmt.Errorf("%w: %w", stint.ErrUnavailable, stint.ErrNotApplied)
}

// TestOpenAndLocal has a rule that is open while the store is away beside one that
// this node decides: the first neither refuses, nor holds, nor lets everything pass.
func TestOpenAndLocal(t *testing.T) {
	t.Parallel()
	for _, action := range []string{`action = "reject"`, "action = \"throttle\"\nmax_delay = \"1m\""} {
		synctest.Test(t, func(t *testing.T) {
			store, err := layer.Fallback(down{newStore(t, nil)}, layer.FallbackOptions{Local: newStore(t, nil)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() }) // it waits for the store to be back
			e := start(t, `
[[rules]]
name = "strict"
count_by = ["user"]
limits = [ { name = "strict", limit = "5/1h fixed_window" } ]

[[rules]]
name = "soft"
count_by = ["user"]
limits = [ { name = "soft", limit = "2/1m fixed_window" } ]
on_store_failure = "open"
`+action, engine.Options{Store: store})
			begin, passed := time.Now(), 0
			for range 100 {
				if decide(t, e, from("alice", "GET", "/")).Outcome.Passed() {
					passed++
				}
			}
			if took := time.Since(begin); passed != 5 || took != 0 {
				t.Errorf("%s: %d passed a limit of 5, after %v", action, passed, took)
			}
		})
	}
}

// TestLeavingGivesNothing holds requests, has their clients leave, and counts what
// passes then: no more than the limit.
func TestLeavingGivesNothing(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, `
[[rules]]
name = "queue"
match = { paths = ["/queue"] }
count_by = ["user"]
limits = [ { name = "queue", limit = "1/20s burst=3 leaky_bucket" } ]

[[rules]]
name = "all"
limits = [ { name = "all", limit = "10/10s `+algorithm+`" } ]
`, engine.Options{})
			decide(t, e, from("alice", "GET", "/queue"))
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error, 3)
			for range 3 {
				go func() {
					_, err := e.Decide(ctx, from("alice", "GET", "/queue"))
					left <- err
				}()
			}
			synctest.Wait()
			<-time.After(19 * time.Second) // virtual: all that was charged has recovered
			passed := 0
			for range 5 {
				if decide(t, e, from("bob", "GET", "/")).Outcome.Passed() {
					passed++
				}
			}
			leave()
			for range 3 {
				if err := <-left; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
			for range 20 {
				if decide(t, e, from("bob", "GET", "/")).Outcome.Passed() {
					passed++
				}
			}
			if passed > 10 {
				t.Errorf("%s: %d of 10 passed in one instant", algorithm, passed)
			}
		})
	}
}

// members is a directory in which everyone is of one tenant.
type members struct{}

func (members) Key(_ context.Context, id string) (*identity.Key, error) {
	if id != "abcdefgh" {
		return nil, nil
	}
	return &identity.Key{ID: id, User: "alice", Tenant: "acme", Disabled: true}, nil
}

func (members) Tenant(context.Context, string) (*identity.Tenant, error) { return nil, nil }

func (members) User(_ context.Context, id string) (*identity.User, error) {
	return &identity.User{ID: id, Tenant: "acme"}, nil
}

// TestOnesOwn resets a user, and looks at what it has used: not its tenant's.
func TestOnesOwn(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e := start(t, `
[[rules]]
name = "tenant"
count_by = ["tenant"]
limits = [ { name = "tenant", limit = "3/1h fixed_window" } ]

[[rules]]
name = "user"
count_by = ["user"]
limits = [ { name = "user", limit = "10/1h fixed_window" } ]
`, engine.Options{Now: clock.Now, Identity: resolver(t, identity.Options{Directory: members{}})})
	for range 3 {
		decide(t, e, from("alice", "GET", "/"))
	}
	for _, s := range []identity.Subject{{User: "alice"}, {Key: "abcdefgh"}} {
		usage, err := e.Usage(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range usage {
			if l.Rule.Name == "tenant" {
				t.Errorf("%+v has the tenant's limits", s)
			}
		}
		if err := e.Reset(t.Context(), s, ""); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := summary(decide(t, e, from("bob", "GET", "/"))), "denied by tenant:tenant 0/3 429 retry 1h0m0s"; got != want {
		t.Errorf("after the reset of a user: %s; want %s", got, want)
	}
	// A key that is not good any more is refused, whoever vouches for it.
	v := decide(t, e, engine.Request{Path: "/", Subject: &identity.Subject{Key: "abcdefgh"}})
	if v.Outcome != engine.Denied && v.Outcome != engine.Unauthorized {
		t.Errorf("a disabled key: %s", summary(v))
	}
}

// TestGuessing tries keys that do not exist: they count against the address.
func TestGuessing(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	r := new(recorder)
	e := start(t, `
[[rules]]
name = "address"
count_by = ["ip"]
limits = [ { name = "address", limit = "3/1h fixed_window" } ]

[[rules]]
name = "free"
match = { paths = ["/free"] }
action = "allow"
`, engine.Options{Now: clock.Now, Recorder: r, Identity: resolver(t, identity.Options{Directory: members{}})})
	guess := func(path string) string {
		return summary(decide(t, e, engine.Request{
			Path: path, Peer: netip.MustParseAddr("192.0.2.1"),
			Headers: map[string][]string{"X-Api-Key": {"stint_notthere_" + strings.Repeat("x", 32)}},
		}))
	}
	for _, want := range []string{
		"unauthorized:address 2/3 401", "unauthorized:address 1/3 401", "unauthorized:address 0/3 401", "denied by address:address 0/3 429 retry 1h0m0s",
	} {
		if got := guess("/"); got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
	if got, want := guess("/free"), "unauthorized 401"; got != want {
		t.Errorf("where everyone is allowed: %s; want %s", got, want)
	}
	for _, ev := range r.events {
		if ev.Unaccepted != identity.KeyInvalid {
			t.Errorf("recorded %+v", ev)
		}
	}
}

// TestMethods makes up methods: they are all one, and another spelling is no other
// method.
func TestMethods(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	r := new(recorder)
	e := start(t, `
[[rules]]
name = "post"
match = { methods = ["POST"] }
count_by = ["ip", "method"]
limits = [ { name = "post", limit = "2/1h fixed_window" } ]

[[rules]]
name = "any"
count_by = ["ip", "method"]
limits = [ { name = "any", limit = "3/1h fixed_window" } ]
`, engine.Options{Now: clock.Now, Recorder: r})
	passed := map[string]int{}
	for i := range 100 {
		for group, method := range map[string]string{
			"post": []string{"POST", "post", "Post"}[i%3], "made up": fmt.Sprint("M", i), "long": strings.Repeat("X", 1<<20),
		} {
			if decide(t, e, engine.Request{Method: method, Path: "/", Peer: netip.MustParseAddr("192.0.2.1")}).Outcome.Passed() {
				passed[group]++
			}
		}
	}
	if passed["post"] != 2 || passed["made up"]+passed["long"] != 3 {
		t.Errorf("%v passed; want 2 by POST and 3 by all others", passed)
	}
	for _, ev := range r.events {
		if ev.Method != http.MethodPost && ev.Method != "OTHER" {
			t.Fatalf("recorded %.20q", ev.Method)
		}
	}
}

// TestBanWhileHeld bans one whose request is held.
func TestBanWhileHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := start(t, `
[[rules]]
name = "slow"
count_by = ["user"]
action = "throttle"
max_delay = "1m"
limits = [ { name = "slow", limit = "1/30s token_bucket" } ]
`, engine.Options{})
		decide(t, e, from("mallory", "GET", "/"))
		held := make(chan engine.Verdict)
		go func() { held <- decide(t, e, from("mallory", "GET", "/")) }()
		synctest.Wait()
		if err := e.Ban(identity.Entry{Kind: identity.KindUser, Value: "mallory"}); err != nil {
			t.Fatal(err)
		}
		if v := <-held; v.Outcome != engine.Banned {
			t.Errorf("%s", summary(v))
		}
	})
}

// TestUnban lifts bans by another spelling, and says if there is none.
func TestUnban(t *testing.T) {
	t.Parallel()
	e := start(t, everyRule, engine.Options{})
	ban := func(value string) identity.Entry { return identity.Entry{Kind: identity.KindIP, Value: value} }
	if err := e.Ban(ban("2001:DB8::1"), ban("2001:DB8:1::/48")); err != nil {
		t.Fatal(err)
	}
	if err := e.Ban(ban("2001:db8:0::1")); err != nil || len(e.Bans()) != 2 {
		t.Errorf("banned again: %v, %v", err, e.Bans())
	}
	if err := e.Unban(ban("2001:db8::1"), ban("2001:db8:1:0::/48")); err != nil || len(e.Bans()) != 0 {
		t.Errorf("%v, %v", err, e.Bans())
	}
	if err := e.Unban(ban("2001:db8::1")); err == nil {
		t.Error("what was not banned is unbanned")
	}
}

// TestBanIsSaid has a limit that denies for longer than the ban beside it.
func TestBanIsSaid(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e := start(t, `
[[rules]]
name = "login"
count_by = ["ip"]
limits = [ { name = "login", limit = "1/1h fixed_window" } ]
penalty = { threshold = 1, within = "1h", cooldown = "1m" }
`, engine.Options{Now: clock.Now})
	login := engine.Request{Path: "/", Peer: netip.MustParseAddr("192.0.2.1")}
	decide(t, e, login)
	if got, want := summary(decide(t, e, login)), "banned by login:login 0/1 429 retry 1h0m0s"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}
