package memstore

import (
	"cmp"
	"context"
	"slices"
	"time"
	"unsafe"

	"github.com/stintdev/stint"
)

// few is how many asks are worked on without allocating, and fewer how many most takes have.
const few, fewer = 10, 3

// item is one ask of several, on its way. Once they are in order, a twin asks the same counter as
// the item before it.
type item struct {
	id   id
	cell *cell // where it is expected, until it is locked; then nil if there is none; a twin has its elder's
	plan *stint.Plan
	cost int64
	// counter is what the cell held, so that it can be put back; or, of one that is not there
	// or has a log, what it will hold.
	counter stint.Counter
	ask     int32 // its place among them
	twin    bool
}

// inPlace reports whether the take writes to the cell before it is known whether all pass.
func (it *item) inPlace() bool { return it.cell != nil && it.cell.Aux >= 0 }

// penalty is the algorithm of penalties, to tell their counters from others. They
// are kept like logs.
const penalty stint.Algorithm = 0xff

// identify fills in the items of the asks, and has their cells fetched. It reports whether all of
// them charge limits, which are valid.
func (s *Store) identify(items []item, asks []stint.Ask) (plain bool) {
	plain = true
	var subject id
	for i := range items {
		a, it := &asks[i], &items[i]
		if i == 0 || !same(a.Key.Subject, asks[i-1].Key.Subject) {
			subject = s.subjects.of(a.Key.Subject)
		}
		algorithm := a.Limit.Algorithm
		if a.Penalty != nil {
			algorithm = penalty
		}
		c := subject.with(s.names.of(a.Key.Name), algorithm)
		it.id, it.cell, it.cost, it.ask = c, s.tableOf(c).expect(c.lo), a.Cost, int32(i)
		prefetch(it.cell)
		if algorithm != penalty {
			it.plan = a.Limit.Plan()
		}
		if it.plan == nil || it.cost < 0 {
			plain = false
		}
	}
	return plain
}

// same reports whether two texts are one and the same in memory: equal ones may not be.
func same(a, b string) bool { return len(a) == len(b) && unsafe.StringData(a) == unsafe.StringData(b) }

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

// acquireAll locks the cells of all items, which are in order. If one is not there it locks none and
// returns false.
func (s *Store) acquireAll(items []item) bool {
	for i := range items {
		it := &items[i]
		if it.cell = s.tableOf(it.id).acquire(it.id, true); it.cell == nil {
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
	case n == 0:
		return nil
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
	if !s.identify(items, asks) {
		return s.takeSpecial(items, asks, out)
	}
	var now int64
	if s.clock.now == nil {
		now = s.clock.running()
	} else {
		now = s.clock.micros()
	}
	if !s.attempt(items, out, now) {
		if err := s.takeInOrder(items, asks, out, now); err != nil {
			return err
		}
	}
	if now%1024 == 0 {
		s.shardOf(items[0].id).sweepSome(now)
	}
	return nil
}

// takeInOrder is a take from counters of which some are held by others, or not there yet.
func (s *Store) takeInOrder(items []item, asks []stint.Ask, out []stint.Decision, now int64) error {
	if order(items) {
		return s.takeSpecial(items, asks, out)
	}
	if s.acquireAll(items) {
		s.decide(items, out, now)
		return nil
	}
	defer s.unlockAll(s.lockAll(items))
	if !s.decide(items, out, now) {
		return nil
	}
	// No one else can have made these meanwhile, or looked for them.
	for i := range items {
		it := &items[i]
		if it.cell == nil && it.cost > 0 {
			x := s.shardOf(it.id).insert(it.id, asks[it.ask].Limit.Algorithm, now)
			s.logs.commit(x, it.cost, &it.counter)
			x.release(it.id)
		}
	}
	return nil
}

// attempt decides about all items, which are in the order of their asks, if it can lock their cells as
// they come: without waiting, as that is not the order of locks. If one is not free or not there, it
// charges nothing and returns false. In the end none is locked.
func (s *Store) attempt(items []item, out []stint.Decision, now int64) bool {
	done := true
	for i := range items {
		it, d := &items[i], &out[i]
		x := it.cell
		if x == nil || !x.tryAcquire(it.id) {
			if x = s.tableOf(it.id).acquire(it.id, false); x == nil {
				giveUp(items[:i])
				return false
			}
			it.cell = x
		}
		if x.Aux >= 0 { // as judge does, in fewer steps
			it.counter = x.Counter
			it.plan.Take(&x.Counter, now, it.cost, d)
			if d.Allowed {
				continue
			}
		} else {
			s.judge(it, now, d)
		}
		done = false
	}
	if !done {
		s.settle(items, out, now)
	}
	for i := range items {
		it := &items[i]
		it.cell.release(it.id)
	}
	return true
}

// decide decides about all items, whose cells are locked, and reports whether all are allowed. In the
// end none is locked. Of an item that has no cell, what it will hold is in the item.
func (s *Store) decide(items []item, out []stint.Decision, now int64) (allowed bool) {
	for i := range items {
		it := &items[i]
		s.judge(it, now, &out[it.ask])
	}
	allowed = s.settle(items, out, now)
	releaseAll(items)
	return allowed
}

// judge decides about an item by itself, whose cell is locked.
func (s *Store) judge(it *item, now int64, d *stint.Decision) {
	var log []stint.Entry
	it.counter, log = s.logs.load(it.cell)
	if it.inPlace() {
		it.plan.Take(&it.cell.Counter, now, it.cost, d)
	} else {
		it.plan.TakeLog(&it.counter, log, now, it.cost, d)
	}
}

// settle reports whether all items are allowed. If they are, it writes what those with logs have
// taken, and otherwise it undoes what the others have.
func (s *Store) settle(items []item, out []stint.Decision, now int64) (allowed bool) {
	allowed = !slices.ContainsFunc(out, func(d stint.Decision) bool { return !d.Allowed })
	for i := range items {
		it := &items[i]
		switch d := &out[it.ask]; {
		case !allowed && d.Allowed:
			s.undo(it, now, d)
		case allowed && it.cell != nil && !it.inPlace():
			s.logs.commit(it.cell, it.cost, &it.counter)
		}
	}
	return allowed
}

// giveUp puts back what the cells held, and releases them.
func giveUp(items []item) {
	for i := range items {
		if it := &items[i]; it.inPlace() {
			it.cell.Counter = it.counter
		}
	}
	releaseAll(items)
}

// undo gives back what an ask has taken that would have passed, had not another denied, and
// says how its counter stands.
func (s *Store) undo(it *item, now int64, d *stint.Decision) {
	if it.inPlace() {
		it.cell.Counter = it.counter
	}
	c, log := s.logs.load(it.cell)
	it.plan.TakeLog(&c, log, now, 0, d)
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
	out := make([]stint.Decision, len(asks))
	s.identify(items, asks)
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
	micros := s.clock.micros()
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
