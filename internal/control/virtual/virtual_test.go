package virtual_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/virtual"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

const rules = `
[[rules]]
name   = "search"
match  = { paths = ["/search"] }
limits = [ { name = "rate", limit = "2/1s" } ]
action = "throttle"
max_delay = "5s"
[[rules]]
name   = "exports"
match  = { paths = ["/exports"] }
limits = [ { name = "places", limit = "1/30s concurrency" } ]
action = "throttle"
max_delay = "1m"
`

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(t *testing.T) (*virtual.World, *engine.Engine) {
	t.Helper()
	w := virtual.New(start)
	t.Cleanup(w.Close)
	file, err := rule.ParseTOML("rules.toml", []byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	set, err := rule.Compile(file)
	if err != nil {
		t.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{Now: w.Now})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Options{Store: store, Rules: set, Now: w.Now, Timers: w})
	if err != nil {
		t.Fatal(err)
	}
	return w, e
}

func from(user, path string) engine.Request {
	return engine.Request{Method: "GET", Path: path, Subject: &identity.Subject{User: user, IP: netip.MustParseAddr("192.0.2.1")}}
}

// TestThrottled sends requests that are held: each passes at its instant, while others are decided.
func TestThrottled(t *testing.T) {
	t.Parallel()
	w, e := newWorld(t)
	var got []string
	ask := func(name string) {
		w.Go(func() {
			v, err := e.Decide(t.Context(), from("alice", "/search"))
			if err != nil {
				t.Error(err)
			}
			got = append(got, fmt.Sprintf("%s %v at %v, after %v", name, v.Outcome, w.Now().Sub(start), v.Waited))
		})
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		ask(name)
	}
	if len(got) != 2 || w.Waiting() != 2 {
		t.Fatalf("%v; %d wait", got, w.Waiting())
	}
	w.Advance(start.Add(100 * time.Millisecond))
	ask("e")
	w.Finish(start.Add(time.Hour))
	if len(got) != 5 || w.Waiting() != 0 {
		t.Errorf("%v; %d wait", got, w.Waiting())
	}
	first := slices.Clone(got)
	for range 10 { // the same each time
		w, e = newWorld(t)
		got = nil
		for _, name := range []string{"a", "b", "c", "d"} {
			ask(name)
		}
		w.Advance(start.Add(100 * time.Millisecond))
		ask("e")
		w.Finish(start.Add(time.Hour))
		if !slices.Equal(got, first) {
			t.Fatalf("got  %v\nwant %v", got, first)
		}
	}
}

// TestPlaces has requests wait for a place, which they have at the instant when it is released. A long request keeps its place.
func TestPlaces(t *testing.T) {
	t.Parallel()
	w, e := newWorld(t)
	var got []string
	serve := func(name string, length time.Duration) {
		w.Go(func() {
			q, v := from(name, "/exports"), engine.Verdict{}
			s, err := e.Serve(t.Context(), &q, &v)
			if err != nil {
				t.Error(err)
			}
			got = append(got, fmt.Sprintf("%s %v at %v", name, v.Outcome, w.Now().Sub(start)))
			if s == nil {
				return
			}
			if !w.Pause(t.Context(), length, nil) {
				t.Error("not paused")
			}
			s.End(engine.Usage{}, false)
			if err := e.Settled(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for _, name := range []string{"a", "a", "a"} {
		serve(name, 17*time.Second)
	}
	w.Advance(start.Add(time.Second))
	serve("a", time.Second)
	w.Finish(start.Add(time.Hour))
	want := []string{"a allowed at 0s", "a throttled at 17s", "a throttled at 34s", "a throttled at 51s"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	serve("b", 2*time.Minute) // four windows
	w.Advance(w.Now().Add(110 * time.Second))
	v, err := e.Peek(t.Context(), from("b", "/exports"))
	if err != nil || v.Outcome.Passed() {
		t.Errorf("%v %v", v.Outcome, err)
	}
	w.Finish(w.Now().Add(time.Hour))
}

// TestClose ends what waits.
func TestClose(t *testing.T) {
	t.Parallel()
	w, e := newWorld(t)
	var failed error
	for range 3 {
		w.Go(func() {
			if v, err := e.Decide(context.Background(), from("alice", "/search")); err != nil || !v.Outcome.Passed() {
				failed = fmt.Errorf("%v %w", v.Outcome, err)
			}
		})
	}
	w.Close()
	if w.Waiting() != 0 || failed == nil {
		t.Error(w.Waiting(), failed)
	}
	if w.AfterFunc(0, func() { t.Error("called") })() {
		t.Error("it was there")
	}
}

func BenchmarkDecide(b *testing.B) {
	w := virtual.New(start)
	defer w.Close()
	file, err := rule.ParseTOML("rules.toml", []byte(rules))
	if err != nil {
		b.Fatal(err)
	}
	set, err := rule.Compile(file)
	if err != nil {
		b.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{Now: w.Now})
	if err != nil {
		b.Fatal(err)
	}
	e, err := engine.New(engine.Options{Store: store, Rules: set, Now: w.Now, Timers: w})
	if err != nil {
		b.Fatal(err)
	}
	q, v := from("alice", "/search"), engine.Verdict{}
	decide := func() { err = e.DecideInto(b.Context(), &q, &v) }
	b.ReportAllocs()
	for b.Loop() {
		w.Advance(w.Now().Add(time.Second))
		w.Go(decide)
	}
}
