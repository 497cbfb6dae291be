// Package redisstore holds counters in Redis, shared by any number of
// processes: one server, a primary that Sentinels watch over, or a Cluster.
//
//	store, err := redisstore.Open("redis://localhost:6379", redisstore.Options{})
//
// Every decision of up to 128 asks is one atomic call of one Lua script, by Redis'
// own clock. The script judges and charges; it answers with the states as it found
// them, and the decisions are made from those by the functions of package stint. So
// there are two implementations of the arithmetic, and only one of what is told to
// clients; the conformance suite holds the first to the second, to the bit.
//
// # Group commit
//
// Requests that arrive while a call is on its way travel together in the next
// one, as groups that are decided one after another, each for itself. Equal
// requests become one group with a count, of which the first that fit pass, so a
// counter that everyone wants is read, judged and written once per call. A
// request that comes alone is sent at once. A call is bounded so that it holds
// Redis for about a quarter of a millisecond at most.
//
// In a Cluster only counters of one slot can be in one call. All counters of a
// subject are. A take over several slots is one call to each; if one of them
// denies, what the others charged is taken back. Meanwhile those units are not
// available to others: a concurrent take may be denied that need not have been.
// None is admitted that should not be.
//
// A take of more than 128 asks is several calls in the same way, on one server too,
// and no more than 128 asks are on their way at once: in one call, a thousand would
// keep everyone else waiting for several milliseconds. Only the asks of one counter,
// and a penalty with those it answers for, are never apart, however many they are.
//
// # State
//
// A counter is one key, prefix:{subject}:name:algorithm, of type string, whose
// time to live is the counter's recovery and a second; it is set by every write that
// changes when that is, and by every other ask that finds it missing. Its value is binary: 12 bytes for windows
// of whole seconds with counts below 65,536, and for buckets that are full again
// within an hour and whose max divides the microseconds of their window; 28 for
// everything else but logs and penalties.
// Redis' memory comes in steps, so nothing in between would save anything. With a
// key of 24 bytes, by MEMORY USAGE, and in instructions of the server for reading
// and writing the numbers once, out of about 23,000 for an ask of a window in a full
// call and 27,000 of a bucket:
//
//	               bytes  instructions
//	binary, 12        88         3,200
//	binary, 28       104         3,700
//	decimal text     120        20,500
//	a hash           120        16,700 for its two commands, where a string's
//	                            take 13,700, and the numbers are still text
//
// # Beside the counters
//
// [Store.Side] is for programs that have more to share than counters: values that may
// vanish, messages that may be lost, and who is present. Its keys are others than
// those of counters, and messages come over connections of their own.
//
// # What it refuses
//
// It does not retry what may have been applied: a take that timed out is an
// error, [stint.ErrUnavailable], and may have been charged. It has no fallback and
// no circuit breaker; those are layers. It never reads a caller's clock to
// decide, and never touches a key that it did not declare to Redis.
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
)

// MaxAsks is the most asks in one Take or Adjust.
const MaxAsks = 4096

// wholeAsks is the most asks that are decided in one call, if there is a choice, so
// that none holds Redis for much longer than a millisecond.
const wholeAsks = 128

// Options are what a URL cannot say.
type Options struct {
	// Now replaces Redis' clock. It is for tests: processes whose clocks differ
	// would not agree on what a window is.
	Now func() time.Time
}

// Store is a [stint.Store] in Redis.
type Store struct {
	config config
	now    func() time.Time // nil: Redis' clock
	wall   func() time.Time // to guess which calendar window it is
	skew   atomic.Int64     // what to add to wall, in microseconds
	client atomic.Pointer[rueidis.Client]
	why    atomic.Pointer[error] // there is no client

	lanes []atomic.Pointer[lane] // one, or one for each slot

	base     context.Context
	cancel   context.CancelFunc
	deadline *deadline.Shared // of a call

	open   sync.RWMutex // held by calls, so that Close can wait for them
	closed bool
	work   sync.WaitGroup

	requests, calls sync.Pool
	stats           counts
}

var _ stint.Store = (*Store)(nil)

// Open returns a store on the Redis that the URL names; docs/redis-url.md says
// how. It fails only if the URL is wrong. A Redis that is not there yet is
// waited for: until then every call returns [stint.ErrUnavailable], as it does
// whenever Redis is out of reach.
func Open(url string, o Options) (*Store, error) {
	c, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	return open(c, o), nil
}

