package layer

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// Meter is an [Observer] that counts: for each layer and outcome, how many calls
// there were, and how long they took. The zero Meter is ready. Its size depends on
// the layers, not on who calls them.
type Meter struct {
	mu     sync.Mutex                  // of those who add one
	layers atomic.Pointer[[]*outcomes] // which are few, and found by their names
}

// outcomes are those of a layer: a histogram for each that there was.
type outcomes struct {
	layer string
	cells [Reset + 1][Failed + 1][stint.Closed + 1]atomic.Pointer[Histogram]
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

// Histogram counts how long calls took. The zero Histogram is ready, and may be used by many
// goroutines at once. To count one takes two additions, and no lock.
type Histogram struct {
	total   atomic.Int64
	buckets [buckets]atomic.Uint64
}

// Observe counts a call.
func (h *Histogram) Observe(took time.Duration) {
	h.total.Add(int64(took))
	// The bucket of a time is the number of bits of the microseconds below it.
	micros := uint64(max(took-1, 0) / time.Microsecond)
	h.buckets[min(bits.Len64(micros), buckets-1)].Add(1)
}

// Read returns what has been counted so far.
func (h *Histogram) Read() Latency {
	l := Latency{Total: time.Duration(h.total.Load())}
	for i := range h.buckets {
		l.Buckets[i] = h.buckets[i].Load()
		l.Calls += l.Buckets[i]
	}
	return l
}

// Observe implements [Observer].
func (m *Meter) Observe(c Call) {
	result := Allowed
	switch {
	case c.Err != nil:
		result = Failed
	case !c.Allowed:
		result = Denied
	}
	cell := &m.of(c.Layer).cells[c.Verb][result][min(c.Basis, stint.Closed)]
	h := cell.Load()
	if h == nil {
		cell.CompareAndSwap(nil, new(Histogram))
		h = cell.Load()
	}
	h.Observe(c.Took)
}

// of returns the outcomes of a layer.
func (m *Meter) of(layer string) *outcomes {
	if o := m.find(layer); o != nil {
		return o
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.find(layer)
	if o == nil {
		o = &outcomes{layer: layer}
		all := append(slices.Clone(m.all()), o)
		m.layers.Store(&all)
	}
	return o
}

func (m *Meter) find(layer string) *outcomes {
	for _, o := range m.all() {
		if o.layer == layer {
			return o
		}
	}
	return nil
}

func (m *Meter) all() []*outcomes {
	if p := m.layers.Load(); p != nil {
		return *p
	}
	return nil
}

// Read returns what has been counted so far.
func (m *Meter) Read() map[Outcome]Latency {
	out := map[Outcome]Latency{}
	for _, o := range m.all() {
		for verb := range o.cells {
			for result := range o.cells[verb] {
				for basis := range o.cells[verb][result] {
					if h := o.cells[verb][result][basis].Load(); h != nil {
						out[Outcome{o.layer, Verb(verb), Result(result), stint.Basis(basis)}] = h.Read()
					}
				}
			}
		}
	}
	return out
}
