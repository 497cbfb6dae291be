package layer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/pulse"
)

// BreakerOptions are the options of [Breaker]. Zero values mean defaults.
type BreakerOptions struct {
	// Failures is how many calls in a row may fail. Default 5.
	Failures int
	// Rate is the share of the calls in the last Window that may fail, once there have been
	// at least Least calls. Defaults 0.5, 10 s and 20.
	Rate   float64
	Window time.Duration
	Least  int
	// Slow is how long a call may take before it counts as failed; its result is used all the
	// same. Time in which this process did not run does not count. Default 40 ms; negative: no
	// limit.
	Slow time.Duration
	// Probe is the average pause between two probes while the breaker is open. Actual pauses are
	// random, from half of it to one and a half. Default 300 ms.
	Probe time.Duration
	// Probes is how many probes in a row must succeed before the breaker closes. After one that
	// succeeds, the next follows at once. Default 3.
	Probes int
	// Random is as in [RetryOptions].
	Random func(time.Duration) time.Duration
	// Server returns the name of the server that has the counter of an ask, if the store has
	// several: each then has a breaker of its own. It is called for every ask, so it must be fast.
	// The error of a call to several servers should say which of them have failed, by a method
	// FailedServers() []string; otherwise all of them have. Nil: there is one server.
	Server func(*stint.Ask) string
	// OnChange is called for every change of state, in order. It must not call the store.
	OnChange func(Change)
}

// State is the state of a breaker.
type State uint8

const (
	// BreakerClosed lets all calls through.
	BreakerClosed State = iota
	// BreakerOpen lets none through.
	BreakerOpen
)

// String returns the state's name.
func (s State) String() string {
	if s == BreakerClosed {
		return "closed"
	}
	return "open"
}

// Change is a change of a breaker's state.
type Change struct {
	Server string // as BreakerOptions.Server names it
	To     State
	Reason string
}

// ErrOpen is wrapped by the error of a call that a breaker has rejected.
var ErrOpen = errors.New("breaker open")

var errOpen = fmt.Errorf("%w: %w; %w", stint.ErrUnavailable, ErrOpen, stint.ErrNotApplied)

// Breaker stops calling a store that fails or is slow. While it is open, it probes the store in the
// background, with takes of a counter of its own, and closes as soon as they succeed: no caller waits
// for a store that may be down, and none is needed to find out that it is back. There is one probe at a
// time for each server, however many callers there are, so n nodes send a server at most n / Probe takes
// a second while it fails.
//
// Only errors that wrap [stint.ErrUnavailable] are failures. A call that the caller has cancelled does
// not count. If the caller's deadline has passed, or this process was stalled during the call, the call
// is a failure only if it was given some time: a quarter of Slow, or half of it after a stall.
//
// If the store has several servers, each has its own breaker. A call that needs a server whose breaker
// is open is rejected as a whole.
func Breaker(next stint.Store, o BreakerOptions) (stint.Store, error) {
	if o.Failures == 0 {
		o.Failures = 5
	}
	if o.Rate == 0 {
		o.Rate = 0.5
	}
	if o.Window == 0 {
		o.Window = 10 * time.Second
	}
	if o.Least == 0 {
		o.Least = 20
	}
	if o.Slow == 0 {
		o.Slow = 40 * time.Millisecond
	}
	if o.Probe == 0 {
		o.Probe = 300 * time.Millisecond
	}
	if o.Probes == 0 {
		o.Probes = 3
	}
	if o.Random == nil {
		o.Random = rand.N[time.Duration]
	}
	switch {
	case o.Failures < 0:
		return nil, invalid("failures", o.Failures, "at least 1")
	case !(o.Rate > 0 && o.Rate <= 1):
		return nil, invalid("rate", o.Rate, "a share above 0, at most 1")
	case o.Window < time.Millisecond:
		return nil, invalid("window", o.Window, "at least a millisecond")
	case o.Least < 0:
		return nil, invalid("least", o.Least, "at least 1")
	case o.Probe < time.Millisecond:
		return nil, invalid("probe", o.Probe, "at least a millisecond")
	case o.Probes < 0:
		return nil, invalid("probes", o.Probes, "at least 1")
	}
	if err := Check(PlaceBreaker, next); err != nil {
		return nil, err
	}
	l := &breaker{next: next, o: o, pulse: pulse.New(), only: new(circuit)}
	l.ctx, l.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // lives until Close
	l.circuits.Store(&map[string]*circuit{})
	return l, nil
}

