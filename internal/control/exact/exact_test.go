package exact_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/exact"
	"github.com/stintdev/stint/internal/record/capture"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/rule"
)

// mixed are rules of every kind.
const mixed = `
[[rules]]
name = "per-user"
count_by = ["user"]
limits = [ { name = "fast", limit = "400/500ms fixed_window" }, { name = "slow", limit = "1500/2s", candidate = "1000/2s token_bucket" } ]

[[rules]]
name = "buckets"
match = { paths = ["/buckets/{id}"], methods = ["GET", "POST"] }
count_by = ["user", "endpoint"]
limits = [ { name = "bucket", limit = "300/1s token_bucket burst=7" }, { name = "odd", limit = "7/20ms token_bucket burst=5" }, { name = "log", limit = "290/1s sliding_log" } ]

[[rules]]
name = "held"
match = { paths = ["/held"] }
count_by = ["ip"]
limits = [ { name = "rate", limit = "400/1s token_bucket burst=2" } ]
action = "throttle"
max_delay = "5ms"
penalty = { threshold = 4, within = "200ms", cooldown = "10ms", multipliers = [1, 3] }

[[rules]]
name = "spaced"
match = { paths = ["/spaced"] }
count_by = ["tenant"]
limits = [ { name = "slots", limit = "3000/1s leaky_bucket burst=12" } ]

[[rules]]
name = "places"
match = { paths = ["/places"] }
limits = [ { name = "places", limit = "3/2s concurrency" } ]
action = "throttle"
max_delay = "3ms"

[[rules]]
name = "guarded"
match = { paths = ["/guarded/**"] }
count_by = ["ip"]
limits = [ { name = "few", limit = "100/500ms fixed_window" } ]
penalty = { threshold = 3, within = "1s", cooldown = "20ms", multipliers = [1, 2, 4] }

[[rules]]
name = "free"
match = { paths = ["/grouped"], tiers = ["free"] }
group = "plans"
count_by = ["user"]
limits = [ { name = "requests", limit = "60/600ms" } ]

[[rules]]
name = "others"
match = { paths = ["/grouped"] }
group = "plans"
priority = 9
count_by = ["user"]
limits = [ { name = "requests", limit = "600/600ms" } ]

[[rules]]
name = "tried"
action = "log_only"
count_by = ["method"]
limits = [ { name = "each", limit = "2000/500ms" } ]

[[rules]]
name = "partly"
match = { paths = ["/buckets/**"] }
enforce = "50%"
count_by = ["user"]
limits = [ { name = "half", limit = "200/700ms fixed_window" } ]

[[rules]]
name = "instead"
replaces = "guarded"
match = { paths = ["/guarded/**"] }
count_by = ["ip"]
limits = [ { name = "few", limit = "200/500ms sliding_log" } ]

[[rules]]
name = "app"
match = { headers = { "X-App" = "mobile" } }
count_by = ["header:X-Device"]
cost = { header = "X-Cost", max = 5 }
limits = [ { name = "units", limit = "300/500ms" } ]

[[rules]]
name = "plan"
count_by = ["claim:plan", "ip"]
limits = [ { name = "shared", limit = "900/500ms sliding_window" } ]

[[rules]]
name = "metered"
match = { paths = ["/metered"] }
count_by = ["user"]
cost = { meter = "response_bytes", reserve = 10, max = 100 }
limits = [ { name = "bytes", limit = "5000/600ms fixed_window" }, { name = "bucket", limit = "9000/1s token_bucket burst=300" } ]

[[rules]]
name = "closed"
match = { paths = ["/admin/**"] }
action = "block"

[[rules]]
name = "health"
match = { paths = ["/health"] }
action = "allow"

[[tiers]]
name = "free"
limits = { slow = "800/2s" }

[[tiers]]
name = "premium"
limits = { fast = "unlimited", slow = "2500/2s" }
`

// people is a directory of users, some with limits of their own.
type people struct{}

func (people) Key(context.Context, string) (*identity.Key, error) { return nil, nil }

