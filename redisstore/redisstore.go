// Package redisstore keeps counters in Redis, shared by any number of processes. Redis can be
// one server, a primary monitored by Sentinels, a Cluster, or a ring of independent servers.
//
//	store, err := redisstore.Open("redis://localhost:6379", redisstore.Options{})
//
// [New] makes the same calls with a go-redis client of the program's own.
//
// Every decision of up to 128 asks is one atomic call of one Lua script, and uses the clock of
// Redis. The script checks and charges, and returns the states that it found. From these,
// package stint computes the decisions. So the arithmetic exists twice, but decisions are made
// by one implementation. The conformance suite checks that both agree to the bit.
//
// # Group commit
//
// Requests that arrive while a call is in flight share the next call. Equal requests form one
// group with a count, so a popular counter is read, checked and written once per call. The
// script decides the groups one after another. A request that arrives alone is sent at once.
// Calls are kept small enough to block Redis for about a quarter of a millisecond at most.
//
// In a Cluster, a call can only use counters of one slot. All counters of a subject are in one
// slot. A take over several slots makes one call for each. If one of them denies, the charges
// of the others are undone, as if they had not been made ([stint.Limit.Amend]). Until then those units are not available, so a concurrent take may
// be denied unnecessarily. No take is ever allowed that should be denied.
//
// In a ring, which server has a subject is computed from its slot and the servers' names. A call can
// only use counters of one server, and a take over several is like one over several slots.
//
// A take of more than 128 asks is split the same way, even on one server, with at most 128 asks
// in flight: a single call of a thousand asks would block Redis for several milliseconds. Asks
// of the same counter stay in one call, however many there are, and so does a penalty with the
// asks it guards.
//
// # State
//
// A counter is one string key, prefix:{subject}:name:kind, where the kind is the algorithm and
// the window, such as sw1h ([stint.Limit.AppendKind]). It expires one second after the counter
// recovers. A write that changes the recovery also sets the time to live, and every
// other ask restores it if it is missing.
//
// Marks are kept beside a counter, as long as its charges may be changed: its key and ! say that
// it was reset, and when; its key, ! and an ID that the change with that ID was made. They have
// the counter's slot, and are read only by changes of charges.
//
// The value is binary. It has 12 bytes for windows of whole seconds with counts below 65,536,
// and for buckets that are full again within an hour and whose max divides the microseconds of
// their window. Other counters have 28 bytes, except logs, holds and penalties, which vary. Redis
// allocates memory in steps, so a size in between would save nothing. The table shows MEMORY
// USAGE for a key of 24 bytes, and the server's instructions for reading and writing the numbers
// once. An ask in a full call takes about 23,000 instructions for a window, and 27,000 for a
// bucket.
//
//	               bytes  instructions
//	binary, 12        88         3,200
//	binary, 28       104         3,700
//	decimal text     120        20,500
//	a hash           120        16,700 for its two commands, where a string's
//	                            take 13,700, and the numbers are still text
//
// # Other data
//
// [Store.Side] is for programs that share more than counters: a cache, messages, and a list of
// the nodes that are present. It uses other keys than counters do, and other connections for
// messages.
//
// # What it does not do
//
// It does not retry a call that may have been applied: a take that timed out returns
// [stint.ErrUnavailable], and may have been charged. It has no fallback and no circuit breaker;
// package layer has them. It never decides by the caller's clock, and its script uses no keys
// other than those in KEYS.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/deadline"
	"github.com/stintdev/stint/internal/kit/pulse"
	"github.com/stintdev/stint/internal/kit/slot"
)

// MaxAsks is the most asks in one Take or Adjust.
const MaxAsks = 4096

// wholeAsks is the most asks in one call, where they can be split, so that no call blocks Redis
// for much longer than a millisecond.
const wholeAsks = 128

// Options are settings that are not part of the URL.
type Options struct {
	// Now replaces the clock of Redis, for tests: processes with different clocks would not
	// agree on windows.
	Now func() time.Time
}

