package exact

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record/capture"
)

// answers is a store that answers what another has answered.
type answers struct {
	mu    sync.Mutex
	calls []*capture.Call
	used  []bool
	wrong *stint.Ask // what was asked, and had not been
}

var _ stint.Store = (*answers)(nil)

var (
	errFailed = errors.New("the store failed")
	errAsked  = errors.New("it asks for something else")
	errNone   = errors.New("there are only takes")
)

// begin has the calls of a decision answered.
func (s *answers) begin(calls []*capture.Call) {
	s.calls, s.used, s.wrong = calls, append(s.used[:0], make([]bool, len(calls))...), nil
}

// left reports whether the calls were others than those that were made.
func (s *answers) left() bool { return slices.Contains(s.used, false) || s.wrong != nil }

// asked describes what was asked.
func (s *answers) asked() string {
	text := "nothing else"
	for i, c := range s.calls {
		if !s.used[i] && len(c.Asks) > 0 {
			text = c.Asks[0].Key.String()
			break
		}
	}
	if s.wrong != nil {
		text += ", and not " + s.wrong.Key.String()
	}
	return text
}

// Take implements [stint.Store].
func (s *answers) Take(_ context.Context, asks []stint.Ask, ds []stint.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range s.calls {
		if s.used[i] || !slices.EqualFunc(c.Asks, asks, alike) {
			continue
		}
		s.used[i] = true
		if c.Failed {
			return errFailed
		}
		copy(ds, c.Decisions)
		return nil
	}
	if s.wrong == nil && len(asks) > 0 {
		a := asks[0]
		s.wrong = &a
	}
	return errAsked
}

// alike reports whether two asks are the same.
func alike(a, b stint.Ask) bool {
	if a.Key != b.Key || a.Cost != b.Cost || (a.Penalty == nil) != (b.Penalty == nil) {
		return false
	}
	if a.Penalty != nil {
		return a.Penalty.String() == b.Penalty.String()
	}
	return a.Limit == b.Limit
}

// Adjust implements [stint.Store].
func (*answers) Adjust(context.Context, []stint.Ask, []stint.Decision) error { return errNone }

// Reset implements [stint.Store].
func (*answers) Reset(context.Context, []stint.Ask) error { return errNone }

// Close implements [stint.Store].
func (*answers) Close() error { return nil }

// noTimers wait for nothing: how long a decision was held is among its facts.
type noTimers struct{}

var _ engine.Timers = noTimers{}

// Pause implements [engine.Timers].
func (noTimers) Pause(context.Context, time.Duration, <-chan struct{}) bool { return true }

// AfterFunc implements [engine.Timers].
func (noTimers) AfterFunc(time.Duration, func()) (stop func() bool) {
	return func() bool { return false }
}
