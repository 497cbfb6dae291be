// Package memstore is a [stint.Store] in the memory of this process. It is exact, and a decision costs
// little more than reading the clock.
//
// Keys are stored as fingerprints of 127 bits, with random secrets for each store. Among a billion
// live subjects, the chance that any two share a counter is below 10^-19, and an attacker cannot
// search for such a pair.
//
// A counter is a cell of one cache line. It has the fingerprint, which is also the lock, and the
// state. Cells are in open-addressed tables without pointers, one for each shard. Tables are searched
// without a lock, so processors only share the counters that they share. If a counter is not found,
// the search is repeated under the shard's lock, which is needed to insert and remove counters.
//
// A Take of several asks decides at one instant, under the locks of all its cells. They are locked in
// order, so there are no deadlocks. If a counter does not exist yet, the take also holds the shard's
// lock, so that no one else can insert it meanwhile.
//
// The instants of a counter are in the order of its decisions, also of those that charge nothing: no one
// gains from a clock that was read before others decided.
//
// # Bounds
//
// The store holds at most MaxKeys counters, divided equally between shards. Each call sweeps a few
// counters that have recovered; there is no goroutine and no stop-the-world scan. If a shard is full, a
// new counter replaces those that have recovered. If none has, one is evicted, and its client starts from
// zero: [Stats] count that. As keys never spread perfectly evenly, evictions begin at about nine tenths of
// MaxKeys. A sliding_log needs up to 32 bytes more for each unit of its max, and concurrency for each hold.
//
// Limits of one key that differ in algorithm or window have a counter each. A counter that was reset, and
// a change of a charge that has an ID, take the place of one more counter, until the charges that they
// concern have recovered. If such a mark is evicted, the change could be made again.
//
// # Who is evicted
//
// Clients may want counters to be evicted, their own most of all, and may make up values that they are
// counted by. So the order is this:
//
//  1. Counters never replace the states of penalties, which have up to half of the store. If there are more,
//     a new one replaces another by what follows: one that does not ban goes before one that does.
//  2. A client that has more than a sixteenth of a full store (or more than one counter of a very small one)
//     loses its own counters first. A client is the subject of keys, or [stint.Ask.Client]. Of its counters,
//     those of the limit go first that has most, which is the part of a key's name before the second colon.
//     So values that are made up for one limit replace each other, and not what is used of another limit.
//  3. Those go first of which fewest units are used, to a power of two. Counters that deny go last.
//  4. Among equals, the one closest to recovery goes first.
//
// One client can thus evict nothing of another but what is used least, and that only up to its share.
// Very many clients, each within its share, can evict what is used less than they use themselves: to evict
// counters that deny, they have to fill the store with others that deny.
//
// # What it does not do
//
// It persists nothing, and shares nothing with other processes. It ignores contexts, since it never
// waits.
package memstore

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// Options are a store's settings. The zero value is useful.
type Options struct {
	// MaxKeys is the most counters held at once. Defaults to 1,048,576, which
	// takes up to 80 MB.
	MaxKeys int
	// Now replaces the clock, for tests. The default clock starts at the wall time and is
	// monotonic from then on: it ignores changes of the wall clock. A store that is created in a
	// testing/synctest bubble uses the bubble's time; one that is created outside and used in a
	// bubble needs time.Now here.
	Now func() time.Time
}

const defaultMaxKeys = 1 << 20

// Store is a [stint.Store] in memory.
type Store struct {
	clock  clock
	logs   logs
	dir    atomic.Pointer[directory]
	grow   sync.Mutex // held while the directory changes
	closed atomic.Bool

	subjects, names hasher
}

var _ stint.Store = (*Store)(nil)

// New returns an empty store.
func New(o Options) (*Store, error) {
	if o.MaxKeys < 0 {
		return nil, &stint.InvalidError{Field: "MaxKeys", Value: strconv.Itoa(o.MaxKeys), Want: "1 or more, or 0 for the default"}
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	s := &Store{clock: newClock(o.Now), subjects: newHasher(), names: newHasher()}
	s.logs.all.Store(new([]*log))
	sh := &shard{store: s, quota: o.MaxKeys}
	sh.table = sh.newTable(0)
	s.dir.Store(newDirectory(0))
	s.enter(sh)
	return s, nil
}

// Stats are a store's counts.
type Stats struct {
	Keys    int    // counters in the store, some of which may have recovered
	Bans    int    // of Keys, the states of penalties
	Swept   uint64 // recovered counters dropped so far
	Evicted uint64 // counters dropped before they had recovered, because the store was full

	EvictedByShare uint64    // of Evicted, counters of clients that had more than their share
	EvictedBans    uint64    // of Evicted, states of penalties of other clients, because there were too many
	LastLost       time.Time // when the last counter was evicted of a client within its share; zero: never
}

// Stats returns the store's counts. It locks every shard in turn.
func (s *Store) Stats() Stats {
	var out Stats
	var last *shard
	var lost int64
	d := s.dir.Load()
	for i := range d.tables {
		sh := d.tables[i].Load().shard
		if sh == last {
			continue
		}
		last = sh
		sh.mu.Lock()
		out.Keys += sh.live()
		out.Bans += sh.table.bans
		out.Swept += sh.swept
		out.EvictedByShare += sh.evicted[byShare]
		out.EvictedBans += sh.evicted[byBans]
		out.Evicted += sh.evicted[byNeed] + sh.evicted[byShare] + sh.evicted[byBans]
		lost = max(lost, sh.lost)
		sh.mu.Unlock()
	}
	if lost > 0 {
		out.LastLost = s.clock.wall(lost)
	}
	return out
}

// Close makes all further calls fail with [stint.ErrClosed].
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}