// Store is a [stint.Store] in Redis.
type Store struct {
	config config
	script script
	now    func() time.Time // nil: the clock of Redis
	wall   func() time.Time // to guess the current calendar window
	skew   atomic.Int64     // microseconds by which Redis is ahead of wall

	links   []*link                // one, or one for each server of a ring
	lanes   []atomic.Pointer[lane] // one, or one for each slot of a Cluster or server of a ring
	ring    *placement             // nil: it is no ring
	servers atomic.Pointer[servers]

	handover atomic.Pointer[string] // the address of a primary that sentinels are replacing, or nil

	base     context.Context
	cancel   context.CancelFunc
	deadline *deadline.Shared // of a call

	open   sync.RWMutex // held by calls, so that Close can wait for them
	closed bool
	work   sync.WaitGroup

	queue           *queue
	pulse           *pulse.Pulse
	requests, calls sync.Pool
	stats           counts
}

var _ stint.Store = (*Store)(nil)

// Open returns a store for a Redis URL, which docs/redis-url.md describes. It fails only if the
// URL is wrong. If Redis cannot be reached, the store keeps trying to connect, and calls return
// [stint.ErrUnavailable] until it has.
func Open(url string, o Options) (*Store, error) {
	c, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	return open(c, o), nil
}

func open(c config, o Options) *Store {
	s := &Store{config: c, script: byRedis, now: o.Now, wall: time.Now, pulse: pulse.New(), queue: newQueue(laneQueue)}
	if o.Now != nil {
		s.script = byOther()
	}
	lanes := 1
	switch c.topology {
	case cluster:
		lanes = slot.Count
	case ring:
		s.ring = newPlacement(&c)
		lanes = len(s.ring.addrs)
	case single, sentinel:
	}
	s.lanes = make([]atomic.Pointer[lane], lanes)
	s.requests.New = func() any { return &request{done: make(chan struct{}, 1)} }
	s.calls.New = func() any { return newCall() }
	s.base, s.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // lives as long as the store
	s.deadline = deadline.New(s.base, c.timeout)
	s.servers.Store(s.firstServers())
	s.connectAll()
	switch {
	case c.own != nil:
	case c.topology == cluster:
		s.work.Go(s.follow)
	case c.topology == sentinel:
		for _, addr := range c.addrs {
			s.work.Go(func() { s.hear(addr) })
		}
	}
	return s
}

// Take implements [stint.Store].
func (s *Store) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := stint.ValidateTake(asks, ds); err != nil {
		return err
	}
	return s.decide(ctx, take, asks, ds)
}

// Adjust implements [stint.Store].
func (s *Store) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := stint.ValidateAdjust(asks, ds); err != nil {
		return err
	}
	for i := range asks {
		if c := asks[i].Charge; c != nil {
			mark := counterMark(string(s.appendKey(nil, &asks[i])))
			if err := c.ValidateFor(mark, c.At); err != nil { // only Redis knows whether it is in the future
				return err
			}
		}
	}
	return s.decide(ctx, adjust, asks, ds)
}

// counterMark returns what tells charges of a counter from those of others: a hash of its key, FNV-1a.
func counterMark(key string) uint32 {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return h
}

func (s *Store) decide(ctx context.Context, k kind, asks []stint.Ask, ds []stint.Decision) error {
	s.open.RLock()
	defer s.open.RUnlock()
	switch {
	case s.closed:
		return stint.ErrClosed
	case len(asks) == 0:
		return nil
	case len(asks) > MaxAsks:
		return &stint.InvalidError{
			Field: "asks", Value: strconv.Itoa(len(asks)),
			Want: "at most " + strconv.Itoa(MaxAsks) + " in one take or adjustment",
		}
	}
	err := s.answer(ctx, k, asks, ds)
	if err != nil {
		s.stats.count(err)
	}
	return err
}

func (s *Store) answer(ctx context.Context, k kind, asks []stint.Ask, ds []stint.Decision) error {
	r := s.newRequest(k, asks)
	r.ctx = ctx
	if place, ok := s.onePlace(asks, r.items); ok && len(asks) <= wholeAsks {
		r.place = place
		if err := s.do(ctx, r); err != nil {
			return err // the request may still be in flight, so it is not recycled
		}
	} else if err := s.scatter(ctx, r); err != nil {
		return err
	}
	err := r.err
	if err == nil {
		copy(ds, r.out)
		for i := range ds {
			ds[i].Counter = counterMark(r.items[i].key)
		}
	}
	s.recycle(r)
	return err
}

