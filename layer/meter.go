package layer

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// Meter is an [Observer] that counts calls, and how long they took, for each layer and outcome. The zero
// Meter is ready to use. Its size depends only on the number of layers.
type Meter struct {
	mu     sync.Mutex                  // held to add a layer
	layers atomic.Pointer[[]*outcomes] // few enough for a linear search by name
}

// outcomes holds a histogram for each outcome of a layer that has occurred.
type outcomes struct {
	layer string
	cells [Reset + 1][Failed + 1][stint.Closed + 1]atomic.Pointer[Histogram]
}

// Outcome is the kind of result of a call to a layer.
type Outcome struct {
	Layer  string
	Verb   Verb
	Result Result
	Basis  stint.Basis // of a take
}

// Outcome returns the kind of result of the call.
func (c *Call) Outcome() Outcome {
	o := Outcome{Layer: c.Layer, Verb: c.Verb, Basis: min(c.Basis, stint.Closed)}
	switch {
	case c.Err != nil:
		o.Result = Failed
	case !c.Allowed:
		o.Result = Denied
	}
	return o
}

// Result is the result of a call.
type Result uint8

// The results of a call.
const (
	Allowed Result = iota
	Denied
	Failed
)

// String returns the result's name.
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

// Latency is how long calls took. A call is counted in the first of the Buckets whose bound it does not
// exceed: 1 µs, 2 µs, 4 µs and so on. The last bucket has no bound.
type Latency struct {
	Calls   uint64
	Total   time.Duration
	Buckets [buckets]uint64
}

// buckets is enough for a microsecond to half a minute.
const buckets = 26

// Bound returns the upper bound of the i-th bucket. It has no meaning for the last one.
func (Latency) Bound(i int) time.Duration { return time.Microsecond << i }

// Quantile returns a time that this share of the calls did not exceed, to within a factor of two.
func (l *Latency) Quantile(part float64) time.Duration {
	seen := uint64(0)
	for i, n := range l.Buckets {
		if seen += n; float64(seen) >= part*float64(l.Calls) && seen > 0 {
			return l.Bound(i)
		}
	}
	return 0
}

// Histogram counts how long calls took. The zero Histogram is ready to use. It is safe for concurrent use:
// counting a call takes two atomic additions and no lock.
type Histogram struct {
	total   atomic.Int64
	buckets [buckets]atomic.Uint64
}

// Observe counts a call.
func (h *Histogram) Observe(took time.Duration) {
	h.total.Add(int64(took))
	// The index of the bucket is the number of bits in the microseconds.
	micros := uint64(max(took-1, 0) / time.Microsecond)
	h.buckets[min(bits.Len64(micros), buckets-1)].Add(1)
}

// Read returns the counts so far.
func (h *Histogram) Read() Latency {
	l := Latency{Total: time.Duration(h.total.Load())}
	for i := range h.buckets {
		l.Buckets[i] = h.buckets[i].Load()
		l.Calls += l.Buckets[i]
	}
	return l
}

// Observe implements [Observer].
func (m *Meter) Observe(_ context.Context, c Call) {
	o := c.Outcome()
	cell := &m.of(o.Layer).cells[o.Verb][o.Result][o.Basis]
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

// Read returns the counts so far.
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