func open(c config, o Options) *Store {
	s := &Store{config: c, now: o.Now, wall: time.Now}
	s.lanes = make([]atomic.Pointer[lane], 1)
	if c.topology == cluster {
		s.lanes = make([]atomic.Pointer[lane], slots)
	}
	s.requests.New = func() any { return &request{done: make(chan struct{}, 1)} }
	s.calls.New = func() any { return newCall() }
	s.base, s.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // the store's own life, which no call's context bounds
	s.deadline = deadline.New(s.base, c.timeout)
	if !s.connect() {
		s.work.Go(s.reconnect)
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
	return s.decide(ctx, adjust, asks, ds)
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
	if len(asks) <= wholeAsks && s.oneSlot(asks) {
		if err := s.do(ctx, s.lane(r.items[0].key), r); err != nil {
			return err // the request may still be on its way
		}
	} else if err := s.scatter(ctx, r); err != nil {
		return err
	}
	err := r.err
	if err == nil {
		copy(ds, r.out)
	}
	s.recycle(r)
	return err
}

// newRequest copies the asks: a caller may stop waiting and use them again.
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
		if it.penalty = a.Penalty; it.penalty != nil {
			it.guarded = i - stint.Guarded(asks, i)
		} else if !a.Compiled() {
			it.plan, _ = a.Limit.Compile() // it is valid
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
	return append(text, suffixes[a.Limit.Algorithm]...)
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
	r.items, r.ends, r.out, r.err, r.charges, r.ctx = r.items[:0], r.ends[:0], r.out[:0], nil, nil, nil
	s.requests.Put(r)
}

// wait waits for the answer, as long as the caller does.
func (r *request) wait(ctx context.Context) error {
	if ctx.Done() == nil { // a select of one costs more
		<-r.done
		return nil
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}
}

// within runs f, unless the store is closed, for as long as an answer may take.
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

// Reset implements [stint.Store].
func (s *Store) Reset(ctx context.Context, asks []stint.Ask) error {
	for i := range asks {
		if a := &asks[i]; a.Penalty == nil && int(a.Limit.Algorithm) >= len(suffixes) {
			return a.Limit.Validate()
		}
	}
	return s.within(ctx, func(ctx context.Context) error {
		for chunk := range slices.Chunk(asks, wholeAsks) {
			keys := make([]string, len(chunk))
			for i := range chunk {
				keys[i] = string(s.appendKey(nil, &chunk[i]))
			}
			if err := s.erase(ctx, keys); err != nil {
				return err
			}
		}
		return nil
	})
}

// erase deletes keys, each in a command of its own: in a cluster they may be on the
// move, and are in several slots.
func (s *Store) erase(ctx context.Context, keys []string) error {
	return s.retry(ctx, func(client rueidis.Client) error {
		var cmds []rueidis.Completed
		for _, key := range keys {
			cmds = append(cmds, client.B().Del().Key(key).Build())
		}
		for _, res := range client.DoMulti(ctx, cmds...) {
			if err := res.Error(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Ping reports whether decisions can be made now: it runs the script, without
// asks, and deletes a counter that does not exist, which a server that may not
// write refuses.
func (s *Store) Ping(ctx context.Context) error {
	c := newCall()
	c.encode(redisClock, nil)
	none := s.config.prefix + ":{}" + suffixes[stint.SlidingWindow]
	return s.within(ctx, func(ctx context.Context) error {
		return s.retry(ctx, func(client rueidis.Client) error {
			answer, err := s.eval(ctx, client, nil, string(c.blob)).ToMessage()
			if err == nil {
				err = c.decode(answer)
			}
			if err != nil {
				return err
			}
			return client.Do(ctx, client.B().Del().Key(none).Build()).Error()
		})
	})
}

// Close implements [stint.Store]. Calls that are on their way fail.
func (s *Store) Close() error {
	s.cancel()
	s.open.Lock()
	closed := s.closed
	s.closed = true
	s.open.Unlock()
	s.work.Wait()
	if client := s.client.Load(); client != nil && !closed {
		(*client).Close()
	}
	return nil
}

// unavailable is an error that says that Redis is out of reach, and why. What was
// asked may have been done.
func unavailable(cause error) error {
	return fmt.Errorf("%w: redis: %w", stint.ErrUnavailable, cause)
}

// untouched is an error that also says that nothing was done.
func untouched(cause error) error {
	return fmt.Errorf("%w: redis: %w; %w", stint.ErrUnavailable, cause, stint.ErrNotApplied)
}

func (s *Store) newCall() *call { return s.calls.Get().(*call) }

// send makes the call and answers its requests.
func (s *Store) send(ctx context.Context, c *call) {
	s.stats.requests.Add(uint64(len(c.requests)))
	requests := c.requests
	reusable := s.run(ctx, c)
	for _, r := range requests {
		s.finish(ctx, r)
	}
	if reusable && len(c.counters) <= wholeAsks { // a large map is slow to clear, for ever
		c.reset()
		s.calls.Put(c)
	}
}

// finish ends a request whose call has returned.
func (s *Store) finish(ctx context.Context, r *request) {
	if tryAgain(r.err) {
		s.stats.retries.Add(1)
		if s.alone(ctx, r); tryAgain(r.err) { // what travelled with it was not to blame
			s.apart(ctx, r)
		}
	}
	if r.err != nil {
		r.out = nil
	}
	r.done <- struct{}{}
}

// alone sends the request in a call of its own.
func (s *Store) alone(ctx context.Context, r *request) {
	c := newCall()
	r.err = nil
	c.add(r)
	s.run(ctx, c)
}

// run makes the call, and others for those of its requests that need calendar
// windows around other times than was guessed. It reports whether the client is
// through with the call.
func (s *Store) run(ctx context.Context, c *call) (reusable bool) {
	near := []time.Time{s.wall().Add(time.Duration(s.skew.Load()) * time.Microsecond)}
	err := s.exec(ctx, c, near)
	reusable = err == nil
	// A request can ask for as many times as it has asks, and Redis' own.
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
			if tries > wholeAsks || len(near) >= mostNear {
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

// mostNear is how many times a call can name the calendar windows of.
const mostNear = 60

// exec makes the call.
func (s *Store) exec(ctx context.Context, c *call, near []time.Time) error {
	now := int64(redisClock)
	if s.now != nil {
		t := s.now()
		const last = 7258118400 * 1_000_000 // the year 2200, as the specification
		now = max(0, min(t.UnixMicro(), last))
		near = append(near, t)
	}
	c.encode(now, near)
	s.stats.calls.Add(1)
	return s.retry(ctx, func(client rueidis.Client) error {
		answer, err := s.eval(ctx, client, c.keys, rueidis.BinaryString(c.blob)).ToMessage()
		if err != nil {
			return err
		}
		return c.decode(answer)
	})
}
