package layer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
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
	// same. Default 40 ms; negative: no limit.
	Slow time.Duration
	// Open is how long the breaker stays open at first. It doubles each time a probe fails,
	// up to MostOpen. Defaults 1 s and 30 s.
	Open, MostOpen time.Duration
	// Probes is how many calls in a row must succeed before the breaker closes. While it is
	// half-open, one call in ten is a probe, or the next call if no probe is running. Default 3.
	Probes int
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
	// BreakerHalfOpen lets a few through as probes.
	BreakerHalfOpen
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case BreakerClosed:
		return "closed"
	case BreakerOpen:
		return "open"
	default:
		return "half-open"
	}
}

// Change is a change of a breaker's state.
type Change struct {
	From, To State
	Reason   string
	// For is how long the breaker will be open.
	For time.Duration
}

// ErrOpen is wrapped by the error of a call that a breaker has rejected.
var ErrOpen = errors.New("breaker open")

var errOpen = fmt.Errorf("%w: %w; %w", stint.ErrUnavailable, ErrOpen, stint.ErrNotApplied)

// Breaker stops calling a store that fails or is slow, and tries again after a while. Only errors that
// wrap [stint.ErrUnavailable] are failures. A call that the caller has cancelled does not count. If the
// caller's deadline has passed, the call is a failure if it took at least a quarter of Slow (10 ms
// without one).
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
	if o.Open == 0 {
		o.Open = time.Second
	}
	if o.MostOpen == 0 {
		o.MostOpen = max(30*time.Second, o.Open)
	}
	if o.Probes == 0 {
		o.Probes = 3
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
	case o.Open < 0:
		return nil, invalid("open", o.Open, "a positive duration")
	case o.MostOpen < o.Open:
		return nil, invalid("most open", o.MostOpen, "at least "+o.Open.String()+", the value of open")
	case o.Probes < 0:
		return nil, invalid("probes", o.Probes, "at least 1")
	}
	if err := Check(PlaceBreaker, next); err != nil {
		return nil, err
	}
	return &breaker{next: next, o: o, open: o.Open, born: time.Now()}, nil
}

// pieces is how many pieces a breaker's window has. It advances by one piece at a time.
const pieces = 10

type breaker struct {
	next stint.Store
	o    BreakerOptions
	born time.Time // times are durations since then, which are faster to read

	closed atomic.Bool

	state atomic.Uint32 // a State; changed under mu
	row   atomic.Int64  // failures in a row
	begin atomic.Int64  // when the current piece began
	calls [pieces]piece
	at    atomic.Int32 // the current piece

	until atomic.Int64 // the end of the open state; changed under mu
	over  atomic.Bool  // until has passed: before that, rejecting a call needs no clock

	mu     sync.Mutex
	timer  *time.Timer   // sets over
	open   time.Duration // how long to stay open next time
	probes int           // calls in a row that succeeded while half-open
	tries  int           // probes in flight
}

type piece struct{ good, bad atomic.Int64 }

func (*breaker) Place() Place { return PlaceBreaker }

func (l *breaker) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if State(l.state.Load()) == BreakerOpen && !l.over.Load() && !l.closed.Load() {
		return errOpen
	}
	start := time.Since(l.born)
	probe, err := l.enter(start)
	if err != nil {
		return err
	}
	err = l.next.Take(ctx, asks, ds)
	l.leave(ctx, start, probe, err)
	return err
}

func (l *breaker) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	start := time.Since(l.born)
	probe, err := l.enter(start)
	if err != nil {
		return err
	}
	err = l.next.Adjust(ctx, asks, ds)
	l.leave(ctx, start, probe, err)
	return err
}

func (l *breaker) Reset(ctx context.Context, asks []stint.Ask) error {
	start := time.Since(l.born)
	probe, err := l.enter(start)
	if err != nil {
		return err
	}
	err = l.next.Reset(ctx, asks)
	l.leave(ctx, start, probe, err)
	return err
}

func (l *breaker) Close() error {
	l.closed.Store(true)
	l.mu.Lock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	return l.next.Close()
}

