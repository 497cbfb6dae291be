package exact

import (
	"slices"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record/capture"
)

// counters are the counters of a capture as far as they are known, by the functions that are the specification. What had been used of
// a counter before is not known: it is until an answer shows that nothing was, or, of a window or a log, until all of that has left it.
type counters struct {
	all  map[counterID]*counter
	full bool
	// unsure are those that someone has reset, or that a call asked that failed: it is not known when, or whether it was charged.
	unsure map[counterID]bool
}

// counterID names a counter.
type counterID struct {
	file      int // of those of which each has counters of its own
	key       stint.Key
	algorithm stint.Algorithm
	window    stint.Window
	penalty   bool
}

// counter is a counter, and what it was a moment ago: calls that overlap are not in the order of their instants, and one that only
// reads may have been before others that charge.
type counter struct {
	versions []version // the last one is now
	known    bool
	since    int64 // from when it is known or, if it is not, when it was first seen
	gave     int64 // the last instant of a call that gave back
}

// version is a state, between two calls that charge.
type version struct {
	state   stint.State
	by      *item   // the call that has made it; nil: it was there before
	readers []*item // calls that agree with it and charge nothing
	// last is the latest rank of readers that have returned long ago.
	last int
}

func (x *counter) last() *version { return &x.versions[len(x.versions)-1] }

// maxCounters is how many counters are kept. Further ones are not known.
const maxCounters = 1 << 22

// result is how an answer compares with what the counter says.
type result uint8

const (
	same result = iota
	different
	unknown
)

// judged is a call as the counters see it.
type judged struct {
	groups  []group
	results []result // of the asks
	differs bool
	unknown bool
}

// group are the asks of a call that are about one counter. There is nearly always one.
type group struct {
	counter *counter
	asks    []int
	next    stint.State
	known   bool // afterwards
	fresh   bool // nothing had been used before
	unsure  bool // see counters
	changes bool // the counter is another one afterwards
	version int  // with which it agrees; -1: with none
}

// agreed reports whether the answers are those of a version of the counter.
func (g *group) agreed() bool { return g.counter.known && g.known && !g.fresh && g.version >= 0 }

func (c *counters) of(id counterID, at int64) *counter {
	x := c.all[id]
	if x == nil {
		x = &counter{since: at, versions: []version{{}}}
		if len(c.all) >= maxCounters {
			c.sweep(at)
		}
		if len(c.all) < maxCounters {
			c.all[id] = x
		} else {
			c.full = true
		}
	}
	return x
}

// doubt notes that it is not known what a call has done to its counters, and when.
func (c *counters) doubt(file int, call *capture.Call) {
	for i := range call.Asks {
		if len(c.unsure) < maxCounters {
			c.unsure[idOf(file, &call.Asks[i])] = true
		} else {
			c.full = true
		}
	}
}

// sweep drops counters that have recovered: they are known again when they are next seen.
func (c *counters) sweep(at int64) {
	for id, x := range c.all {
		if x.last().state.Until <= at {
			delete(c.all, id)
		}
	}
}

func idOf(file int, a *stint.Ask) counterID {
	if a.Penalty != nil {
		return counterID{file: file, key: a.Key, penalty: true}
	}
	return counterID{file: file, key: a.Key, algorithm: a.Limit.Algorithm, window: a.Limit.Window}
}

// judge compares the answers of a call with what the counters say, and changes nothing. Learns says that counters may be known from
// now on.
func (c *counters) judge(x *item, learns bool) judged {
	call := x.call
	j := judged{results: make([]result, len(call.Asks)), groups: make([]group, 0, len(call.Asks))}
	for i := range call.Asks {
		id := idOf(x.file, &call.Asks[i])
		of := c.of(id, x.at)
		if n := slices.IndexFunc(j.groups, func(g group) bool { return g.counter == of }); n >= 0 {
			j.groups[n].asks = append(j.groups[n].asks, i)
		} else {
			j.groups = append(j.groups, group{counter: of, asks: []int{i}, unsure: c.unsure[id]})
		}
	}
	based := func(b stint.Basis) bool {
		return slices.ContainsFunc(call.Decisions, func(d stint.Decision) bool { return d.Basis == b })
	}
	switch {
	case based(stint.Remembered): // no counter was asked
		for i := range j.groups {
			g := &j.groups[i]
			g.known = g.counter.known
		}
		return j.undecided()
	case based(stint.Leased), based(stint.Local), based(stint.Open), based(stint.Closed),
		slices.ContainsFunc(call.Asks, func(a stint.Ask) bool { return capture.Elsewhere(&a) }):
		for i := range j.groups {
			j.groups[i].changes = true // to one of which nothing is known
		}
		return j.undecided()
	}
	for i := range j.groups {
		if g := &j.groups[i]; g.counter.known {
			j.find(g, x, learns)
		} else {
			j.learn(g, x, learns)
		}
	}
	return j
}

