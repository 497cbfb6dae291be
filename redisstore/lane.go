package redisstore

import (
	"context"
	"sync"

	"github.com/stintdev/stint"
)

// request is one caller's asks, on their way.
type request struct {
	kind  kind
	items []item
	done  chan struct{} // gets a value when the request is answered

	out []stint.Decision
	err error

	// track asks for what the request did, so that it can be undone; it did it
	// at now. For an undo, charges is what to undo.
	track   bool
	charges []charge
	now     int64
}

// lane is where the requests meet that one call can carry: all of them, or in a
// cluster those of one slot. While a call is on its way, those that arrive wait
// for the next; a request that comes alone does not wait.
type lane struct {
	mu      sync.Mutex
	calls   int // on their way
	waiting []*request
}

// laneCalls is how many calls of a lane may be on their way at once: while Redis
// is busy with one, the next is made.
const laneCalls = 2

// enter returns whether the request may be sent at once. If not it is in the
// queue, and will be answered.
func (l *lane) enter(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls < laneCalls {
		l.calls++
		return true
	}
	l.waiting = append(l.waiting, r)
	return false
}

// next fills the call with requests that wait. If there are none, the caller's
// turn is over.
func (l *lane) next(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.waiting) && c.add(l.waiting[n]) {
		n++
	}
	if n == 0 {
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
			s.send(s.deadline(), c)
			s.drain(l)
		})
	}
}

// do has the request answered. It returns when that is done, or ctx is.
func (s *Store) do(ctx context.Context, l *lane, r *request) error {
	if inline := s.inline(ctx); inline != nil && l.enter(r) {
		c := s.newCall()
		c.add(r)
		s.send(inline, c)
		<-r.done
		l.mu.Lock()
		more := len(l.waiting) > 0
		if !more {
			l.calls--
		}
		l.mu.Unlock()
		if more {
			s.work.Go(func() { s.drain(l) })
		}
		return nil
	} else if inline == nil {
		s.start(l, r)
	}
	return s.wait(ctx, r)
}

// drain sends calls until no one waits in the lane.
func (s *Store) drain(l *lane) {
	for c := s.newCall(); l.next(c); c = s.newCall() {
		s.send(s.deadline(), c)
	}
}