func (people) User(_ context.Context, id string) (*identity.User, error) {
	n := id[len(id)-1] - '0'
	u := &identity.User{ID: id, Tenant: fmt.Sprint("tenant", n%3), Tier: [...]string{"free", "premium", ""}[n%3]}
	switch n {
	case 4:
		u.Limits = map[string]stint.Limit{"fast": {Algorithm: stint.SlidingLog, Max: 90, Window: stint.Every(700 * time.Millisecond)}, "bucket": {}}
	case 5:
		u.Blocked = &identity.Entry{Kind: identity.KindUser, Value: id, Reason: "blocked"}
	}
	return u, nil
}

func (people) Tenant(context.Context, string) (*identity.Tenant, error) { return nil, nil }

// world is an engine with all that a node has, over counters in memory.
func world(t testing.TB) *engine.Engine {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return over(t, store)
}

func over(t testing.TB, store stint.Store) *engine.Engine {
	t.Helper()
	return engineOf(t, store, mixed)
}

func engineOf(t testing.TB, store stint.Store, text string) *engine.Engine {
	t.Helper()
	file, err := rule.ParseTOML("rules.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := rule.Compile(file)
	if err != nil {
		t.Fatal(err)
	}
	list := func(all ...identity.Entry) *identity.List {
		l, err := identity.NewList(all)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	who, err := identity.New(identity.Options{
		Directory: people{}, UserHeader: "X-User", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, DefaultTier: "free", FirstWins: true,
		Lists: identity.Lists{
			Exempt: list(identity.Entry{Kind: identity.KindUser, Value: "user6"}),
			Banned: list(identity.Entry{Kind: identity.KindIP, Value: "198.51.100.0/24", Until: time.Now().Add(time.Hour).Round(0)}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who, MaxWaiting: 40})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var paths = [...]string{
	"/", "/buckets/1", "/buckets/2?key=secret", "/held", "/spaced", "/places", "/guarded/a", "/grouped", "/metered", "/admin/x", "/health", "/Buckets/../buckets/%31",
}

// request returns some request.
func request(r *rand.Rand) engine.Request {
	q := engine.Request{
		Method: [...]string{"GET", "POST", "PUT", "WHATEVER"}[r.IntN(4)], Path: paths[r.IntN(len(paths))],
		Peer: netip.MustParseAddr("10.0.0.1"), Headers: map[string][]string{"X-Forwarded-For": {fmt.Sprint("192.0.2.", r.IntN(6))}, "Cookie": {"secret"}},
	}
	if r.IntN(3) > 0 {
		q.Headers["X-User"] = []string{fmt.Sprint("user", r.IntN(8))}
	}
	switch r.IntN(12) {
	case 0:
		q.Headers["X-App"], q.Headers["X-Device"] = []string{"mobile"}, []string{fmt.Sprint("device", r.IntN(3))}
		q.Headers["X-Cost"] = []string{strconv.Itoa(r.IntN(9))}
	case 1:
		q.Subject = &identity.Subject{User: fmt.Sprint("user", r.IntN(8)), IP: netip.MustParseAddr("2001:db8::1"), Claims: map[string]string{"plan": "gold", "mail": "secret"}}
	case 2:
		q.Cost = int64(r.IntN(4))
	case 3:
		q.Headers["X-User"] = []string{"a", "b"} // refused
	case 4:
		if r.IntN(20) == 0 {
			q.Headers["X-Forwarded-For"] = []string{"198.51.100.7"}
		}
	}
	return q
}

// traffic sends n requests from many goroutines at once. Some go soon.
func traffic(t testing.TB, e *engine.Engine, n int) {
	t.Helper()
	const senders = 64
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for left.Add(-1) >= 0 {
				q := request(r)
				ctx, cancel := t.Context(), func() {}
				if r.IntN(10) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(4000))*time.Microsecond)
				}
				one(ctx, t, e, r, q)
				cancel()
			}
		})
	}
	wg.Wait()
	if err := e.Settled(t.Context()); err != nil {
		t.Error(err)
	}
}

