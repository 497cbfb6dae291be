package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

const places = `
[[rules]]
name = "streams"
count_by = ["user"]
limits = [ { name = "open", limit = "2/30s concurrency" } ]
[[rules]]
name = "volume"
count_by = ["user"]
cost = { meter = "response_bytes", reserve = 100, max = 5000, on_error = "refund" }
limits = [ { name = "bytes", limit = "10000/1h fixed_window" } ]
[[rules]]
name = "time"
count_by = ["user"]
cost = { meter = "response_seconds", reserve = 10 }
limits = [ { name = "seconds", limit = "1000/1h fixed_window" } ]
[[rules]]
name = "requests"
count_by = ["user"]
limits = [ { name = "requests", limit = "1000/1h fixed_window" } ]
`

// taken returns what alice has used of the limits, in the order of the names.
func taken(tb testing.TB, e *engine.Engine, names ...string) (out string) {
	tb.Helper()
	v, err := e.Peek(tb.Context(), from("alice", "GET", "/"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		for i := range v.Limits {
			if l := &v.Limits[i]; l.Name == name {
				out += fmt.Sprint(" ", l.Decision.Limit-l.Decision.Remaining)
			}
		}
	}
	return out
}

func serve(tb testing.TB, e *engine.Engine) (*engine.Serving, *engine.Verdict) {
	tb.Helper()
	v, q := new(engine.Verdict), from("alice", "GET", "/")
	s, err := e.Serve(tb.Context(), &q, v)
	if err != nil {
		tb.Fatal(err)
	}
	return s, v
}

func settled(tb testing.TB, e *engine.Engine) {
	tb.Helper()
	if err := e.Settled(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// TestServe settles requests at their end: places come back, and meters tell what is charged.
func TestServe(t *testing.T) {
	t.Parallel()
	all := []string{"open", "bytes", "seconds", "requests"}
	for name, c := range map[string]struct {
		used   map[rule.Meter]int64
		failed bool
		left   string
	}{
		"measured":          {map[rule.Meter]int64{"response_bytes": 250, "response_seconds": 3}, false, " 0 250 3 1"},
		"nothing measured":  {nil, false, " 0 100 10 1"},
		"nothing used":      {map[rule.Meter]int64{"response_bytes": 0, "response_seconds": -5}, false, " 0 0 0 1"},
		"more than max":     {map[rule.Meter]int64{"response_bytes": 1 << 40}, false, " 0 5000 10 1"},
		"failed":            {map[rule.Meter]int64{"response_bytes": 250, "response_seconds": 3}, true, " 0 0 3 1"},
		"failed unmeasured": {nil, true, " 0 0 10 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, places, engine.Options{})
			s, _ := serve(t, e)
			if got, want := fmt.Sprint(s.Meters(nil)), "[response_seconds response_bytes]"; got != want {
				t.Errorf("the meters are %s, want %s", got, want)
			}
			if got, want := taken(t, e, all...), " 1 100 10 1"; got != want {
				t.Errorf("while it is served,%s is used, want%s", got, want)
			}
			for range 3 { // once
				s.End(engine.Usage{Meters: c.used}, c.failed)
				settled(t, e)
				c.used = map[rule.Meter]int64{"response_bytes": 77}
				if got := taken(t, e, all...); got != c.left {
					t.Errorf("afterwards,%s is used, want%s", got, c.left)
				}
			}
		})
	}
}

// TestServeNothing serves requests of which there is nothing to settle.
func TestServeNothing(t *testing.T) {
	t.Parallel()
	e := start(t, `
[[rules]]
name = "requests"
count_by = ["user"]
limits = [ { name = "requests", limit = "2/1h" } ]
[[rules]]
name = "streams"
match = { paths = ["/streams"] }
limits = [ { name = "open", limit = "1/30s concurrency" } ]
`, engine.Options{})
	for i := range 3 {
		if s, v := serve(t, e); s != nil || v.Outcome.Passed() != (i < 2) {
			t.Errorf("request %d: %s, to be settled: %t", i+1, summary(*v), s != nil)
		}
	}
	// A request that is denied by another rule has no place.
	v, q := new(engine.Verdict), from("alice", "GET", "/streams")
	if s, err := e.Serve(t.Context(), &q, v); s != nil || err != nil || v.Outcome != engine.Denied {
		t.Errorf("%s, %v", summary(*v), err)
	}
	q = from("bob", "GET", "/streams")
	for i := range 2 {
		if _, err := e.Serve(t.Context(), &q, v); err != nil || v.Outcome.Passed() != (i == 0) {
			t.Errorf("bob's request %d: %s, %v", i+1, summary(*v), err)
		}
	}
	// A part of a request that is served takes no place.
	q.Held = true
	if s, err := e.Serve(t.Context(), &q, v); s != nil || err != nil || !v.Outcome.Passed() {
		t.Errorf("a part of a request: %s, %v", summary(*v), err)
	}
}

// TestServeKeepsPlaces serves requests for longer than the window of their places.
func TestServeKeepsPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := start(t, places, engine.Options{})
		s, _ := serve(t, e)
		stay, _ := serve(t, e)
		<-time.After(95 * time.Second)
		if none, v := serve(t, e); none != nil || v.Outcome != engine.Denied {
			t.Fatalf("after three windows: %s", summary(*v))
		}
		s.End(engine.Usage{}, false)
		settled(t, e)
		if got := taken(t, e, "open"); got != " 1" {
			t.Errorf("after a release,%s places are held", got)
		}

		stay.End(engine.Usage{}, false)
		settled(t, e)
	})
}

