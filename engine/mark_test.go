package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/storetest"
)

// TestMark has rules mark requests, which pass: alone, beside a rule that denies, and in a group, in which they are in force.
func TestMark(t *testing.T) {
	t.Parallel()
	const mark = `
[[rules]]
name     = "fair"
count_by = ["user"]
limits   = [{ name = "few", limit = "2/1m fixed_window" }]
action   = "mark"
`
	const reject = `
[[rules]]
name     = "all"
count_by = ["user"]
limits   = [{ name = "many", limit = "4/1h fixed_window" }]
priority = 1
`
	group := func(rules, of, match string) string {
		rules = strings.ReplaceAll(rules, "count_by", "group = \"one\"\ncount_by")
		return strings.Replace(rules, "name     = \""+of+"\"", "name = \""+of+"\"\nmatch = "+match, 1) // or the other could never apply
	}
	for _, c := range []struct{ about, rules, want string }{
		{"alone", mark, "pass pass over over over over"},
		{"beside another", mark + reject, "pass pass over over deny deny"},
		{"in a group", group(mark+reject, "fair", `{ methods = ["GET"] }`), "pass pass over over over over"},
		{"after one that comes first", group(mark+strings.Replace(reject, "= 1", "= -1", 1), "all", `{ paths = ["/"] }`), "pass pass pass pass deny deny"},
		{"beside one that is tried out", mark + strings.Replace(reject, "priority = 1", `action = "log_only"`, 1), "pass pass over over over over"},
	} {
		clock := storetest.NewClock()
		var events recorder
		e := start(t, c.rules, engine.Options{Now: clock.Now, Recorder: &events})
		var got []string
		for range strings.Count(c.want, " ") + 1 {
			v := decide(t, e, from("alice", "GET", "/"))
			text := "pass"
			for i := range v.Limits {
				if l := &v.Limits[i]; l.Marks() {
					text = "over"
					if l.Rule.Name != "fair" || l.Decision.Remaining != 0 || l.Decision.RetryAfter != time.Minute || !v.Outcome.Passed() {
						t.Errorf("%s: %s", c.about, summary(v))
					}
				}
			}
			if !v.Outcome.Passed() {
				text = "deny"
			}
			if x := events.events[len(events.events)-1]; x.Shadow != (v.Shadowed() != nil) || text == "over" && !x.Shadow {
				t.Errorf("%s: %s is recorded as %+v", c.about, text, x)
			}
			got = append(got, text)
		}
		if all := strings.Join(got, " "); all != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.about, all, c.want)
		}
	}
}

// TestMarkPeek checks that a peek says what a request would be told, and counts nothing.
func TestMarkPeek(t *testing.T) {
	t.Parallel()
	e := start(t, "[[rules]]\nname = \"fair\"\ncount_by = [\"user\"]\nlimits = [{ name = \"few\", limit = \"2/1m\" }]\naction = \"mark\"\n", engine.Options{Now: storetest.NewClock().Now})
	for range 2 {
		q := from("alice", "GET", "/")
		q.Cost = 3
		v, err := e.Peek(t.Context(), q)
		if err != nil || !v.Outcome.Passed() || len(v.Limits) != 1 || !v.Limits[0].Marks() || v.Limits[0].Decision.Remaining != 2 || v.Limits[0].Decision.RetryAfter != stint.Never {
			t.Fatalf("%s, %v", summary(v), err)
		}
	}
}
