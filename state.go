package stint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// State is what one counter holds: what was used, and when. The zero State is
// a fresh counter.
type State struct {
	Counter
	// Log holds the units of a sliding_log or of concurrency, oldest first; other
	// algorithms have none. It is never changed in place.
	Log []Entry
}

// Counter is the part of a state that has a fixed size. Every number is at
// most 2^53-1; times are microseconds since the Unix epoch. What the fields
// mean depends on the algorithm:
//
//	               At               Used                 Aux
//	fixed_window   window start     units in the window  window end
//	sliding_window window start     units in the window  units in the one before
//	sliding_log    newest entry     units in the log     -
//	token_bucket   last refill      parts of units       parts in one unit
//	leaky_bucket   last drain       parts of units       parts in one unit
//	concurrency    newest hold      places held          -
type Counter struct {
	At, Used, Aux int64
	// Until is when the counter has recovered under the limit that wrote it.
	// From then on it is the same as the zero Counter.
	Until int64
}

// Entry is a number of units charged at one instant.
type Entry struct{ At, Units int64 }

// moveBack moves all times of a counter back that was written by a clock ahead of now, so that its last
// one is now. At least as much time has passed since each of them as lay between them, so nothing is
// forgotten early, and the counter recovers within its own recovery time.
func moveBack(c *Counter, log *[]Entry, by int64) {
	c.At -= by
	c.Until -= by
	*log = slices.Clone(*log)
	for i := range *log {
		(*log)[i].At = max((*log)[i].At-by, 0)
	}
}

// Encoded state: a version, the four numbers, then the log, each number in
// seven bytes, big-endian: 53 bits fit, and Lua's struct library reads it.
const (
	stateVersion = 1
	numberSize   = 7
	stateSize    = 1 + 4*numberSize
	entrySize    = 2 * numberSize
)

// AppendBinary implements [encoding.BinaryAppender].
func (s State) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, stateVersion)
	for _, n := range [...]int64{s.At, s.Used, s.Aux, s.Until} {
		b = appendNumber(b, n)
	}
	for _, e := range s.Log {
		b = appendNumber(appendNumber(b, e.At), e.Units)
	}
	return b, nil
}

// MarshalBinary implements [encoding.BinaryMarshaler].
func (s State) MarshalBinary() ([]byte, error) {
	return s.AppendBinary(make([]byte, 0, stateSize+len(s.Log)*entrySize))
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]. It refuses what
// AppendBinary would not have written.
func (s *State) UnmarshalBinary(b []byte) error {
	switch {
	case len(b) < stateSize:
		return fmt.Errorf("stint: state of %d bytes: want at least %d", len(b), stateSize)
	case b[0] != stateVersion:
		return fmt.Errorf("stint: state of version %d: want %d", b[0], stateVersion)
	case (len(b)-stateSize)%entrySize != 0:
		return fmt.Errorf("stint: state of %d bytes: its log ends inside an entry", len(b))
	case (len(b)-stateSize)/entrySize > MaxLog:
		return fmt.Errorf("stint: state of %d bytes: its log has more than %d entries", len(b), MaxLog)
	}
	b = b[1:]
	var out State
	for _, p := range [...]*int64{&out.At, &out.Used, &out.Aux, &out.Until} {
		*p, b = number(b)
		if *p > maxInt {
			return errors.New("stint: state: a number has more than 53 bits")
		}
	}
	for last, sum := int64(0), int64(0); len(b) > 0; {
		var e Entry
		e.At, b = number(b)
		e.Units, b = number(b)
		sum += e.Units
		if e.At < last || e.At > out.At || e.Units < 1 || sum > out.Used {
			return errors.New("stint: state: its log is out of order or does not add up")
		}
		last = e.At
		out.Log = append(out.Log, e)
		if len(b) == 0 && (sum != out.Used || last != out.At) {
			return errors.New("stint: state: its log does not add up")
		}
	}
	*s = out
	return nil
}

func appendNumber(b []byte, n int64) []byte {
	var buf [8]byte
	binary.BigEndian.PutUint64(buf[:], uint64(n))
	return append(b, buf[1:]...)
}

func number(b []byte) (int64, []byte) {
	var buf [8]byte
	copy(buf[1:], b[:numberSize])
	return int64(binary.BigEndian.Uint64(buf[:])), b[numberSize:]
}
