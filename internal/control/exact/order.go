package exact

import (
	"cmp"
	"math"
	"slices"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record/capture"
)

// item is a call that waits for its turn.
type item struct {
	file     int
	call     *capture.Call
	instants []int64 // of its asks, in microseconds
	at       int64   // the first
	until    int64   // and the last
	of       *decision

	// rank is lower than that of those after it, which are known if they overlap it.
	rank  int
	after []*item
}

func newItem(file int, call *capture.Call, of *decision) *item {
	x := &item{file: file, call: call, of: of, instants: instantsOf(call)}
	for _, at := range x.instants {
		if x.at == 0 || at < x.at {
			x.at = at
		}
		x.until = max(x.until, at)
	}
	return x
}

// order has calls judged in an order in which they agree, if there is one.
//
// Instants give the order of most calls, since those of a counter are in the order of its decisions. But calls of the same microsecond
// have no order, and one that asks several servers has several instants. So a call that does not agree with its counters as they stand
// waits for others of its instants, and is tried again whenever one of its counters was charged.
//
// That the answers tell what was used before makes this a safe choice among calls that charge: of two that are about one counter, only
// one agrees. One that only reads may agree with what a counter was before others were charged, so that is remembered while it may
// matter; and one that gives back may agree more than once, so it is made last, or when another needs it. An order that is found is a
// proof, whichever it is: by it, the counters give the answers that were given.
type order struct {
	counters counters
	learns   func(at int64) bool
	calls    []*item // by instant; those before next are done, or late
	next     int
	sorted   bool
	late     []*item // those that wait for others
	now      int64   // the instant of the call that was judged last
	judged   func(x *item, j *judged)
}

func (o *order) add(x *item) {
	o.calls = append(o.calls, x)
	o.sorted = false
}

// advance judges all calls before an instant, but for those that wait.
func (o *order) advance(until int64) {
	if !o.sorted {
		o.calls = append(o.calls[:0], o.calls[o.next:]...)
		slices.SortStableFunc(o.calls, func(a, b *item) int { return cmp.Compare(a.at, b.at) })
		o.next, o.sorted = 0, true
	}
	for ; o.next < len(o.calls) && o.calls[o.next].at < until; o.next++ {
		x := o.calls[o.next]
		o.calls[o.next] = nil
		o.expire(x.at)
		o.now = x.at
		if x.lazy() {
			o.late = append(o.late, x)
			continue
		}
		j := o.judge(x)
		for j.differs && o.help(x, &j) {
			j = o.judge(x)
		}
		if j.differs || j.unknown && o.taught(x, &j) {
			o.late = append(o.late, x)
		} else {
			o.apply(x, &j)
		}
	}
	if until == math.MaxInt64 {
		o.expire(until)
	}
}

// lazy reports whether a call waits for as long as it can. One that gives back may agree more than once, unlike one that charges: it is
// made when another needs it, or has to be.
func (x *item) lazy() bool { return x.call.Kind == engine.AdjustCall }

// help makes a call that waits, if the first agrees after it.
func (o *order) help(first *item, j *judged) bool {
	for i, y := range o.late {
		if !y.lazy() || !meet(first, y) {
			continue
		}
		if other := o.judge(y); !other.differs && helps(first, j, &other) {
			o.late = slices.Delete(o.late, i, i+1)
			o.apply(y, &other)
			return true
		}
	}
	return false
}

func helps(first *item, j, other *judged) bool {
	for i := range j.groups {
		g := &j.groups[i]
		if j.results[g.asks[0]] != different {
			continue
		}
		for k := range other.groups {
			if h := &other.groups[k]; h.counter == g.counter && h.changes {
				if _, agrees := first.answers(g, h.next); agrees {
					return true
				}
			}
		}
	}
	return false
}

// expire judges calls for good whose instants are before this one: those first that agree, and of these those that give back last.
func (o *order) expire(at int64) {
	for {
		first, found := -1, -1
		var agreed judged
		for i, x := range o.late {
			if x.until >= at {
				continue
			}
			if first < 0 {
				first = i
			}
			if found >= 0 && x.lazy() {
				continue
			}
			if j := o.judge(x); !j.differs && (found < 0 || o.late[found].lazy()) {
				found, agreed = i, j
			}
		}
		if first < 0 {
			return
		}
		if found < 0 {
			found, agreed = first, o.judge(o.late[first])
			agreed.excuse(o.late[first], o.late)
		}
		x := o.late[found]
		o.late = slices.Delete(o.late, found, found+1)
		o.apply(x, &agreed)
	}
}

