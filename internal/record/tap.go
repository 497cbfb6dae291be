package record

import (
	"cmp"
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/rule"
)

// TapOptions are the settings of a [Tap].
type TapOptions struct {
	// Region and Node say where decisions are made.
	Region, Node string
	// PerSecond is how many decisions are shown in a second. Default 50, at most 1,000.
	PerSecond int
	// Privacy says how addresses are shown. HashKey, of 16 bytes or more, is the key of their
	// hashes.
	Privacy Privacy
	HashKey []byte
	// Paths says how paths are shown.
	Paths Paths
	// Now is the clock of settlements. Default time.Now.
	Now func() time.Time
}

// Tap shows decisions as they are made: requests that were denied or held or would have been,
// and a few of the others, up to a number per second. Of those that it has shown a moment ago it
// also shows what became of their reservations, if this process settles them. Without a [Watch]
// it does nothing.
type Tap struct {
	o TapOptions

	watching atomic.Int64 // number of watches
	full     atomic.Int64 // the second in which no more decisions are taken
	slot     atomic.Int64 // in which the last sample was taken
	counts   [tapShards]tapCounts

	mu      sync.Mutex
	second  int64 // of the last decision that was taken
	taken   int   // in that second
	ring    []Event
	next    int64 // number of the next event
	encoder encoder
	batch   Batch // of one
	path    []byte
}

var (
	_ engine.Recorder = (*Tap)(nil)
	_ engine.Ledger   = (*Tap)(nil)
)

const (
	tapShards = 8
	tapRing   = 256 // events that a watch may lag behind
	// tapSlot is the time in which at most one request that passed is shown.
	tapSlot = 100 * time.Millisecond
)

// tapCounts counts decisions that were not shown, for some of the threads.
type tapCounts struct {
	routine atomic.Int64 // requests that passed, since the last that was shown
	skipped atomic.Int64
	_       [48]byte // so that they do not share a cache line
}

// NewTap returns a tap.
func NewTap(o TapOptions) (*Tap, error) {
	o.PerSecond = cmp.Or(o.PerSecond, 50)
	if o.PerSecond < 1 || o.PerSecond > 1000 {
		return nil, invalid("PerSecond", strconv.Itoa(o.PerSecond), "1 to 1000, or 0 for the default")
	}
	if err := o.Privacy.check(o.HashKey); err != nil {
		return nil, err
	}
	if err := o.Paths.check(); err != nil {
		return nil, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Tap{o: o, encoder: newEncoder(o.Region, o.Node, o.Paths, o.Privacy, o.HashKey)}, nil
}

// Record implements [engine.Recorder]. It reads no clock, as an event has its time and duration.
func (t *Tap) Record(_ context.Context, e *engine.Event) {
	if t.watching.Load() > 0 {
		t.record(e)
	}
}

func (t *Tap) record(e *engine.Event) {
	at := e.At.UnixNano() + int64(e.Waited+e.Latency)
	second, counts := at/int64(time.Second), &t.counts[e.ID[15]%tapShards]
	if e.Routine() {
		counts.routine.Add(1)
		slot, last := at/int64(tapSlot), t.slot.Load()
		if slot == last || t.full.Load() == second || !t.slot.CompareAndSwap(last, slot) {
			return
		}
		t.take(e, second, true)
	} else if t.full.Load() == second || !t.take(e, second, false) {
		counts.skipped.Add(1)
	}
}

// take shows a decision, if there is room for it in its second.
func (t *Tap) take(e *engine.Event, second int64, sample bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	const late = 5 // seconds for which decisions may overtake each other; beyond that the clock was set back
	if second > t.second || second < t.second-late {
		t.second, t.taken = second, 0
	}
	if t.taken == t.o.PerSecond || t.ring == nil {
		t.full.Store(t.second)
		return false
	}
	weight := int64(1)
	if sample {
		weight = 0
		for i := range t.counts {
			weight += t.counts[i].routine.Swap(0)
		}
	}
	// Encoded and decoded as in the record: texts are copied and cut.
	t.path = t.o.Paths.appendPath(t.path[:0], e.Path)
	t.batch = t.encoder.append(t.batch[:0], e, t.path, weight)
	if t.ring[t.next%tapRing].UnmarshalBinary(t.batch[frameBytes:]) != nil {
		return false // a duration is too long
	}
	t.taken++
	t.next++
	return true
}

// Reserved implements [engine.Ledger]. What is reserved is the cost of the decision.
func (*Tap) Reserved(string, rule.Meter, int64) {}

// Settled implements [engine.Ledger]. It shows a decision that is still among the last ones again, with its settlements.
func (t *Tap) Settled(r *engine.Receipt, cancelled bool) {
	if t.watching.Load() == 0 || r.Repeated {
		return
	}
	all := settlementsOf(r, cancelled, t.o.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ring == nil || len(all) == 0 {
		return
	}
	for n := t.next - 1; n >= max(0, t.next-tapRing); n-- {
		if e := t.ring[n%tapRing]; e.ID == r.ID {
			e.Settled = all
			t.ring[t.next%tapRing] = e
			t.next++
			return
		}
	}
}

func (t *Tap) skipped() (n int64) {
	for i := range t.counts {
		n += t.counts[i].skipped.Load()
	}
	return n
}

// Watch reads from a [Tap]. Only one goroutine may use it at a time.
type Watch struct {
	t       *Tap
	next    int64 // number of the next event to read
	skipped int64 // of the tap, at the last Take
	closed  bool
}

// Watch begins to watch. Close it.
func (t *Tap) Watch() *Watch {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ring == nil {
		t.ring = make([]Event, tapRing)
		for i := range t.counts {
			t.counts[i].routine.Store(0)
		}
		t.full.Store(0)
	}
	t.watching.Add(1)
	return &Watch{t: t, next: t.next, skipped: t.skipped()}
}

// Take appends the decisions since the last call, in order, and those that were settled since
// then again. It returns how many were skipped
// because there were too many, or because the last call was long ago. Requests that a sample
// stands for do not count as skipped: the sample has their number.
func (w *Watch) Take(events []Event) (_ []Event, skipped int64) {
	t := w.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.closed {
		return events, 0
	}
	all := t.skipped()
	skipped, w.skipped = all-w.skipped, all
	if behind := t.next - tapRing; behind > w.next {
		skipped += behind - w.next
		w.next = behind
	}
	for ; w.next < t.next; w.next++ {
		events = append(events, t.ring[w.next%tapRing])
	}
	return events, skipped
}

// Close stops watching. Closing the last watch frees the events.
func (w *Watch) Close() {
	t := w.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if !w.closed && t.watching.Add(-1) == 0 {
		t.ring = nil
	}
	w.closed = true
}
