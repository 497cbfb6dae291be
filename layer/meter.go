package layer

import (
	"maps"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// Meter is an [Observer] that counts: for each layer and outcome, how many calls
// there were, and how long they took. The zero Meter is ready. Its size depends on
// the layers, not on who calls them.
type Meter struct {
	outcomes sync.Map // of Outcome to *histogram
}

// Outcome is how a call to a layer ended.
type Outcome struct {
	Layer  string
	Verb   Verb
	Result Result
	Basis  stint.Basis // of a take
}

// Result is what came of a call.
type Result uint8

// The results of a call.
const (
	Allowed Result = iota
	Denied
	Failed
)

// String returns the result in a word.
func (r Result) String() string {
	switch r {
	case Allowed:
		return "allowed"
	case Denied:
		return "denied"
	default:
		return "failed"
	}
}

// Latency is how long calls took. A call is counted in the first of the Buckets
// whose bound it does not exceed: 1 µs, 2 µs, 4 µs and so on, doubling, and the
// last has no bound.
type Latency struct {
	Calls   uint64
	Total   time.Duration
	Buckets [buckets]uint64
}

// buckets cover a microsecond to half a minute.
const buckets = 26

// Bound is the longest time that the i-th bucket counts; the last one's is
// without meaning.
func (Latency) Bound(i int) time.Duration { return time.Microsecond << i }

// Quantile returns a time that so large a part of the calls did not exceed, to
// within a factor of two.
func (l *Latency) Quantile(part float64) time.Duration {
	seen := uint64(0)
	for i, n := range l.Buckets {
		if seen += n; float64(seen) >= part*float64(l.Calls) && seen > 0 {
			return l.Bound(i)
		}
	}
	return 0
}

type histogram struct {
	total   atomic.Int64
	buckets [buckets]atomic.Uint64
}

// Observe implements [Observer].
func (m *Meter) Observe(c Call) {
	o := Outcome{Layer: c.Layer, Verb: c.Verb, Basis: c.Basis}
	switch {
	case c.Err != nil:
		o.Result = Failed
	case !c.Allowed:
		o.Result = Denied
	}
	h, ok := m.outcomes.Load(o)
	if !ok {
		h, _ = m.outcomes.LoadOrStore(o, new(histogram))
	}
	in := h.(*histogram)
	in.total.Add(int64(c.Took))
	// The bucket of a time is the number of bits of the microseconds below it.
	micros := uint64(max(c.Took-1, 0) / time.Microsecond)
	in.buckets[min(bits.Len64(micros), buckets-1)].Add(1)
}

// Read returns what has been counted so far.
func (m *Meter) Read() map[Outcome]Latency {
	return maps.Collect(func(yield func(Outcome, Latency) bool) {
		m.outcomes.Range(func(k, v any) bool {
			h := v.(*histogram)
			l := Latency{Total: time.Duration(h.total.Load())}
			for i := range h.buckets {
				l.Buckets[i] = h.buckets[i].Load()
				l.Calls += l.Buckets[i]
			}
			return yield(k.(Outcome), l)
		})
	})
}