// broken is a store that fails while it is down.
type broken struct {
	stint.Store
	down atomic.Bool
}

var errDown = fmt.Errorf("no connection: %w", stint.ErrUnavailable)

func (b *broken) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if b.down.Load() {
		return errDown
	}
	return b.Store.Take(ctx, asks, ds)
}

func (b *broken) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if b.down.Load() {
		return errDown
	}
	return b.Store.Adjust(ctx, asks, ds)
}

// TestServeWithoutStore ends requests while the store is out of reach: for a short while, for a long one, and
// with more requests than can wait.
func TestServeWithoutStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		store := &broken{Store: memory}
		e := start(t, places, engine.Options{Store: store})
		s, _ := serve(t, e)
		store.down.Store(true)
		s.End(engine.Usage{Meters: map[rule.Meter]int64{"response_bytes": 7}}, false)
		<-time.After(time.Second)
		if n, lost := e.Unsettled(); n != 1 || lost != 0 {
			t.Errorf("%d wait, %d are lost", n, lost)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := e.Settled(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for it: %v", err)
		}
		store.down.Store(false)
		settled(t, e)
		if got, want := taken(t, e, "open", "bytes"), " 0 7"; got != want {
			t.Errorf("with the store back,%s is used, want%s", got, want)
		}

		s, _ = serve(t, e)
		store.down.Store(true)
		<-time.After(12 * time.Second) // a renewal fails
		s.End(engine.Usage{}, false)
		settled(t, e)
		if n, lost := e.Unsettled(); n != 0 || lost != 1 {
			t.Errorf("%d wait, %d are lost", n, lost)
		}
		store.down.Store(false)
		<-time.After(20 * time.Second)
		if got, want := taken(t, e, "open"), " 0"; got != want {
			t.Errorf("after its window,%s places are held, want%s", got, want)
		}
	})
}

// TestServeLostPlace loses a place to a reset. Its holder takes one again.
func TestServeLostPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		e := start(t, places, engine.Options{Store: memory})
		s, v := serve(t, e)
		for i := range v.Limits {
			if l := &v.Limits[i]; l.Name == "open" {
				ask := stint.Ask{Key: stint.Key{Subject: "user:alice", Name: "streams:open"}, Limit: l.Limit}
				if err := memory.Reset(t.Context(), []stint.Ask{ask}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := taken(t, e, "open"); got != " 0" {
			t.Errorf("after a reset,%s places are held", got)
		}
		<-time.After(11 * time.Second)
		if got := taken(t, e, "open"); got != " 1" {
			t.Errorf("after a renewal,%s places are held", got)
		}
		s.End(engine.Usage{}, false)
		settled(t, e)
		if got := taken(t, e, "open"); got != " 0" {
			t.Errorf("after the end,%s places are held", got)
		}
	})
}

// TestServeRefused gives places of requests back whose credentials are not accepted.
func TestServeRefused(t *testing.T) {
	t.Parallel()
	e := start(t, `
[[rules]]
name = "streams"
count_by = ["ip"]
limits = [ { name = "open", limit = "1/30s concurrency" } ]
`, engine.Options{Identity: resolver(t, identity.Options{Directory: &known{}})})
	for i := range 3 {
		q := engine.Request{Method: "GET", Path: "/", Peer: netip.MustParseAddr("192.0.2.1"), Headers: map[string][]string{"X-Api-Key": {"stint_nonsense"}}}
		v := new(engine.Verdict)
		if s, err := e.Serve(t.Context(), &q, v); s != nil || err != nil || v.Outcome != engine.Unauthorized {
			t.Errorf("request %d: %s, %v", i+1, summary(*v), err)
		}
		settled(t, e)
	}
}

// TestServeReload ends a request whose rules are gone.
func TestServeReload(t *testing.T) {
	t.Parallel()
	e := start(t, places, engine.Options{})
	s, _ := serve(t, e)
	before, who := e.Rules(), e.Identity()
	none, err := rule.Compile(rule.File{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Use(none, who); err != nil {
		t.Fatal(err)
	}
	s.End(engine.Usage{Meters: map[rule.Meter]int64{"response_bytes": 7}}, false)
	settled(t, e)
	if err := e.Use(before, who); err != nil {
		t.Fatal(err)
	}
	if got, want := taken(t, e, "open", "bytes", "seconds"), " 0 7 10"; got != want {
		t.Errorf("%s is used, want%s", got, want)
	}
}
