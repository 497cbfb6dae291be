package redisstore

import (
	"context"
	"fmt"
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

	out []stint.Decision
	err error

	// track asks for what the request did, so that it can be undone. For an undo,
	// charges is what to undo.
	track   bool
	charges []charge
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
// for the next; a request that comes alone does not wait.
type lane struct {
	mu      sync.Mutex
	calls   int // on their way
	waiting []*request
}

const (
	// laneCalls is how many calls of a lane may be on their way at once: while
	// Redis is busy with one, the next is made.
	laneCalls = 2
	// laneQueue is how many requests may wait. That many arrive only if Redis
	// does not answer; the others fail at once.
	laneQueue = 10_000
)

var errQueue = untouched(fmt.Errorf("%d requests are waiting already", laneQueue))

// enter returns whether the request may be sent at once. If not it is in the
// queue, and will be answered; or it is refused, and has been.
func (l *lane) enter(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.calls < laneCalls:
		l.calls++
		return true
	case len(l.waiting) >= laneQueue && r.ctx != nil:
		r.err = errQueue
		r.done <- struct{}{}
	default:
		l.waiting = append(l.waiting, r)
	}
	return false
}

// next fills the call with requests that wait. If there are none, the caller's
// turn is over.
func (l *lane) next(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.waiting) && (l.waiting[n].left() || c.add(l.waiting[n])) {
		n++
	}
	if len(c.requests) == 0 {
		clear(l.waiting) // all of them are gone
		l.waiting = l.waiting[:0]
		l.calls--
		return false
	}
	rest := copy(l.waiting, l.waiting[n:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	return true
}

// start sends the request, or has it sent. It does not wait for the answer.
func (s *Store) start(l *lane, r *request) {
	if l.enter(r) {
		s.work.Go(func() {
			c := s.newCall()
			c.add(r)
			s.send(s.deadline.Context(), c)
			s.drain(l)
		})
	}
}

// do has the request answered. It returns when that is done, or ctx is.
func (s *Store) do(ctx context.Context, l *lane, r *request) error {
	if !s.patient(ctx) {
		// The call has a goroutine of its own, since the caller may leave it.
		s.start(l, r)
		return r.wait(ctx)
	}
	if !l.enter(r) {
		return r.wait(ctx)
	}
	defer s.handOver(l)
	c := s.newCall()
	c.add(r)
	s.send(s.deadline.Context(), c)
	<-r.done
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
	if len(l.waiting) == 0 {
		l.calls--
		return
	}
	s.work.Go(func() { s.drain(l) })
}

// drain sends calls until no one waits in the lane.
func (s *Store) drain(l *lane) {
	for {
		c := s.newCall()
		if !l.next(c) {
			s.calls.Put(c)
			return
		}
		s.send(s.deadline.Context(), c)
	}
}