// one sends a request, in one of the ways that there are.
func one(ctx context.Context, t testing.TB, e *engine.Engine, r *rand.Rand, q engine.Request) {
	t.Helper()
	var v engine.Verdict
	var err error
	switch way := r.IntN(12); {
	case way < 2 || q.Path == "/places" || q.Path == "/metered":
		var s *engine.Serving
		if s, err = e.Serve(ctx, &q, &v); s != nil {
			s.End(engine.Usage{Meters: map[rule.Meter]int64{"response_bytes": r.Int64N(200)}}, r.IntN(9) == 0)
		}
	case way == 2:
		var s *engine.Reservation
		if v, s, err = e.Reserve(ctx, q); s != nil {
			if _, err := e.Extend(t.Context(), s, engine.Usage{Cost: 1}); err != nil {
				t.Error(err)
			}
			if _, err := e.Commit(t.Context(), s, engine.Usage{Cost: r.Int64N(4)}); err != nil {
				t.Error(err)
			}
		}
	case way == 3:
		_, err = e.Peek(ctx, q)
	default:
		err = e.DecideInto(ctx, &q, &v)
	}
	if err != nil && ctx.Err() == nil {
		t.Error(err)
	}
}

// same captures n requests to an engine, decides them again, and wants each to be the same.
func same(t *testing.T, e *engine.Engine, n int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capture")
	s, err := capture.Start(capture.Options{Engine: e, Path: path, Settle: -1, Node: "one"})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	traffic(t, e, n)
	took := time.Since(began)
	if err := s.Stop(t.Context(), capture.EndedByCaller); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	report := run(t, path)
	sum, _ := s.Summary()
	t.Logf("%d decisions, %d calls in %v, %d bytes, lag %v; decided again in %v", sum.Decisions, sum.Calls, took, sum.Bytes, sum.Lag, time.Since(began))
	if report.Different > 0 || report.NotCompared > 0 || report.Lost > 0 || report.Unfinished > 0 || report.Same+report.Failed != report.Decisions || report.Decisions < int64(n)*8/10 {
		t.Errorf("%+v", report)
	}
}

