package layer

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// LeaseMeter counts what leases do, for each limit. See [LeaseOptions.Meter].
type LeaseMeter struct {
	mu     sync.RWMutex
	limits map[string]*limitMeter
	full   atomic.Uint64
}

// maxMetered is how many limits are counted separately. The others are counted together, without a name.
const maxMetered = 1000

// Leased is what the leases of this node have done for a limit. Units are those of the limit.
//
// Early counts denials while other nodes may have held units of the same counter that they had not spent, and MostOut is the
// most that they may have held then. Both are bounds, by what nodes take ahead at most: each its part of half of the
// limit, while all know the same number of nodes, and those of other regions up to the limit. With one node in one region
// both are 0.
type Leased struct {
	Limit    string // as [stint.Key.Limit] returns it; empty for all that did not fit
	Counters int64  // leased now
	Held     int64  // units that are held now, about
	Lent     int64  // units that were taken ahead
	Spent    int64  // of Lent
	Back     int64  // of Lent, given back
	Kept     int64  // of Lent, neither spent nor given back, since the store failed; a [Fallback] may give them back later
	Denied   int64  // takes that were denied, of counters that this node leased, or others may have
	Early    int64  // of Denied, at most, while other nodes held units
	MostOut  int64  // the units that other nodes held then, at most
	MostUsed int64  // the most units that the store has counted of a counter in its window: at most Cap, its capacity then
	Cap      int64
}

// limitMeter is Leased, as it is counted.
type limitMeter struct {
	counters, held, lent, spent, back, kept, denied, early, mostOut atomic.Int64

	mu            sync.Mutex
	mostUsed, cap int64
}

// NewLeaseMeter returns a meter that has counted nothing.
func NewLeaseMeter() *LeaseMeter { return &LeaseMeter{limits: map[string]*limitMeter{}} }

// Read returns what was counted, in the order of names.
func (m *LeaseMeter) Read() []Leased {
	m.mu.Lock()
	all := maps.Clone(m.limits)
	m.mu.Unlock()
	var out []Leased
	for name, x := range all {
		x.mu.Lock()
		out = append(out, Leased{
			Limit: name, Counters: x.counters.Load(), Held: x.held.Load(), Lent: x.lent.Load(), Spent: x.spent.Load(),
			Back: x.back.Load(), Kept: x.kept.Load(), Denied: x.denied.Load(), Early: x.early.Load(),
			MostOut: x.mostOut.Load(), MostUsed: x.mostUsed, Cap: x.cap,
		})
		x.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Leased) int { return cmp.Compare(a.Limit, b.Limit) })
	return out
}

// Keep forgets the limits that keep does not want, unless they are leased now.
func (m *LeaseMeter) Keep(keep func(limit string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.limits, func(name string, x *limitMeter) bool {
		return name != "" && x.counters.Load() == 0 && !keep(name)
	})
}

// Full returns how often a counter was not leased because there were too many.
func (m *LeaseMeter) Full() uint64 { return m.full.Load() }

// of returns the meter of a limit.
func (m *LeaseMeter) of(k *stint.Key) *limitMeter {
	name := k.Limit()
	m.mu.RLock()
	x := m.limits[name]
	m.mu.RUnlock()
	if x != nil {
		return x
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if x = m.limits[name]; x == nil && len(m.limits) >= maxMetered {
		name = ""
		x = m.limits[name]
	}
	if x == nil {
		x = new(limitMeter)
		m.limits[name] = x
	}
	return x
}

// begin notes that a counter is leased.
func (m *LeaseMeter) begin(a *stint.Ask) *limitMeter {
	x := m.of(&a.Key)
	x.counters.Add(1)
	return x
}

// end notes that it is not leased any more.
func (m *LeaseMeter) end(e *lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.meter.counters.Add(-1)
	e.meter.note(e)
}

// back notes which units were given back: ds is the answer of the store, and nil if there was none. A charge of this
// node alone is given back here.
func (m *LeaseMeter) back(asks []stint.Ask, ds []stint.Decision) {
	for i := range asks {
		a := &asks[i]
		if x := m.of(&a.Key); ds != nil && (ds[i].Basis == stint.Counted || a.Charge.Local) {
			x.back.Add(-a.Cost)
		} else {
			x.kept.Add(-a.Cost)
		}
	}
}

// note counts what a lease has spent, and holds. The caller holds it.
func (x *limitMeter) note(e *lease) {
	held := int64(0)
	for i := range e.batches {
		held += e.batches[i].left
	}
	x.held.Add(held - e.told)
	x.spent.Add(e.spent)
	e.told, e.spent = held, 0
}

// deny counts a denial while other nodes may have held so many units.
func (x *limitMeter) deny(out int64) {
	x.denied.Add(1)
	if out == 0 {
		return
	}
	x.early.Add(1)
	for most := x.mostOut.Load(); out > most && !x.mostOut.CompareAndSwap(most, out); most = x.mostOut.Load() {
	}
}

// used notes how much the store has counted of a counter. That is never above the limit, whatever was admitted.
func (x *limitMeter) used(units, limit int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if units > x.mostUsed {
		x.mostUsed, x.cap = units, limit
	}
}
