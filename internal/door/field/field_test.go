package field_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/field"
	"github.com/stintdev/stint/rule"
)

// TestLower checks that the fields are the same, however their names are spelled. What
// they say is tested where it is seen, in httplimit.
func TestLower(t *testing.T) {
	t.Parallel()
	limit, err := stint.ParseLimit("10/1m")
	if err != nil {
		t.Fatal(err)
	}
	v := &engine.Verdict{
		ID: engine.NewID(time.Unix(1767225600, 0)), At: time.Unix(1767225600, 0), Outcome: engine.Denied, Status: http.StatusTooManyRequests, RetryAfter: time.Second,
		Limits: []engine.Limit{{
			Rule: &rule.Compiled{}, Name: "a", Limit: limit, Cost: 2,
			Decision: stint.Decision{Limit: 10, RetryAfter: time.Second, ResetAfter: time.Minute},
		}},
	}
	for set, want := range map[field.Set]int{0: 8, field.X: 5, field.IETF: 3, field.ID: 2, field.X | field.ID: 6, field.None: 1} {
		canonical, lower := http.Header{}, map[string][]string{}
		set.Set(canonical, v)
		set.SetLower(lower, v)
		if len(canonical) != want || len(lower) != want {
			t.Errorf("set %d: %v and %v, want %d fields", set, canonical, lower, want)
		}
		for name := range canonical {
			if name != http.CanonicalHeaderKey(name) || !slices.Equal(canonical[name], lower[strings.ToLower(name)]) {
				t.Errorf("%s: %v, in lower case %v", name, canonical[name], lower)
			}
		}
	}
	h := http.Header{}
	if field.Set(0).Set(h, &engine.Verdict{}); len(h) != 0 {
		t.Errorf("%v of what was not decided", h)
	}
	if field.Set(0).Set(h, &engine.Verdict{ID: v.ID}); len(h) != 1 || h.Get(field.Decision) != v.ID.String() {
		t.Errorf("%v where no limit applied", h)
	}
}
