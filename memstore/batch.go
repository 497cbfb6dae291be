package memstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/stintdev/stint"
)

// onStack is how many asks a take can have without allocating.
const onStack = 10

// Kinds of what is kept beside the counters of limits.
const (
	penalty = 1<<64 - 1
	mark    = 1<<64 - 2
)

// idOf returns the fingerprint of the ask's counter.
func (s *Store) idOf(a *stint.Ask) id {
	kind := uint64(penalty)
	if a.Penalty == nil {
		kind = a.Limit.Kind()
	}
	return s.subjects.of(a.Key.Subject).with(s.names.of(a.Key.Name), kind)
}

// hasLog reports whether the ask's counter has a log.
func hasLog(a *stint.Ask) bool {
	return a.Penalty != nil || a.Limit.Algorithm == stint.SlidingLog || a.Limit.Algorithm == stint.Concurrency
}

// item is one of several asks. Once items are sorted, a twin asks the same counter as the item
// before it.
type item struct {
	id   id
	cell *cell // locked; nil if there is none
	ask  int32 // index of the ask, or noAsk
	twin bool
}

// noAsk is the ask of an item that is a mark.
const noAsk = -1

// identify fills in the items. It reports whether no ask is a penalty.
func (s *Store) identify(items []item, asks []stint.Ask) (limits bool) {
	limits = true
	for i := range items {
		a := &asks[i]
		items[i].id = s.idOf(a)
		items[i].ask = int32(i)
		limits = limits && a.Penalty == nil
	}
	return limits
}

// compiled returns valid asks with the plans of all limits.
func compiled(asks []stint.Ask) []stint.Ask {
	missing := func(a stint.Ask) bool { return a.Penalty == nil && !a.Compiled() }
	if !slices.ContainsFunc(asks, missing) {
		return asks
	}
	asks = slices.Clone(asks) // the caller owns them
	for i := range asks {
		if missing(asks[i]) {
			asks[i].Plan, _ = asks[i].Limit.Compile() // it was validated
		}
	}
	return asks
}

// order sorts the items by counter, which is the lock order. Asks of one counter keep their order.
// It reports whether there are twins.
func order(items []item) (twins bool) {
	slices.SortStableFunc(items, func(a, b item) int {
		if c := cmp.Compare(a.id.hi, b.id.hi); c != 0 {
			return c
		}
		return cmp.Compare(a.id.lo, b.id.lo)
	})
	for i := 1; i < len(items); i++ {
		if items[i].id == items[i-1].id {
			items[i].twin, twins = true, true
		}
	}
	return twins
}

// acquireAll locks the cells of all items, which are sorted. If one does not exist, it locks none and
// returns false.
func (s *Store) acquireAll(items []item) bool {
	for i := range items {
		it := &items[i]
		if it.cell = s.tableOf(it.id).acquire(it.id); it.cell == nil {
			releaseAll(items[:i])
			return false
		}
	}
	return true
}

func releaseAll(items []item) {
	for i := range items {
		if it := &items[i]; it.cell != nil && !it.twin {
			it.cell.release(it.id)
		}
	}
}

// lockAll locks the shards of all items, and the cells that exist. It returns the shards, for
// unlockAll.
func (s *Store) lockAll(items []item) []*shard {
	locked := make([]*shard, 0, len(items))
	for i := range items {
		if n := len(locked); n == 0 || s.shardOf(items[i].id) != locked[n-1] {
			locked = append(locked, s.lock(items[i].id))
		}
	}
	for i := range items {
		if it := &items[i]; it.twin {
			it.cell = items[i-1].cell
		} else {
			it.cell = s.shardOf(it.id).acquire(it.id)
		}
	}
	return locked
}

func (s *Store) unlockAll(locked []*shard) {
	for _, sh := range locked {
		s.unlock(sh)
	}
}

// takeAll takes any number of asks.
func (s *Store) takeAll(asks []stint.Ask, ds []stint.Decision) error {
	if err := stint.ValidateTake(asks, ds); err != nil || len(asks) == 0 {
		return err
	}
	asks = compiled(asks)
	var room [onStack]item
	items := room[:min(len(asks), onStack)]
	if len(asks) > onStack {
		items = make([]item, len(asks))
	}
	limits := s.identify(items, asks)
	now := s.clock.micros()
	if twins := order(items); !limits || twins || !s.takeLocked(items, asks, ds, now) {
		s.transact(items, asks, ds)
	}
	for i := range items {
		ds[items[i].ask].Counter = items[i].id.mark()
	}
	if now%1024 == 0 {
		s.shardOf(items[0].id).sweepSome(now)
	}
	return nil
}