// newRequest copies the asks, since a caller that stops waiting may reuse them.
func (s *Store) newRequest(k kind, asks []stint.Ask) *request {
	r := s.requests.Get().(*request)
	r.kind = k
	var buf [256]byte
	text := buf[:0]
	for i := range asks {
		text = s.appendKey(text, &asks[i])
		r.ends = append(r.ends, len(text))
	}
	all, start := string(text), 0 // one allocation for all keys
	for i := range asks {
		a := &asks[i]
		it := item{key: all[start:r.ends[i]], limit: a.Limit, plan: a.Plan, cost: a.Cost}
		if a.Charge != nil {
			it.charge = *a.Charge
		}
		if it.penalty = a.Penalty; it.penalty != nil {
			it.guarded = i - stint.Guarded(asks, i)
		} else if !a.Compiled() {
			it.plan, _ = a.Limit.Compile() // it was validated
		}
		r.items = append(r.items, it)
		start = r.ends[i]
	}
	if k == take && repeats(r.items) {
		r.kind = twins
	}
	return r
}

// appendKey appends the key of the ask's counter in Redis.
func (s *Store) appendKey(text []byte, a *stint.Ask) []byte {
	text = a.Key.Append(append(append(text, s.config.prefix...), ':'))
	if a.Penalty != nil {
		return append(text, penaltySuffix...)
	}
	return a.Limit.AppendKind(append(text, ':'))
}

// repeats reports whether a counter is asked more than once.
func repeats(items []item) bool {
	if len(items) > wholeAsks {
		keys := make(map[string]struct{}, len(items))
		for i := range items {
			keys[items[i].key] = struct{}{}
		}
		return len(keys) < len(items)
	}
	for i := range items {
		for j := range i {
			if items[i].key == items[j].key {
				return true
			}
		}
	}
	return false
}

func (s *Store) recycle(r *request) {
	clear(r.items)
	r.items, r.ends, r.out, r.err, r.before, r.ctx, r.other, r.bare = r.items[:0], r.ends[:0], r.out[:0], nil, nil, nil, false, false
	s.requests.Put(r)
}

// within runs f with the URL's timeout, unless the store is closed.
func (s *Store) within(ctx context.Context, f func(context.Context) error) error {
	s.open.RLock()
	defer s.open.RUnlock()
	if s.closed {
		return stint.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.timeout)
	defer cancel()
	return f(ctx)
}

// Reset implements [stint.Store]. In a cluster, the counters of one slot are forgotten at once.
func (s *Store) Reset(ctx context.Context, asks []stint.Ask) error {
	for chunk := range slices.Chunk(asks, wholeAsks) {
		named := slices.Clone(chunk)
		for i := range named {
			a := &named[i]
			if a.Charge = nil; a.Penalty == nil {
				// Any limit of this algorithm and window has the same counter.
				a.Limit = stint.Limit{Algorithm: a.Limit.Algorithm, Max: 1, Window: a.Limit.Window}
				if err := a.Limit.Validate(); err != nil {
					return err
				}
			}
		}
		if err := s.decide(ctx, reset, named, nil); err != nil {
			return err
		}
	}
	return s.alive()
}

// alive returns [stint.ErrClosed] if the store is closed.
func (s *Store) alive() error {
	s.open.RLock()
	defer s.open.RUnlock()
	if s.closed {
		return stint.ErrClosed
	}
	return nil
}

// Close implements [stint.Store]. Calls in flight fail.
func (s *Store) Close() error {
	s.cancel()
	s.open.Lock()
	closed := s.closed
	s.closed = true
	s.open.Unlock()
	s.work.Wait()
	s.pulse.Close()
	for _, l := range s.links {
		if client := l.client.Load(); client != nil && !closed {
			(*client).Close()
		}
	}
	return nil
}

// unavailable returns an error for a call that failed, but may have been applied.
func unavailable(cause error) error {
	return fmt.Errorf("%w: redis: %w", stint.ErrUnavailable, cause)
}

