package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/rule"
	"github.com/stintdev/stint/storetest"
)

// This file is long: what may become of a request, outcome by outcome, on one set of rules and helpers.

func TestMain(m *testing.M) {
	defer testredis.StopShared()
	m.Run()
}

// start returns an engine with rules in TOML, and what else is in o. Users are who
// the header X-User says, if the peer is 10.0.0.1.
func start(tb testing.TB, toml string, o engine.Options) *engine.Engine {
	tb.Helper()
	if o.Store == nil {
		store, err := memstore.New(memstore.Options{Now: o.Now})
		if err != nil {
			tb.Fatal(err)
		}
		o.Store = store
	}
	o.Rules = compile(tb, toml)
	if o.Identity == nil {
		o.Identity = resolver(tb, identity.Options{})
	}
	e, err := engine.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func compile(tb testing.TB, toml string) *rule.Set {
	tb.Helper()
	f, err := rule.ParseTOML("test.toml", []byte(toml))
	if err != nil {
		tb.Fatal(err)
	}
	rules, err := rule.Compile(f)
	if err != nil {
		tb.Fatal(err)
	}
	return rules
}

var proxy = netip.MustParseAddr("10.0.0.1")

func resolver(tb testing.TB, o identity.Options) *identity.Resolver {
	tb.Helper()
	o.UserHeader, o.TierHeader, o.TrustedProxies = "X-User", "X-Tier", []netip.Prefix{netip.PrefixFrom(proxy, 32)}
	who, err := identity.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = who.Close() })
	return who
}

// from is a request of a user, which a trusted proxy has passed on.
func from(user, method, path string, headers ...string) engine.Request {
	h := map[string][]string{"X-User": {user}, "X-Forwarded-For": {"192.0.2.7"}}
	for i := 0; i < len(headers); i += 2 {
		h[headers[i]] = []string{headers[i+1]}
	}
	return engine.Request{Method: method, Path: path, Peer: proxy, Headers: h}
}