// takeLocked decides items of different counters in their cells. It charges each in place, and restores
// it if another ask denies. It reports false, and has done nothing, if one has no cell yet, or has a
// log from the future.
func (s *Store) takeLocked(items []item, asks []stint.Ask, ds []stint.Decision, now int64) bool {
	if !s.acquireAll(items) {
		return false
	}
	defer releaseAll(items)
	var room [onStack]stint.Counter
	counters := room[:min(len(items), onStack)] // the old state of each cell; for one with a log, the new state
	if len(items) > onStack {
		counters = make([]stint.Counter, len(items))
	}
	for i := range items {
		now = s.notBefore(items[i].cell, now)
	}
	for i := range items {
		if x := items[i].cell; x.Aux < 0 && x.At > now {
			return false
		}
	}
	allowed := true
	for i := range items {
		x, a, d := items[i].cell, &asks[items[i].ask], &ds[items[i].ask]
		var log []stint.Entry
		if counters[i], log = s.logs.load(x); x.Aux < 0 {
			a.Plan.TakeLog(&counters[i], log, now, a.Cost, d)
		} else {
			a.Plan.Take(&x.Counter, now, a.Cost, d)
		}
		allowed = allowed && d.Allowed
	}
	for i := range items {
		x, a, d := items[i].cell, &asks[items[i].ask], &ds[items[i].ask]
		hasLog := x.Aux < 0
		switch {
		case allowed && hasLog && a.Cost > 0:
			s.logs.commit(x, a.Cost, &counters[i])
		case !allowed && d.Allowed:
			if !hasLog {
				x.Counter = counters[i]
			}
			s.logs.take(x, a.Plan, now, 0, d)
			d.Allowed = true // this ask does not deny
		}
		x.note(d, now)
	}
	return true
}

// transact takes items, which are sorted, in the general case: takes that create counters, ask one more
// than once, or have a penalty.
func (s *Store) transact(items []item, asks []stint.Ask, ds []stint.Decision) {
	states := make([]stint.State, len(items))
	changed := make([]bool, len(items))
	defer s.unlockAll(s.lockAll(items))
	now := s.clock.micros()
	at := time.UnixMicro(now) // for penalties

	allowed := true
	for k := range items {
		it := &items[k]
		before := s.stored(it)
		if it.twin {
			before = states[k-1]
		}
		if a := &asks[it.ask]; a.Penalty != nil {
			states[k], ds[it.ask] = a.Penalty.Take(before, at, false)
			changed[k] = before.At > now
		} else {
			states[k], ds[it.ask] = a.Plan.TakeState(before, now, a.Cost)
			changed[k] = lastOfCounter(items, k)
		}
		allowed = allowed && ds[it.ask].Allowed
	}
	if !allowed {
		s.deny(items, asks, ds, states, changed, now)
	}
	s.write(items, asks, ds, states, changed, now)
}

// deny makes a take that was allowed in parts one that was denied: nothing is charged, and penalties may
// record violations.
func (s *Store) deny(items []item, asks []stint.Ask, ds []stint.Decision, states []stint.State, changed []bool, now int64) {
	at := time.UnixMicro(now)
	isDenied := func(d stint.Decision) bool { return !d.Allowed }
	for k := range items {
		it := &items[k]
		a, i := &asks[it.ask], int(it.ask)
		if a.Penalty != nil && a.Cost > 0 && slices.ContainsFunc(ds[stint.Guarded(asks, i):i], isDenied) {
			states[k], ds[i] = a.Penalty.Take(s.stored(it), at, true)
			changed[k] = true
		}
	}
	for k := range items {
		it := &items[k]
		a, d := &asks[it.ask], &ds[it.ask]
		if a.Penalty != nil {
			continue
		}
		before := s.stored(it)
		var look stint.Decision
		states[k], look = a.Plan.TakeState(before, now, 0)
		changed[k] = states[k].Counter != before.Counter && lastOfCounter(items, k) // it was moved
		if d.Allowed {
			*d = look
			d.Allowed = true
		}
	}
}

