// Package deadline hands out contexts that end after a fixed time, one for many
// calls that begin at about the same moment. A context of its own for each call
// would cost as much as the rest of a fast one.
//
// It refuses to be exact: a call gets the time it was promised, and up to an
// eighth more.
package deadline

import (
	"context"
	"sync/atomic"
	"time"
)

// Shared makes contexts that last for a fixed time.
type Shared struct {
	parent context.Context
	length time.Duration
	last   atomic.Pointer[stretch]
}

// stretch is a time in which all calls get one context.
type stretch struct {
	ctx    context.Context
	cancel context.CancelFunc // called by the clock
	begin  time.Time
}

// New returns a Shared whose contexts last for so long, or until parent is done.
func New(parent context.Context, length time.Duration) *Shared {
	return &Shared{parent: parent, length: length}
}

// Length is how long a call is given, at least.
func (s *Shared) Length() time.Duration { return s.length }

// Context returns a context for a call that begins now.
func (s *Shared) Context() context.Context {
	p := s.last.Load()
	if now := time.Now(); p == nil || now.Sub(p.begin) > s.length/8 {
		p = &stretch{begin: now}
		p.ctx, p.cancel = context.WithTimeout(s.parent, s.length+s.length/8)
		s.last.Store(p)
	}
	return p.ctx
}

// Within returns a context for a call on behalf of a caller: the caller's own,
// if that ends soon enough. The function it returns ends it.
func (s *Shared) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return s.Context(), func() {}
	}
	if d, ok := ctx.Deadline(); ok && time.Until(d) <= s.length {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.length)
}
