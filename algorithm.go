package stint

import "strconv"

// Algorithm is the way a limit counts. The zero value is [SlidingWindow].
type Algorithm uint8

const (
	// SlidingWindow weighs the previous window's count by how much of it still
	// overlaps the last window's length. Two counters, conservative.
	SlidingWindow Algorithm = iota
	// FixedWindow counts in windows aligned to the epoch or to the calendar.
	FixedWindow
	// SlidingLog remembers every unit of the last window: exact, and its memory
	// grows with the limit, which is therefore capped at [MaxLog].
	SlidingLog
	// TokenBucket refills continuously up to a burst. GCRA is the same thing.
	TokenBucket
	// LeakyBucket spaces requests evenly and says how long to hold each one.
	LeakyBucket
	// Concurrency counts what is held at once: a take holds, and a release gives
	// back ([Limiter.Hold]). The window is how long a holder that is neither
	// released nor renewed keeps its place.
	Concurrency
)

var algorithmNames = [...]string{
	SlidingWindow: "sliding_window",
	FixedWindow:   "fixed_window",
	SlidingLog:    "sliding_log",
	TokenBucket:   "token_bucket",
	LeakyBucket:   "leaky_bucket",
	Concurrency:   "concurrency",
}

// algorithmCodes are for [Limit.AppendKind].
var algorithmCodes = [...]string{
	SlidingWindow: "sw",
	FixedWindow:   "fw",
	SlidingLog:    "sl",
	TokenBucket:   "tb",
	LeakyBucket:   "lb",
	Concurrency:   "cc",
}

const algorithmWant = "sliding_window, fixed_window, sliding_log, token_bucket (or gcra), leaky_bucket or concurrency"

// Algorithms returns every algorithm.
func Algorithms() []Algorithm {
	return []Algorithm{SlidingWindow, FixedWindow, SlidingLog, TokenBucket, LeakyBucket, Concurrency}
}

// hasLog reports whether the algorithm's states have a log.
func (a Algorithm) hasLog() bool { return a == SlidingLog || a == Concurrency }

func (a Algorithm) isBucket() bool { return a == TokenBucket || a == LeakyBucket }

// ParseAlgorithm reads the name of an algorithm. "gcra" is an alias for
// "token_bucket".
func ParseAlgorithm(name string) (Algorithm, error) {
	for a := range algorithmNames {
		if algorithmNames[a] == name {
			return Algorithm(a), nil
		}
	}
	if name == "gcra" {
		return TokenBucket, nil
	}
	return 0, invalid("algorithm", name, algorithmWant)
}

func (a Algorithm) known() bool { return int(a) < len(algorithmNames) }

// String returns the algorithm's name, as [ParseAlgorithm] reads it.
func (a Algorithm) String() string {
	if !a.known() {
		return "algorithm(" + strconv.Itoa(int(a)) + ")"
	}
	return algorithmNames[a]
}

// MarshalText implements [encoding.TextMarshaler].
func (a Algorithm) MarshalText() ([]byte, error) {
	if !a.known() {
		return nil, invalid("algorithm", a.String(), algorithmWant)
	}
	return []byte(algorithmNames[a]), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *Algorithm) UnmarshalText(text []byte) error {
	v, err := ParseAlgorithm(string(text))
	if err == nil {
		*a = v
	}
	return err
}