// judge judges a call as the last one or, if it reads what was before others have charged, as one before these.
func (o *order) judge(x *item) judged {
	j := o.counters.judge(x, o.learns(x.at))
	if !j.differs && !o.fits(x, &j) {
		j.differs = true
	}
	return j
}

// fits reports whether a call can be before those that have changed what it reads: if none of them, and none that is after one of
// them, has to be before it, or has earlier instants.
func (*order) fits(x *item, j *judged) bool {
	before, next := j.neighbours()
	if len(next) == 0 {
		return true
	}
	seen := map[*item]bool{}
	var free func(y *item) bool
	free = func(y *item) bool {
		if seen[y] {
			return true
		}
		seen[y] = true
		return y.until >= x.at && !slices.Contains(before, y) && !slices.ContainsFunc(y.after, func(z *item) bool { return !free(z) })
	}
	return !slices.ContainsFunc(next, func(y *item) bool { return !free(y) })
}

// neighbours returns the calls that a call has to be after, and those that it has to be before.
func (j *judged) neighbours() (before, next []*item) {
	for i := range j.groups {
		g := &j.groups[i]
		if !g.agreed() {
			continue
		}
		v := &g.counter.versions[g.version]
		if v.by != nil {
			before = append(before, v.by)
		}
		if g.changes {
			before = append(before, v.readers...)
		} else if g.version+1 < len(g.counter.versions) {
			next = append(next, g.counter.versions[g.version+1].by)
		}
	}
	return before, next
}

// place ranks a call, and those that come after it.
func (x *item) place(j *judged) {
	before, next := j.neighbours()
	for i := range j.groups {
		if g := &j.groups[i]; g.agreed() {
			x.rank = max(x.rank, g.counter.versions[g.version].last+1)
		}
	}
	for _, y := range before {
		x.rank = max(x.rank, y.rank+1)
		y.after = append(y.after, x)
	}
	x.after = next
	for _, y := range next {
		y.raise(x.rank + 1)
	}
}

func (x *item) raise(rank int) {
	if x.rank >= rank {
		return
	}
	x.rank = rank
	for _, y := range x.after {
		y.raise(rank + 1)
	}
}

// apply charges a call, and then those that have waited for it.
func (o *order) apply(x *item, j *judged) {
	if !j.differs {
		x.place(j)
	}
	returned := o.now
	for _, y := range o.late {
		returned = min(returned, y.at)
	}
	j.apply(x, returned)
	o.judged(x, j)
	for i := 0; i < len(o.late); i++ {
		y := o.late[i]
		if y.lazy() || !meet(x, y) {
			continue
		}
		if other := o.judge(y); !other.differs && !other.unknown {
			o.late = slices.Delete(o.late, i, i+1)
			o.apply(y, &other)
			i = -1
		}
	}
}

// meet reports whether two calls are about one counter.
func meet(x, y *item) bool {
	for i := range x.call.Asks {
		for k := range y.call.Asks {
			if x.call.Asks[i].Key == y.call.Asks[k].Key {
				return true
			}
		}
	}
	return false
}

// taught reports whether a later call, which may have been charged before, makes a counter known that the first does not.
func (o *order) taught(first *item, j *judged) bool {
	if !o.learns(first.at) || first.call.Kind != engine.TakeCall {
		return false
	}
	const most = 1024
	for n := o.next + 1; n < len(o.calls) && n < o.next+most && o.calls[n].at <= first.until; n++ {
		y := o.calls[n]
		if y.file != first.file || y.call.Kind != engine.TakeCall || !meet(first, y) {
			continue
		}
		for i := range y.call.Asks {
			for k, r := range j.results {
				if r != unknown || idOf(y.file, &y.call.Asks[i]) != idOf(first.file, &first.call.Asks[k]) {
					continue
				}
				if _, fresh := y.answers(&group{asks: []int{i}}, stint.State{}); fresh {
					return true
				}
			}
		}
	}
	return false
}
