package main

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
)

// keys are keys of 24 bytes, end to end in one string: no array of pointers
// for the collector to follow, and no more memory to fetch than the key.
type keys string

const keySize = 24

func makeKeys(n int) keys {
	b := make([]byte, 0, n*keySize)
	for i := range n {
		b = fmt.Appendf(b, "user:%019d", i)
	}
	return keys(b)
}

func (k keys) len() int        { return len(k) / keySize }
func (k keys) at(i int) string { return string(k[i*keySize : (i+1)*keySize]) }

// walk is an order of keys, pseudo-random and the same for all who start from
// the same number.
type walk uint64

// next returns a number below n.
func (w *walk) next(n int) int {
	*w = *w*6364136223846793005 + 1442695040888963407
	i, _ := bits.Mul64(uint64(*w), uint64(n))
	return int(i)
}

// fill makes a counter for every key.
func fill(d decide, n int) {
	for i := range n {
		d(i)
	}
}

// timeCell makes decisions on n keys, with so many goroutines, for that long. It
// returns the wall time per decision of all of them, in nanoseconds. An answer
// that is not the one wanted means that something else was measured.
func timeCell(d decide, n, goroutines int, length time.Duration, want bool) (float64, error) {
	var done, wrong atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			const stride = 1000 // between looks at the clock, so that they do not show
			w, count, bad := walk(g), 0, 0
			for time.Since(start) < length {
				for range stride {
					if d(w.next(n)) != want {
						bad++
					}
				}
				count += stride
			}
			done.Add(int64(count))
			wrong.Add(int64(bad))
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	if wrong.Load() > 0 {
		return 0, fmt.Errorf("%d of %d decisions were not %t", wrong.Load(), done.Load(), want)
	}
	return float64(elapsed.Nanoseconds()) / float64(done.Load()), nil
}

// samples are the measurements of one cell, one for each round.
type samples []float64

func (s samples) median() float64 {
	s = slices.Sorted(slices.Values(s))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// spread is half the range, as a part of the median.
func (s samples) spread() float64 { return (slices.Max(s) - slices.Min(s)) / 2 / s.median() }

// speed holds a contestant's cells.
type speed struct{ serial, parallel samples }

// compare measures every contestant with the keys.
func compare(list []contestant, k keys, s settings) ([]speed, error) {
	out := make([]speed, len(list))
	for range s.rounds {
		for _, c := range rand.Perm(len(list)) {
			d := list[c].open(k)
			fill(d, k.len())
			runtime.GC() // what filling left, and the contestant before
			for _, cell := range []struct {
				goroutines int
				samples    *samples
			}{
				{1, &out[c].serial},
				{runtime.GOMAXPROCS(0), &out[c].parallel},
			} {
				ns, err := timeCell(d, k.len(), cell.goroutines, s.cell, true)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", list[c].name, err)
				}
				*cell.samples = append(*cell.samples, ns)
			}
		}
	}
	return out, nil
}

// batchSizes are the numbers of asks in one take that are measured.
var batchSizes = [...]int{1, 3, 10}

// take holds a kind's cells.
type take struct {
	admitted [len(batchSizes)]samples
	denied   samples
}

// compareTakes measures Stint alone, from one goroutine.
func compareTakes(list []kind, k keys, s settings) ([]take, error) {
	type cell struct {
		name    string
		limit   stint.Limit
		asks    int
		want    bool
		samples *samples
	}
	var cells []cell
	out := make([]take, len(list))
	for i, kind := range list {
		for b, asks := range batchSizes {
			cells = append(cells, cell{kind.name, kind.admit, asks, true, &out[i].admitted[b]})
		}
		if kind.deny != (stint.Limit{}) {
			cells = append(cells, cell{kind.name, kind.deny, 1, false, &out[i].denied})
		}
	}
	for range s.rounds {
		for _, i := range rand.Perm(len(cells)) {
			c := cells[i]
			d := openAsks(k, c.limit, c.asks)
			fill(d, k.len())
			runtime.GC()
			ns, err := timeCell(d, k.len(), 1, s.cell, c.want)
			if err != nil {
				return nil, fmt.Errorf("%s, %d asks: %w", c.name, c.asks, err)
			}
			*c.samples = append(*c.samples, ns)
		}
	}
	return out, nil
}

// openAsks asks several counters of the key's subject in one take. The asks are
// made before, as a compiled set of rules would have them.
func openAsks(k keys, l stint.Limit, n int) decide {
	s := newStore(memstore.Options{})
	asks := make([]stint.Ask, 0, n*k.len())
	for i := range k.len() {
		for name := range n {
			key := stint.Key{Subject: k.at(i), Name: "api" + strconv.Itoa(name)}
			asks = append(asks, stint.Ask{Key: key, Limit: l, Cost: 1})
		}
	}
	return func(i int) bool {
		var room [10]stint.Decision
		d, err := s.TakeAppend(room[:0], asks[n*i:n*(i+1)])
		return err == nil && d[0].Allowed
	}
}

// footprint is what a filled store holds.
type footprint struct {
	bytes, objects float64 // per key
	collection     time.Duration
}

func footprints(list []contestant, k keys) []footprint {
	out := make([]footprint, len(list))
	for i, c := range list {
		before := heap()
		d := c.open(k)
		fill(d, k.len())
		after := heap()
		var collections samples
		for range 5 {
			start := time.Now()
			runtime.GC()
			collections = append(collections, float64(time.Since(start)))
		}
		runtime.KeepAlive(d)
		n := float64(k.len())
		out[i] = footprint{
			bytes:      (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / n,
			objects:    (float64(after.HeapObjects) - float64(before.HeapObjects)) / n,
			collection: time.Duration(collections.median()),
		}
	}
	return out
}

// heap collects twice, because what a sync.Pool holds outlives the first.
func heap() runtime.MemStats {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m
}

// latency is the distribution of single calls.
type latency struct{ p50, p9999, max time.Duration }

// pause is one run of the sweep measurement.
type pause struct {
	take, control latency
	swept         uint64
}

// sweep fills a store with n counters, lets all of them recover, and then times
// takes one by one while the store drops them. Half of the takes are of new
// keys, so that tables grow as well as shrink. The control does nothing between its two
// looks at the clock: on a machine that is shared, that too has pauses.
func sweep(n int) []pause {
	const runs = 3
	l := stint.Limit{Max: most, Window: stint.Every(time.Second)}
	k := makeKeys(2 * n)
	out := make([]pause, runs)
	for r := range out {
		now := time.Unix(1_000_000_000, 0)
		s := newStore(memstore.Options{Now: func() time.Time { return now }})
		ask := func(i int) bool {
			asks := []stint.Ask{{Key: stint.Key{Subject: k.at(i), Name: "api"}, Limit: l, Cost: 1}}
			var room [1]stint.Decision
			d, err := s.TakeAppend(room[:0], asks)
			return err == nil && d[0].Allowed
		}
		fill(ask, n)
		now = now.Add(time.Minute)
		out[r] = pause{
			take:    latencies(ask, 2*n),
			control: latencies(func(int) bool { return true }, 2*n),
			swept:   s.Stats().Swept,
		}
	}
	return out
}

// latencies times n decisions on n keys.
func latencies(d decide, n int) latency {
	var w walk
	each := make([]time.Duration, n)
	runtime.GC()
	for i := range each {
		key := w.next(n)
		start := time.Now()
		d(key)
		each[i] = time.Since(start)
	}
	slices.Sort(each)
	return latency{p50: each[n/2], p9999: each[n-1-n/10_000], max: each[n-1]}
}
