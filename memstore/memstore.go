// Package memstore is a [stint.Store] in this process's memory: exact, and
// made so that a decision costs little more than reading the clock.
//
// Counters lie inline in open-addressed tables, one for each shard, with no
// pointer in them for the collector to follow. A key is held as a 128-bit
// fingerprint under seeds drawn when the store is made, not as its text:
// among a billion live subjects the chance that any two share a counter is
// below 10^-20, and no one outside can look for such a pair.
//
// All asks of one Take are decided at one instant under the locks of all their
// shards, taken in order.
//
// # Bounds
//
// The store holds at most MaxKeys counters, in equal shares for each shard.
// Counters that have recovered are swept, a few slots at a time, by the calls
// that come in; there is no goroutine and no stop-the-world scan. When a new
// counter finds its shard full, the shard drops every counter that has
// recovered, or else the one nearest to recovery, which is counted in
// [Stats.Evicted]: its client starts anew. As keys never spread perfectly
// evenly, that begins at a little over nine tenths of MaxKeys. A sliding_log
// also holds up to 32 bytes for each unit of its max.
//
// # What it refuses to do
//
// It persists nothing and shares nothing with other processes. It does not
// look at contexts: there is nothing to wait for.
package memstore

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
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
	// Now replaces the clock, for tests. The default clock starts at the wall
	// time and from then on is monotonic: it does not follow when the wall
	// clock is set.
	Now func() time.Time
}

const defaultMaxKeys = 1 << 20

// Store is a [stint.Store] in memory.
type Store struct {
	now    func() time.Time // nil: start and the monotonic clock
	start  time.Time
	seeds  [3]maphash.Seed
	shards []shard
	shift  uint8 // the top 64-shift bits of a fingerprint name its shard
	closed atomic.Bool
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
	// Shards are small enough that searching one for a victim or growing one
	// takes microseconds, and few enough that their heads stay in cache.
	const perShard = 2048
	bit := bits.Len(uint(o.MaxKeys / perShard))
	if bit > 0 {
		bit-- // a power of two
	}
	s := &Store{
		now:    o.Now,
		start:  time.Now(),
		shards: make([]shard, 1<<bit),
		shift:  uint8(64 - bit),
	}
	for i := range s.seeds {
		s.seeds[i] = maphash.MakeSeed()
	}
	for i := range s.shards {
		s.shards[i].quota = o.MaxKeys / len(s.shards)
	}
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
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		out.Keys += sh.live
		out.Swept += sh.swept
		out.Evicted += sh.evicted
		sh.mu.Unlock()
	}
	return out
}

// Close makes all further calls fail with [stint.ErrClosed] and drops the
// counters.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.table = table{}
		sh.mu.Unlock()
	}
	return nil
}

func (s *Store) clock() time.Time {
	if s.now != nil {
		return s.now()
	}
	return s.start.Add(time.Since(s.start))
}

// id is a counter's fingerprint.
type id struct{ lo, hi uint64 }

func compareIDs(a, b id) int {
	return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo))
}

// fingerprint hashes the subject twice, under independent seeds, and folds the
// name and the algorithm into both.
func (s *Store) fingerprint(k *stint.Key, a stint.Algorithm) id {
	name := maphash.String(s.seeds[2], k.Name) + uint64(a)*0x9E3779B97F4A7C15
	return id{
		lo: maphash.String(s.seeds[0], k.Subject) + name,
		hi: maphash.String(s.seeds[1], k.Subject) ^ name*0xC2B2AE3D27D4EB4F,
	}
}

// shardOf is monotone in the fingerprint's order, so that asks sorted by
// fingerprint lock their shards in order.
func (s *Store) shardOf(c id) *shard { return &s.shards[c.hi>>s.shift] }

// Take implements [stint.Store].
func (s *Store) Take(_ context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	if s.closed.Load() {
		return nil, stint.ErrClosed
	}
	if len(asks) == 1 {
		return s.takeOne(&asks[0])
	}
	return s.takeAll(asks)
}

func (s *Store) takeOne(a *stint.Ask) ([]stint.Decision, error) {
	c := s.fingerprint(&a.Key, a.Limit.Algorithm)
	sh := s.shardOf(c)
	now := s.clock()
	sh.mu.Lock()
	i, found := sh.find(c)
	next, log := sh.counter(i, found)
	out := decisions(1)
	a.Limit.TakeIn(&next, log, now, a.Cost, &out[0])
	if out[0].Allowed && a.Cost > 0 {
		if !found {
			i = sh.insert(c, now)
		}
		sh.commit(i, a, &next)
	}
	sh.tick(now)
	sh.mu.Unlock()
	if out[0].Limit == 0 { // no valid limit has no capacity
		return nil, invalid(a)
	}
	return out, nil
}

// spare holds room for decisions, cut off a piece at a time, so that a take
// allocates nothing but every 128th.
var spare = sync.Pool{New: func() any { return new([]stint.Decision) }}

func decisions(n int) []stint.Decision {
	const piece = 128
	p := spare.Get().(*[]stint.Decision)
	if n > len(*p) {
		*p = make([]stint.Decision, max(n, piece))
	}
	out := (*p)[:n:n]
	*p = (*p)[n:]
	spare.Put(p)
	return out
}

func invalid(a *stint.Ask) error {
	if err := a.Validate(); err != nil {
		return err
	}
	return fmt.Errorf("memstore: no answer for %v", a.Limit) // not reached: valid asks have one
}

