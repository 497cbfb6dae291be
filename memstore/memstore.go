// Package memstore is a [stint.Store] in this process's memory: exact, and
// made so that a decision costs little more than reading the clock.
//
// A key is held as a fingerprint of 127 bits under secrets drawn when the store
// is made, not as its text: among a billion live subjects the chance that any
// two share a counter is below 10^-19, and no one outside can look for such a
// pair.
//
// A counter is a cell of one cache line: its fingerprint, which is also its
// lock, and its state. Cells lie inline in open-addressed tables, one for each
// shard, with no pointers for the collector to follow. Tables are searched
// without a lock, so that processors share nothing but the counters they share;
// what is not found is looked for again under the shard's lock, which is for
// those who make counters and drop them.
//
// A Take of several asks decides at one instant, under the locks of all its
// cells: taken as they come if no one holds any of them, and otherwise in
// order, so that no two wait for each other. One that needs a counter that is not
// there yet holds its shard's lock as well, so that no one else can make it
// meanwhile.
//
// # Bounds
//
// The store holds at most MaxKeys counters, in equal shares for each shard.
// Counters that have recovered are swept, a few at a time, by the calls that
// come in; there is no goroutine and no stop-the-world scan. When a new counter
// finds its shard full, the shard drops those of its counters that have
// recovered, or else the one nearest to recovery, which is counted in
// [Stats.Evicted]: its client starts anew. As keys never spread perfectly
// evenly, that begins at about nine tenths of MaxKeys. A sliding_log also holds
// up to 32 bytes for each unit of its max.
//
// # What it refuses to do
//
// It persists nothing and shares nothing with other processes. It does not
// look at contexts: there is nothing to wait for.
package memstore

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/stintdev/stint"
)

// Options are a store's settings. The zero value is useful.
type Options struct {
	// MaxKeys is the most counters held at once. Defaults to 1,048,576, which
	// takes up to 80 MB.
	MaxKeys int
	// Now replaces the clock, for tests. The default clock starts at the wall
	// time and from then on is monotonic: it does not follow when the wall
	// clock is set. A store that is made in a bubble of testing/synctest goes by
	// the bubble's time; one that is made outside and used in it needs time.Now
	// here for that.
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
	Keys    int    // counters held now, some of them recovered but not yet swept
	Swept   uint64 // recovered counters dropped so far
	Evicted uint64 // counters dropped before they had recovered, for want of room
}

// Stats returns the store's counts. It visits every shard in turn.
func (s *Store) Stats() Stats {
	var out Stats
	var last *shard
	d := s.dir.Load()
	for i := range d.tables {
		sh := d.tables[i].Load().shard
		if sh == last {
			continue
		}
		last = sh
		sh.mu.Lock()
		out.Keys += sh.live()
		out.Swept += sh.swept
		out.Evicted += sh.evicted
		sh.mu.Unlock()
	}
	return out
}

// Close makes all further calls fail with [stint.ErrClosed].
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}

// Take implements [stint.Store]. It allocates nothing if there is one ask and if both that and the
// answer stay on the caller's stack, as they do if the store is called by its own type, and nothing
// else is done with them than to make the one and to read the other. Otherwise answers are cut from
// larger pieces of memory, so that it is only one take of many that allocates; but in a function so
// large that the compiler inlines no more into it, each answer is 48 bytes. TakeAppend needs none.
func (s *Store) Take(_ context.Context, asks []stint.Ask) (out []stint.Decision, err error) {
	// This is as much as the compiler will inline, and inlined it puts the
	// decision on the caller's stack, if it may stay there.
	out, one, err := s.take(asks, false)
	if one.Limit != 0 {
		out = []stint.Decision{one}
	}
	return out, err
}

// Self returns the store. By it a [stint.Limiter] knows that it may use TakeAppend, which is
// faster, and that it does not deal with another store, which embeds this one.
func (s *Store) Self() stint.Store { return s }

