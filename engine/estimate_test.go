package engine_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

const estimated = `
[[rules]]
name = "tokens"
match = { paths = ["/"] }
count_by = ["user"]
cost = { meter = "llm.total_tokens", reserve = 10, max = 300, on_overrun = "cut" }
limits = [{ name = "tokens", limit = "1000/1000h fixed_window" }, { name = "most", limit = "5000/6000h fixed_window" }]
[[rules]]
name = "places"
match = { paths = ["/"] }
count_by = ["user"]
limits = [{ name = "places", limit = "4/1m concurrency" }]
`

// ofModel returns a request that may use a number of tokens.
func ofModel(n int64, open bool) engine.Request {
	q := engine.Request{Method: "POST", Path: "/", Subject: &identity.Subject{User: "alice"}}
	q.Estimate = func(context.Context) (engine.Estimate, error) {
		return engine.Estimate{Meters: map[rule.Meter]int64{"llm.total_tokens": n}, Open: open}, nil
	}
	return q
}

// TestEstimate reserves what a request may use: at most what the rule allows, and a quarter of the smallest limit.
func TestEstimate(t *testing.T) {
	t.Parallel()
	e := start(t, estimated, engine.Options{})
	served := func(q engine.Request, used int64) (reserved int64) {
		t.Helper()
		var v engine.Verdict
		s, err := e.Serve(t.Context(), &q, &v)
		if err != nil || s == nil {
			t.Fatal(summary(v), err)
		}
		for _, l := range v.Limits {
			if l.Name == "tokens" {
				reserved = l.Cost
			}
		}
		s.End(engine.Usage{Meters: map[rule.Meter]int64{"llm.total_tokens": used}}, false)
		if err := e.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
		return reserved
	}
	for _, c := range []struct {
		estimate int64
		open     bool
		want     int64
	}{{100, false, 100}, {1, false, 1}, {0, true, 10}, {1 << 50, false, 250}, {5, true, 10}, {25, true, 25}} {
		if got := served(ofModel(c.estimate, c.open), 0); got != c.want {
			t.Errorf("%d are reserved for %d, open %v, want %d", got, c.estimate, c.open, c.want)
		}
	}
	for range 40 {
		served(ofModel(5, true), 16)
	}
	if got := served(ofModel(5, true), 0); got != 17 { // the upper bound of a bucket
		t.Errorf("%d are reserved for a request like others that have used 16", got)
	}
	for name, other := range map[string]identity.Subject{"user": {User: "bob"}, "tenant": {User: "alice", Tenant: "t"}} {
		q := ofModel(5, true)
		q.Subject = &other
		if got := served(q, 0); got != 10 {
			t.Errorf("%d are reserved for a request of another %s, want 10", got, name)
		}
	}
	by := func(user string) engine.Request {
		q := ofModel(5, true)
		q.Subject = &identity.Subject{User: user}
		return q
	}
	for i := range 4100 { // more than are known
		served(by("u"+strconv.Itoa(i)), 1)
	}
	for range 40 {
		served(by("zoe"), 16)
	}
	if got := served(by("zoe"), 0); got != 17 {
		t.Errorf("%d are reserved for the latest of many users, want 17", got)
	}
	if got := served(ofModel(5, false), 0); got != 5 {
		t.Errorf("%d are reserved for a request with a cap", got)
	}
}

// TestEstimateNothing charges nothing for a request that uses nothing, and lets it pass when all is used up.
func TestEstimateNothing(t *testing.T) {
	t.Parallel()
	e := start(t, estimated, engine.Options{})
	for _, more := range []int64{0, 1000, 5000} {
		if more > 0 {
			q := ofModel(1, false)
			s, err := e.Serve(t.Context(), &q, &engine.Verdict{})
			if err != nil || s == nil {
				t.Fatal(err)
			}
			s.End(engine.Usage{Meters: map[rule.Meter]int64{"llm.total_tokens": more}}, false)
			if err := e.Settled(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		before := taken(t, e, "tokens")
		q := ofModel(0, false)
		var v engine.Verdict
		s, err := e.Serve(t.Context(), &q, &v)
		if err != nil || !v.Outcome.Passed() {
			t.Fatal(summary(v), err)
		}
		s.End(engine.Usage{Meters: map[rule.Meter]int64{"llm.total_tokens": 7}}, false)
		if err := e.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := taken(t, e, "tokens"); got != before {
			t.Errorf("%s are taken, want%s", got, before)
		}
	}
}

// TestEstimateUnneeded reads no request that no rule is about, and none of a client that is exempt. An error is returned.
func TestEstimateUnneeded(t *testing.T) {
	t.Parallel()
	e := start(t, estimated, engine.Options{})
	broken := errors.New("the body breaks off")
	q := ofModel(1, false)
	q.Estimate = func(context.Context) (engine.Estimate, error) { return engine.Estimate{}, broken }
	var v engine.Verdict
	if _, err := e.Serve(t.Context(), &q, &v); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := e.Decide(t.Context(), q); err != nil {
		t.Error("a decision that nothing settles:", err)
	}
	q.Path = "/other"
	if _, err := e.Serve(t.Context(), &q, &v); err != nil {
		t.Error("a request that no rule is about:", err)
	}
}

// TestEstimateLeaves gives back what a language model was never asked for: the client has left while it was held.
func TestEstimateLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := start(t, estimated+`
[[rules]]
name = "queue"
match = { paths = ["/"] }
count_by = ["user"]
limits = [{ name = "queue", limit = "1/20s burst=3 leaky_bucket" }]
`, engine.Options{})
		q := ofModel(100, false)
		if _, err := e.Serve(t.Context(), &q, &engine.Verdict{}); err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := e.Serve(ctx, &q, &engine.Verdict{})
			left <- err
		}()
		synctest.Wait()
		if got := taken(t, e, "tokens"); got != " 200" {
			t.Errorf("while it is held,%s are taken", got)
		}
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := e.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := taken(t, e, "tokens"); got != " 100" {
			t.Errorf("after it has left,%s are taken, want 100", got)
		}
	})
}

// TestCovers reserves more while a response uses it, until there is no more. What was used is charged in the end.
func TestCovers(t *testing.T) {
	t.Parallel()
	e := start(t, estimated, engine.Options{})
	q := ofModel(100, false)
	var v engine.Verdict
	s, err := e.Serve(t.Context(), &q, &v)
	if err != nil || !s.Cuts() {
		t.Fatal(err, summary(v))
	}
	other, err := e.Serve(t.Context(), &q, &engine.Verdict{})
	if err != nil {
		t.Fatal(err)
	}
	covers := func(n int64) bool {
		return s.Covers(t.Context(), func(rule.Meter) int64 { return n })
	}
	for _, c := range []struct {
		used int64
		want bool
		all  string // of both limits
	}{{100, true, "200 200"}, {101, true, "301 301"}, {201, true, "301 301"}, {5000, true, "500 500"}} { // a request costs at most 300
		if got := covers(c.used); got != c.want {
			t.Errorf("%d are covered: %v", c.used, got)
		}
		if got := taken(t, e, "tokens", "most"); got != " "+c.all {
			t.Errorf("at %d,%s are taken, want %s", c.used, got, c.all)
		}
	}
	other.End(engine.Usage{}, false)
	s.End(engine.Usage{Meters: map[rule.Meter]int64{"llm.total_tokens": 250}}, false)
	if err := e.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := taken(t, e, "tokens", "most"); got != " 350 350" {
		t.Errorf("in the end,%s are taken", got)
	}
}