// notApplied returns an error for a call that failed and was not applied.
func notApplied(cause error) error {
	return fmt.Errorf("%w: redis: %w; %w", stint.ErrUnavailable, cause, stint.ErrNotApplied)
}

func (s *Store) newCall() *call { return s.calls.Get().(*call) }

// send sends the call and answers its requests.
func (s *Store) send(ctx context.Context, c *call) {
	s.stats.requests.Add(uint64(len(c.requests)))
	requests := c.requests
	reusable := s.run(ctx, c)
	for _, r := range requests {
		s.finish(ctx, r)
	}
	if reusable && len(c.counters) <= wholeAsks { // a map that was large stays slow to clear
		c.reset()
		s.calls.Put(c)
	}
}

// finish answers a request whose call has returned. While its slot is migrated it is tried again.
func (s *Store) finish(ctx context.Context, r *request) {
	if tryAgain(r.err) {
		s.stats.retries.Add(1)
		switch s.sendAlone(ctx, r); {
		case !tryAgain(r.err): // it was another request of the call
		case slices.ContainsFunc(r.items, func(it item) bool { return it.key != r.items[0].key }):
			s.decideByCounter(ctx, r)
		case !slices.ContainsFunc(r.items, func(it item) bool { return it.charge.ID != "" }):
			// Its mark is not where its counter is. Whether the counter was reset cannot be known then.
			r.bare = true
			s.sendAlone(ctx, r)
		default:
			r.err = notApplied(r.err)
		}
	}
	if r.err != nil {
		r.out = nil
	}
	r.done <- struct{}{}
}

// sendAlone sends the request in a call of its own.
func (s *Store) sendAlone(ctx context.Context, r *request) {
	c := newCall()
	r.err = nil
	c.add(r)
	s.run(ctx, c)
}

// run sends the call, and further calls for requests that need calendar windows around other
// times than guessed. It reports whether the call can be reused: after an error the client may
// still be using it.
func (s *Store) run(ctx context.Context, c *call) (reusable bool) {
	near := []time.Time{s.wall().Add(time.Duration(s.skew.Load()) * time.Microsecond)}
	err := s.exec(ctx, c, near)
	reusable = err == nil
	// A request may need windows around one time for each ask, and around the time of Redis.
	for tries := 0; ; tries++ {
		var more *call
		for _, r := range c.requests {
			if r.err == nil {
				r.err = err
			}
			var edges *edgesError
			if r.err == nil || !errors.As(r.err, &edges) {
				continue
			}
			r.err = unavailable(edges)
			if tries > wholeAsks || len(near) >= maxNear {
				continue
			}
			if more == nil {
				more = newCall()
			}
			if more.add(r) {
				r.err = nil
				if t := time.UnixMicro(edges.at); !slices.ContainsFunc(near, t.Equal) {
					near = append(near, t)
				}
				s.skew.Store(edges.now - s.wall().UnixMicro())
			}
		}
		if more == nil {
			return reusable
		}
		c, err = more, s.exec(ctx, more, near)
	}
}

// maxNear is how many times a call can have calendar windows for.
const maxNear = 60

// exec sends the call and decodes the reply.
func (s *Store) exec(ctx context.Context, c *call, near []time.Time) error {
	now := int64(redisClock)
	if s.now != nil {
		t := s.now()
		const last = 7258118400 * 1_000_000 // the year 2200, as in package stint
		now = max(0, min(t.UnixMicro(), last))
		near = append(near, t)
	}
	c.encode(now, near)
	s.stats.calls.Add(1)
	if s.config.own != nil {
		return s.repeat(ctx, func() error {
			answer, err := s.evalOwn(ctx, c.keys, c.blob)
			if err != nil {
				return err
			}
			return c.decode(answer)
		})
	}
	return s.retry(ctx, s.link(c.requests[0].place), func(client rueidis.Client) error {
		answer, err := s.eval(ctx, client, c.keys, rueidis.BinaryString(c.blob)).ToMessage()
		if err != nil {
			return err
		}
		return c.decode(message{of: &answer})
	})
}
