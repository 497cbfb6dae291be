// Package torture judges what tests measure: times, rates, shares and bytes, which depend on the machine.
//
// A test hands every such figure to [AtMost] or [AtLeast]. Under make test they only log it. Under make torture
// (the build tag of that name) they judge it, and write a row of the table that ends the run. A [Stopwatch] does
// not count the time in which the machine did not run the process.
package torture

import (
	"cmp"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/pulse"
)

// table is the environment variable with the file to which rows are appended: test, figure, what was asked, what
// was measured, and verdict, with tabs between them.
const table = "STINT_TORTURE_TABLE"

// AtMost judges a figure that is to be at most a bound.
func AtMost[T cmp.Ordered](t testing.TB, what string, measured, bound T) {
	t.Helper()
	judge(t, what, fmt.Sprint("at most ", bound), measured, measured <= bound)
}

// AtLeast judges a figure that is to be at least a bound.
func AtLeast[T cmp.Ordered](t testing.TB, what string, measured, bound T) {
	t.Helper()
	judge(t, what, fmt.Sprint("at least ", bound), measured, measured >= bound)
}

func judge(t testing.TB, what, asked string, measured any, good bool) {
	t.Helper()
	t.Logf("%s: %v, asked %s", what, measured, asked)
	if !Enabled {
		return
	}
	verdict := "good"
	if !good {
		verdict = "BAD"
		t.Errorf("%s: %v, want %s", what, measured, asked)
	}
	if file := os.Getenv(table); file != "" {
		if err := add(file, fmt.Sprintf("%s\t%s\t%s\t%v\t%s\n", t.Name(), what, asked, measured, verdict)); err != nil {
			t.Error(err)
		}
	}
}

// add appends a row to a file.
func add(file, row string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(row); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// Rounds returns n, or ten times as many where figures are judged, where there is time for them.
func Rounds(n int) int {
	if Enabled {
		return 10 * n
	}
	return n
}

// A Stopwatch measures how long this process ran.
type Stopwatch struct {
	pulse *pulse.Pulse
	begin pulse.Moment
}

// Start returns a stopwatch that runs until the test ends.
func Start(t testing.TB) *Stopwatch {
	t.Helper()
	s := &Stopwatch{pulse: pulse.New()}
	t.Cleanup(s.pulse.Close)
	s.begin = s.pulse.Read()
	return s
}

// Took returns for how long the process has run since the stopwatch was started.
func (s *Stopwatch) Took() time.Duration {
	ran, _ := s.pulse.Read().Since(s.begin)
	return ran
}