// enter lets a call through, or returns an error. It reports whether the call is a probe.
func (l *breaker) enter(now time.Duration) (probe bool, err error) {
	switch State(l.state.Load()) {
	case BreakerClosed:
		return false, nil
	case BreakerOpen:
		if l.closed.Load() {
			return false, stint.ErrClosed
		}
		if now < time.Duration(l.until.Load()) {
			return false, errOpen
		}
	case BreakerHalfOpen:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch State(l.state.Load()) {
	case BreakerClosed:
		return false, nil
	case BreakerOpen:
		if now < time.Duration(l.until.Load()) {
			return false, errOpen // a probe has just failed
		}
		l.probes, l.tries = 0, 0
		l.change(BreakerHalfOpen, "time to probe", 0)
	case BreakerHalfOpen:
		const share = 10
		if l.tries > 0 && rand.N(share) > 0 {
			return false, errOpen
		}
	}
	l.tries++
	return true, nil
}

// leave records the result of a call.
func (l *breaker) leave(ctx context.Context, start time.Duration, probe bool, err error) {
	now := time.Since(l.born)
	took := now - start
	slow := l.o.Slow > 0 && took > l.o.Slow
	failed := err != nil && unreachable(err)
	if failed && ctx.Err() != nil {
		minTook := 10 * time.Millisecond
		if l.o.Slow > 0 {
			minTook = l.o.Slow / 4
		}
		failed = took >= minTook && !canceled(ctx)
	}
	silent := err != nil && !failed && !slow && (unreachable(err) || isInvalid(err))
	switch {
	case probe:
		l.probed(now, failed || slow, silent, err, took)
	case silent:
	case failed || slow:
		l.failed(now, slow && !failed, took, err)
	default:
		if l.row.Load() != 0 {
			l.row.Store(0)
		}
		l.piece(now).good.Add(1)
	}
}

// isInvalid reports whether the arguments were wrong, which says nothing about the store.
func isInvalid(err error) bool {
	var invalid *stint.InvalidError
	return errors.As(err, &invalid)
}

// piece returns the current piece of the window, after advancing it to now.
func (l *breaker) piece(now time.Duration) *piece {
	length := int64(l.o.Window) / pieces
	begin, nanos := l.begin.Load(), int64(now)
	if nanos-begin < length {
		return &l.calls[l.at.Load()]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	begin = l.begin.Load()
	for n := 0; nanos-begin >= length && n < pieces; n++ {
		at := (l.at.Load() + 1) % pieces
		l.calls[at].good.Store(0)
		l.calls[at].bad.Store(0)
		l.at.Store(at)
		begin += length
	}
	l.begin.Store(max(begin, nanos-nanos%length))
	return &l.calls[l.at.Load()]
}

// failed records a call that failed while the breaker was closed.
func (l *breaker) failed(now time.Duration, slow bool, took time.Duration, err error) {
	row := l.row.Add(1)
	l.piece(now).bad.Add(1)
	var good, bad int64
	for i := range l.calls {
		good += l.calls[i].good.Load()
		bad += l.calls[i].bad.Load()
	}
	what := "failed"
	if slow {
		what, err = "took too long", fmt.Errorf("the last took %v", took.Round(time.Millisecond))
	}
	switch {
	case row >= int64(l.o.Failures):
		l.trip(now, fmt.Sprintf("%d calls in a row %s: %v", row, what, err))
	case good+bad >= int64(l.o.Least) && float64(bad) >= l.o.Rate*float64(good+bad):
		l.trip(now, fmt.Sprintf("%d of %d calls %s: %v", bad, good+bad, what, err))
	}
}

// trip opens the breaker if it is closed.
func (l *breaker) trip(now time.Duration, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if State(l.state.Load()) == BreakerClosed {
		l.openFor(now, reason)
	}
}

// openFor opens the breaker, each time for longer. The caller holds the lock.
func (l *breaker) openFor(now time.Duration, reason string) {
	l.until.Store(int64(now + l.open))
	l.over.Store(false)
	l.timer = time.AfterFunc(l.open, func() { l.over.Store(true) })
	l.change(BreakerOpen, reason, l.open)
	l.open = min(2*l.open, l.o.MostOpen)
}

// probed records the result of a probe.
func (l *breaker) probed(now time.Duration, failed, silent bool, err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if State(l.state.Load()) != BreakerHalfOpen {
		return // another probe has decided
	}
	l.tries = max(l.tries-1, 0)
	if silent {
		return // the result says nothing about the store
	}
	if failed {
		l.openFor(now, fmt.Sprintf("a probe failed after %v: %v", took.Round(time.Millisecond), err))
		return
	}
	if l.probes++; l.probes < l.o.Probes {
		return
	}
	l.row.Store(0)
	for i := range l.calls {
		l.calls[i].good.Store(0)
		l.calls[i].bad.Store(0)
	}
	l.open = l.o.Open
	l.change(BreakerClosed, fmt.Sprintf("%d probes in a row succeeded", l.probes), 0)
}

// change changes the state. The caller holds the lock.
func (l *breaker) change(to State, reason string, length time.Duration) {
	from := State(l.state.Swap(uint32(to)))
	if l.o.OnChange != nil {
		l.o.OnChange(Change{From: from, To: to, Reason: reason, For: length})
	}
}
