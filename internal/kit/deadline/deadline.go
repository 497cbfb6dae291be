// Package deadline provides contexts that end after a fixed time, and shares each among
// calls that begin at about the same time. A context for each call would cost as much as
// the rest of a fast call.
//
// It is not exact: a call gets up to an eighth more time.
package deadline

import (
	"context"
	"sync/atomic"
	"time"
)

// Shared provides contexts that last for a fixed time.
type Shared struct {
	parent context.Context
	length time.Duration
	last   atomic.Pointer[stretch]
}

// stretch is a period in which all calls get the same context.
type stretch struct {
	ctx    context.Context
	cancel context.CancelFunc // never called: the context ends by its timeout
	begin  time.Time
}

// New returns a Shared whose contexts last for this time, or until parent is done.
func New(parent context.Context, length time.Duration) *Shared {
	return &Shared{parent: parent, length: length}
}

// Length returns how long a context lasts at least.
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

// Within returns a context for a call on behalf of a caller: the caller's own if it ends soon
// enough. Call the returned function after the call.
func (s *Shared) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return s.Context(), func() {}
	}
	if d, ok := ctx.Deadline(); ok && time.Until(d) <= s.length {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.length)
}
