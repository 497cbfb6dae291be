package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// Serving is a request that has passed and is being served, under rules that have a meter or limits of
// [stint.Concurrency]. It keeps its places, which it renews every third of the limit's window, until
// [Serving.End] is called. If that is never called, because the process dies, what was charged stays charged
// and the places come back by themselves.
//
// It is safe for concurrent use.
type Serving struct {
	engine *Engine
	ctx    context.Context // that of the request, without its end
	r      *Reservation
	began  time.Time
	every  time.Duration // between renewals; 0 if there are no places
	denied bool          // there is no more to reserve: see Covers

	mu      sync.Mutex
	stop    func() bool // of the next renewal
	working int         // renewals and extensions under way
	ended   bool
	usage   Usage
	failed  bool
	tries   int // of settling
}

// Serve decides a request like [Engine.DecideInto], for a door that serves the request and calls [Serving.End]
// when that has ended. The serving is nil if there is nothing to settle: the request does not pass, or no rule
// that applies has a meter or places. That costs no more than DecideInto.
func (e *Engine) Serve(ctx context.Context, q *Request, v *Verdict) (*Serving, error) {
	r, err := e.answer(ctx, q, v, serving)
	if r == nil {
		return nil, err
	}
	s := e.serving(ctx, r)
	s.began = v.At.Add(v.Waited)
	if s.every > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stop = e.timers.AfterFunc(s.every, s.renew)
	}
	return s, nil
}

func (e *Engine) serving(ctx context.Context, r *Reservation) *Serving {
	s := &Serving{engine: e, ctx: context.WithoutCancel(ctx), r: r}
	for i := range r.items {
		if it := &r.items[i]; it.place() {
			third := max(it.ask.Limit.Window.Length()/3, time.Millisecond)
			if s.every == 0 || third < s.every {
				s.every = third
			}
		}
	}
	return s
}

// Meters appends the meters of the rules that apply, each once.
func (s *Serving) Meters(dst []rule.Meter) []rule.Meter {
next:
	for i := range s.r.items {
		m := s.r.items[i].meter
		for _, known := range dst {
			if m == known {
				continue next
			}
		}
		if m != "" {
			dst = append(dst, m)
		}
	}
	return dst
}

// Took returns how long the request has been served, without the time that it was held before.
func (s *Serving) Took() time.Duration { return max(s.engine.since(s.began), 0) }

// End says that the request has ended, and what it has used, by meter. A meter that is missing stays as it was
// reserved. Failed says that the server has failed to answer: rules with on_error = "refund" then charge nothing.
// Only the first call counts.
//
// It does not wait: places are released and charges corrected in the background, which [Engine.Settled] waits
// for. If the store is out of reach, that is tried again a few times.
func (s *Serving) End(u Usage, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	if u.Meters == nil {
		u.Meters = map[rule.Meter]int64{}
	}
	for m, n := range u.Meters {
		u.Meters[m] = max(n, 0)
	}
	s.usage, s.failed = u, failed
	if s.stop != nil {
		s.stop()
	}
	if s.working == 0 { // otherwise what is being charged must be known first
		s.engine.settler.add(s)
	}
}

// renew keeps the places for another window. If the store fails, there are two more tries before they are lost.
func (s *Serving) renew() {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.working++
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(s.ctx, s.every)
	s.engine.keep(ctx, s.r)
	cancel()

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done() {
		s.stop = s.engine.timers.AfterFunc(s.every, s.renew)
	}
}

// done says that a renewal or an extension has ended. It reports whether the request is still served.
func (s *Serving) done() bool {
	s.working--
	if s.ended && s.working == 0 {
		s.engine.settler.add(s)
	}
	return !s.ended
}

// Cuts reports whether a response is cut that uses more than was reserved: see [Serving.Covers].
func (s *Serving) Cuts() bool {
	return slices.ContainsFunc(s.r.items, func(it reserved) bool { return it.cuts() })
}

// Covers reports whether what was used so far is reserved, as far as rules cut responses that use more. If it is not, it
// reserves that, and as much as at first. Once that was denied, it returns false: then the response is to be cut.
//
// It must be called by one goroutine at a time, and not after End. It takes a call to the store when what was reserved is used up.
func (s *Serving) Covers(ctx context.Context, used func(rule.Meter) int64) bool {
	missing := func(i int) int64 {
		it := &s.r.items[i]
		if !it.cuts() {
			return 0
		}
		n := used(it.meter)
		if it.most > 0 {
			n = min(n, it.most)
		}
		return max(n-it.cost(), 0)
	}
	short := false
	for i := range s.r.items {
		short = short || missing(i) > 0
	}
	if !short || s.denied {
		return !short
	}
	s.mu.Lock()
	s.working++
	s.mu.Unlock()
	x, err := s.engine.extend(ctx, s.r, func(i int) (units int64, ok bool) {
		n := missing(i)
		return n + s.r.items[i].charges[0].Cost, n > 0
	})
	s.denied = err != nil || !x.Allowed
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done()
	return !s.denied
}

