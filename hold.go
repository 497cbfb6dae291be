package stint

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Hold takes a place under a limit of [Concurrency], and keeps it until release is called. It renews
// the place every third of the limit's window, so that only the place of a process that died comes
// back by itself. If the decision is a denial, or there is an error, release does nothing; it is never
// nil, and may be called more than once.
//
//	release, d, err := limiter.Hold(ctx, "user:42")
//	if err != nil || !d.Allowed {
//		...
//	}
//	defer release()
//
// Should a process be suspended for longer than the window, its place may be another's by then. Hold
// asks for one again, every third of the window, as long as release is not called.
func (l *Limiter) Hold(ctx context.Context, subject string) (release func(), d Decision, err error) {
	if l.ask.Limit.Algorithm != Concurrency {
		return func() {}, d, invalid("limit", l.ask.Limit.String(), "concurrency, such as 10/30s concurrency")
	}
	if d, err = l.Take(ctx, subject); err != nil || !d.Allowed {
		return func() {}, d, err
	}
	h := &hold{
		limiter: l, subject: subject, charge: d.Charge(),
		// What the context carries is kept, though a place outlives the call that took it.
		ctx:   context.WithoutCancel(ctx),
		every: max(l.ask.Limit.Window.Length()/3, time.Millisecond),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(h.every, h.renew)
	return h.release, d, nil
}

// hold is a place that is kept.
type hold struct {
	limiter *Limiter
	subject string
	ctx     context.Context
	every   time.Duration

	mu       sync.Mutex
	charge   Charge // its Cost is 0 while the place is lost
	timer    *time.Timer
	released bool
}

// renew keeps the place for another window. If the store fails there are two more tries before it is
// lost.
func (h *hold) renew() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return
	}
	h.timer.Reset(h.every)
	ctx, cancel := context.WithTimeout(h.ctx, h.every)
	defer cancel()
	if h.charge.Cost > 0 {
		d, err := h.limiter.Amend(ctx, h.subject, h.charge, 0)
		if invalid := new(InvalidError); err != nil && !errors.As(err, &invalid) {
			return
		}
		h.charge = d.Charge() // none if the store's clock was set back, and does not know of it
	}
	if h.charge.Cost == 0 {
		if d, err := h.limiter.Take(ctx, h.subject); err == nil {
			h.charge = d.Charge()
		}
	}
}

// release gives the place back. If the store fails, it comes back by itself.
func (h *hold) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return
	}
	h.released = true
	h.timer.Stop()
	if h.charge.Cost == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(h.ctx, h.every)
	defer cancel()
	_, _ = h.limiter.Amend(ctx, h.subject, h.charge, -h.charge.Cost)
}
