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

// penalty stands for the algorithm of penalties, whose counters differ from all others. They are
// stored like logs.
const penalty stint.Algorithm = 0xff

func algorithmOf(a *stint.Ask) stint.Algorithm {
	if a.Penalty != nil {
		return penalty
	}
	return a.Limit.Algorithm
}

// item is one of several asks. Once items are sorted, a twin asks the same counter as the item
// before it.
type item struct {
	id   id
	cell *cell // locked; nil if there is none
	ask  int32 // index of the ask
	twin bool
}

// identify fills in the items. It reports whether no ask is a penalty.
func (s *Store) identify(items []item, asks []stint.Ask) (limits bool) {
	limits = true
	for i := range items {
		a := &asks[i]
		items[i].id = s.subjects.of(a.Key.Subject).with(s.names.of(a.Key.Name), algorithmOf(a))
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
	if twins := order(items); limits && !twins && s.acquireAll(items) {
		s.takeLocked(items, asks, ds, now)
		releaseAll(items)
	} else {
		s.transact(items, asks, ds, now, (*stint.Plan).TakeState, true)
	}
	if now%1024 == 0 {
		s.shardOf(items[0].id).sweepSome(now)
	}
	return nil
}

// takeLocked decides items of different counters, whose cells are locked. It charges each in place,
// and restores it if another ask denies.
func (s *Store) takeLocked(items []item, asks []stint.Ask, ds []stint.Decision, now int64) {
	var room [onStack]stint.Counter
	counters := room[:min(len(items), onStack)] // the old state of each cell; for one with a log, the new state
	if len(items) > onStack {
		counters = make([]stint.Counter, len(items))
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
			c, log := s.logs.load(x)
			a.Plan.TakeLog(&c, log, now, 0, d)
			d.Allowed = true // this ask does not deny
		}
	}
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
	order(items)
	s.transact(items, asks, ds, s.clock.micros(), (*stint.Plan).AdjustState, false)
	return nil
}

// transact applies step to the counters of all items, which are sorted. It is the general case: for
// adjustments, and for takes that create counters, ask one more than once, or have a penalty. With
// allOrNothing, it charges none if any is denied.
func (s *Store) transact(
	items []item, asks []stint.Ask, ds []stint.Decision, now int64,
	step func(p *stint.Plan, before stint.State, now, cost int64) (stint.State, stint.Decision),
	allOrNothing bool,
) {
	states := make([]stint.State, len(items))
	changed := make([]bool, len(items))
	at := time.UnixMicro(now) // for penalties
	defer s.unlockAll(s.lockAll(items))

	stored := func(it *item) stint.State {
		c, log := s.logs.load(it.cell)
		return stint.State{Counter: c, Log: log}
	}
	allowed := true
	for k := range items {
		it := &items[k]
		var before stint.State
		if it.twin {
			before = states[k-1]
		} else {
			before = stored(it)
		}
		if a := &asks[it.ask]; a.Penalty != nil {
			_, ds[it.ask] = a.Penalty.Take(before, at, false)
		} else {
			states[k], ds[it.ask] = step(a.Plan, before, now, a.Cost)
			changed[k] = k+1 == len(items) || !items[k+1].twin // the last item of its counter
		}
		allowed = allowed && ds[it.ask].Allowed
	}
	if allOrNothing && !allowed {
		clear(changed)
		for k := range items {
			it := &items[k]
			a, i := &asks[it.ask], int(it.ask)
			denied := func(d stint.Decision) bool { return !d.Allowed }
			if a.Penalty != nil && a.Cost > 0 && slices.ContainsFunc(ds[stint.Guarded(asks, i):i], denied) {
				states[k], ds[i] = a.Penalty.Take(stored(it), at, true)
				changed[k] = true
			}
		}
		for k := range items {
			it := &items[k]
			if a, d := &asks[it.ask], &ds[it.ask]; a.Penalty == nil && d.Allowed {
				_, *d = a.Plan.TakeState(stored(it), now, 0)
				d.Allowed = true
			}
		}
	}
	// Write and release all cells before inserting or removing one: that may move other cells,
	// and must not wait for one that is held here.
	for k := range items {
		if it := &items[k]; changed[k] && it.cell != nil {
			s.logs.put(it.cell, states[k])
		}
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
			x := s.shardOf(it.id).insert(it.id, algorithmOf(&asks[it.ask]), now)
			s.logs.put(x, st)
			x.release(it.id)
		}
	}
}