// item is an ask on its way through takeAll or Adjust.
type item struct {
	id    id
	ask   int
	slot  int
	found bool
	twin  bool // the item before it asks the same counter
	next  stint.State
}

// few is how many asks are worked on without allocating.
const few = 8

// plan returns the asks in the order of their counters, which is the order of
// their shards too; asks on one counter stay in their own order.
func (s *Store) plan(items []item, asks []stint.Ask) []item {
	for i := range asks {
		items = append(items, item{id: s.fingerprint(&asks[i].Key, asks[i].Limit.Algorithm), ask: i})
	}
	slices.SortFunc(items, func(a, b item) int {
		return cmp.Or(compareIDs(a.id, b.id), cmp.Compare(a.ask, b.ask))
	})
	for i := 1; i < len(items); i++ {
		items[i].twin = items[i].id == items[i-1].id
	}
	return items
}

func (s *Store) lock(items []item) {
	var last *shard
	for i := range items {
		if sh := s.shardOf(items[i].id); sh != last {
			sh.mu.Lock()
			last = sh
		}
	}
}

func (s *Store) unlock(items []item) {
	var last *shard
	for i := range items {
		if sh := s.shardOf(items[i].id); sh != last {
			sh.mu.Unlock()
			last = sh
		}
	}
}

func (s *Store) takeAll(asks []stint.Ask) ([]stint.Decision, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	var buf [few]item
	items := s.plan(buf[:0], asks)
	now := s.clock()
	s.lock(items)
	defer s.unlock(items)

	out := decisions(len(asks))
	allowed := true
	for k := range items {
		it := &items[k]
		a, sh := &asks[it.ask], s.shardOf(it.id)
		d := &out[it.ask]
		switch {
		case it.twin:
			it.slot, it.found = items[k-1].slot, items[k-1].found
			it.next, *d = a.Limit.Take(items[k-1].next, now, a.Cost)
		case k+1 < len(items) && items[k+1].twin:
			// A twin needs the whole next state, of a log too.
			it.slot, it.found = sh.find(it.id)
			it.next, *d = a.Limit.Take(sh.state(it.slot, it.found), now, a.Cost)
		default:
			it.slot, it.found = sh.find(it.id)
			next, log := sh.counter(it.slot, it.found)
			a.Limit.TakeIn(&next, log, now, a.Cost, d)
			it.next.Counter = next
		}
		if d.Limit == 0 {
			return nil, invalid(a)
		}
		allowed = allowed && d.Allowed
	}
	if !allowed {
		s.standing(items, asks, out, now)
		return out, nil
	}
	// What has a slot is written in place; then the rest is inserted, which
	// moves slots.
	for _, place := range [...]bool{true, false} {
		for k := range items {
			it := &items[k]
			a := &asks[it.ask]
			last := k+1 == len(items) || !items[k+1].twin
			charged := a.Cost > 0 || (it.twin && it.next.Until != 0)
			if it.found != place || !last || !charged {
				continue
			}
			sh := s.shardOf(it.id)
			if !it.found {
				it.slot = sh.insert(it.id, now)
			}
			if it.twin {
				sh.put(it.slot, it.next)
			} else {
				sh.commit(it.slot, a, &it.next.Counter)
			}
		}
	}
	s.shardOf(items[0].id).tick(now)
	return out, nil
}

// standing turns the decisions of asks that would have passed, had another not
// been denied, into descriptions of their counters as they are.
func (s *Store) standing(items []item, asks []stint.Ask, out []stint.Decision, now time.Time) {
	for k := range items {
		it := &items[k]
		if d := &out[it.ask]; d.Allowed {
			c, log := s.shardOf(it.id).counter(it.slot, it.found)
			asks[it.ask].Limit.TakeIn(&c, log, now, 0, d)
			d.Allowed = true
		}
	}
}

// Adjust implements [stint.Store].
func (s *Store) Adjust(_ context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	if s.closed.Load() {
		return nil, stint.ErrClosed
	}
	for i := range asks {
		if err := asks[i].Limit.Validate(); err != nil {
			return nil, err
		}
	}
	var buf [few]item
	items := s.plan(buf[:0], asks)
	now := s.clock()
	s.lock(items)
	defer s.unlock(items)
	out := make([]stint.Decision, len(asks))
	for k := range items {
		it := &items[k]
		a, sh := &asks[it.ask], s.shardOf(it.id)
		slot, found := sh.find(it.id)
		next, d := a.Limit.Adjust(sh.state(slot, found), now, a.Cost)
		out[it.ask] = d
		switch {
		case a.Cost == 0:
		case next.Until == 0:
			if found {
				sh.remove(slot)
			}
		default:
			if !found {
				slot = sh.insert(it.id, now)
			}
			sh.put(slot, next)
		}
	}
	return out, nil
}

// Reset implements [stint.Store].
func (s *Store) Reset(_ context.Context, keys ...stint.Key) error {
	if s.closed.Load() {
		return stint.ErrClosed
	}
	for i := range keys {
		for _, a := range stint.Algorithms() {
			c := s.fingerprint(&keys[i], a)
			sh := s.shardOf(c)
			sh.mu.Lock()
			if slot, found := sh.find(c); found {
				sh.remove(slot)
			}
			sh.mu.Unlock()
		}
	}
	return nil
}