// excuse takes answers for unknown that no version of a counter gives, if something was given back at their instants: that may have had
// another order. Late are the calls that wait with this one.
func (j *judged) excuse(x *item, late []*item) {
	for i := range j.groups {
		g := &j.groups[i]
		if j.results[g.asks[0]] != different {
			continue
		}
		gave := g.counter.gave >= x.at || slices.ContainsFunc(late, func(y *item) bool { return y != x && (x.lazy() || y.lazy()) && meet(x, y) })
		if by := g.counter.last().by; x.lazy() && by != nil {
			gave = gave || by.until >= x.at
		}
		if gave {
			j.set(g, same)
			j.learn(g, x, false)
		}
	}
	j.differs = slices.Contains(j.results, different)
}

// undecided returns a call whose answers cannot be compared.
func (j judged) undecided() judged {
	for i := range j.results {
		j.results[i] = unknown
	}
	j.unknown = true
	return j
}

func (j *judged) set(g *group, r result) {
	for _, i := range g.asks {
		j.results[i] = r
	}
	j.differs = j.differs || r == different
	j.unknown = j.unknown || r == unknown
}

// find finds the last version of a counter with which the answers agree. A call that changes a counter has to agree with what it is
// now.
func (j *judged) find(g *group, x *item, learns bool) {
	all := g.counter.versions
	for g.version = len(all) - 1; g.version >= 0; g.version-- {
		next, agrees := x.answers(g, all[g.version].state)
		g.changes = !unchanged(&all[g.version].state, &next, x.at)
		if agrees && (!g.changes || g.version == len(all)-1) {
			g.next, g.known = next, true
			return
		}
	}
	g.changes = true
	switch {
	case g.unsure:
		j.learn(g, x, learns)
	case x.at <= g.counter.since:
		j.set(g, unknown) // it was known only after that
	default:
		j.set(g, different)
	}
}

// learn judges the answers of a counter that is not known.
func (j *judged) learn(g *group, x *item, learns bool) {
	before := g.counter.last().state
	a := &x.call.Asks[g.asks[0]]
	var agrees bool
	by := g.counter.last().by
	if g.next, agrees = x.answers(g, stint.State{}); agrees && learns && (by == nil || by.until < x.at) { // not just before that one
		g.known, g.fresh, g.changes = true, true, true
		return
	}
	g.changes = true
	if g.next, agrees = x.answers(g, before); agrees && learns && x.at-g.counter.since > horizon(a, x.at) {
		g.known = true // all that had been used has left since
		return
	}
	j.set(g, unknown)
	switch {
	case a.Penalty != nil:
		g.next = stint.State{}
	case agrees, x.lazy(): // what was charged since is changed, whatever the answer: it tells of what was before, too
	default:
		g.next = before
		for _, i := range g.asks {
			if cost := x.call.Decisions[i].Cost; cost > 0 && x.call.Kind == engine.TakeCall {
				g.next, _ = planOf(a).AdjustState(g.next, x.instants[i], cost)
			}
		}
	}
}

// apply changes the counters. Calls that had returned before the instant are followed by all that come.
func (j *judged) apply(x *item, returned int64) {
	for i := range j.groups {
		g := &j.groups[i]
		of := g.counter
		if x.lazy() {
			of.gave = max(of.gave, x.until)
		}
		if !g.changes {
			if g.agreed() {
				of.versions[g.version].read(x, returned)
			}
			continue
		}
		if g.known && g.fresh {
			of.versions = []version{{}} // as it was before
		}
		stays := g.agreed() || g.fresh
		if of.known != g.known {
			of.known, of.since = g.known, x.at
		}
		if v := (version{state: g.next, by: x}); stays {
			of.versions = append(of.versions, v)
		} else {
			of.versions = append(of.versions[:0], v)
		}
		// What was before a call that had returned is over for those that begin now.
		old := 0
		for old+1 < len(of.versions) && of.versions[old+1].by.until < returned {
			old++
		}
		of.versions = slices.Delete(of.versions, 0, old)
	}
}

// read adds a reader.
func (v *version) read(x *item, returned int64) {
	v.readers = slices.DeleteFunc(v.readers, func(r *item) bool {
		if r.until < returned {
			v.last = max(v.last, r.rank)
		}
		return r.until < returned
	})
	v.readers = append(v.readers, x)
}

