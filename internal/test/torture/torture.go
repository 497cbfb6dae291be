// Package torture judges what tests measure: times, rates, shares and bytes, which depend on the machine.
//
// A test hands every such figure to [AtMost] or [AtLeast]. Under make test they only log it. Under make torture
// (the build tag of that name) they judge it, and write a row of the table that ends the run. A [Stopwatch] does
// not count the time in which the machine did not run the process.
package torture

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/pulse"
)

// Table is the environment variable with the file to which rows are appended, as JSON, one a line.
const Table = "STINT_TORTURE_TABLE"

// A Row of the table says what was asked and measured.
type Row struct {
	Test, What, Asked, Measured, Verdict string
}

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
	r := Row{t.Name(), what, asked, fmt.Sprint(measured), "good"}
	t.Logf("%s: %s, asked %s", r.What, r.Measured, r.Asked)
	if !Enabled {
		return
	}
	if !good {
		r.Verdict = "BAD"
		t.Errorf("%s: %s, want %s", r.What, r.Measured, r.Asked)
	}
	if err := write(r); err != nil {
		t.Error(err)
	}
}

func write(r Row) error {
	file := os.Getenv(Table)
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(f).Encode(r); err != nil {
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