type breaker struct {
	next  stint.Store
	o     BreakerOptions
	pulse *pulse.Pulse // the clock: it does not count time in which this process did not run

	only     *circuit                            // if there is one server
	circuits atomic.Pointer[map[string]*circuit] // by server; replaced, never changed

	mu     sync.Mutex // held for changes of state, and to add circuits
	closed atomic.Bool
	ctx    context.Context // of probes
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// pieces is how many pieces the window of a circuit has. It advances by one piece at a time.
const pieces = 10

// circuit is the breaker of one server.
type circuit struct {
	server string
	open   atomic.Bool
	row    atomic.Int64 // failures in a row

	begin atomic.Int64 // when the current piece began
	calls [pieces]piece
	at    atomic.Int32 // the current piece
	mu    sync.Mutex   // held to advance it
}

type piece struct{ good, bad atomic.Int64 }

func (*breaker) Place() Place { return PlaceBreaker }

func (l *breaker) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	r, err := l.enter(asks)
	if err != nil {
		return err
	}
	start := l.pulse.Read()
	err = l.next.Take(ctx, asks, ds)
	l.leave(ctx, start, r, err)
	return err
}

func (l *breaker) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	r, err := l.enter(asks)
	if err != nil {
		return err
	}
	start := l.pulse.Read()
	err = l.next.Adjust(ctx, asks, ds)
	l.leave(ctx, start, r, err)
	return err
}

func (l *breaker) Reset(ctx context.Context, asks []stint.Ask) error {
	r, err := l.enter(asks)
	if err != nil {
		return err
	}
	start := l.pulse.Read()
	err = l.next.Reset(ctx, asks)
	l.leave(ctx, start, r, err)
	return err
}

func (l *breaker) Close() error {
	l.mu.Lock()
	l.closed.Store(true)
	l.mu.Unlock()
	l.cancel()
	l.work.Wait()
	l.pulse.Close()
	return l.next.Close()
}

// route is the circuits of a call.
type route struct {
	first  *circuit
	others []*circuit // of a call to several servers
}

// enter returns the circuits of a call, or an error if one of them is open.
func (l *breaker) enter(asks []stint.Ask) (route, error) {
	if l.o.Server == nil || len(asks) == 0 {
		if l.only.open.Load() {
			return route{}, l.reject()
		}
		return route{first: l.only}, nil
	}
	var r route
	for i := range asks {
		c := l.circuit(l.o.Server(&asks[i]))
		if c.open.Load() {
			return route{}, l.reject()
		}
		switch {
		case r.first == nil:
			r.first = c
		case c != r.first && !slices.Contains(r.others, c):
			r.others = append(r.others, c)
		}
	}
	return r, nil
}

func (l *breaker) reject() error {
	if l.closed.Load() {
		return stint.ErrClosed
	}
	return errOpen
}

