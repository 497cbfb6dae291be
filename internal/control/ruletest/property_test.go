package ruletest_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/ruletest"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// drawn is a random configuration. Where requests are held until a limit recovers, all clients have counters of their own and wait
// for each answer: otherwise several requests would go on at one instant, in the order in which the server's goroutines run.
type drawn struct {
	rules rule.File
	holds bool
}

var drawnLimits = []string{
	"3/2s", "3/2s fixed_window", "3/2s sliding_log", "3/2s token_bucket", "2/1s burst=4 token_bucket", "4/3s", "1/700ms", "5/1h", "7/10s gcra",
}

func draw(r *rand.Rand) (d drawn) {
	one := func(among ...string) string { return among[r.IntN(len(among))] }
	often := func(percent int) bool { return r.IntN(100) < percent }
	d.holds = often(40)
	for i := range 1 + r.IntN(4) {
		x := rule.Rule{Name: "r" + strconv.Itoa(i)}
		if often(60) {
			x.Match.Paths = []string{one("/a/**", "/b/*", "/a/*", "/**")}
		}
		if often(20) {
			x.Match.Methods = []string{one("GET", "POST")}
		}
		if often(20) {
			x.Match.Tiers = []string{"gold"}
		}
		if often(15) {
			x.Match.Headers = map[string]string{"X-App": one("mobile", "*")}
		}
		x.CountBy = []rule.Dimension{"user"}
		if !d.holds {
			x.CountBy = [][]rule.Dimension{{"user"}, {"ip"}, {"global"}, {"method", "user"}, {"tenant"}}[r.IntN(5)]
		}
		if x.Match.Paths != nil && x.CountBy[0] != "global" && often(20) {
			x.CountBy = append(x.CountBy, "endpoint")
		}
		for j := range 1 + r.IntN(2) {
			x.Limits = append(x.Limits, rule.Limit{Name: "l" + strconv.Itoa(i) + strconv.Itoa(j), Limit: one(drawnLimits...)})
		}
		switch n := r.IntN(100); {
		case n < 14:
			x.Action, x.Limits, x.CountBy = rule.Action(one("block", "allow")), nil, nil
			x.Match.Paths = []string{one("/b/*/no", "/a/*/no", "/*/*/no")}
		case n < 30:
			x.Action = rule.LogOnly
		case d.holds && n < 75:
			x.Action, x.MaxDelay = rule.Throttle, rule.Duration(time.Duration(1+r.IntN(3000))*time.Millisecond)
		}
		if d.holds && often(20) && x.Limits != nil {
			x.Limits[0].Limit = "2/1s burst=3 leaky_bucket"
		} else if !d.holds && often(20) && x.Limits != nil {
			x.Limits = []rule.Limit{{Name: "places", Limit: one("1/1s concurrency", "2/300ms concurrency", "3/10s concurrency")}}
			if x.Action == "" && often(60) {
				x.Action, x.MaxDelay = rule.Throttle, rule.Duration(time.Duration(1+r.IntN(3000))*time.Millisecond)
			}
		} else if x.Limits != nil && often(25) {
			x.Cost = rule.Cost{Units: 1 + r.Int64N(2)}
			if often(50) {
				x.Cost = rule.Cost{Header: "X-Cost", Max: 3}
			}
		}
		if x.Limits != nil && x.Action != rule.LogOnly && x.CountBy[0] == "user" && often(40) {
			x.Penalty = &rule.Penalty{
				Threshold: 1 + r.Int64N(4), Within: rule.Duration(10 * time.Second), Cooldown: rule.Duration(time.Second), Multipliers: []int64{1, 2, 5},
			}
		}
		if often(30) {
			x.Group, x.Priority = "g", r.IntN(3)
		}
		d.rules.Rules = append(d.rules.Rules, x)
	}
	d.rules.Tiers = []rule.Tier{{Name: "gold", Limits: map[string]string{}}, {Name: "free"}}
	if first := d.rules.Rules[0].Limits; first != nil && !strings.Contains(first[0].Limit, "concurrency") {
		d.rules.Tiers[0].Limits[first[0].Name] = one("8/2s token_bucket", "unlimited", "2/2s")
	}
	return d
}

