package layer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/storetest"
)

// splitting has every ask of certain algorithms split.
type splitting struct {
	stint.Store
	policy     *stint.Policy
	algorithms []stint.Algorithm
}

func (s splitting) split(asks []stint.Ask) []stint.Ask {
	var out []stint.Ask
	for _, a := range asks {
		for _, alg := range s.algorithms {
			if a.Limit.Algorithm == alg {
				a.Policy = s.policy
			}
		}
		out = append(out, a)
	}
	return out
}

func (s splitting) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return s.Store.Take(ctx, s.split(asks), ds)
}

func (s splitting) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return s.Store.Adjust(ctx, s.split(asks), ds)
}

func (s splitting) Reset(ctx context.Context, asks []stint.Ask) error {
	return s.Store.Reset(ctx, s.split(asks))
}

// TestSplitStore runs the suite with split fixed windows, whose decisions are those of one counter as long as there is
// one caller.
func TestSplitStore(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 8, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			storetest.RunExcept(t, func(t testing.TB, now func() time.Time) stint.Store {
				t.Helper()
				return splitting{
					must(t)(layer.Split(memory(t, now))), &stint.Policy{Split: n}, []stint.Algorithm{stint.FixedWindow},
				}
			}, "one key", "traces", "linearizable",
				"script fixed_window-backwards-time.txt", "script fixed_window-changed-limit.txt", "script fixed_window-amend.txt")
		})
	}
}