func decide(tb testing.TB, e *engine.Engine, q engine.Request) engine.Verdict {
	tb.Helper()
	v, err := e.Decide(tb.Context(), q)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// summary is what matters of a verdict, in a line.
func summary(v engine.Verdict) string {
	text := v.Outcome.String()
	if v.Rule != nil {
		text += " by " + v.Rule.Name
	}
	if b := v.Binding(); b != nil {
		text += fmt.Sprintf(":%s %d/%d", b.Name, b.Decision.Remaining, b.Decision.Limit)
	}
	if v.Status != 0 {
		text += fmt.Sprintf(" %d", v.Status)
	}
	if v.RetryAfter != 0 && v.RetryAfter != stint.Never {
		text += " retry " + v.RetryAfter.String()
	}
	if v.RetryAfter == stint.Never {
		text += " never"
	}
	if l := v.Shadowed(); l != nil {
		text += " shadow " + l.Rule.Name
	}
	return text
}

const everyRule = `
[[rules]]
name = "everyone"
limits = [ { name = "all", limit = "6/1h fixed_window" } ]

[[rules]]
name = "user"
count_by = ["user"]
limits = [ { name = "user", limit = "4/1h fixed_window" }, { name = "burst", limit = "3/1m fixed_window" } ]
response = { status = 420, message = "Slow down." }

[[rules]]
name = "export"
match = { paths = ["/export"] }
count_by = ["user", "endpoint"]
cost = { units = 2, header = "X-Cost", max = 3 }
limits = [ { name = "export", limit = "100/1h fixed_window" } ]

[[rules]]
name = "internal"
match = { paths = ["/health/**"] }
action = "allow"
priority = 5

[[rules]]
name = "closed"
match = { paths = ["/health/secret", "/admin/**"] }
action = "block"
priority = 5
response = { message = "Not here." }

[[rules]]
name = "new-limit"
match = { paths = ["/search"] }
action = "log_only"
count_by = ["user"]
limits = [ { name = "search", limit = "1/1h fixed_window" } ]
`

// TestVerdicts makes requests one after the other, at times after the start; of one engine it
// has each verdict in the room of the last.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e, other := start(t, everyRule, engine.Options{Now: clock.Now}), start(t, everyRule, engine.Options{Now: clock.Now})
	var room engine.Verdict
	for i, c := range []struct {
		at   time.Duration
		q    engine.Request
		want string
	}{
		{0, from("alice", "GET", "/"), "allowed by user:burst 2/3"},
		{0, from("alice", "GET", "/"), "allowed by user:burst 1/3"},
		{0, from("alice", "GET", "/export", "X-Cost", "17"), "allowed by user:burst 0/3"},
		{time.Second, from("alice", "GET", "/"), "denied by user:burst 0/3 420 retry 59s"},
		{time.Second, from("alice", "GET", "/health/live"), "exempt by internal"},
		{time.Second, from("alice", "GET", "/health/secret"), "blocked by closed 403"},
		{time.Second, from("alice", "GET", "/admin/x"), "blocked by closed 403"},
		{time.Minute, from("alice", "GET", "/"), "allowed by user:user 0/4"},
		{time.Minute, from("alice", "GET", "/"), "denied by user:user 0/4 420 retry 59m0s"},
		{time.Minute, from("bob", "GET", "/search"), "allowed by everyone:all 1/6"},
		{time.Minute, from("bob", "GET", "/search"), "allowed by everyone:all 0/6 shadow new-limit"},
		{time.Minute, from("bob", "GET", "/search"), "denied by everyone:all 0/6 429 retry 59m0s"},
		{time.Minute, engine.Request{Method: "GET", Path: "/", Peer: netip.MustParseAddr("192.0.2.1")}, "denied by everyone:all 0/6 429 retry 59m0s"},
		{time.Hour, engine.Request{Method: "GET", Path: "/", Cost: 9}, "denied by everyone:all 6/6 429 never"},
		{time.Hour, engine.Request{Method: "GET", Path: "/"}, "allowed by everyone:all 5/6"},
	} {
		clock.Set(storetest.Epoch.Add(c.at))
		if got := summary(decide(t, e, c.q)); got != c.want {
			t.Errorf("%d, %s: %s; want %s", i, c.q.Path, got, c.want)
		}
		if err := other.DecideInto(t.Context(), &c.q, &room); err != nil || summary(room) != c.want {
			t.Errorf("%d, %s, into the same room: %s, %v; want %s", i, c.q.Path, summary(room), err, c.want)
		}
	}
	if err := other.DecideInto(t.Context(), &engine.Request{Cost: -1}, &room); err == nil || room.Limits != nil || !room.At.IsZero() {
		t.Errorf("a negative cost: %v, and a verdict of %v", err, room.At)
	}
}

