package engine

import (
	"context"
	"time"
)

// Timers wait for an [Engine], in the time of its clock. A simulation has its own.
type Timers interface {
	// Pause waits for d, and ends early if there is something to receive from wake, which may be nil. It returns false
	// if ctx is done before.
	Pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool
	// AfterFunc calls f after d, unless stop is called before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// realTimers wait in real time.
type realTimers struct{}

func (realTimers) Pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-wake:
		return true
	case <-ctx.Done():
		return false
	}
}

func (realTimers) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	return time.AfterFunc(d, f).Stop
}
