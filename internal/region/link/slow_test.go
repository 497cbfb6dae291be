//go:build torture

package link_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/link"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestDeadlines checks that callers leave when they want, and that the far store knows.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	began, ended := make(chan time.Duration, 1), make(chan error, 1)
	s := central(t, &far{do: func(ctx context.Context, _ []stint.Ask, _ []stint.Decision) error {
		until, _ := ctx.Deadline()
		began <- time.Until(until)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // enough to be sent, also here
	defer cancel()
	err := take(ctx, s)
	if !errors.Is(err, stint.ErrUnavailable) || errors.Is(err, stint.ErrNotApplied) {
		t.Errorf("a call that takes too long: %v", err)
	}
	if left, err := <-began, <-ended; left > time.Second || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the far store had %v, and ended with %v", left, err)
	}
	<-ctx.Done() // the far store may have answered just before
	if err := take(ctx, s); !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, stint.ErrNotApplied) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that is over before it begins: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	if err := take(ctx, s); !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("a call that is cancelled: %v", err)
	}
}

// TestCallsCut cuts the connection while a call is made: it may have been applied.
func TestCallsCut(t *testing.T) {
	t.Parallel()
	began := make(chan struct{}, 1)
	_, addr := serve(t, func(o *link.ServerOptions) {
		o.Central = &far{do: func(ctx context.Context, _ []stint.Ask, _ []stint.Decision) error {
			began <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}}
	})
	p := testserver.StartProxy(t, addr)
	l := connected(t, open(t, p.Addr(), nil))
	for name, f := range map[string]testserver.Fault{"refuse": {Refuse: true}, "swallow": {Swallow: true}, "reset": {Reset: 1}} {
		connected(t, l)
		answer := make(chan error, 1)
		go func() { answer <- take(t.Context(), l.Store()) }()
		<-began
		p.Set(t, f)
		if err := <-answer; !errors.Is(err, stint.ErrUnavailable) || errors.Is(err, stint.ErrNotApplied) {
			t.Errorf("%s: %v", name, err)
		}
		p.Set(t, testserver.Fault{})
	}
}

// TestPings measures a delay, and clocks that are an hour apart.
func TestPings(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, func(o *link.ServerOptions) {
		o.Clock = func() int64 { return time.Now().Add(time.Hour).UnixMicro() }
	})
	p := testserver.StartProxy(t, addr)
	p.Set(t, testserver.Fault{Latency: 20 * time.Millisecond})
	l := connected(t, open(t, p.Addr(), nil))
	wait.For(t, "both sides have measured", func() bool { return l.State().Pings > 16 && s.Peers()[0].Pings > 16 })
	// A busy machine makes it less exact; TestMeter is exact.
	near := func(skew, want time.Duration) bool { return (skew - want).Abs() < 10*time.Second }
	if m := l.State().Measured; m.RoundTrip < 40*time.Millisecond || m.LastRoundTrip < 40*time.Millisecond || !near(m.Skew, time.Hour) {
		t.Errorf("%+v", m)
	}
	if m := s.Peers()[0].Measured; m.RoundTrip < 40*time.Millisecond || !near(m.Skew, -time.Hour) {
		t.Errorf("%+v", m)
	}
}

// TestSilence loses everything, while connections stay open: both sides notice.
func TestSilence(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, func(o *link.ServerOptions) { o.Hurry() })
	p := testserver.StartProxy(t, addr)
	l := connected(t, open(t, p.Addr(), func(o *link.Options) { o.Hurry() }))
	p.Set(t, testserver.Fault{Swallow: true})
	wait.For(t, "both notice", func() bool { return !l.State().Up && len(s.Peers()) == 0 })
	p.Set(t, testserver.Fault{})
	connected(t, l)
}
