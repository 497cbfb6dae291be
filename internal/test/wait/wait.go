// Package wait has tests wait for what must happen, however slow the machine is: until shortly before the
// deadline of the whole test run. What is waited for is never sleep: a condition is looked at again and again.
package wait

import (
	"errors"
	"testing"
	"time"
)

const (
	// The time between two looks grows from first to longest: a look may cost more than what is waited for.
	first, longest = time.Millisecond, 20 * time.Millisecond
	// report is the time between two lines about a condition that does not hold.
	report = 5 * time.Second
	// spare is the time before the deadline of the run in which a test that has waited in vain says so.
	spare = 10 * time.Second
	// most is how long is waited if the run has no deadline.
	most = 10 * time.Minute
)

var errNot = errors.New("not yet")

// For waits until a condition holds. The text says what is waited for.
func For(t testing.TB, what string, is func() bool) {
	t.Helper()
	Nil(t, what, func() error {
		if is() {
			return nil
		}
		return errNot
	})
}

// Nil waits until a check returns no error. The text says what is waited for.
func Nil(t testing.TB, what string, check func() error) {
	t.Helper()
	begin := time.Now()
	deadline := begin.Add(most)
	if run, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if d, ok := run.Deadline(); ok {
			deadline = d.Add(-spare)
		}
	}
	said := begin
	for pause := first; ; pause = min(2*pause, longest) {
		err := check()
		if err == nil {
			return
		}
		now := time.Now()
		if now.After(deadline) {
			t.Fatalf("waited %v for: %s: %v", now.Sub(begin).Round(time.Second), what, err)
		}
		if now.Sub(said) >= report {
			said = now
			t.Logf("has waited %v for: %s: %v", now.Sub(begin).Round(time.Second), what, err)
		}
		<-time.After(pause)
	}
}
