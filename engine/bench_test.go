package engine_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// hierarchy is n rules, of which three apply to GET /api/v1/items-7: everyone, the
// subject, and the subject's endpoint.
func hierarchy(n int, subject rule.Dimension) rule.File {
	f := rule.File{Rules: []rule.Rule{
		{Name: "everyone", Limits: []rule.Limit{{Name: "all", Limit: "100000000000/1h"}}},
		{Name: "subject", CountBy: []rule.Dimension{subject}, Limits: []rule.Limit{{Name: "mine", Limit: "100000000000/1h"}}},
	}}
	for i := range n - len(f.Rules) {
		f.Rules = append(f.Rules, rule.Rule{
			Name:    fmt.Sprintf("endpoint-%d", i),
			Match:   rule.Match{Paths: []string{fmt.Sprintf("/api/v1/items-%d", i)}},
			CountBy: []rule.Dimension{subject, "endpoint"},
			Limits:  []rule.Limit{{Name: "endpoint", Limit: "100000000000/1h"}},
		})
	}
	return f
}

// known is a directory of one key.
type known struct{ key identity.Key }

func (d *known) Key(_ context.Context, id string) (*identity.Key, error) {
	if id == d.key.ID {
		return &d.key, nil
	}
	return nil, nil
}

func (*known) Tenant(context.Context, string) (*identity.Tenant, error) { return nil, nil }

func (d *known) User(context.Context, string) (*identity.User, error) { return nil, nil }

// callers are requests of each kind of identity, and engines that know them.
func callers(tb testing.TB) map[string]func() (*engine.Engine, engine.Request) {
	tb.Helper()
	peer := netip.MustParseAddr("192.0.2.1")
	get := func(headers map[string][]string) engine.Request {
		return engine.Request{Method: "GET", Path: "/api/v1/items-7", Peer: peer, Headers: headers}
	}
	return map[string]func() (*engine.Engine, engine.Request){
		"ip": func() (*engine.Engine, engine.Request) {
			return newEngine(tb, hierarchy(1000, "ip"), identity.Options{}), get(nil)
		},
		"key": func() (*engine.Engine, engine.Request) {
			text, key, err := identity.GenerateKey(rand.Reader, "stint", "")
			if err != nil {
				tb.Fatal(err)
			}
			key.User = "alice"
			return newEngine(tb, hierarchy(1000, "user"), identity.Options{Directory: &known{key}}),
				get(map[string][]string{"X-Api-Key": {text}})
		},
		"jwt": func() (*engine.Engine, engine.Request) {
			secret := "a secret that is long enough for HMAC-SHA-256"
			token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
				"sub": "alice", "iss": "https://id.example", "aud": "api", "exp": time.Now().Add(time.Hour).Unix(),
			}).SignedString([]byte(secret))
			if err != nil {
				tb.Fatal(err)
			}
			o := identity.Options{JWT: &identity.JWTOptions{Secret: identity.Secret(secret), Issuer: "https://id.example", Audience: []string{"api"}}}
			return newEngine(tb, hierarchy(1000, "user"), o), get(map[string][]string{"Authorization": {"Bearer " + token}})
		},
	}
}

func newEngine(tb testing.TB, f rule.File, o identity.Options) *engine.Engine {
	tb.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	rules, err := rule.Compile(f)
	if err != nil {
		tb.Fatal(err)
	}
	who, err := identity.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = who.Close() })
	e, err := engine.New(engine.Options{Store: store, Rules: rules, Identity: who})
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// BenchmarkDecide has a store of 200,000 other counters beside the engine, as a process
// that limits others has: with no heap to speak of, most of the time would go to a
// collector that runs a thousand times a second.
func BenchmarkDecide(b *testing.B) {
	others := newStore(b, nil)
	for i := range 200_000 {
		if err := others.Take(b.Context(), []stint.Ask{{
			Key: stint.Key{Subject: fmt.Sprint("user:", i)}, Limit: stint.PerHour(10), Cost: 1,
		}}, make([]stint.Decision, 1)); err != nil {
			b.Fatal(err)
		}
	}
	defer runtime.KeepAlive(others)
	for name, make := range callers(b) {
		b.Run(name, func(b *testing.B) {
			e, q := make()
			b.ReportAllocs()
			for b.Loop() {
				v, err := e.Decide(b.Context(), q)
				if err != nil || v.Outcome != engine.Allowed || len(v.Limits) != 3 {
					b.Fatal(v, err)
				}
			}
		})
	}
}

