package quota

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// Region is a region and its weight, of which only the proportion to those of others matters.
type Region struct {
	Name   string
	Weight int
}

// MaxRegions is the most regions of a table.
const MaxRegions = 64

// million is the sum of weights that follow demand.
const million = 1_000_000

// Table is the regions among which limits are divided. All nodes of all regions must have the same one. It
// does not change, and may be used by many goroutines at once.
type Table struct {
	names []string // sorted, so that all nodes round alike
	own   int
	floor int // the lowest weight of a region, of a million
	// fixed divides by the weights of the table. So does start, for limits whose weights follow demand, in
	// parts per million. Lowest is for nodes that do not know what their weight is.
	fixed, start, lowest *division
}

// NewTable returns the table of these regions, as seen by the one with the name own. Each has a weight, or none
// has: then they are equal.
func NewTable(own string, regions []Region) (*Table, error) {
	if len(regions) == 0 || len(regions) > MaxRegions {
		return nil, invalid("regions", strconv.Itoa(len(regions)), "from 1 to "+strconv.Itoa(MaxRegions))
	}
	regions = slices.Clone(regions)
	slices.SortFunc(regions, func(a, b Region) int { return cmp.Compare(a.Name, b.Name) })
	t := &Table{own: -1}
	weights, weighted := make([]int, len(regions)), 0
	for i, r := range regions {
		switch {
		case r.Name == "" || i > 0 && r.Name == regions[i-1].Name:
			return nil, invalid("region", r.Name, "a name that no other region has")
		case r.Weight < 0 || r.Weight > million:
			return nil, invalid("weight of region "+r.Name, strconv.Itoa(r.Weight), "from 1 to "+strconv.Itoa(million))
		case r.Name == own:
			t.own = i
		}
		if weights[i] = r.Weight; r.Weight > 0 {
			weighted++
		}
		t.names = append(t.names, r.Name)
	}
	switch {
	case t.own < 0:
		return nil, invalid("region", own, "one of the table")
	case weighted == 0:
		for i := range weights {
			weights[i] = 1
		}
	case weighted < len(regions):
		return nil, invalid("weights", strconv.Itoa(weighted), "one for each of the "+strconv.Itoa(len(regions))+" regions, or none")
	}
	t.floor = lowestOf(len(regions))
	start := t.raise(weights)
	t.fixed = newDivision(weights, weights, t.own)
	t.start = newDivision(start, start, t.own)
	t.lowest = newDivision(nil, nil, t.own)
	t.lowest.floor = t.floor
	return t, nil
}

// lowestOf returns the floor: 2 % for each of up to three regions. With more, all others together have 4 %, so
// that 96 % are always for the region that has all the demand.
func lowestOf(regions int) int { return min(million/50, million/25/max(regions-1, 1)) }

// target returns the weights that follow from the demand of each region, which are a million together and none of
// which is below the floor.
func (t *Table) target(demand []int64) []int {
	weights := whole(million-len(demand)*t.floor, demand)
	for i := range weights {
		weights[i] += t.floor
	}
	return weights
}

// raise returns weights in the same proportion that are a million together, except that those below the floor
// are raised to it.
func (t *Table) raise(weights []int) []int {
	weights = slices.Clone(weights)
	low := make([]bool, len(weights))
	for {
		out := whole(million-t.floor*count(low), weights)
		again := false
		for i := range out {
			if low[i] {
				out[i] = t.floor
			} else if out[i] < t.floor {
				low[i], weights[i], again = true, 0, true
			}
		}
		if !again {
			return out
		}
	}
}

func count(set []bool) (n int) {
	for _, in := range set {
		if in {
			n++
		}
	}
	return n
}

// whole returns weights in the same proportion that have this sum. Weights of nothing are equal.
func whole[W int | int64](sum int, weights []W) []int {
	if !slices.ContainsFunc(weights, func(w W) bool { return w > 0 }) {
		weights = slices.Repeat([]W{1}, len(weights))
	}
	parts := apportion(int64(sum), weights, false)
	out := make([]int, len(parts))
	for i, n := range parts {
		out[i] = int(n)
	}
	return out
}

