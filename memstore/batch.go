package memstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/stintdev/stint"
)

// few is how many asks are worked on without allocating.
const few = 10

// item is one ask of several, on its way. A twin asks the same counter as the
// item before it.
type item struct {
	id   id
	cell *cell // nil: there is none; a twin has its elder's
	ask  int32
	twin bool
}

// penalty is the algorithm of penalties, to tell their counters from others. They
// are kept like logs.
const penalty stint.Algorithm = 0xff

// plan fills in the items of the asks and puts them in the order of their
// counters, which is the order of locks; asks on one counter stay in their own
// order. It reports whether there are twins or penalties.
func (s *Store) plan(items []item, asks []stint.Ask) (special bool) {
	var subject id
	for i := range asks {
		k := &asks[i].Key
		if i == 0 || k.Subject != asks[i-1].Key.Subject {
			subject = s.subject(k.Subject)
		}
		algorithm := asks[i].Limit.Algorithm
		if asks[i].Penalty != nil {
			algorithm, special = penalty, true
		}
		items[i].id = subject.of(s.name(k.Name), algorithm)
		items[i].ask = int32(i)
	}
	if len(items) <= few {
		for i := 1; i < len(items); i++ {
			for k := i; k > 0 && items[k].id.less(items[k-1].id); k-- {
				items[k], items[k-1] = items[k-1], items[k]
			}
		}
	} else {
		slices.SortStableFunc(items, func(a, b item) int {
			return cmp.Or(cmp.Compare(a.id.hi, b.id.hi), cmp.Compare(a.id.lo, b.id.lo))
		})
	}
	for i := 1; i < len(items); i++ {
		if items[i].id == items[i-1].id {
			items[i].twin, special = true, true
		}
	}
	return special
}

// acquireAll locks the cells of all items. If one is not there, it locks none
// and returns false.
func (s *Store) acquireAll(items []item) bool {
	for i := range items {
		it := &items[i]
		if it.cell = s.shardOf(it.id).acquire(it.id); it.cell == nil {
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
	var itemBuf [few]item
	var nextBuf [few]stint.Counter
	items, next := itemBuf[:], nextBuf[:]
	if n := len(asks); n > few {
		items, next = make([]item, n), make([]stint.Counter, n)
	} else {
		items = items[:n]
	}
	if s.plan(items, asks) {
		return s.takeSpecial(items, asks, out)
	}
	now := s.micros()
	whole := s.acquireAll(items)
	if !whole {
		defer s.unlockAll(s.lockAll(items))
	}

	var err error
	allowed := true
	for k := range items {
		it := &items[k]
		a, d := &asks[it.ask], &out[it.ask]
		var log []stint.Entry
		next[k], log = s.logs.load(it.cell)
		a.Limit.TakeIn(&next[k], log, now, a.Cost, d)
		if d.Limit == 0 { // no valid limit has no capacity
			err = a.Validate()
		}
		allowed = allowed && d.Allowed
	}
	for k := range items {
		it := &items[k]
		a, d := &asks[it.ask], &out[it.ask]
		switch {
		case allowed && a.Cost > 0 && it.cell != nil:
			s.logs.commit(it.cell, a, &next[k])
		case !allowed && d.Allowed:
			// It would have passed; say how its counter stands.
			c, log := s.logs.load(it.cell)
			a.Limit.TakeIn(&c, log, now, 0, d)
			d.Allowed = true
		}
		if it.cell != nil {
			it.cell.release(it.id)
		}
	}
	if allowed && !whole {
		// No one else can have made these meanwhile, or looked for them.
		for k := range items {
			it := &items[k]
			if a := &asks[it.ask]; it.cell == nil && a.Cost > 0 {
				x := s.shardOf(it.id).insert(it.id, a.Limit.Algorithm, now)
				s.logs.commit(x, a, &next[k])
				x.release(it.id)
			}
		}
	}
	if now%1024 == 0 && whole {
		s.shardOf(items[0].id).sweepSome(now)
	}
	return err
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
	s.plan(items, asks)
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
