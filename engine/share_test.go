package engine_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
	"github.com/stintdev/stint/storetest"
)

// partly is a rule for half of the users, and one for all.
const partly = `
[[rules]]
name = "partly"
count_by = ["user"]
enforce = "50%"
priority = 7
limits = [ { name = "few", limit = "2/1h fixed_window" } ]
penalty = { threshold = 2, within = "1h", cooldown = "10m" }

[[rules]]
name = "all"
count_by = ["user"]
limits = [ { name = "many", limit = "100/1h fixed_window" } ]
`

// chosen returns a user for whom a rule is in force, and one for whom it is not.
func chosen(t *testing.T, e *engine.Engine, name string, now time.Time) (in, out string) {
	t.Helper()
	for i := 0; in == "" || out == ""; i++ {
		user := fmt.Sprint("user", i)
		hits := e.Rules().Match(nil, &rule.Attrs{User: user, Path: "/", Now: now})
		if hits[slices.IndexFunc(hits, func(h rule.Hit) bool { return h.Rule.Name == name })].Shadow {
			out = user
		} else {
			in = user
		}
	}
	return in, out
}

// TestEnforcedForSome sends the same requests of two users, of whom a rule is in force for one. It counts both. The other passes,
// what would have been denied is recorded, and it is never banned: not then, and not when the rule is in force for it, too.
func TestEnforcedForSome(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	var events recorder
	e := start(t, partly, engine.Options{Now: clock.Now, Recorder: &events})
	in, out := chosen(t, e, "partly", clock.Now())
	for i, want := range []string{"allowed", "allowed", "denied", "banned", "banned"} {
		if got := decide(t, e, from(in, "GET", "/")); got.Outcome.String() != want {
			t.Errorf("in, %d: %s; want %s", i+1, summary(got), want)
		}
		v := decide(t, e, from(out, "GET", "/"))
		if b := v.Binding(); v.Outcome != engine.Allowed || b == nil || b.Rule.Name != "all" || (v.Shadowed() != nil) != (i >= 2) {
			t.Errorf("out, %d: %s", i+1, summary(v))
		}
		if ev := events.events[len(events.events)-1]; ev.Shadow != (i >= 2) || ev.Shadow && ev.Rule != "partly" {
			t.Errorf("out, %d: recorded %+v", i+1, ev)
		}
	}
	for _, c := range []struct {
		user   string
		shadow bool
	}{{in, false}, {out, true}} {
		usage, err := e.Usage(t.Context(), identity.Subject{User: c.user})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range usage {
			if l.Rule.Name != "partly" {
				continue
			}
			if l.Shadow != c.shadow || l.Penalty == nil && l.Decision.Remaining != 0 {
				t.Errorf("usage of %s: %s: %+v", c.user, l.Name, l)
			}
			if l.Penalty != nil && l.Decision.Allowed != c.shadow {
				t.Errorf("usage of %s: the ban: %+v", c.user, l.Decision)
			}
		}
	}
	x, err := e.Explain(t.Context(), from(out, "GET", "/"))
	if err != nil || len(x.Rules) != 2 || x.Rules[0].Shadow || !x.Rules[1].Shadow || !x.Rules[1].Matched {
		t.Errorf("%+v, %v", x.Rules, err)
	}
	// From now on it is in force for all.
	if err := e.Use(compile(t, strings.Replace(partly, `enforce = "50%"`, "", 1)), e.Identity()); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"denied", "banned"} {
		if got := decide(t, e, from(out, "GET", "/")); got.Outcome.String() != want {
			t.Errorf("then, %d: %s; want %s", i+1, summary(got), want)
		}
	}
}

