package stint

import "slices"

// State is what one counter holds: what was used, and when. The zero State is
// a fresh counter.
type State struct {
	Counter
	// Log holds the units of a sliding_log or of concurrency, oldest first; other
	// algorithms have none. It is never changed in place.
	Log []Entry
	// Past is what changes of charges need to know. Takes neither read nor change it, so a
	// store may keep it apart.
	Past Past
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
