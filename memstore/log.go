package memstore

import (
	"sync"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// logs holds the logs of all counters that have one. The Aux of such a counter identifies its log: it
// is -1 minus the index.
type logs struct {
	all  atomic.Pointer[[]*log]
	mu   sync.Mutex
	free []int64
}

// get returns a log. The lock of its counter's cell protects it.
func (ls *logs) get(aux int64) *log { return (*ls.all.Load())[-1-aux] }

// make returns the Aux of an empty log.
func (ls *logs) make() int64 {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if last := len(ls.free) - 1; last >= 0 {
		aux := ls.free[last]
		ls.free = ls.free[:last]
		return aux
	}
	// Readers of the old slice do not look past its end.
	all := append(*ls.all.Load(), new(log))
	ls.all.Store(&all)
	return int64(-len(all))
}

// drop frees a log.
func (ls *logs) drop(aux int64) {
	*ls.get(aux) = log{}
	ls.mu.Lock()
	ls.free = append(ls.free, aux)
	ls.mu.Unlock()
}

// load returns the counter in a cell, and its log if it has one. The cell may be nil.
func (ls *logs) load(x *cell) (c stint.Counter, log []stint.Entry) {
	if x == nil {
		return c, nil
	}
	c = x.Counter
	if c.Aux < 0 {
		log = ls.get(c.Aux).live()
		c.Aux = 0
	}
	return c, log
}

// take charges a counter, which may have a log.
func (ls *logs) take(x *cell, plan *stint.Plan, now, cost int64, d *stint.Decision) {
	if x.Aux >= 0 {
		plan.Take(&x.Counter, now, cost, d)
		return
	}
	next, log := ls.load(x)
	if !plan.TakeLog(&next, log, now, cost, d) {
		var st stint.State
		st, *d = plan.TakeState(stint.State{Counter: next, Log: log}, now, cost)
		ls.put(x, st)
	} else if d.Cost > 0 {
		ls.commit(x, cost, &next)
	}
}

// commit stores the result of an allowed take.
func (ls *logs) commit(x *cell, cost int64, next *stint.Counter) {
	aux := next.Aux
	if x.Aux < 0 {
		aux = x.Aux
		l := ls.get(aux)
		l.forget(x.Used + cost - next.Used)
		l.push(stint.Entry{At: next.At, Units: cost})
	}
	x.Counter = *next
	x.Aux = aux
}

// put stores a whole state.
func (ls *logs) put(x *cell, st stint.State) {
	if x.Aux < 0 {
		*ls.get(x.Aux) = log{buf: st.Log}
		st.Aux = x.Aux
	}
	x.Counter = st.Counter
}

// log holds the entries of one sliding_log, oldest first. Instead of wrapping around like a ring
// buffer, it moves the entries back to the front, so that they are always one slice.
type log struct {
	buf  []stint.Entry
	head int
}

func (l *log) live() []stint.Entry { return l.buf[l.head:] }

// forget drops the oldest units.
func (l *log) forget(units int64) {
	for units > 0 {
		units -= l.buf[l.head].Units
		l.head++
	}
}

// push appends an entry, or adds to the newest if it has the same time. If the buffer is full, the
// entries move to the front if that frees half of it, otherwise the buffer doubles. So a push copies
// at most two entries on average.
func (l *log) push(e stint.Entry) {
	if n := len(l.buf); n > l.head && l.buf[n-1].At == e.At {
		l.buf[n-1].Units += e.Units
		return
	}
	if len(l.buf) == cap(l.buf) {
		live, room := l.live(), l.buf
		if 2*len(live) >= cap(room) {
			room = make([]stint.Entry, max(2*len(live), 4))
		}
		l.buf, l.head = room[:copy(room, live)], 0
	}
	l.buf = append(l.buf, e)
}
