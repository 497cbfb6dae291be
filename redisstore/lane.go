package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// request is one caller's asks, on their way.
type request struct {
	kind  kind
	items []item
	ends  []int           // of the keys in their common text
	done  chan struct{}   // gets a value when the request is answered
	ctx   context.Context // the caller's; nil: it is to be sent whoever waits

	out []stint.Decision // the request's own: a caller that has left may use its memory again
	err error

	// track asks for what the request did, so that it can be undone. For an undo,
	// charges is what to undo.
	track   bool
	charges []charge
}

// makeRoom makes room for a decision about each ask.
func (r *request) makeRoom() {
	r.out = slices.Grow(r.out[:0], len(r.items))[:len(r.items)]
	clear(r.out)
}

// left reports whether no one waits for the answer any more. Then that is the
// answer.
func (r *request) left() bool {
	if r.ctx == nil || r.ctx.Err() == nil {
		return false
	}
	r.err = untouched(r.ctx.Err())
	r.done <- struct{}{}
	return true
}

// lane is where the requests meet that one call can carry: all of them, or in a
// cluster those of one slot. While a call is on its way, those that arrive wait
// for the next; a request that comes alone, or nearly so, does not wait.
//
// A call costs Redis as much as three asks do, before it asks anything, so where many
// ask, a second call is made beside the first only when it is worth it.
type lane struct {
	mu      sync.Mutex
	calls   int // on their way
	flying  int // asks in them
	waiting []*request
	asks    int  // of those who wait
	open    bool // one who is about to make a call will take along those who wait
	crowd   int  // requests in the last call
}

const (
	// laneCalls is how many calls of a lane may be on their way at once: while
	// Redis is busy with one, the next is made.
	laneCalls = 2
	// laneFew is how many asks on their way leave a newcomer a call of its own, and
	// laneMany is how many that wait are worth a second call.
	laneFew, laneMany = 4, 32
	// laneQueue is how many requests may wait. That many arrive only if Redis
	// does not answer; the others fail at once.
	laneQueue = 10_000
)

var errQueue = untouched(fmt.Errorf("%d requests are waiting already", laneQueue))

// What a request that enters a lane does.
type turn int

const (
	waits  turn = iota // it is in the queue, and will be answered; or was refused, and has been
	leads              // it is to be sent at once
	drains             // it is in the queue, which is to be sent at once
)

// enter has a request enter the lane.
func (l *lane) enter(r *request) turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.calls == 0, l.calls < laneCalls && l.flying < laneFew && !l.open && len(l.waiting) == 0:
		l.calls++
		l.open = true
		return leads
	case len(l.waiting) >= laneQueue && r.ctx != nil:
		r.err = errQueue
		r.done <- struct{}{}
		return waits
	}
	l.waiting = append(l.waiting, r)
	l.asks += len(r.items)
	if l.calls < laneCalls && l.asks >= laneMany && !l.open {
		l.calls++
		return drains
	}
	return waits
}

// landed notes that so many asks are not on their way any more.
func (l *lane) landed(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying -= n
}

// over ends the turn of one who has made a call, if no one waits, or if whoever makes
// the other call will see to those who do.
func (l *lane) over() bool {
	if len(l.waiting) == 0 || l.calls == laneCalls && l.asks < laneMany {
		l.calls--
		return true
	}
	return false
}

// next fills the call with requests that wait. If there are none, the caller's
// turn is over.
func (l *lane) next(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over() {
		return false
	}
	if l.board(c); len(c.requests) == 0 { // all of them are gone
		l.calls--
		return false
	}
	return true
}

// board fills the call with requests that wait.
func (l *lane) board(c *call) {
	n := 0
	for n < len(l.waiting) {
		r := l.waiting[n]
		asks := len(r.items) // those of one who has left are not to be looked at
		if !r.left() && !c.add(r) {
			break
		}
		l.asks -= asks
		n++
	}
	rest := copy(l.waiting, l.waiting[n:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	l.crowd = len(c.requests)
	l.flying += c.size()
}

// size is how many asks the call carries.
func (c *call) size() (n int) {
	for _, r := range c.requests {
		n += len(r.items)
	}
	return n
}

// start sends the request, or has it sent. It does not wait for the answer.
func (s *Store) start(l *lane, r *request) {
	switch l.enter(r) {
	case waits:
	case drains:
		s.work.Go(func() { s.drain(l) })
	case leads:
		s.work.Go(func() {
			s.lead(l, r)
			s.drain(l)
		})
	}
}

// lead makes a call for the request, and those who come meanwhile.
func (s *Store) lead(l *lane, r *request) {
	if l.crowded() {
		// Those who are about to ask come first: where the processors are busy, more then
		// travel together.
		runtime.Gosched()
	}
	c := s.newCall()
	c.add(r)
	l.mu.Lock()
	l.open = false
	l.board(c)
	l.mu.Unlock()
	s.fly(l, c)
}

// crowded reports whether several travelled together the last time.
func (l *lane) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.crowd > 1
}

// fly sends a call.
func (s *Store) fly(l *lane, c *call) {
	n := c.size() // later they are the callers' again
	s.send(s.deadline.Context(), c)
	l.landed(n)
}

// do has the request answered. It returns when that is done, or ctx is.
func (s *Store) do(ctx context.Context, l *lane, r *request) error {
	if !s.patient(ctx) {
		// The call has a goroutine of its own, since the caller may leave it.
		s.start(l, r)
		return r.wait(ctx)
	}
	switch l.enter(r) {
	case drains:
		s.work.Go(func() { s.drain(l) })
		fallthrough
	case waits:
		return r.wait(ctx)
	case leads:
		defer s.handOver(l)
		s.lead(l, r)
		<-r.done
	}
	return nil
}

// patient reports whether the caller waits for about as long as a call may take.
// Then the call can be made on its own goroutine, which is quicker.
func (s *Store) patient(ctx context.Context) bool {
	if ctx.Done() == nil {
		return true
	}
	d, ok := ctx.Deadline()
	return ok && time.Until(d) >= s.deadline.Length()*7/8
}

// handOver ends the turn of a caller that has made a call itself.
func (s *Store) handOver(l *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over() {
		s.work.Go(func() { s.drain(l) })
	}
}

// drain sends calls until no one waits in the lane.
func (s *Store) drain(l *lane) {
	for {
		runtime.Gosched() // as in lead
		c := s.newCall()
		if !l.next(c) {
			s.calls.Put(c)
			return
		}
		s.fly(l, c)
	}
}