// resolver identifies clients by the headers of a trusted proxy.
func resolver() (*identity.Resolver, error) {
	banned, err := identity.NewList([]identity.Entry{{Kind: identity.KindUser, Value: "u5", Until: time.Date(2000, 1, 1, 0, 0, 20, 0, time.UTC)}})
	if err != nil {
		return nil, err
	}
	return identity.New(identity.Options{
		UserHeader: "X-User", TierHeader: "X-Tier", TenantHeader: "X-Tenant", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Lists: identity.Lists{Banned: banned},
	})
}

// sent is a request, and what the server has answered.
type sent struct {
	at      time.Duration
	method  string
	path    string // which no other request has
	headers [][2]string
	served  time.Duration
	status  int
	header  http.Header
	event   engine.Event
}

// server answers the requests of a server, and keeps what it has decided.
type server struct {
	mu   sync.Mutex
	sent map[string]*sent
}

// Record implements [engine.Recorder].
func (s *server) Record(_ context.Context, e *engine.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[e.Path].event = *e
}

// ServeHTTP serves requests that pass, as long as they say.
func (s *server) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	d := s.sent[r.URL.Path].served
	s.mu.Unlock()
	if d > 0 {
		<-time.After(d)
	}
}

// traffic sends random requests to a server, each client its own, and returns them in their order.
func traffic(t *testing.T, d drawn, set *rule.Set, seed uint64) []*sent {
	t.Helper()
	const clients, each = 6, 30
	s := &server{sent: map[string]*sent{}}
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		who, err := resolver()
		if err != nil {
			t.Fatal(err)
		}
		e, err := engine.New(engine.Options{Store: store, Rules: set, Identity: who, Recorder: s})
		if err != nil {
			t.Fatal(err)
		}
		limit, err := httplimit.New(httplimit.Options{Engine: e})
		if err != nil {
			t.Fatal(err)
		}
		handler, began := limit(s), time.Now()
		var all, waiting sync.WaitGroup
		for c := range clients {
			all.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(2+c)))
				for n := range each {
					<-time.After(time.Duration(1+r.IntN(1_000_000)) * time.Microsecond)
					q := drawRequest(r, c, n)
					if !d.holds { // who gives a place back at the instant of getting it races with the next in line
						q.served = time.Duration(1+r.IntN([]int{1000, 1000, 2_000_000}[r.IntN(3)])) * time.Microsecond
					}
					q.at = time.Since(began)
					s.mu.Lock()
					s.sent[q.path] = q
					s.mu.Unlock()
					ask := func() { q.ask(handler) }
					if q.served > 0 {
						waiting.Go(ask)
					} else {
						ask()
					}
				}
			})
		}
		all.Wait()
		waiting.Wait()
		if err := e.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	out := make([]*sent, 0, len(s.sent))
	for _, q := range s.sent {
		out = append(out, q)
	}
	slices.SortFunc(out, func(a, b *sent) int { return cmp.Compare(a.at, b.at) })
	return out
}

func drawRequest(r *rand.Rand, client, n int) *sent {
	q := &sent{method: []string{"GET", "GET", "POST"}[r.IntN(3)], path: fmt.Sprintf("/%s/%d-%d", []string{"a", "b", "c"}[r.IntN(3)], client, n)}
	if r.IntN(8) == 0 {
		q.path += "/no"
	}
	add := func(name, value string) { q.headers = append(q.headers, [2]string{name, value}) }
	add("X-User", "u"+strconv.Itoa(client))
	add("X-Forwarded-For", "192.0.2."+strconv.Itoa(client/2))
	if tier := []string{"gold", "free", ""}[client%3]; tier != "" {
		add("X-Tier", tier)
	}
	if client%2 == 0 {
		add("X-Tenant", "acme")
	}
	if r.IntN(3) == 0 {
		add("X-App", []string{"mobile", "desk top"}[r.IntN(2)])
	}
	if r.IntN(3) == 0 {
		add("X-Cost", strconv.Itoa(1+r.IntN(4)))
	}
	return q
}