// circuit returns the circuit of a server.
func (l *breaker) circuit(server string) *circuit {
	if c := (*l.circuits.Load())[server]; c != nil {
		return c
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all := *l.circuits.Load()
	if c := all[server]; c != nil {
		return c
	}
	all = maps.Clone(all)
	const many = 1024 // servers come and go
	if len(all) >= many {
		maps.DeleteFunc(all, func(_ string, c *circuit) bool { return !c.open.Load() })
	}
	c := &circuit{server: server}
	all[server] = c
	l.circuits.Store(&all)
	return c
}

// result is what a call says about the store.
type result uint8

const (
	good   result = iota
	bad           // it failed
	slow          // it took too long
	silent        // nothing
)

// judge returns what a call says about the store, and how long it took.
func (l *breaker) judge(ctx context.Context, start pulse.Moment, err error) (result, time.Duration) {
	took, lost := l.pulse.Read().Since(start)
	isSlow := l.o.Slow > 0 && took > l.o.Slow
	failed := err != nil && unreachable(err)
	if failed {
		given := l.o.Slow // how long the store was given to answer
		if given <= 0 {
			given = 40 * time.Millisecond
		}
		switch {
		case canceled(ctx):
			failed = false
		case lost > 0:
			failed = took >= given/2
		case ctx.Err() != nil:
			failed = took >= given/4
		}
	}
	switch {
	case failed:
		return bad, took
	case isSlow:
		return slow, took
	case err != nil && (unreachable(err) || isInvalid(err)):
		return silent, took
	}
	return good, took
}

// leave records the result of a call.
func (l *breaker) leave(ctx context.Context, start pulse.Moment, r route, err error) {
	what, took := l.judge(ctx, start, err)
	now := start.Now + took
	if len(r.others) == 0 {
		l.record(r.first, now, what, took, err)
		return
	}
	var by interface{ FailedServers() []string }
	switch known := errors.As(err, &by); {
	case what == bad && known:
		for _, server := range by.FailedServers() {
			l.record(l.circuit(server), now, what, took, err)
		}
	case what == slow: // it is not known which
	default:
		l.record(r.first, now, what, took, err)
		for _, c := range r.others {
			l.record(c, now, what, took, err)
		}
	}
}

// record records the result of a call in a circuit.
func (l *breaker) record(c *circuit, now time.Duration, what result, took time.Duration, err error) {
	switch what {
	case silent:
	case good:
		if c.row.Load() != 0 {
			c.row.Store(0)
		}
		c.piece(now, l.o.Window).good.Add(1)
	case bad, slow:
		if reason := c.failed(now, &l.o, what, took, err); reason != "" {
			l.trip(c, reason)
		}
	}
}

// isInvalid reports whether the arguments were wrong, which says nothing about the store.
func isInvalid(err error) bool {
	var invalid *stint.InvalidError
	return errors.As(err, &invalid)
}

// piece returns the current piece of the window, after advancing it to now.
func (c *circuit) piece(now, window time.Duration) *piece {
	length := int64(window) / pieces
	begin, nanos := c.begin.Load(), int64(now)
	if nanos-begin < length {
		return &c.calls[c.at.Load()]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	begin = c.begin.Load()
	for n := 0; nanos-begin >= length && n < pieces; n++ {
		at := (c.at.Load() + 1) % pieces
		c.calls[at].good.Store(0)
		c.calls[at].bad.Store(0)
		c.at.Store(at)
		begin += length
	}
	c.begin.Store(max(begin, nanos-nanos%length))
	return &c.calls[c.at.Load()]
}

// failed records a call that failed or was slow. If there have been too many, it returns a reason to
// open the circuit.
func (c *circuit) failed(now time.Duration, o *BreakerOptions, how result, took time.Duration, err error) string {
	row := c.row.Add(1)
	c.piece(now, o.Window).bad.Add(1)
	var good, bad int64
	for i := range c.calls {
		good += c.calls[i].good.Load()
		bad += c.calls[i].bad.Load()
	}
	what := "failed"
	if how == slow {
		what, err = "took too long", fmt.Errorf("the last took %v", took.Round(time.Millisecond))
	}
	switch {
	case row >= int64(o.Failures):
		return fmt.Sprintf("%d calls in a row %s: %v", row, what, err)
	case good+bad >= int64(o.Least) && float64(bad) >= o.Rate*float64(good+bad):
		return fmt.Sprintf("%d of %d calls %s: %v", bad, good+bad, what, err)
	}
	return ""
}

// trip opens a circuit if it is closed, and starts to probe its server.
func (l *breaker) trip(c *circuit, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() || c.open.Load() {
		return
	}
	l.change(c, BreakerOpen, reason)
	l.work.Go(func() {
		if reason := l.probe(c); reason != "" {
			l.mend(c, reason)
		}
	})
}

// probe probes a server until it is back, and returns a reason to close its circuit. After Close it
// returns none.
func (l *breaker) probe(c *circuit) string {
	ask := []stint.Ask{{Limit: stint.Limit{Algorithm: stint.FixedWindow, Max: 1_000_000, Window: stint.Every(time.Second)}, Cost: 1}}
	for n := 0; n < l.o.Probes; {
		if n == 0 {
			select {
			case <-time.After(l.o.Probe/2 + l.o.Random(l.o.Probe)):
			case <-l.ctx.Done():
				return ""
			}
		}
		if !l.find(c, &ask[0]) {
			return "it has no counters any more"
		}
		const limit = time.Second // unless the store has a shorter one
		ctx, cancel := context.WithTimeout(l.ctx, limit)
		start := l.pulse.Read()
		err := l.next.Take(ctx, ask, make([]stint.Decision, 1))
		what, _ := l.judge(ctx, start, err)
		cancel()
		if n++; what != good {
			n = 0
		}
	}
	return fmt.Sprintf("%d probes in a row succeeded", l.o.Probes)
}

// find changes the key of an ask until its counter is on the circuit's server. It reports false if there
// is no such key.
func (l *breaker) find(c *circuit, a *stint.Ask) bool {
	a.Key.Name = "stint-probe"
	if l.o.Server == nil || l.o.Server(a) == c.server {
		return true
	}
	const tries = 1 << 17 // eight for each slot of a Redis Cluster
	for n := range tries {
		if a.Key.Subject = "probe:" + strconv.Itoa(n); l.o.Server(a) == c.server {
			return true
		}
	}
	return false
}

// mend closes a circuit.
func (l *breaker) mend(c *circuit, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.row.Store(0)
	for i := range c.calls {
		c.calls[i].good.Store(0)
		c.calls[i].bad.Store(0)
	}
	l.change(c, BreakerClosed, reason)
}

// change changes the state of a circuit. The caller holds the lock.
func (l *breaker) change(c *circuit, to State, reason string) {
	c.open.Store(to == BreakerOpen)
	if l.o.OnChange != nil {
		l.o.OnChange(Change{Server: c.server, To: to, Reason: reason})
	}
}
