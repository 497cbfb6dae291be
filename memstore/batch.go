package memstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/stintdev/stint"
)

// few is how many asks are worked on without allocating, and fewer how many most takes have.
const few, fewer = 10, 3

// item is one ask of several, on its way. A twin asks the same counter as the
// item before it.
type item struct {
	id   id
	cell *cell // at first where it is expected; once locked, nil if there is none; a twin has its elder's
	ask  int32
	twin bool
	plan *stint.Plan
	// counter is what the cell held, so that it can be put back; or, of one that is not there
	// or has a log, what it will hold.
	counter stint.Counter
}

// inPlace reports whether the take writes to the cell before it is known whether all pass.
func (it *item) inPlace() bool { return it.cell != nil && it.cell.Aux >= 0 }

// penalty is the algorithm of penalties, to tell their counters from others. They
// are kept like logs.
const penalty stint.Algorithm = 0xff

// identify fills in the items of the asks, and reports whether there are penalties.
func (s *Store) identify(items []item, asks []stint.Ask) (special bool) {
	var subject id
	for i := range asks {
		k := &asks[i].Key
		if i == 0 || k.Subject != asks[i-1].Key.Subject {
			subject = s.subjects.of(k.Subject)
		}
		algorithm := asks[i].Limit.Algorithm
		if asks[i].Penalty != nil {
			algorithm, special = penalty, true
		}
		c := subject.with(s.names.of(k.Name), algorithm)
		items[i].id, items[i].ask = c, int32(i)
		items[i].cell = s.tableOf(c).expect(c)
	}
	return special
}

// order puts the items in the order of their counters, which is the order of locks; asks on
// one counter stay in their own order. It reports whether there are twins.
func order(items []item) (twins bool) {
	slices.SortStableFunc(items, func(a, b item) int {
		return cmp.Or(cmp.Compare(a.id.hi, b.id.hi), cmp.Compare(a.id.lo, b.id.lo))
	})
	for i := 1; i < len(items); i++ {
		if items[i].id == items[i-1].id {
			items[i].twin, twins = true, true
		}
	}
	return twins
}