// cuts reports whether a response is cut that uses more than is reserved.
func (r *reserved) cuts() bool { return r.cut && r.open && !r.shadow }

// keep renews the places of a reservation. Those that were lost are taken again, one by one.
func (e *Engine) keep(ctx context.Context, r *Reservation) {
	lost, err := e.renew(ctx, r)
	if err != nil {
		return
	}
	for _, i := range lost {
		it := &r.items[i]
		a := it.ask
		a.Cost = 1
		asks, ds := []stint.Ask{a}, []stint.Decision{{}}
		if err := e.take(ctx, asks, ds); err == nil && ds[0].Allowed {
			if c := ds[0].Charge(); c.Cost > 0 {
				it.charges = append(it.charges, c)
			}
		}
	}
}

// abandon releases the places of a request that is not served. What else it was charged stays charged, but for what
// a language model might have used, if the client has left.
func (e *Engine) abandon(ctx context.Context, r *Reservation, left bool) {
	s, unused := e.serving(ctx, r), map[rule.Meter]int64{}
	for i := range r.items {
		if m := r.items[i].meter; left && m.OfModels() {
			unused[m] = 0
		}
	}
	if s.every > 0 || len(unused) > 0 {
		s.End(Usage{Meters: unused}, false)
	}
}

// settle settles what was charged. It reports whether it has to be tried again.
func (s *Serving) settle() (again bool) {
	const longest = 2 * time.Second
	ctx, cancel := context.WithTimeout(s.ctx, longest)
	defer cancel()
	const keep = 10 * time.Minute // there is no ticket, and the last try is sooner
	receipt, err := s.engine.settle(ctx, s.r, settlement{Usage: s.usage, keep: keep, used: func(it *reserved) int64 {
		if s.failed && it.refund {
			return 0
		}
		return it.used(&s.usage)
	}})
	if err == nil && !s.failed {
		s.engine.learn(s.r, &receipt)
	}
	invalid := new(stint.InvalidError)
	return err != nil && !errors.As(err, &invalid)
}

const (
	maxUnsettled = 10_000
	maxSettlers  = 32
	maxTries     = 5
	firstRetry   = 100 * time.Millisecond // four times as long after each
)

// settler settles requests in the background. It has goroutines only while there is something to do.
type settler struct {
	mu      sync.Mutex
	queue   []*Serving
	workers int
	open    int // what is queued, being settled, or waiting to be tried again
	lost    uint64
	idle    []chan struct{} // closed when nothing is open
}

// add queues a request that has ended. If too many are open, it is given up.
func (t *settler) add(s *Serving) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open >= maxUnsettled {
		t.lost++
		return
	}
	t.open++
	t.push(s)
}

func (t *settler) push(s *Serving) {
	t.queue = append(t.queue, s)
	if t.workers < maxSettlers {
		t.workers++
		go t.work()
	}
}

func (t *settler) work() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.queue) > 0 {
		s := t.queue[0]
		t.queue[0] = nil
		t.queue = t.queue[1:]
		t.mu.Unlock()
		again := s.settle()
		t.mu.Lock()
		t.conclude(s, again)
	}
	t.queue = nil // the memory of a burst
	t.workers--
}

// conclude has a request tried again later, or forgets it.
func (t *settler) conclude(s *Serving, again bool) {
	if s.tries++; again && s.tries < maxTries {
		time.AfterFunc(firstRetry<<(2*(s.tries-1)), func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.push(s)
		})
		return
	}
	if again {
		t.lost++
	}
	if t.open--; t.open == 0 {
		for _, c := range t.idle {
			close(c)
		}
		t.idle = nil
	}
}

// Settled waits until all requests whose serving has ended are settled, or given up. Call it before the store is
// closed. It returns the error of ctx if that is done first.
func (e *Engine) Settled(ctx context.Context) error {
	t := &e.settler
	t.mu.Lock()
	if t.open == 0 {
		t.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	t.idle = append(t.idle, done)
	t.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unsettled returns how many requests have ended and wait to be settled, and how many were given up since the
// start: because the store was out of reach for too long, or too many waited.
func (e *Engine) Unsettled() (waiting int, lost uint64) {
	e.settler.mu.Lock()
	defer e.settler.mu.Unlock()
	return e.settler.open, e.settler.lost
}