// stored returns the state of an item's counter.
func (s *Store) stored(it *item) stint.State {
	c, log := s.logs.load(it.cell)
	return stint.State{Counter: c, Log: log}
}

// lastOfCounter reports whether the k-th item, of sorted ones, is the last that asks its counter.
func lastOfCounter(items []item, k int) bool { return k+1 == len(items) || !items[k+1].twin }

// change is a change that has an ID: where the counter comes from, and until when the change matters.
type change struct {
	from
	until int64
}

// Adjust implements [stint.Store].
func (s *Store) Adjust(_ context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if s.closed.Load() {
		return stint.ErrClosed
	}
	if err := stint.ValidateAdjust(asks, ds); err != nil || len(asks) == 0 {
		return err
	}
	asks = compiled(asks)
	items := make([]item, len(asks))
	s.identify(items, asks)
	now := s.clock.micros()
	for i := range items {
		c, a := items[i].id, &asks[i]
		ds[i].Counter = c.mark()
		if a.Charge != nil {
			if err := a.Charge.ValidateFor(ds[i].Counter, now); err != nil {
				return err
			}
			if a.Charge.ID != "" {
				items = append(items, item{id: s.markOf(c, a.Charge.ID), ask: noAsk})
			}
		}
		if needsPast(a) {
			items = append(items, item{id: s.markOf(c, ""), ask: noAsk})
		}
	}
	order(items)
	defer s.unlockAll(s.lockAll(items))
	now = s.clock.micros()
	states := make([]stint.State, len(items))
	changed := make([]bool, len(items))
	made := map[id]change{} // changes that have an ID, by their marks
	for k := range items {
		it := &items[k]
		if it.ask == noAsk {
			continue
		}
		a, d := &asks[it.ask], &ds[it.ask]
		before := s.stored(it)
		before.Past = s.past(cellOf(items, s.markOf(it.id, "")))
		if it.twin {
			before = states[k-1]
		}
		switch {
		case a.Charge == nil:
			states[k], *d = a.Plan.AdjustState(before, now, a.Cost)
		case a.Charge.ID != "" && s.madeBefore(items, made, it.id, a, now):
			states[k], *d = a.Plan.TakeState(before, now, 0)
			d.Repeated = true
		default:
			states[k], *d = a.Plan.AmendState(before, now, *a.Charge, a.Cost)
		}
		d.Counter = it.id.mark()
		changed[k] = lastOfCounter(items, k)
	}
	s.write(items, asks, ds, states, changed, now)
	for k := range items {
		if it := &items[k]; changed[k] && states[k].Past.Until > now {
			s.setPast(it.id, &asks[it.ask], now, &states[k].Past)
		}
	}
	for c, m := range made {
		s.setMark(c, m.from, now, m.until)
	}
	return nil
}

// madeBefore reports whether a change with this ID was made before. If not, it is made now.
func (s *Store) madeBefore(items []item, made map[id]change, c id, a *stint.Ask, now int64) bool {
	m := s.markOf(c, a.Charge.ID)
	if x := cellOf(items, m); made[m].until != 0 || x != nil && x.Until > now {
		return true
	}
	made[m] = change{s.fromOf(a), a.Charge.KeptUntil(now)}
	return false
}

// write stores the states that have changed, and releases all cells. The shards of the items are locked.
func (s *Store) write(items []item, asks []stint.Ask, ds []stint.Decision, states []stint.State, changed []bool, now int64) {
	// Write and release all cells before inserting or removing one: that may move other cells,
	// and must not wait for one that is held here.
	for k := range items {
		it := &items[k]
		if it.cell == nil || it.ask == noAsk {
			continue
		}
		if changed[k] {
			s.logs.put(it.cell, states[k])
		}
		it.cell.note(&ds[it.ask], now)
	}
	releaseAll(items)
	for k := range items {
		it, st := &items[k], states[k]
		if !changed[k] {
			continue
		}
		switch {
		case st.Until == 0 && it.cell != nil:
			// It may have been swept or used since.
			sh := s.shardOf(it.id)
			if x := sh.acquire(it.id); x != nil && x.Until == 0 {
				sh.remove(x)
			} else if x != nil {
				x.release(it.id)
			}
		case st.Until != 0 && it.cell == nil:
			x := s.shardOf(it.id).insert(it.id, s.keeping(&asks[it.ask]), now)
			s.logs.put(x, st)
			x.note(&ds[it.ask], now)
			x.release(it.id)
		}
	}
}