// BenchmarkServe measures decisions of doors into a verdict: as DecideInto, where nothing is settled, and with a
// place that is released.
func BenchmarkServe(b *testing.B) {
	held := hierarchy(1000, "ip")
	held.Rules = append(held.Rules, rule.Rule{Name: "place", CountBy: []rule.Dimension{"ip"}, Limits: []rule.Limit{{Name: "place", Limit: "10000/30s concurrency"}}})
	q := engine.Request{Method: "GET", Path: "/api/v1/items-7", Peer: netip.MustParseAddr("192.0.2.1")}
	for name, f := range map[string]rule.File{"nothing to settle": hierarchy(1000, "ip"), "a place": held} {
		b.Run(name, func(b *testing.B) {
			e := newEngine(b, f, identity.Options{})
			var v engine.Verdict
			b.ReportAllocs()
			for b.Loop() {
				s, err := e.Serve(b.Context(), &q, &v)
				if err != nil || v.Outcome != engine.Allowed {
					b.Fatal(v, err)
				}
				if s != nil {
					s.End(engine.Usage{}, false)
					if err := e.Settled(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkUse measures decisions while rules are replaced a thousand times a second,
// and while they are not: the median, and the slowest of a thousand.
func BenchmarkUse(b *testing.B) {
	for _, replacing := range []bool{false, true} {
		b.Run(fmt.Sprintf("replacing=%v", replacing), func(b *testing.B) {
			e := newEngine(b, hierarchy(10_000, "ip"), identity.Options{})
			who := resolver(b, identity.Options{})
			var sets []*rule.Set
			for range 2 {
				rules, err := rule.Compile(hierarchy(10_000, "ip"))
				if err != nil {
					b.Fatal(err)
				}
				sets = append(sets, rules)
			}
			done, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for i := 0; replacing; i++ {
					select {
					case <-tick.C:
						_ = e.Use(sets[i%2], who)
					case <-done:
						return
					}
				}
			}()
			q := engine.Request{Method: "GET", Path: "/api/v1/items-7", Peer: netip.MustParseAddr("192.0.2.1")}
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				if _, err := e.Decide(b.Context(), q); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
			}
			close(done)
			<-ended
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
			b.ReportMetric(float64(took[len(took)*999/1000]), "p99.9-ns")
		})
	}
}

// BenchmarkReload decides again and again, with pauses as between requests, first as it is
// and then while 10,000 rules are compiled and put to use without a pause, and reports p99
// of both.
func BenchmarkReload(b *testing.B) {
	f := hierarchy(10_000, "ip")
	who, err := identity.New(identity.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer who.Close()
	e := newEngine(b, f, identity.Options{})
	request := engine.Request{Method: "GET", Path: "/api/v1/items-7", Peer: netip.MustParseAddr("192.0.2.1")}
	p99 := func() float64 {
		const decisions = 15_000
		took := make([]time.Duration, 0, decisions)
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for range decisions {
			<-tick.C
			begun := time.Now()
			if v, err := e.Decide(b.Context(), request); err != nil || v.Outcome != engine.Allowed {
				b.Fatal(v, err)
			}
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		return float64(took[decisions*99/100].Nanoseconds())
	}
	var quiet, busy float64
	for b.Loop() {
		quiet = p99()
		ctx, stop := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				rules, err := rule.Compile(f)
				if err != nil {
					b.Error(err)
					return
				}
				if err := e.Use(rules, who); err != nil {
					b.Error(err)
					return
				}
			}
		}()
		busy = p99()
		stop()
		<-done
	}
	b.ReportMetric(quiet, "ns-p99")
	b.ReportMetric(busy, "ns-p99-reloading")
	b.ReportMetric(busy/quiet, "ratio")
}