// follows reports whether weights that follow demand are for this limit, and in which class it is.
func (t *Table) follows(l *stint.Limit) (class int, ok bool) {
	n := int64(len(t.names))
	if n < 2 || l.Max < n || l.Algorithm == stint.TokenBucket && l.Burst > 0 && l.Burst < n {
		return 0, false
	}
	return classOf(Recovery(*l))
}

// classes are the times after which limits have recovered, rounded up. The limits of a rule that are in the same
// class share their weights, and a limit of none has fixed weights.
var classes = [...]time.Duration{10 * time.Second, time.Minute, 2 * time.Minute, 10 * time.Minute, time.Hour, MaxRecovery}

// MaxRecovery is the longest time to recover of a limit whose weights follow demand.
const MaxRecovery = 2 * time.Hour

func classOf(recovery time.Duration) (class int, ok bool) {
	for i, longest := range classes {
		if recovery > 0 && recovery <= longest {
			return i, true
		}
	}
	return 0, false
}

// Recovery returns after which time nothing of what was used under the limit counts any more: a window, two
// of a sliding_window, or the time in which a full bucket drains. It is zero if there is no such time: for
// periods of the calendar, which vary, and concurrency, whose holders may stay.
func Recovery(l stint.Limit) time.Duration {
	length := l.Window.Length()
	switch l.Algorithm {
	case stint.Concurrency:
		return 0
	case stint.SlidingWindow:
		return 2 * length
	case stint.TokenBucket, stint.LeakyBucket:
		// One more unit than it holds, since its parts are rounded.
		high, low := bits.Mul64(uint64(l.Cap())+1, uint64(length))
		if high >= uint64(l.Max) {
			return 1<<63 - 1
		}
		drained, rest := bits.Div64(high, low, uint64(l.Max))
		return time.Duration(min(drained+min(rest, 1), 1<<63-1))
	case stint.FixedWindow, stint.SlidingLog:
	}
	return length
}

// division is how limits are divided: by the weights before a change and after it, of which a region has the
// smaller part, or by the floor. It does not change.
type division struct {
	id            uint64 // tells divisions apart
	before, after []int
	own           int // -1: the region has no part
	floor         int // not 0: the part is the floor
}

var divisions atomic.Uint64

func newDivision(before, after []int, own int) *division {
	return &division{id: divisions.Add(1), before: before, after: after, own: own}
}

// part returns the region's part of a valid limit.
func (d *division) part(l stint.Limit) (part stint.Limit, ok bool) {
	switch {
	case d.floor > 0:
		return floorOf(l, d.floor), true
	case d.own < 0:
		return stint.Limit{}, false
	}
	part = l
	part.Max, part.Burst = divide(l, d.after, d.own)
	if !slices.Equal(d.before, d.after) {
		units, burst := divide(l, d.before, d.own)
		part.Max, part.Burst = min(part.Max, units), min(part.Burst, burst)
	}
	return exact(part), part.Max > 0
}

// floorOf returns a part that is not above that of any region whose weight is at least the floor. Proof: a part
// by largest remainders is at least the proportion, rounded down, and at least one unit. Whoever gave a unit to
// another had most, and so more than the floor, which is less than a part in ten of that.
func floorOf(l stint.Limit, floor int) stint.Limit {
	all := l
	l.Max = max(proportion(all.Max, int64(floor), million), 1)
	if all.Burst > 0 {
		if l.Burst = proportion(all.Burst, l.Max, all.Max); l.Algorithm == stint.TokenBucket {
			l.Burst = max(l.Burst, 1)
		}
	}
	return exact(l)
}

// proportion returns all*of/whole, rounded down. Of is not above whole.
func proportion(all, of, whole int64) int64 {
	high, low := bits.Mul64(uint64(all), uint64(of))
	q, _ := bits.Div64(high, low, uint64(whole))
	return int64(q)
}

func invalid(field, value, want string) error {
	return &stint.InvalidError{Field: field, Value: value, Want: want}
}