// answers returns the state of a counter after the asks of a group, and whether it gives the answers that were given.
func (x *item) answers(g *group, before stint.State) (after stint.State, agrees bool) {
	call, agrees := x.call, true
	allowed := !slices.ContainsFunc(call.Decisions, func(d stint.Decision) bool { return !d.Allowed })
	next := before // if the call passes
	after = before
	for _, i := range g.asks {
		a, is, at := &call.Asks[i], &call.Decisions[i], x.instants[i]
		var d stint.Decision
		switch {
		case call.Kind == engine.AdjustCall:
			after, d = adjusted(a, is, after, at)
		case a.Penalty != nil:
			after, d = punished(a, after, at, !allowed && x.violates(i))
		case allowed:
			after, d = planOf(a).TakeState(after, at, a.Cost)
		default:
			var look stint.Decision
			next, d = planOf(a).TakeState(next, at, a.Cost)
			if after, look = planOf(a).TakeState(after, at, 0); d.Allowed {
				d = look
				d.Allowed = true
			}
		}
		agrees = agrees && equal(&d, is)
	}
	return after, agrees
}

// violates reports whether the ask of a penalty records a violation, in a take that was denied.
func (x *item) violates(i int) bool {
	call := x.call
	return call.Asks[i].Cost > 0 && slices.ContainsFunc(call.Decisions[stint.Guarded(call.Asks, i):i], func(d stint.Decision) bool { return !d.Allowed })
}

// punished answers the ask of a penalty. Its state changes only if there is a violation, or if it is from the future.
func punished(a *stint.Ask, before stint.State, at int64, violation bool) (stint.State, stint.Decision) {
	next, d := a.Penalty.Take(before, time.UnixMicro(at), violation)
	if !violation && before.At <= at {
		next = before
	}
	return next, d
}

// adjusted answers a change of a charge.
func adjusted(a *stint.Ask, is *stint.Decision, before stint.State, at int64) (next stint.State, d stint.Decision) {
	switch p := planOf(a); {
	case a.Charge == nil:
		return p.AdjustState(before, at, a.Cost)
	case is.Repeated:
		next, d = p.TakeState(before, at, 0)
		d.Repeated = true
		return next, d
	default:
		return p.AmendState(before, at, *a.Charge, a.Cost)
	}
}

// unchanged reports whether a call has left a counter as it was, which may have recovered before.
func unchanged(before, after *stint.State, at int64) bool {
	was := *before
	if was.Until <= at {
		was.Counter, was.Log = stint.Counter{}, nil
	}
	return equalStates(before, after) || equalStates(&was, after)
}

func equalStates(a, b *stint.State) bool {
	return a.Counter == b.Counter && slices.Equal(a.Log, b.Log) && a.Past.Reset == b.Past.Reset && a.Past.Until == b.Past.Until && slices.Equal(a.Past.Refunds, b.Past.Refunds)
}

// horizon is how long what had been used of a counter matters, in microseconds: of a bucket that is always in use, for ever.
func horizon(a *stint.Ask, at int64) int64 {
	const never = 1 << 62
	if a.Penalty != nil {
		return never
	}
	switch a.Limit.Algorithm {
	case stint.TokenBucket, stint.LeakyBucket:
		return never
	default:
		from, to := a.Limit.Window.Bounds(time.UnixMicro(at))
		return 2 * max(to.Sub(from), a.Limit.Window.Length()).Microseconds()
	}
}

// equal compares all that a client or an operator sees of an answer, and what was charged.
func equal(a, b *stint.Decision) bool {
	return a.Allowed == b.Allowed && a.Cost == b.Cost && a.Limit == b.Limit && a.Remaining == b.Remaining && a.Before == b.Before &&
		a.RetryAfter == b.RetryAfter && a.ResetAfter == b.ResetAfter && a.Delay == b.Delay && a.Repeated == b.Repeated && (a.At == b.At || a.At == 0 || b.At == 0)
}

// planOf returns the plan of an ask's limit, which capture has compiled.
func planOf(a *stint.Ask) *stint.Plan {
	if a.Plan == nil {
		a.Plan, _ = a.Limit.Compile() // it was valid
	}
	return a.Plan
}

// instantsOf returns when the asks of a call were decided, in microseconds. The instant of a hold is its name, and may be later; those
// of penalties are not in answers, and are that of the others.
func instantsOf(call *capture.Call) []int64 {
	at := make([]int64, len(call.Asks))
	some := int64(0)
	for i := range call.Decisions {
		a, d := &call.Asks[i], &call.Decisions[i]
		if at[i] = d.At; a.Penalty == nil && a.Limit.Algorithm == stint.Concurrency && d.Cost > 0 {
			at[i] = d.At + a.Limit.Window.Length().Microseconds() - d.ResetAfter.Microseconds()
		}
		if at[i] > 0 {
			some = at[i]
		}
	}
	for i := range at {
		if at[i] == 0 {
			at[i] = some
		}
	}
	return at
}