func run(t *testing.T, paths ...string) exact.Report {
	t.Helper()
	var files []*capture.Reader
	for _, path := range paths {
		r, err := capture.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		files = append(files, r)
	}
	report, err := exact.Run(t.Context(), exact.Options{}, files...)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// TestSame captures requests of every kind, which many send at once, and decides them again: each is decided the same, bit for bit.
func TestSame(t *testing.T) {
	t.Parallel()
	same(t, world(t), torture.Rounds(4000))
}

// TestRedis does so with counters in Redis, which makes many calls at one microsecond: none is different. What is given back at the same
// microsecond as others are charged may have more than one order, and then what follows is not compared.
func TestRedis(t *testing.T) {
	t.Parallel()
	store, err := redisstore.Open(testredis.Start(t).URL()+"?timeout=1m", redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	e, path := over(t, store), filepath.Join(t.TempDir(), "capture")
	s, err := capture.Start(capture.Options{Engine: e, Path: path, Settle: -1, Shared: true, Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	traffic(t, e, 3000)
	if err := s.Stop(t.Context(), capture.EndedByCaller); err != nil {
		t.Fatal(err)
	}
	if p := run(t, path); p.Different > 0 || p.Lost > 0 || p.Same == 0 {
		t.Errorf("%+v", p)
	}
}

// TestNodes has two nodes share counters. With the files of both, each decision is the same; with one, nothing is said of the counters.
func TestNodes(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var files []string
	var engines []*engine.Engine
	var sessions []*capture.Session
	for _, name := range []string{"one", "two"} {
		e, path := over(t, store), filepath.Join(dir, name)
		s, err := capture.Start(capture.Options{Engine: e, Path: path, Settle: -1, Node: name, Shared: true, Nodes: 2})
		if err != nil {
			t.Fatal(err)
		}
		files, engines, sessions = append(files, path), append(engines, e), append(sessions, s)
	}
	var wg sync.WaitGroup
	for _, e := range engines {
		wg.Go(func() { traffic(t, e, 3000) })
	}
	wg.Wait()
	for _, s := range sessions {
		if err := s.Stop(t.Context(), capture.EndedByCaller); err != nil {
			t.Fatal(err)
		}
	}
	// The node that began first has decided alone for a moment, and so has the one that ended last.
	if p := run(t, files...); p.Different > 0 || p.Same == 0 {
		t.Errorf("%+v", p)
	}
	if p := run(t, files[0]); p.Different > 0 || p.NotCompared == 0 || p.Exact || len(p.Notes) == 0 || !strings.Contains(p.Notes[0], "the files of all nodes") {
		t.Errorf("%+v", p)
	}
}

// TestUsedBefore captures what counters do that had been used before: that is not compared until it is known, and nothing is different.
func TestUsedBefore(t *testing.T) {
	t.Parallel()
	e := world(t)
	traffic(t, e, 2000)
	path := filepath.Join(t.TempDir(), "capture")
	s, err := capture.Start(capture.Options{Engine: e, Path: path, Settle: -1})
	if err != nil {
		t.Fatal(err)
	}
	traffic(t, e, 2000)
	if err := e.Reset(t.Context(), identity.Subject{User: "user1"}, ""); err != nil {
		t.Fatal(err)
	}
	traffic(t, e, 2000)
	if err := s.Stop(t.Context(), capture.EndedByCaller); err != nil {
		t.Fatal(err)
	}
	if p := run(t, path); p.Different > 0 || p.NotCompared == 0 || p.Same == 0 || p.Exact {
		t.Errorf("%+v", p)
	}
}

// TestChangedBefore changes charges of a log of which it is not known yet what had been used: what was charged since the capture began is
// known all the same, so that nothing is different afterwards.
func TestChangedBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "capture")
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		e := engineOf(t, store, `
			[[rules]]
			name = "log"
			count_by = ["user"]
			limits = [{ name = "log", limit = "290/1s sliding_log" }]`)
		began := time.Now()
		at := func(ms int, used int64) {
			<-time.After(time.Until(began.Add(time.Duration(ms) * time.Millisecond)))
			_, s, err := e.Reserve(t.Context(), engine.Request{Method: "GET", Path: "/", Subject: &identity.Subject{User: "user0"}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Commit(t.Context(), s, engine.Usage{Cost: used}); err != nil {
				t.Fatal(err)
			}
		}
		at(10, 1)
		c, err := capture.Start(capture.Options{Engine: e, Path: path, Settle: -1})
		if err != nil {
			t.Fatal(err)
		}
		// Each time that a charge is changed here, one that was not, or no longer, known as it was would be in the way of the next.
		at(600, 2)
		at(1400, 0)
		at(1550, 1)
		at(2300, 2)
		at(2350, 1)
		at(2450, 0)
		at(2650, 1) // known from now on
		at(3320, 1)
		if err := c.Stop(t.Context(), capture.EndedByCaller); err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	})
	if p := run(t, path); p.Different > 0 || p.Same != 2 || p.NotCompared != 6 {
		t.Errorf("%+v", p)
	}
}

// liar is a store that says now and then that one unit more remains.
type liar struct {
	stint.Store
	calls atomic.Int64
}

func (l *liar) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	err := l.Store.Take(ctx, asks, ds)
	if l.calls.Add(1)%100 == 0 {
		ds[0].Remaining++
	}
	return err
}

// TestDifferent finds answers that a counter cannot have given, and each once.
func TestDifferent(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{Store: store}
	e := over(t, l)
	path := filepath.Join(t.TempDir(), "capture")
	s, err := capture.Start(capture.Options{Engine: e, Path: path, Settle: -1})
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		q := engine.Request{Method: "GET", Path: "/grouped", Subject: &identity.Subject{User: "user0"}}
		if _, err := e.Decide(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Stop(t.Context(), capture.EndedByCaller); err != nil {
		t.Fatal(err)
	}
	p := run(t, path)
	if lies := l.calls.Load() / 100; p.Different == 0 || p.Different > lies || len(p.Differences) != int(p.Different) || p.Exact {
		t.Errorf("%d lies, %+v", lies, p)
	}
}