func (q *sent) ask(h http.Handler) {
	r := httptest.NewRequest(q.method, q.path, nil)
	r.RemoteAddr = "10.0.0.1:1234"
	for _, x := range q.headers {
		r.Header.Add(x[0], x[1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	q.status, q.header = w.Code, w.Header()
}

var outcomeWords = map[engine.Outcome]string{
	engine.Allowed: "allow", engine.Throttled: "throttled", engine.Exempt: "exempt", engine.Denied: "deny", engine.Banned: "banned", engine.Blocked: "blocked",
}

// step returns the request and its answer as a step of a test.
func (q *sent) step() string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %v %s %s ip=10.0.0.1", q.at, q.method, q.path)
	for _, x := range q.headers {
		fmt.Fprintf(&b, " header %s=%q", x[0], x[1])
	}
	if q.served > 0 {
		fmt.Fprintf(&b, " for %v", q.served)
	}
	e := &q.event
	fmt.Fprintf(&b, " -> %s", outcomeWords[e.Outcome])
	switch {
	case e.Shadow:
	case e.Rule == "":
		b.WriteString(" by none")
	case e.Limit == "":
		b.WriteString(" by " + e.Rule)
	default:
		b.WriteString(" by " + e.Rule + "/" + e.Limit)
	}
	fmt.Fprintf(&b, " delay=%v user=%s tier=%q ip=%s", e.Waited, e.User, e.Tier, e.IP)
	if e.Shadow {
		fmt.Fprintf(&b, " shadow %s deny", e.Rule)
	} else {
		retry := e.RetryAfter.String()
		if e.RetryAfter == stint.Never {
			retry = "never"
		}
		fmt.Fprintf(&b, " retry=%s", retry)
	}
	if !e.Outcome.Passed() {
		fmt.Fprintf(&b, " status=%d header Content-Type=%s", q.status, q.header.Get("Content-Type"))
	}
	for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Cost", "RateLimit-Policy", "RateLimit", "Retry-After"} {
		if q.header.Get(name) == "" {
			fmt.Fprintf(&b, " no header %s", name)
		} else {
			fmt.Fprintf(&b, " header %s=%q", name, q.header.Get(name))
		}
	}
	return b.String()
}

// TestServer sends random traffic to a server with random rules, through its middleware, and writes what it has answered as a
// test: every verdict, wait and header is as expected.
func TestServer(t *testing.T) {
	t.Parallel()
	runs := torture.Rounds(40)
	outcomes, shadows := map[engine.Outcome]int{}, 0
	for seed := range uint64(runs) {
		d := draw(rand.New(rand.NewPCG(seed, 1)))
		set, err := rule.Compile(d.rules)
		if err != nil {
			continue // such as a limit that another one hides
		}
		text := strings.Builder{}
		text.WriteString("start 2000-01-01T00:00:00Z\ntest everything\n")
		for _, q := range traffic(t, d, set, seed) {
			outcomes[q.event.Outcome]++
			if q.event.Shadow {
				shadows++
			}
			text.WriteString(q.step() + "\n")
		}
		f, err := ruletest.Parse("seed-"+strconv.FormatUint(seed, 10), []byte(text.String()))
		if err != nil {
			t.Fatalf("%v\n%s", err, text.String())
		}
		r, err := ruletest.New(ruletest.Options{Rules: d.rules, Identity: func(func() time.Time) (*identity.Resolver, error) { return resolver() }})
		if err != nil {
			t.Fatal(err)
		}
		result, err := r.Run(t.Context(), f, nil)
		if err != nil {
			t.Fatal(err)
		}
		if x := result.Tests[0]; !x.Passed() {
			t.Fatalf("seed %d: %d of %d requests differ, the first\n%s\n%+v", seed, len(x.Failures), x.Requests, &x.Failures[0], d.rules)
		}
	}
	for o := range outcomeWords {
		if outcomes[o] < runs/10 {
			t.Errorf("%d requests were %s: too few to compare", outcomes[o], o)
		}
	}
	if shadows < runs {
		t.Errorf("%d requests were denied in the shadow: too few to compare", shadows)
	}
	t.Log(outcomes, shadows)
}