// TestCosts is what requests cost: by the rule, by a header of a trusted proxy, and
// by who asks.
func TestCosts(t *testing.T) {
	t.Parallel()
	e := start(t, everyRule, engine.Options{})
	cost := func(q engine.Request) (n int64) {
		for _, l := range decide(t, e, q).Limits {
			if l.Rule.Name == "export" {
				n = l.Cost
			}
		}
		return n
	}
	stranger := from("x", "GET", "/export", "X-Cost", "3")
	stranger.Peer = netip.MustParseAddr("192.0.2.1")
	said := from("carol", "GET", "/export", "X-Cost", "3")
	said.Cost = 1
	for name, c := range map[string]struct {
		q    engine.Request
		want int64
	}{
		"the rule's":         {from("alice", "GET", "/export"), 2},
		"the header's":       {from("bob", "GET", "/export", "X-Cost", "3"), 3},
		"at most":            {from("dan", "GET", "/export", "X-Cost", "99999999999999999999"), 3},
		"no number":          {from("erin", "GET", "/export", "X-Cost", "-1"), 2},
		"said by the caller": {said, 1},
		"said by a stranger": {stranger, 0}, // who has no user to count by
	} {
		if got := cost(c.q); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if _, err := e.Decide(t.Context(), engine.Request{Cost: -1}); err == nil || !strings.Contains(err.Error(), "cost") {
		t.Errorf("a negative cost: %v", err)
	}
}

// TestLists is about those who are banned or exempt, or whose credentials are bad.
func TestLists(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	list := func(entries ...identity.Entry) *identity.List {
		l, err := identity.NewList(entries)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	who := resolver(t, identity.Options{Lists: identity.Lists{
		Exempt: list(identity.Entry{Kind: identity.KindUser, Value: "monitor", Reason: "ours"}),
		Banned: list(identity.Entry{Kind: identity.KindUser, Value: "mallory", Reason: "fraud", Until: clock.Now().Add(time.Hour)}),
	}})
	e := start(t, everyRule, engine.Options{Now: clock.Now, Identity: who})
	check := func(user, want string) {
		t.Helper()
		if got := summary(decide(t, e, from(user, "GET", "/"))); got != want {
			t.Errorf("%s: %s; want %s", user, got, want)
		}
	}
	check("monitor", "exempt")
	check("mallory", "banned 403 retry 1h0m0s")
	eve := identity.Entry{Kind: identity.KindUser, Value: "eve", Reason: "spam"}
	if err := e.Ban(eve); err != nil {
		t.Fatal(err)
	}
	check("eve", "banned 403 never")
	if err := e.Use(compile(t, everyRule), who); err != nil { // a ban outlives a change of rules
		t.Fatal(err)
	}
	eve.Until = clock.Now().Add(time.Minute)
	if err := e.Ban(eve); err != nil {
		t.Fatal(err)
	}
	check("eve", "banned 403 retry 1m0s")
	if got := e.Bans(); !slices.Equal(got, []identity.Entry{eve}) {
		t.Errorf("bans: %v", got)
	}
	clock.Add(time.Minute)
	check("eve", "allowed by user:burst 2/3")
	if got := e.Bans(); len(got) != 0 {
		t.Errorf("bans that are over: %v", got)
	}
	network := identity.Entry{Kind: identity.KindIP, Value: "192.0.2.0/24"}
	if err := e.Ban(network); err != nil {
		t.Fatal(err)
	}
	check("alice", "banned 403 never")
	if err := e.Unban(network); err != nil {
		t.Fatal(err)
	}
	check("alice", "allowed by everyone:all 4/6")
	if err := e.Ban(identity.Entry{Kind: identity.KindIP, Value: "192.0.2.1/24"}); err == nil {
		t.Error("a network with host bits can be banned")
	}
	many := make([]identity.Entry, engine.MaxBans+1)
	for i := range many {
		many[i] = identity.Entry{Kind: identity.KindUser, Value: fmt.Sprint("user-", i)}
	}
	if err := e.Ban(many...); err == nil || !strings.Contains(err.Error(), "10000") || len(e.Bans()) != 0 {
		t.Errorf("too many bans: %v", err)
	}
	if err := e.Ban(many[1:]...); err != nil {
		t.Error(err)
	}
	check("user-17", "banned 403 never")

	strict := start(t, everyRule, engine.Options{Identity: resolver(t, identity.Options{Require: true})})
	v := decide(t, strict, engine.Request{Method: "GET", Path: "/", Peer: netip.MustParseAddr("192.0.2.1")})
	if v.Outcome != engine.Unauthorized || v.Status != 401 || v.Reason == "" {
		t.Errorf("without credentials: %+v", v)
	}
}

// away is a store that is out of reach, or that has others decide for it.
type away struct {
	stint.Store
	basis stint.Basis
	err   error
}

func (s *away) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if s.err != nil {
		return s.err
	}
	err := s.Store.Take(ctx, asks, ds)
	for i := range ds {
		ds[i].Basis = s.basis
	}
	return err
}

// TestStoreFailure is what rules say of a store that cannot be reached.
func TestStoreFailure(t *testing.T) {
	t.Parallel()
	text := func(mode string) string {
		return fmt.Sprintf(`
[[rules]]
name = "user"
count_by = ["user"]
limits = [ { name = "user", limit = "1/1h fixed_window" } ]
on_store_failure = %q`, mode)
	}
	gone := fmt.Errorf("%w: no route", stint.ErrUnavailable)
	for _, c := range []struct {
		mode  string
		store away
		want  []string
	}{
		{"local", away{err: gone}, []string{"allowed by user:user 0/1", "allowed by user:user 0/1"}},
		{"open", away{err: gone}, []string{"allowed by user:user 0/1", "allowed by user:user 0/1"}},
		{"closed", away{err: gone}, []string{"unavailable by user:user 0/1 503 retry 1s", "unavailable by user:user 0/1 503 retry 1s"}},
		{"local", away{basis: stint.Local}, []string{"allowed by user:user 0/1", "denied by user:user 0/1 429 retry 1h0m0s"}},
		{"open", away{basis: stint.Local}, []string{"allowed by user:user 0/1", "allowed by user:user 0/1"}},
		{"closed", away{basis: stint.Local}, []string{"unavailable by user:user 0/1 503 retry 1s", "unavailable by user:user 0/1 503 retry 1s"}},
		{"closed", away{basis: stint.Remembered}, []string{"allowed by user:user 0/1", "denied by user:user 0/1 429 retry 1h0m0s"}},
	} {
		clock := storetest.NewClock()
		store, err := memstore.New(memstore.Options{Now: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		c.store.Store = store
		e := start(t, text(c.mode), engine.Options{Now: clock.Now, Store: &c.store})
		for i, want := range c.want {
			if got := summary(decide(t, e, from("alice", "GET", "/"))); got != want {
				t.Errorf("%s, %v, %v, %d: %s; want %s", c.mode, c.store.basis, c.store.err, i, got, want)
			}
		}
	}

	// What was counted here and refused then is given back.
	clock := storetest.NewClock()
	store, err := memstore.New(memstore.Options{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	local := start(t, text("closed"), engine.Options{Store: &away{Store: store, basis: stint.Local}})
	decide(t, local, from("alice", "GET", "/"))
	usage, err := local.Usage(t.Context(), identity.Subject{User: "alice"})
	if err != nil || usage[0].Decision.Remaining != 1 {
		t.Errorf("%+v, %v; want 1 remaining", usage, err)
	}

	broken := errors.New("broken")
	e := start(t, text("open"), engine.Options{Store: &away{err: broken}})
	if _, err := e.Decide(t.Context(), from("alice", "GET", "/")); !errors.Is(err, broken) {
		t.Errorf("a store that is broken: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e = start(t, text("open"), engine.Options{Store: &away{err: gone}})
	if _, err := e.Decide(ctx, from("alice", "GET", "/")); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has left: %v", err)
	}
	ctx, cancel = context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if _, err := e.Decide(ctx, from("alice", "GET", "/")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller whose time is over: %v", err)
	}
}

// TestPeek looks at what would become of requests.
func TestPeek(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e := start(t, everyRule, engine.Options{Now: clock.Now})
	peek := func(q engine.Request) string {
		t.Helper()
		v, err := e.Peek(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return summary(v)
	}
	search := from("alice", "GET", "/search")
	for range 3 {
		if got := peek(search); got != "allowed by everyone:all 6/6" && got != "allowed by user:burst 3/3" {
			t.Errorf("looked at: %s", got)
		}
	}
	decide(t, e, search)
	if got, want := peek(search), "allowed by user:burst 2/3 shadow new-limit"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	costly := search
	costly.Cost = 3
	if got, want := peek(costly), "denied by user:user 3/4 420 retry 1h0m0s"; got != want && got != "denied by user:burst 2/3 420 retry 1m0s" {
		t.Errorf("%s; want %s", got, want)
	}
	costly.Cost = 5
	if got, want := peek(costly), "denied by user:user 3/4 420 never"; !strings.HasSuffix(got, "never") {
		t.Errorf("%s; want %s", got, want)
	}
	if got, want := summary(decide(t, e, search)), "allowed by user:burst 1/3 shadow new-limit"; got != want {
		t.Errorf("after that: %s; want %s", got, want)
	}
}

// TestPenalty is a rule whose violations lead to bans, on each kind of store.
func TestPenalty(t *testing.T) {
	t.Parallel()
	const text = `
[[rules]]
name = "login"
match = { paths = ["/login"] }
count_by = ["ip"]
limits = [ { name = "login", limit = "1/1s fixed_window" } ]
penalty = { threshold = 3, within = "1h", cooldown = "1m", multipliers = [1, 2, 4, 8] }

[[rules]]
name = "everyone"
limits = [ { name = "all", limit = "1000/1h fixed_window" } ]
`
	open := map[string]func(now func() time.Time) (stint.Store, error){
		"memory": func(now func() time.Time) (stint.Store, error) { return memstore.New(memstore.Options{Now: now}) },
		"redis": func(now func() time.Time) (stint.Store, error) {
			return redisstore.Open(testredis.Shared(t).URL()+"?prefix=rl:engine&timeout=30s&dial_timeout=30s", redisstore.Options{Now: now})
		},
		"cluster": func(now func() time.Time) (stint.Store, error) {
			return redisstore.Open(testredis.SharedCluster(t).URL()+"?prefix=rl:engine&timeout=30s&dial_timeout=30s", redisstore.Options{Now: now})
		},
	}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			clock := storetest.NewClock()
			store, err := open(clock.Now)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			e := start(t, text, engine.Options{Now: clock.Now, Store: store})
			login := from("", "POST", "/login")
			check := func(at time.Duration, want string) {
				t.Helper()
				clock.Set(storetest.Epoch.Add(at))
				if got := summary(decide(t, e, login)); got != want {
					t.Errorf("at %v: %s; want %s", at, got, want)
				}
			}
			check(0, "allowed by login:login 0/1")
			check(1*time.Millisecond, "denied by login:login 0/1 429 retry 999ms")
			check(2*time.Millisecond, "denied by login:login 0/1 429 retry 998ms")
			check(3*time.Millisecond, "banned by login:penalty! 0/3 429 retry 1m0s")
			check(time.Second, "banned by login:penalty! 0/3 429 retry 59.003s")
			check(61*time.Second, "allowed by login:login 0/1")
			check(61*time.Second, "banned by login:penalty! 0/3 429 retry 2m0s")

			subject := identity.Subject{IP: netip.MustParseAddr("192.0.2.7")}
			usage, err := e.Usage(t.Context(), subject)
			if err != nil || len(usage) != 2 || usage[1].Penalty == nil || usage[1].Decision.Allowed {
				t.Errorf("usage: %+v, %v", usage, err)
			}
			if err := e.Reset(t.Context(), subject, "login"); err != nil {
				t.Fatal(err)
			}
			check(61*time.Second, "allowed by login:login 0/1")
			v, err := e.Peek(t.Context(), from("", "POST", "/"))
			if err != nil || v.Limits[0].Decision.Remaining != 997 {
				t.Errorf("what was refused was charged to everyone: %v, %v", v.Limits, err)
			}
		})
	}
}

// TestDisable lets everything pass but credentials that are not accepted, and counts nothing meanwhile.
func TestDisable(t *testing.T) {
	t.Parallel()
	who, err := identity.New(identity.Options{JWT: &identity.JWTOptions{Secret: "a secret of at least thirty-two bytes"}})
	if err != nil {
		t.Fatal(err)
	}
	e := start(t, "[[rules]]\nname = \"one\"\nlimits = [{ name = \"one\", limit = \"1/1000h\" }]\n", engine.Options{Identity: who})
	e.Disable(true)
	q := engine.Request{Method: "GET", Path: "/", Peer: netip.MustParseAddr("192.0.2.1")}
	for range 3 {
		if v := decide(t, e, q); v.Outcome != engine.Allowed || len(v.Limits) > 0 || v.Rule != nil {
			t.Errorf("%+v", v)
		}
	}
	bad := q
	bad.Headers = map[string][]string{"Authorization": {"Bearer x"}}
	if v := decide(t, e, bad); v.Outcome != engine.Unauthorized || v.Status != 401 {
		t.Errorf("a bad token: %+v", v)
	}
	e.Disable(false)
	for _, want := range []engine.Outcome{engine.Allowed, engine.Denied} {
		if v := decide(t, e, q); v.Outcome != want {
			t.Errorf("%v, want %v", v.Outcome, want)
		}
	}
}

// TestThrottle holds requests, in virtual time.
func TestThrottle(t *testing.T) {
	t.Parallel()
	const text = `
[[rules]]
name = "slow"
match = { paths = ["/slow"] }
count_by = ["user"]
action = "throttle"
max_delay = "3s"
limits = [ { name = "slow", limit = "1/1s token_bucket" } ]
penalty = { threshold = 2, within = "1h", cooldown = "1m" }

[[rules]]
name = "spaced"
match = { paths = ["/spaced"] }
count_by = ["user"]
max_delay = "2s"
limits = [ { name = "spaced", limit = "1/1s burst=5 leaky_bucket" } ]

[[rules]]
name = "both"
match = { paths = ["/slow"] }
count_by = ["tenant"]
limits = [ { name = "tenant", limit = "1/1h" } ]
`
	synctest.Test(t, func(t *testing.T) {
		e := start(t, text, engine.Options{MaxWaiting: 64})
		begin := time.Now()
		at := func(want time.Duration, v engine.Verdict, text string) {
			t.Helper()
			if got := time.Since(begin); got != want || summary(v) != text {
				t.Errorf("%s after %v; want %s after %v", summary(v), got, text, want)
			}
		}
		slow := from("alice", "GET", "/slow")
		at(0, decide(t, e, slow), "allowed by slow:slow 0/1")
		v := decide(t, e, slow)
		at(time.Second, v, "throttled by slow:slow 0/1")
		if v.Waited != time.Second {
			t.Errorf("waited for %v", v.Waited)
		}
		// Many at once: those pass that can within three seconds, one a second.
		var wg sync.WaitGroup
		outcomes := make(chan string, 10)
		for range 4 {
			wg.Go(func() {
				v := decide(t, e, slow)
				outcomes <- fmt.Sprint(v.Outcome, " ", time.Since(begin)-time.Second)
			})
		}
		wg.Wait()
		close(outcomes)
		var got []string
		for o := range outcomes {
			got = append(got, o)
		}
		slices.Sort(got)
		if want := []string{"denied 3s", "throttled 1s", "throttled 2s", "throttled 3s"}; !slices.Equal(got, want) {
			t.Errorf("%q; want %q", got, want)
		}
		begin = time.Now()
		// One that was held and refused in the end is one violation, and no more.
		usage, err := e.Usage(t.Context(), identity.Subject{User: "alice"})
		if err != nil || usage[1].Penalty == nil || usage[1].Decision.Remaining != 1 {
			t.Errorf("%+v, %v; want one violation", usage, err)
		}

		// A deadline that is nearer than the turn: refused at once.
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		v, err = e.Decide(ctx, slow)
		if err != nil || time.Since(begin) != 0 || v.Outcome == engine.Throttled {
			t.Errorf("%s, %v after %v", summary(v), err, time.Since(begin))
		}

		// A leaky bucket has each request wait for its turn, up to what the rule allows.
		spaced := from("bob", "GET", "/spaced")
		at(0, decide(t, e, spaced), "allowed by spaced:spaced 2/3")
		at(time.Second, decide(t, e, spaced), "throttled by spaced:spaced 1/3")
		begin = time.Now()
		var turns sync.WaitGroup
		for range 4 {
			turns.Go(func() {
				if v := decide(t, e, spaced); v.Outcome == engine.Denied && v.RetryAfter != time.Second {
					t.Errorf("refused for %v", v.RetryAfter)
				}
			})
		}
		turns.Wait()
		if got := time.Since(begin); got != 2*time.Second {
			t.Errorf("the last one waited for %v", got)
		}

		// Who leaves stays charged: its place in the queue is not given to another.
		begin = time.Now()
		decide(t, e, from("carol", "GET", "/spaced"))
		ctx, cancel = context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := e.Decide(ctx, from("carol", "GET", "/spaced"))
			left <- err
		}()
		synctest.Wait()
		if n := e.Waiting(); n != 1 {
			t.Errorf("%d are held", n)
		}
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left: %v", err)
		}
		at(2*time.Second, decide(t, e, from("carol", "GET", "/spaced")), "throttled by spaced:spaced 0/3")
		if n := e.Waiting(); n != 0 {
			t.Errorf("%d are still held", n)
		}
	})
}

// TestMostWaiting refuses rather than to hold too many, of all or of one client.
func TestMostWaiting(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"throttle":     `action = "throttle"` + "\n" + `limits = [ { name = "slow", limit = "1/1s token_bucket" } ]`,
		"leaky_bucket": `limits = [ { name = "slow", limit = "1/1s burst=100 leaky_bucket" } ]`,
	} {
		for clients, want := range map[int]int{1: 2, 40: 32} {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, "[[rules]]\nname = \"slow\"\nmax_delay = \"1m\"\n"+text, engine.Options{MaxWaiting: 32})
				decide(t, e, from("first", "GET", "/"))
				counts := map[engine.Outcome]int{}
				var mu sync.Mutex
				var wg sync.WaitGroup
				for i := range 40 {
					wg.Go(func() {
						v := decide(t, e, from(fmt.Sprint("user-", i%clients), "GET", "/"))
						mu.Lock()
						counts[v.Outcome]++
						mu.Unlock()
					})
				}
				wg.Wait()
				if counts[engine.Throttled] != want || counts[engine.Denied] != 40-want || e.Waiting() != 0 {
					t.Errorf("%s, %d clients: %v; want %d held and the others refused", name, clients, counts, want)
				}
				// Who was refused was charged nothing.
				if v, err := e.Peek(t.Context(), from("first", "GET", "/")); err != nil || v.Binding().Decision.Delay > time.Second {
					t.Errorf("%s, %d clients: %+v, %v", name, clients, v.Limits, err)
				}
			})
		}
	}
}

