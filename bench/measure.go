package main

import (
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
)

// keys are keys of 24 bytes in one string, so that the collector has no pointers to follow,
// and a lookup fetches no more memory than the key.
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

// walk is a pseudo-random order of keys.
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

// timeCell makes decisions on n keys in several goroutines for this time. It returns the wall
// time per decision, in nanoseconds. An unexpected decision is an error.
func timeCell(d decide, n, goroutines int, length time.Duration, want bool) (float64, error) {
	var done, wrong atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			const stride = 1000 // between readings of the clock, which would slow it down
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

// spread returns half of the interquartile range, as a share of the median.
func (s samples) spread() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	return (sorted[n-1-n/4] - sorted[n/4]) / 2 / s.median()
}

// speed holds a contestant's cells.
type speed struct{ serial, parallel samples }

// Contestants with few keys are all kept alive and take short turns, because the speed of the
// machine may change from moment to moment. Before each turn a contestant runs for a tenth of
// it, to fill the caches. Contestants with many keys would not fit into memory together.
const (
	fewKeys = 10_000
	turns   = 40
	warmUp  = 10
)

// contest is the measurement of one contestant.
type contest struct {
	name     string
	open     func() decide
	keys     int
	want     bool
	serial   *samples
	parallel *samples // with as many goroutines as there are processors; nil if not measured
	current  decide
}

func (c *contest) start() {
	c.current = c.open()
	fill(c.current, c.keys)
}

func (c *contest) turn(length time.Duration) error {
	measure := func(goroutines int, to *samples) error {
		if _, err := timeCell(c.current, c.keys, 1, length/warmUp, c.want); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		ns, err := timeCell(c.current, c.keys, goroutines, length, c.want)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		*to = append(*to, ns)
		return nil
	}
	err := measure(1, c.serial)
	if err == nil && c.parallel != nil {
		err = measure(runtime.GOMAXPROCS(0), c.parallel)
	}
	return err
}

// hold measures contestants, in rounds.
func hold(list []contest, s settings) error {
	if slices.ContainsFunc(list, func(c contest) bool { return c.keys > fewKeys }) {
		return inRounds(s.rounds, len(list), func(i int) error {
			list[i].start()
			defer func() { list[i].current = nil }()
			runtime.GC() // the garbage of filling, and the contestant before
			return list[i].turn(s.cell)
		})
	}
	for range s.rounds {
		for i := range list {
			list[i].start()
		}
		runtime.GC()
		if err := inRounds(turns, len(list), func(i int) error { return list[i].turn(s.cell / turns) }); err != nil {
			return err
		}
	}
	return nil
}

// compare measures every contestant with the keys.
func compare(list []contestant, k keys, s settings) ([]speed, error) {
	out := make([]speed, len(list))
	contests := make([]contest, len(list))
	for i, c := range list {
		contests[i] = contest{
			name: c.name, open: func() decide { return c.open(k) }, keys: k.len(), want: true,
			serial: &out[i].serial, parallel: &out[i].parallel,
		}
	}
	return out, hold(contests, s)
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
	var contests []contest
	out := make([]take, len(list))
	add := func(name string, l stint.Limit, asks int, want bool, to *samples) {
		contests = append(contests, contest{
			name: fmt.Sprintf("%s, %d asks", name, asks), open: func() decide { return openAsks(k, l, asks) }, keys: k.len(), want: want,
			serial: to,
		})
	}
	for i, kind := range list {
		for b, asks := range batchSizes {
			add(kind.name, kind.admit, asks, true, &out[i].admitted[b])
		}
		if kind.deny != (stint.Limit{}) {
			add(kind.name, kind.deny, 1, false, &out[i].denied)
		}
	}
	return out, hold(contests, s)
}

// openAsks asks several counters of the key's subject in one take. The asks are prepared, as
// by a compiled set of rules.
func openAsks(k keys, l stint.Limit, n int) decide {
	s, plan := newStore(memstore.Options{}), must(l.Compile())
	asks := make([]stint.Ask, 0, n*k.len())
	for i := range k.len() {
		for name := range n {
			key := stint.Key{Subject: k.at(i), Name: "api" + strconv.Itoa(name)}
			asks = append(asks, stint.Ask{Key: key, Limit: l, Plan: plan, Cost: 1})
		}
	}
	return func(i int) bool {
		var room [10]stint.Decision
		return s.Take(ctx, asks[n*i:n*(i+1)], room[:n]) == nil && room[0].Allowed
	}
}

// footprint is the memory of a filled store.
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
type latency struct{ p50, p999, p9999, max time.Duration }

// pause is one run of the sweep measurement.
type pause struct {
	sweeping, growing, control swept
}

// swept is how long takes took, and how many counters the store dropped meanwhile.
type swept struct {
	latency
	takes    int
	counters uint64
}

// sweep fills a store with n counters, lets all of them recover, and then times takes one by one
// while the store drops them. A take sweeps if its time in microseconds is a multiple of 1,024.
// In one half of a run every take sweeps: the clock shows only such times, and there are as many
// takes, of a few live counters, as are needed to drop nearly all others, so some of them shrink a
// table. In the other half the clock is not changed, and half of the takes are of new counters, so
// tables grow as well. The control reads the clock for as long as a take of the first half takes,
// as often, because a shared machine has pauses, too.
func sweep(n int) []pause {
	const runs, step = 5, 16
	k, few := makeKeys(2*n), max(n/step, 1)
	measure := func(now func() time.Time, later *time.Duration, live, asked, takes int) swept {
		s := newStore(memstore.Options{Now: now})
		plans := map[time.Duration]*stint.Plan{}
		for _, w := range []time.Duration{window, time.Second} {
			plans[w] = must(stint.Limit{Max: most, Window: stint.Every(w)}.Compile())
		}
		ask := func(i int, w time.Duration) bool {
			asks := [1]stint.Ask{{Key: stint.Key{Subject: k.at(i), Name: "api"}, Limit: plans[w].Limit(), Plan: plans[w], Cost: 1}}
			var ds [1]stint.Decision
			return s.Take(ctx, asks[:], ds[:]) == nil && ds[0].Allowed
		}
		fill(func(i int) bool { return ask(i, window) }, live)
		fill(func(i int) bool { return ask(2*n-1-i, time.Second) }, n)
		*later = time.Minute
		before := s.Stats().Swept
		took := latencies(func(i int) bool { return ask(i, window) }, asked, takes)
		return swept{took, takes, s.Stats().Swept - before}
	}
	out := make([]pause, runs)
	for r := range out {
		var later time.Duration
		now := func() time.Time { return time.Now().Add(later) }
		onTheDot := func() time.Time { return time.UnixMicro(now().UnixMicro() &^ 1023) }
		out[r].sweeping = measure(onTheDot, &later, few, few, 2*few)
		later = 0
		out[r].growing = measure(now, &later, 0, 2*n, 2*n)
		typical := out[r].sweeping.p50
		out[r].control = swept{takes: 2 * few, latency: latencies(func(int) bool {
			for start := time.Now(); time.Since(start) < typical; {
			}
			return true
		}, n, 2*few)}
	}
	return out
}

// latencies times n decisions on these keys.
func latencies(d decide, keys, n int) latency {
	var w walk
	each := make([]time.Duration, n)
	runtime.GC()
	for i := range each {
		key := w.next(keys)
		start := time.Now()
		d(key)
		each[i] = time.Since(start)
	}
	slices.Sort(each)
	return latency{p50: each[n/2], p999: each[n-1-n/1000], p9999: each[n-1-n/10_000], max: each[n-1]}
}