// Take implements [stint.Store]. For existing counters it does not allocate, unless there are more than
// ten asks, or several of which one is not compiled.
func (s *Store) Take(_ context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if s.closed.Load() {
		return stint.ErrClosed
	}
	if len(asks) != 1 || len(ds) != 1 || asks[0].Penalty != nil || asks[0].Charge != nil {
		return s.takeAll(asks, ds)
	}
	if a := &asks[0]; a.Cost >= 0 && a.Compiled() {
		s.takeOne(a, a.Plan, &ds[0])
		return nil
	}
	return s.takeCompiling(&asks[0], &ds[0])
}

// takeCompiling takes one ask whose limit is not compiled, or that is invalid.
func (s *Store) takeCompiling(a *stint.Ask, d *stint.Decision) error {
	var room stint.Plan
	plan, err := a.CompileIn(&room)
	if err != nil || a.Cost < 0 {
		return a.Validate()
	}
	s.takeOne(a, plan, d)
	return nil
}

// takeOne takes one ask of a limit.
func (s *Store) takeOne(a *stint.Ask, plan *stint.Plan, d *stint.Decision) {
	c := s.subjects.of(a.Key.Subject).with(s.names.of(a.Key.Name), plan.Kind())
	now := s.clock.micros()
	t := s.tableOf(c)
	if x := t.acquire(c); x == nil {
		s.takeFirst(c, a, plan, d)
	} else {
		now = s.notBefore(x, now)
		s.logs.take(x, plan, now, a.Cost, d)
		x.note(d, now)
		x.release(c)
	}
	d.Counter = c.mark()
	if now%1024 == 0 {
		t.shard.sweepSome(now)
	}
}

// notBefore returns now, or a later instant if that is before the last decision of a cell, which the caller
// holds. The clock is read before cells are locked, since that takes longer than a decision, and others may
// have decided in between. So the instants of a counter are in the order of its decisions.
func (s *Store) notBefore(x *cell, now int64) int64 {
	if int32(uint32(now)-x.decided) < 0 {
		return s.clock.micros()
	}
	return now
}

// takeFirst takes from a counter that probably does not exist yet.
func (s *Store) takeFirst(c id, a *stint.Ask, plan *stint.Plan, d *stint.Decision) {
	sh := s.lock(c)
	defer s.unlock(sh)
	x := sh.acquire(c)      // someone else may have inserted it
	now := s.clock.micros() // nothing says when a counter that does not exist was last decided
	before, log := s.logs.load(x)
	var next stint.State
	next, *d = plan.TakeState(stint.State{Counter: before, Log: log}, now, a.Cost)
	if x == nil && d.Cost > 0 {
		x = sh.insert(c, s.keeping(a), now)
	}
	if x != nil {
		if next.Counter != before {
			s.logs.put(x, next)
		}
		x.note(d, now)
		x.release(c)
	}
}

// Reset implements [stint.Store].
func (s *Store) Reset(_ context.Context, asks []stint.Ask) error {
	if s.closed.Load() {
		return stint.ErrClosed
	}
	for i := range asks {
		s.reset(&asks[i])
	}
	return nil
}

// reset forgets a counter. As long as charges from before might be given back, its past remains.
func (s *Store) reset(a *stint.Ask) {
	c, m := s.idOf(a), s.markOf(s.idOf(a), "")
	items := []item{{id: c}, {id: m}}
	order(items)
	defer s.unlockAll(s.lockAll(items))
	now := s.clock.micros()
	counter, _ := s.logs.load(cellOf(items, c))
	before := stint.State{Counter: counter, Past: s.past(cellOf(items, m))}
	releaseAll(items)
	s.forget(c)
	if a.Penalty != nil {
		return
	}
	if after := a.Limit.Reset(before, time.UnixMicro(now)); after.Past.Until > now {
		s.setPast(c, a, now, &after.Past)
	} else {
		s.forget(m)
	}
}

// forget removes a cell, if there is one. Its shard is locked.
func (s *Store) forget(c id) {
	sh := s.shardOf(c)
	if x := sh.acquire(c); x != nil {
		sh.remove(x)
	}
}