// TestUsage tells what a subject has used, whatever the endpoint, and forgets it.
func TestUsage(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e := start(t, everyRule, engine.Options{Now: clock.Now})
	decide(t, e, from("alice", "GET", "/export"))
	decide(t, e, from("alice", "GET", "/search"))
	used := func() string {
		t.Helper()
		limits, err := e.Usage(t.Context(), identity.Subject{User: "alice"})
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, l := range limits {
			fmt.Fprintf(&b, "%s:%s %d/%d\n", l.Rule.Name, l.Name, l.Decision.Limit-l.Decision.Remaining, l.Decision.Limit)
		}
		return b.String()
	}
	if got, want := used(), "export:export 2/100\nnew-limit:search 1/1\nuser:user 2/4\nuser:burst 2/3\n"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if err := e.Reset(t.Context(), identity.Subject{User: "alice"}, "user"); err != nil {
		t.Fatal(err)
	}
	if got, want := used(), "export:export 2/100\nnew-limit:search 1/1\nuser:user 0/4\nuser:burst 0/3\n"; got != want {
		t.Errorf("after a reset of one rule: %s\nwant\n%s", got, want)
	}
	if err := e.Reset(t.Context(), identity.Subject{User: "alice"}, ""); err != nil {
		t.Fatal(err)
	}
	if got, want := used(), "export:export 0/100\nnew-limit:search 0/1\nuser:user 0/4\nuser:burst 0/3\n"; got != want {
		t.Errorf("after a reset: %s\nwant\n%s", got, want)
	}
}

