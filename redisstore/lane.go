package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// request is the asks of one caller while they are decided.
type request struct {
	kind  kind
	place int // the number of the lane: 0, its slot in a Cluster, or its server in a ring
	items []item
	ends  []int           // of the keys in their shared string
	done  chan struct{}   // receives a value when the request is answered
	ctx   context.Context // the caller's; nil: send it even if no one waits

	out []stint.Decision // not the caller's slice: a caller that has given up may reuse that
	err error

	// If track is set, before records the counters as they were, to answer from if another part of
	// the take denies. Of an adjustment, held records how many places each changed charge had.
	track  bool
	before []before
	held   []int64

	other bool // a change was made before, but together with others than these

	bare bool // without the marks of counters
}

// makeRoom prepares out for a decision about each ask.
func (r *request) makeRoom() {
	r.out = slices.Grow(r.out[:0], len(r.items))[:len(r.items)]
	clear(r.out)
}

// abandoned reports whether the caller has given up. If so, it finishes the request.
func (r *request) abandoned() bool {
	if r.ctx == nil || r.ctx.Err() == nil {
		return false
	}
	r.err = notApplied(r.ctx.Err())
	r.done <- struct{}{}
	return true
}

// lane batches requests that can share a call: all of them, in a cluster those of one slot, or in a ring
// those of one server. Requests that arrive while a call is in flight wait for the next one. When there is
// little traffic, a request does not wait.
//
// An empty call costs Redis as much as three asks. Under load, a second call is therefore made
// in parallel only when enough requests wait.
type lane struct {
	mu       sync.Mutex
	calls    int // in flight
	inFlight int // asks in these calls
	waiting  []*request
	asks     int  // in waiting
	open     bool // a caller is about to send a call, and will include those that wait
	crowd    int  // requests in the last call
}

const (
	// laneCalls is how many calls of a lane may be in flight: one is prepared while Redis
	// runs the other.
	laneCalls = 2
	// With fewer than laneQuiet asks in flight a new request gets a call of its own. Once
	// laneBusy asks wait, a second call is made.
	laneQuiet, laneBusy = 4, 32
	// laneQueue is how many requests may wait. The queue grows that long only if Redis does
	// not reply; further requests fail at once.
	laneQueue = 10_000
)

// queue says how many requests of a lane may wait, and what others are told.
type queue struct {
	most int
	full error
}

func newQueue(most int) *queue {
	return &queue{most, notApplied(fmt.Errorf("the queue is full: %d requests are waiting", most))}
}

// turn says what the caller of lane.enter does next.
type turn int

const (
	waits  turn = iota // wait: the request is queued, or has failed because the queue is full
	leads              // send the request now
	drains             // send the queue now, which includes the request
)

// enter adds a request to the lane.
func (l *lane) enter(r *request, q *queue) turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.calls == 0, l.calls < laneCalls && l.inFlight < laneQuiet && !l.open && len(l.waiting) == 0:
		l.calls++
		l.open = true
		return leads
	case len(l.waiting) >= q.most && r.ctx != nil:
		r.err = q.full
		r.done <- struct{}{}
		return waits
	}
	l.waiting = append(l.waiting, r)
	l.asks += len(r.items)
	if l.calls < laneCalls && l.asks >= laneBusy && !l.open {
		l.calls++
		return drains
	}
	return waits
}

// finished notes that n asks are no longer in flight.
func (l *lane) finished(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight -= n
}

// endTurn ends the turn of a sender if no one waits, or if the sender of the other call can
// take care of those that wait. It reports whether it did.
func (l *lane) endTurn() bool {
	if len(l.waiting) == 0 || l.calls == laneCalls && l.asks < laneBusy {
		l.calls--
		return true
	}
	return false
}

// next fills the call with waiting requests. If there are none, it ends the caller's turn and
// returns false.
func (l *lane) next(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.endTurn() {
		return false
	}
	if l.fill(c); len(c.requests) == 0 { // all have given up
		l.calls--
		return false
	}
	return true
}

// fill adds waiting requests to the call.
func (l *lane) fill(c *call) {
	n := 0
	for n < len(l.waiting) {
		r := l.waiting[n]
		asks := len(r.items) // an abandoned request may be reused, so read it first
		if !r.abandoned() && !c.add(r) {
			break
		}
		l.asks -= asks
		n++
	}
	rest := copy(l.waiting, l.waiting[n:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	l.crowd = len(c.requests)
	l.inFlight += c.size()
}

// size returns the number of asks in the call.
func (c *call) size() (n int) {
	for _, r := range c.requests {
		n += len(r.items)
	}
	return n
}

// start sends or queues the request, and does not wait for the reply.
func (s *Store) start(r *request) {
	l := s.lane(r.place)
	switch l.enter(r, s.queue) {
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

// lead sends a call with the request, and with those that arrive meanwhile.
func (s *Store) lead(l *lane, r *request) {
	if l.crowded() {
		// Let goroutines run that are about to ask: their requests can share this call.
		runtime.Gosched()
	}
	c := s.newCall()
	c.add(r)
	l.mu.Lock()
	l.open = false
	l.fill(c)
	l.mu.Unlock()
	s.sendCall(l, c)
}

// crowded reports whether the last call had several requests.
func (l *lane) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.crowd > 1
}

// sendCall sends a call.
func (s *Store) sendCall(l *lane, c *call) {
	n := c.size() // afterwards the callers own the requests again
	s.send(s.deadline.Context(), c)
	l.finished(n)
}

// do sends the request, and returns when it is answered or ctx is done.
func (s *Store) do(ctx context.Context, r *request) error {
	if !s.patient(ctx) {
		// The call gets its own goroutine, since the caller may give up before it ends.
		s.start(r)
		return s.await(ctx, r)
	}
	l := s.lane(r.place)
	switch l.enter(r, s.queue) {
	case drains:
		s.work.Go(func() { s.drain(l) })
		fallthrough
	case waits:
		return s.await(ctx, r)
	case leads:
		defer s.handOver(l)
		s.lead(l, r)
		<-r.done
	}
	return nil
}

// await waits until the request is answered or ctx is done.
func (s *Store) await(ctx context.Context, r *request) error {
	if ctx.Done() == nil { // cheaper than a select
		<-r.done
		return nil
	}
	start := s.pulse.Read()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
	}
	// If the deadline passed while this process did not run, the reply may be there: nobody has
	// looked.
	if _, lost := s.pulse.Read().Since(start); lost > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		const grace = 50 * time.Millisecond
		t := time.NewTimer(min(lost, grace))
		defer t.Stop()
		select {
		case <-r.done:
			return nil
		case <-t.C:
		}
	}
	return unavailable(ctx.Err())
}

// patient reports whether the caller waits about as long as a call may take. If so, the call
// can run on the caller's goroutine, which is faster.
func (s *Store) patient(ctx context.Context) bool {
	if ctx.Done() == nil {
		return true
	}
	d, ok := ctx.Deadline()
	return ok && time.Until(d) >= s.deadline.Length()*7/8
}

// handOver ends the turn of a caller that has sent a call itself.
func (s *Store) handOver(l *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.endTurn() {
		s.work.Go(func() { s.drain(l) })
	}
}

// drain sends calls until no request waits.
func (s *Store) drain(l *lane) {
	for {
		runtime.Gosched() // as in lead
		c := s.newCall()
		if !l.next(c) {
			s.calls.Put(c)
			return
		}
		s.sendCall(l, c)
	}
}