// take answers in one if there is a single ask, of a limit, and room for the answer or the prospect
// that it will stay on a stack; and otherwise in out.
//
// In this order the results do not fit into the registers of an amd64, and one is written but once.
func (s *Store) take(asks []stint.Ask, room bool) (out []stint.Decision, one stint.Decision, err error) {
	if s.closed.Load() {
		return nil, one, stint.ErrClosed
	}
	if len(asks) != 1 || asks[0].Penalty != nil {
		out = decisions(len(asks))
		if err = s.takeAll(asks, out); err != nil {
			out = nil
		}
		return out, one, err
	}
	a := &asks[0]
	c := s.subjects.of(a.Key.Subject).with(s.names.of(a.Key.Name), a.Limit.Algorithm)
	t := s.tableOf(c)
	x := t.expect(c.lo)
	// If another processor has used the cell last, to fetch it takes about as long as to read the
	// clock, which is what there is to do before it is locked.
	prefetch(x)
	var now int64
	if s.clock.now == nil {
		now = s.clock.running()
	} else {
		now = s.clock.micros()
	}
	plan := a.Limit.Plan()
	if plan == nil || a.Cost < 0 {
		return nil, one, a.Validate()
	}
	switch {
	case x == nil || !x.tryHold(c):
		s.takeSearching(t, c, a, plan, now, &one)
	case atomic.LoadUint64(&x.lo) != c.lo:
		x.release(c)
		s.takeSearching(t, c, a, plan, now, &one)
	case x.Aux < 0:
		s.logs.take(x, plan, now, a.Cost, &one)
		x.release(c)
	default:
		plan.Take(&x.Counter, now, a.Cost, &one)
		x.release(c)
	}
	if now%1024 == 0 {
		t.shard.sweepSome(now)
	}
	if !room && !near(asks) {
		out = decisions(1)
		out[0], one = one, stint.Decision{}
	}
	return out, one, nil
}

// near reports whether the asks are on the stack, not far up. Those of a call
// through an interface never are: no one can tell what it does with them. As
// memory that is no stack may begin there too, this is a guess, on which nothing
// depends but whether the answer is allocated.
func near(asks []stint.Ask) bool {
	var here byte
	return uintptr(unsafe.Pointer(unsafe.SliceData(asks)))-uintptr(unsafe.Pointer(&here)) < 4096
}

// TakeAppend is Take for those who have room for the answers: it appends the
// decisions to dst, which it does not keep, and allocates nothing if they fit.
func (s *Store) TakeAppend(dst []stint.Decision, asks []stint.Ask) ([]stint.Decision, error) {
	if len(asks) == 1 && asks[0].Penalty == nil {
		_, one, err := s.take(asks, true)
		if err != nil {
			return nil, err
		}
		return append(dst, one), nil
	}
	if s.closed.Load() {
		return nil, stint.ErrClosed
	}
	n := len(dst)
	if cap(dst)-n < len(asks) {
		dst = slices.Grow(dst, len(asks))
	}
	dst = dst[:n+len(asks)]
	if err := s.takeAll(asks, dst[n:]); err != nil {
		return nil, err
	}
	return dst, nil
}

// takeSearching is a take from a counter that is not where it was expected, or in use.
func (s *Store) takeSearching(t *table, c id, a *stint.Ask, plan *stint.Plan, now int64, d *stint.Decision) {
	x := t.acquire(c, true)
	switch {
	case x == nil:
		s.takeFirst(c, a, plan, now, d)
		return
	case x.Aux < 0:
		s.logs.take(x, plan, now, a.Cost, d)
	default:
		plan.Take(&x.Counter, now, a.Cost, d)
	}
	x.release(c)
}

// takeFirst is a take from a counter that is probably not there.
func (s *Store) takeFirst(c id, a *stint.Ask, plan *stint.Plan, now int64, d *stint.Decision) {
	sh := s.lock(c)
	defer s.unlock(sh)
	x := sh.acquire(c) // now it is certain
	next, log := s.logs.load(x)
	plan.TakeLog(&next, log, now, a.Cost, d)
	if d.Allowed && a.Cost > 0 {
		if x == nil {
			x = sh.insert(c, a.Limit.Algorithm, now)
		}
		s.logs.commit(x, a.Cost, &next)
	}
	if x != nil {
		x.release(c)
	}
}

// chunk is room for decisions, which are cut off one after the other, so that
// only every 128th take allocates.
type chunk struct {
	room [128]stint.Decision
	used int
}

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// decisions returns n of them, which are no one's yet.
func decisions(n int) []stint.Decision {
	if n > few {
		return make([]stint.Decision, n)
	}
	c := chunks.Get().(*chunk)
	if c.used+n > len(c.room) {
		c = new(chunk)
	}
	out := c.room[c.used : c.used+n : c.used+n]
	c.used += n
	chunks.Put(c)
	return out
}

// Reset implements [stint.Store].
func (s *Store) Reset(_ context.Context, keys ...stint.Key) error {
	if s.closed.Load() {
		return stint.ErrClosed
	}
	for i := range keys {
		subject, name := s.subjects.of(keys[i].Subject), s.names.of(keys[i].Name)
		for _, a := range append(stint.Algorithms(), penalty) {
			c := subject.with(name, a)
			sh := s.lock(c)
			if x := sh.acquire(c); x != nil {
				sh.remove(x)
			}
			s.unlock(sh)
		}
	}
	return nil
}