// TestExplain says why.
func TestExplain(t *testing.T) {
	t.Parallel()
	e := start(t, everyRule, engine.Options{})
	x, err := e.Explain(t.Context(), from("alice", "GET", "/export"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, r := range x.Rules {
		got[r.Rule] = r.Reason
	}
	for name, want := range map[string]string{
		"everyone": "", "user": "", "export": "",
		"internal":  "path /export is not /health/**",
		"closed":    "path /export is none of /health/secret, /admin/**",
		"new-limit": "path /export is not /search",
	} {
		if reason, ok := got[name]; !ok || reason != want {
			t.Errorf("%s: %q; want %q", name, reason, want)
		}
	}
	if len(x.Verdict.Limits) != 4 || x.Verdict.Outcome != engine.Allowed {
		t.Errorf("verdict: %+v", x.Verdict)
	}
	if v, err := e.Peek(t.Context(), from("alice", "GET", "/export")); err != nil || v.Binding().Decision.Remaining != v.Binding().Decision.Limit {
		t.Errorf("to explain has charged something: %+v, %v", v, err)
	}
}

// recorder keeps what it is told.
type recorder struct {
	mu     sync.Mutex
	events []engine.Event
}

func (r *recorder) Record(_ context.Context, e *engine.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, *e)
}

// TestRecorder is told every verdict, and no looks.
func TestRecorder(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	r := new(recorder)
	e := start(t, everyRule, engine.Options{Now: clock.Now, Recorder: r})
	ids := map[engine.ID]bool{}
	paths := []string{"/search", "/search", "/admin/x", "/export", "/"}
	for _, path := range paths {
		ids[decide(t, e, from("alice", "GET", path)).ID] = true
	}
	if _, err := e.Peek(t.Context(), from("alice", "GET", "/")); err != nil {
		t.Fatal(err)
	}
	if len(ids) != 5 || len(r.events) != 5 {
		t.Fatalf("%d events for %d decisions", len(r.events), len(ids))
	}
	var got []string
	for i, ev := range r.events {
		if !ids[ev.ID] || ev.Path != paths[i] || ev.User != "alice" || ev.IP.String() != "192.0.2.7" || ev.Method != http.MethodGet || !ev.At.Equal(clock.Now()) {
			t.Errorf("%+v", ev)
		}
		got = append(got, fmt.Sprint(ev.Outcome, " ", ev.Shadow, " ", ev.Rule, " ", ev.Limit, " ", ev.Endpoint, " ", ev.Used, "/", ev.Max, " ", ev.Cost, " ", ev.Status))
	}
	want := []string{
		"allowed false user burst  1/3 1 0",
		"allowed true new-limit search /search 1/1 1 0",
		"blocked false closed   0/0 0 403",
		"allowed false user burst  3/3 1 0",
		"denied false user burst  3/3 1 420",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestID is about the names of decisions.
func TestID(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e := start(t, everyRule, engine.Options{Now: clock.Now})
	var last string
	for range 100 {
		clock.Add(time.Millisecond)
		id := decide(t, e, engine.Request{Path: "/health/x"}).ID.String()
		if len(id) != 36 || id[14] != '7' || !strings.ContainsAny(id[19:20], "89ab") || id <= last {
			t.Fatalf("%s after %s", id, last)
		}
		last = id
	}
	for micros := range int64(2000) {
		at := time.UnixMicro(1_790_000_000_000_000 + micros)
		id := engine.NewID(at.Add(999 * time.Nanosecond))
		if got, first := id.Time(), engine.FirstID(at); !got.Equal(at) || bytes.Compare(first[:], id[:]) > 0 {
			t.Fatalf("%s is of %v and not before %s, want %v", id, got, first, at)
		}
		if next := engine.FirstID(at.Add(time.Microsecond)); bytes.Compare(id[:], next[:]) >= 0 {
			t.Fatalf("%s of %v is not before %s", id, at, next)
		}
	}
	id := engine.ID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0x7c, 0xde, 0x8f, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd}
	const want = "01234567-89ab-7cde-8f01-23456789abcd"
	if text, err := id.AppendText([]byte("> ")); string(text) != "> "+want || err != nil || id.String() != want {
		t.Errorf("%s and %s, %v: want %s", id, text, err, want)
	}
}

// TestUse replaces rules while requests are decided: each sees the old or the new,
// never both or neither.
func TestUse(t *testing.T) {
	t.Parallel()
	text := func(rule string) string {
		return fmt.Sprintf("[[rules]]\nname = %q\nlimits = [ { name = \"a\", limit = \"1000000/1h\" }, { name = \"b\", limit = \"900000/30m\" } ]", rule)
	}
	e := start(t, text("old"), engine.Options{})
	who := resolver(t, identity.Options{})
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				v := decide(t, e, engine.Request{Path: "/"})
				if len(v.Limits) != 2 || v.Limits[0].Rule.Name != v.Limits[1].Rule.Name {
					t.Errorf("%+v", v.Limits)
					return
				}
			}
		})
	}
	for i := range 200 {
		if err := e.Use(compile(t, text([2]string{"old", "new"}[i%2])), who); err != nil {
			t.Error(err)
		}
	}
	close(done)
	wg.Wait()
	if err := e.Use(nil, who); err == nil {
		t.Error("no rules are used")
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rules, who := compile(t, everyRule), resolver(t, identity.Options{})
	for want, o := range map[string]engine.Options{
		"Store":      {Rules: rules, Identity: who},
		"Rules":      {Store: store, Identity: who},
		"MaxWaiting": {Store: store, Rules: rules, Identity: who, MaxWaiting: -1},
	} {
		if _, err := engine.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestPathTooLong checks the bound of paths, which does not count their query.
func TestPathTooLong(t *testing.T) {
	t.Parallel()
	w := start(t, "", engine.Options{})
	path := "/" + strings.Repeat("a", 8191)
	for sent, ok := range map[string]bool{path: true, path + "?" + path: true, path + "#": true, path + "b": false, path + "b?": false} {
		_, err := w.Decide(t.Context(), engine.Request{Path: sent})
		long, is := errors.AsType[*engine.PathError](err)
		if is == ok || is && long.Most != 8192 {
			t.Errorf("%d bytes: %v", len(sent), err)
		}
	}
}