// acquireAll locks the cells of all items. If one is not there it locks none and returns false,
// also if it may not wait for who holds it. Those who wait need items that are in order.
func (s *Store) acquireAll(items []item, wait bool) bool {
	for i := range items {
		it := &items[i]
		if it.cell != nil && it.cell.tryAcquire(it.id) {
			continue
		}
		if it.cell = s.tableOf(it.id).acquire(it.id, wait); it.cell == nil {
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

// lockAll locks the shards of all items, and the cells of those that have one.
// It returns the shards, for unlockAll.
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

// takeAll decides several asks together, and answers in out.
func (s *Store) takeAll(asks []stint.Ask, out []stint.Decision) error {
	switch n := len(asks); {
	case n <= fewer: // most takes, and to clear more room costs as much as a decision
		var room [fewer]item
		return s.takeItems(room[:n], asks, out)
	case n <= few:
		var room [few]item
		return s.takeItems(room[:n], asks, out)
	default:
		return s.takeItems(make([]item, n), asks, out)
	}
}

func (s *Store) takeItems(items []item, asks []stint.Ask, out []stint.Decision) error {
	if s.identify(items, asks) {
		return s.takeSpecial(items, asks, out)
	}
	now := s.micros()
	for i := range items {
		a := &asks[i]
		if items[i].plan = a.Limit.Plan(); items[i].plan == nil || a.Cost < 0 {
			return a.Validate()
		}
	}
	whole := s.acquireAll(items, false) // nearly always, and to sort them costs as much
	if !whole {
		if order(items) {
			return s.takeSpecial(items, asks, out)
		}
		if whole = s.acquireAll(items, true); !whole {
			defer s.unlockAll(s.lockAll(items))
		}
	}
	allowed := true
	for i := range items {
		it := &items[i]
		d, cost := &out[it.ask], asks[it.ask].Cost
		if it.inPlace() {
			it.counter = it.cell.Counter
			it.plan.Take(&it.cell.Counter, nil, now, cost, d)
		} else {
			var log []stint.Entry
			it.counter, log = s.logs.load(it.cell)
			it.plan.Take(&it.counter, log, now, cost, d)
		}
		allowed = allowed && d.Allowed
	}
	for i := range items {
		it := &items[i]
		d, cost := &out[it.ask], asks[it.ask].Cost
		if !allowed && d.Allowed {
			s.undo(it, now, d)
		}
		if it.cell == nil {
			continue
		}
		if allowed && cost > 0 && !it.inPlace() {
			s.logs.commit(it.cell, cost, &it.counter)
		}
		it.cell.release(it.id)
	}
	if allowed && !whole {
		// No one else can have made these meanwhile, or looked for them.
		for i := range items {
			it := &items[i]
			if a := &asks[it.ask]; it.cell == nil && a.Cost > 0 {
				x := s.shardOf(it.id).insert(it.id, a.Limit.Algorithm, now)
				s.logs.commit(x, a.Cost, &it.counter)
				x.release(it.id)
			}
		}
	}
	if now%1024 == 0 && whole {
		s.shardOf(items[0].id).sweepSome(now)
	}
	return nil
}

// undo gives back what an ask has taken that would have passed, had not another denied, and
// says how its counter stands.
func (s *Store) undo(it *item, now int64, d *stint.Decision) {
	if it.inPlace() {
		it.cell.Counter = it.counter
	}
	c, log := s.logs.load(it.cell)
	it.plan.Take(&c, log, now, 0, d)
	d.Allowed = true
}

// takeSpecial is a take in which a counter is asked more than once, or that has a
// penalty.
func (s *Store) takeSpecial(items []item, asks []stint.Ask, out []stint.Decision) error {
	if err := stint.ValidateTake(asks); err != nil {
		return err
	}
	s.transact(items, asks, out, stint.Limit.Take, true)
	return nil
}

// Adjust implements [stint.Store].
func (s *Store) Adjust(_ context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	if s.closed.Load() {
		return nil, stint.ErrClosed
	}
	if err := stint.ValidateAdjust(asks); err != nil {
		return nil, err
	}
	items := make([]item, len(asks))
	s.identify(items, asks)
	out := make([]stint.Decision, len(asks))
	s.transact(items, asks, out, stint.Limit.Adjust, false)
	return out, nil
}

// transact brings the counters of all items from state to state, at one
// instant: what is not worth a faster way. All or nothing, it charges none if any
// is denied.
func (s *Store) transact(
	items []item, asks []stint.Ask, out []stint.Decision,
	step func(stint.Limit, stint.State, time.Time, int64) (stint.State, stint.Decision),
	allOrNothing bool,
) {
	states := make([]stint.State, len(items))
	changed := make([]bool, len(items))
	micros := s.micros()
	now := time.UnixMicro(micros)
	order(items)
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
			_, out[it.ask] = a.Penalty.Take(before, now, false)
		} else {
			states[k], out[it.ask] = step(a.Limit, before, now, a.Cost)
			changed[k] = k+1 == len(items) || !items[k+1].twin // the last of its counter
		}
		allowed = allowed && out[it.ask].Allowed
	}
	if allOrNothing && !allowed {
		clear(changed)
		for k := range items {
			it := &items[k]
			a, i := &asks[it.ask], int(it.ask)
			denied := func(d stint.Decision) bool { return !d.Allowed }
			if a.Penalty != nil && a.Cost > 0 && slices.ContainsFunc(out[stint.Guarded(asks, i):i], denied) {
				states[k], out[i] = a.Penalty.Take(stored(it), now, true)
				changed[k] = true
			}
		}
		for k := range items {
			it := &items[k]
			if a, d := &asks[it.ask], &out[it.ask]; a.Penalty == nil && d.Allowed {
				_, *d = a.Limit.Take(stored(it), now, 0)
				d.Allowed = true
			}
		}
	}
	// All cells are written and let go before the first is made or dropped:
	// that may move others, and must not wait for one that is held here.
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
			// It may have been swept already, or used again.
			sh := s.shardOf(it.id)
			if x := sh.acquire(it.id); x != nil && x.Until == 0 {
				sh.remove(x)
			} else if x != nil {
				x.release(it.id)
			}
		case st.Until != 0 && it.cell == nil:
			algorithm := asks[it.ask].Limit.Algorithm
			if asks[it.ask].Penalty != nil {
				algorithm = penalty
			}
			x := s.shardOf(it.id).insert(it.id, algorithm, micros)
			s.logs.put(x, st)
			x.release(it.id)
		}
	}
}
