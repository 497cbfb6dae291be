package layer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
)

// TestLeasePolicySplit has a limit that is leased be split, under twice the load that it allows: after the window of
// the change, leases take from the parts, too.
func TestLeasePolicySplit(t *testing.T) {
	t.Parallel()
	for _, splits := range [][2]int{{0, 8}, {8, 2}} {
		synctest.Test(t, func(t *testing.T) {
			node := must(t)(layer.Lease(must(t)(layer.Split(memory(t, time.Now))), layer.LeaseOptions{}))
			a := leaseAsk(t, "1000/1s fixed_window", 100*time.Millisecond)
			admitted, leased := map[int64]int64{}, map[int64]int64{}
			<-time.After(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
			for _, n := range splits {
				a.Policy = &stint.Policy{Lease: a.Policy.Lease, Split: n}
				first := time.Now().Unix()
				for range 4000 {
					for range 2 {
						switch d := decide(t, node, a); {
						case !d.Allowed:
							continue
						case d.Basis == stint.Leased:
							leased[time.Now().Unix()]++
						}
						admitted[time.Now().Unix()]++
					}
					<-time.After(time.Millisecond)
				}
				for w := first + 1; w < first+4; w++ {
					if admitted[w] > 1000 || leased[w] < 500 {
						t.Errorf("split %v: window %d with %d parts admits %d, %d of them leased, want at most 1000, and most of them leased",
							splits, w-first, n, admitted[w], leased[w])
					}
				}
			}
			if err := node.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestLeasePolicyTerm has the term of a limit that is leased become shorter: what is held is given back, and leases
// have the new term.
func TestLeasePolicyTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		meter := layer.NewLeaseMeter()
		store := memory(t, nil)
		node := newLeasing(t, store, time.Microsecond, layer.LeaseOptions{Meter: meter})
		a := leaseAsk(t, "1000000/1h fixed_window", stint.MaxLease)
		admitted := int64(0)
		load := func(length time.Duration, each func(stint.Decision)) {
			for end := time.Now().Add(length); time.Now().Before(end); <-time.After(time.Millisecond) {
				d := decide(t, node, a)
				admitted += d.Cost
				each(d)
			}
		}
		load(3*stint.MaxLease, func(stint.Decision) {})
		const term = 100 * time.Millisecond
		a.Policy = &stint.Policy{Lease: term}
		stored := 0
		load(time.Second, func(d stint.Decision) {
			switch late := time.Since(time.UnixMicro(d.At)); {
			case d.Basis != stint.Leased:
				stored++
			case late > term:
				t.Fatalf("a unit is spent that was charged %v before, want at most %v", late, term)
			}
		})
		if stored > 200 {
			t.Errorf("the store has decided %d of 1000 takes after the change, want those of two terms at most", stored)
		}
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
		sound(t, meter)
		a.Cost = 0
		if m, used := meter.Read()[0], a.Limit.Max-decide(t, store, a).Remaining; used != admitted {
			t.Errorf("%d are used, and %d were admitted; %+v", used, admitted, m)
		}
	})
}