// TestEnforcedOthers has a request with two identities, of which one is banned by a penalty: that bans the other only while the
// rule is in force for the one.
func TestEnforcedOthers(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	e := start(t, partly, engine.Options{Now: clock.Now})
	in, out := chosen(t, e, "partly", clock.Now())
	all := compile(t, strings.Replace(partly, `enforce = "50%"`, "", 1))
	some := e.Rules()
	if err := e.Use(all, e.Identity()); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		decide(t, e, from(in, "GET", "/"))
		decide(t, e, from(out, "GET", "/"))
	}
	if err := e.Use(some, e.Identity()); err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]engine.Outcome{in: engine.Banned, out: engine.Allowed} {
		who := identity.Subject{User: "another", Others: []identity.Subject{{User: user}}}
		if v := decide(t, e, engine.Request{Method: "GET", Path: "/", Subject: &who}); v.Outcome != want {
			t.Errorf("beside %s: %s; want %s", user, summary(v), want)
		}
	}
}

// TestRolloutOnNodes has three engines with the same rules, and clocks that show the same instant: at every instant all give the same
// client the same answer, and for whom the rule is in force it stays in force. A clock that is a second behind gives the answer of a
// second before.
func TestRolloutOnNodes(t *testing.T) {
	t.Parallel()
	begin := storetest.Epoch
	const text = `
[[rules]]
name = "rolled"
count_by = ["user"]
limits = [ { name = "few", limit = "1/1h" } ]
rollout = { steps = ["1%", "10%", "50%", "100%"], every = "1h", start = "START" }
`
	toml := strings.Replace(text, "START", begin.Format(time.RFC3339), 1)
	rapid.Check(t, func(rt *rapid.T) {
		now := begin.Add(time.Duration(rapid.Int64Range(int64(-time.Hour), int64(5*time.Hour)).Draw(rt, "at")))
		var nodes [3]*engine.Engine
		var clocks [3]*storetest.Clock
		for i := range nodes {
			clocks[i] = storetest.NewClock()
			nodes[i] = start(t, toml, engine.Options{Now: clocks[i].Now})
		}
		user := fmt.Sprint("user", rapid.IntRange(0, 10_000).Draw(rt, "user"))
		before := false
		for range 6 {
			var in [3]bool
			for i, e := range nodes {
				clocks[i].Set(now)
				in[i] = !decide(t, e, from(user, "GET", "/")).Limits[0].Shadow
			}
			if in[0] != in[1] || in[1] != in[2] {
				rt.Fatalf("%s at %v: %v", user, now, in)
			}
			if before && !in[0] {
				rt.Fatalf("%s is out again at %v", user, now)
			}
			before = in[0]
			clocks[0].Set(now.Add(time.Second))
			ahead := !decide(t, nodes[0], from(user, "GET", "/")).Limits[0].Shadow
			clocks[1].Set(now.Add(time.Second))
			if behind := !decide(t, nodes[1], from(user, "GET", "/")).Limits[0].Shadow; ahead != behind || in[0] && !ahead {
				rt.Fatalf("%s: in %v at %v, in %v a second later, and there in %v", user, in[0], now, ahead, behind)
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(rt, "pause")))
		}
	})
}

// TestWatched counts what a rule denies to those for whom it is in force.
func TestWatched(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	toml := strings.Replace(partly, `enforce = "50%"`, `rollout = { steps = ["50%"], every = "1h", start = "`+storetest.Epoch.Format(time.RFC3339)+`", back_if = "denied > 2%" }`, 1)
	e := start(t, toml, engine.Options{Now: clock.Now})
	in, out := chosen(t, e, "partly", clock.Now())
	for range 5 {
		decide(t, e, from(in, "GET", "/"))
		decide(t, e, from(out, "GET", "/"))
		if _, err := e.Peek(t.Context(), from(in, "GET", "/")); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]engine.Watched{"partly": {Requests: 5, Denied: 3}}
	if got := e.Watched(); !maps.Equal(got, want) {
		t.Error(got)
	}
	if err := e.Use(compile(t, toml), e.Identity()); err != nil || !maps.Equal(e.Watched(), want) {
		t.Error(e.Watched(), err)
	}
}
