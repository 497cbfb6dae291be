package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

// counting counts takes and their asks.
type counting struct {
	stint.Store
	takes, asks int
}

func (s *counting) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	s.takes++
	s.asks += len(asks)
	return s.Store.Take(ctx, asks, ds)
}

// tried is a rule with a limit, its candidate, and another limit.
func tried(limit, candidate string) string {
	if candidate != "" {
		candidate = fmt.Sprintf(", candidate = %q", candidate)
	}
	return fmt.Sprintf(`
[[rules]]
name = "search"
count_by = ["user"]
limits = [
  { name = "few", limit = %q%s },
  { name = "many", limit = "50/1d" },
]
`, limit, candidate)
}

// TestCandidate has a candidate be smaller, and then larger, than its limit: it decides nothing, and what it would do is recorded.
func TestCandidate(t *testing.T) {
	t.Parallel()
	for candidate, want := range map[string]string{
		"2/1h fixed_window": "pass pass pass+ deny deny", // + would be decided otherwise
		"4/1h fixed_window": "pass pass pass deny+ deny",
		"3/1h fixed_window": "pass pass pass deny deny",
	} {
		clock := storetest.NewClock()
		var events recorder
		e := start(t, tried("3/1h fixed_window", candidate), engine.Options{Now: clock.Now, Recorder: &events})
		var got []string
		for range 5 {
			v := decide(t, e, from("alice", "GET", "/"))
			text := "deny"
			if v.Outcome.Passed() {
				text = "pass"
			}
			if (v.Shadowed() != nil) == v.Eased != (v.Shadowed() == nil && !v.Eased) {
				t.Errorf("both: %s", summary(v))
			}
			if v.Shadowed() != nil || v.Eased {
				text += "+"
			}
			if l := v.Binding(); l.Shadow || l.Candidate {
				t.Errorf("a candidate decides: %s", summary(v))
			}
			got = append(got, text)
			x := events.events[len(events.events)-1]
			if x.Shadow != strings.HasSuffix(text, "+") || x.Rule != "search" || x.Shadow && x.Limit != "few" {
				t.Errorf("%s is recorded as %+v", text, x)
			}
		}
		if all := strings.Join(got, " "); all != want {
			t.Errorf("candidate %s\ngot  %s\nwant %s", candidate, all, want)
		}
	}
}

// TestCandidateElsewhere has another limit deny: the candidate is not asked.
func TestCandidateElsewhere(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	inner, err := memstore.New(memstore.Options{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	s := &counting{Store: inner}
	e := start(t, tried("10/1s", "5/1s")+`
[[rules]]
name = "all"
limits = [{ name = "all", limit = "1/1h" }]
`, engine.Options{Now: clock.Now, Store: s})
	decide(t, e, from("alice", "GET", "/"))
	if s.takes != 2 || s.asks != 4 {
		t.Errorf("%d takes of %d asks; want one more ask than three limits", s.takes, s.asks)
	}
	if v := decide(t, e, from("alice", "GET", "/")); v.Outcome != engine.Denied || v.Eased || s.takes != 3 {
		t.Errorf("%s, %d takes", summary(v), s.takes)
	}
}

// TestCandidateTwin decides random requests with a candidate, without, and with it in the place of the limit: it changes no verdict,
// and would do what it does in that place.
func TestCandidateTwin(t *testing.T) {
	t.Parallel()
	one := func(limit, candidate string) string {
		return strings.Replace(tried(limit, candidate), "  { name = \"many\", limit = \"50/1d\" },\n", "", 1)
	}
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		limits := []string{"5/10s", "9/10s fixed_window", "4/10s sliding_log", "6/10s token_bucket", "20/1m", "3/7s"}
		limit, candidate := limits[r.IntN(len(limits))], limits[r.IntN(len(limits))]
		clock := storetest.NewClock()
		plain := start(t, one(limit, ""), engine.Options{Now: clock.Now})
		both := start(t, one(limit, candidate), engine.Options{Now: clock.Now})
		in := start(t, one(candidate, ""), engine.Options{Now: clock.Now})
		for i := range 400 {
			clock.Add(time.Duration(r.IntN(1500)) * time.Millisecond)
			q := from(fmt.Sprint("user", r.IntN(2)), "GET", "/")
			q.Cost = int64(1 + r.IntN(2))
			a, b, c := decide(t, plain, q), decide(t, both, q), decide(t, in, q)
			if a.Outcome != b.Outcome || a.RetryAfter != b.RetryAfter || a.Binding().Decision.Remaining != b.Binding().Decision.Remaining {
				t.Fatalf("%d, %d: %s by %s, and with the candidate %s %s", seed, i, summary(a), limit, candidate, summary(b))
			}
			would := b.Outcome
			switch {
			case b.Shadowed() != nil:
				would = engine.Denied
			case b.Eased:
				would = engine.Allowed
			}
			if would != c.Outcome {
				t.Fatalf("%d, %d: the candidate %s for %s would say %v, and in its place says %s", seed, i, candidate, limit, would, summary(c))
			}
			n := slices.IndexFunc(b.Limits, func(l engine.Limit) bool { return l.Candidate })
			if n < 0 || b.Limits[n].Decision.Remaining != c.Binding().Decision.Remaining {
				t.Fatalf("%d, %d: %s, and in its place %s", seed, i, summary(b), summary(c))
			}
		}
	}
}

// TestReplaces tries a rule out in place of another, which counts by something else and for fewer paths.
func TestReplaces(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	var events recorder
	e := start(t, `
[[rules]]
name = "old"
count_by = ["user"]
limits = [{ name = "few", limit = "1/1h fixed_window" }]
[[rules]]
name = "new"
replaces = "old"
match = { paths = ["/search"] }
limits = [{ name = "all", limit = "2/1h fixed_window" }]
`, engine.Options{Now: clock.Now, Recorder: &events})
	for i, step := range []struct{ user, path, want string }{
		{"alice", "/search", "allowed old"},
		{"bob", "/search", "allowed old"},
		{"alice", "/search", "denied old"},    // by both
		{"carol", "/search", "allowed new"},   // the new one would deny it
		{"bob", "/other", "denied old eased"}, // the new one does not apply
		{"dave", "/other", "allowed old"},     // nor here
	} {
		v := decide(t, e, from(step.user, "GET", step.path))
		x := events.events[len(events.events)-1]
		got := x.Outcome.String() + " " + x.Rule
		if v.Eased {
			got += " eased"
		}
		if got != step.want || x.Shadow != (v.Eased || x.Rule == "new") {
			t.Errorf("%d: %s, want %s: %+v", i+1, got, step.want, x)
		}
	}
	clock.Add(time.Hour)
	decide(t, e, from("alice", "GET", "/search"))
	if v := decide(t, e, from("alice", "GET", "/search")); v.Outcome != engine.Denied || !v.Eased {
		t.Errorf("the new rule would let it pass: %s", summary(v))
	}
}
