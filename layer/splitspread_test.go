package layer_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/slot"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/layer"
)

// TestSplitSpread has the parts of counters lie evenly over the slots of a Redis Cluster, whatever their names: if these
// are divided into a power of two of equal ranges, none has a part more than it must, and of three or five at most two.
func TestSplitSpread(t *testing.T) {
	t.Parallel()
	h := &heard{Store: memory(t, nil)}
	s := must(t)(layer.Split(h))
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same each time
	letters := []rune("abc:/019%{} #\x00é日🦔")
	names := 1000
	if torture.Enabled {
		names *= 10
	}
	for range names {
		subject := make([]rune, 1+random.IntN(30))
		for i := range subject {
			subject[i] = letters[random.IntN(len(letters))]
		}
		for _, parts := range []int{5, 8, 16} {
			h.since()
			a := splitAsk(stint.PerHour(1000), parts, 0)
			a.Key.Subject = string(subject)
			take(t, s, a)
			for ranges, more := range map[int]int{2: 0, 4: 0, 8: 0, 16: 0, 3: 2, 5: 2} {
				in := make([]int, ranges)
				for i := range h.asks {
					in[slot.Of(h.asks[i].Key.String())*ranges/slot.Count]++
				}
				if most := (parts+ranges-1)/ranges + more; slices.Max(in) > most {
					t.Fatalf("%d parts of %q: %v, want at most %d", parts, a.Key.Subject, in, most)
				}
			}
		}
	}
}

// TestSplitTurns has a node go round the parts, so that all servers have as much to do, and hear what others have used.
func TestSplitTurns(t *testing.T) {
	t.Parallel()
	const parts, turn = 8, 1024
	h := &heard{Store: memory(t, nil)}
	s := must(t)(layer.Split(h))
	limit := parse(t, "1000000/1h fixed_window")
	others := take(t, must(t)(layer.Split(h.Store)), splitAsk(limit, parts, 1000))[0].Cost
	h.since()
	var last stint.Decision
	for range parts * turn {
		last = take(t, s, splitAsk(limit, parts, 1))[0]
	}
	takes := map[string]int{}
	for i := range h.asks {
		if takes[h.asks[i].Key.Subject]++; takes[h.asks[i].Key.Subject] > 1 && h.asks[i].Key.Subject != h.asks[i-1].Key.Subject {
			t.Fatalf("take %d goes back to a part", i)
		}
	}
	for subject, n := range takes {
		if n != turn || len(takes) != parts {
			t.Errorf("%d takes of %q, one of %d parts; want %d of each of %d", n, subject, len(takes), turn, parts)
		}
	}
	if want := limit.Max - parts*turn - others; last.Remaining != want {
		t.Errorf("after a round: %+v; want %d that remain", last, want)
	}
}
