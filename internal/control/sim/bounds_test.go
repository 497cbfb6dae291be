//go:build exact

package sim_test

import (
	"iter"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/sim"
)

// A replay is one goroutine, and the race detector takes minutes for millions of steps.

// TestBounds replays more than the bounds allow.
func TestBounds(t *testing.T) {
	t.Parallel()
	endless := func(request func(i int) sim.Request) iter.Seq2[sim.Request, error] {
		return func(yield func(sim.Request, error) bool) {
			for i := 0; yield(request(i), nil); i++ {
				continue
			}
		}
	}
	for name, c := range map[string]struct {
		rule  string
		of    func(i int) sim.Request
		notes []string
	}{
		"not matched": {`{"match": {"methods": ["PUT"]}, "action": "block"}`, func(int) sim.Request { return after(0, "a", 1) }, []string{"too many events: those after 2026-03-02T12:00:00Z"}},
		"subjects": {
			`{"count_by": ["user"], "limits": [{"limit": "1/1h"}], "penalty": {"threshold": 60, "within": "1h", "cooldown": "1h"}}`,
			func(i int) sim.Request { return after(time.Duration(i), strconv.Itoa(i), 1) },
			[]string{"too many events", "more than 100000 subjects", "more than 262144 counters"},
		},
		"held": {
			`{"action": "throttle", "max_delay": "60s", "limits": [{"limit": "1/10s"}]}`,
			func(i int) sim.Request { return after(time.Duration(i)*time.Microsecond, "a", 1) },
			[]string{"too many events", "More than 10000 requests had to be held"},
		},
		"penalty": {
			`{"count_by": ["user"], "limits": [{"limit": "1/1h"}], "penalty": {"threshold": 1000, "within": "1us", "cooldown": "1us"}}`,
			func(i int) sim.Request { return after(time.Duration(i)*time.Microsecond, "a", math.MaxInt64) },
			[]string{"too many events"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := sim.Run(t.Context(), hour(parseRule(t, c.rule)), endless(c.of))
			if err != nil || p.WouldRefuse > p.Matched || p.WouldRefuse < 0 || p.Requests < p.Matched {
				t.Fatalf("%+v, %v", p, err)
			}
			for _, note := range c.notes {
				if !strings.Contains(strings.Join(p.Notes, "\n"), note) {
					t.Errorf("%q, want %q", p.Notes, note)
				}
			}
		})
	}
}
