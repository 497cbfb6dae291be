package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
)

// errAnswer means that the script did not send this reply.
var errAnswer = unavailable(errors.New("unexpected reply to the script; does the URL point to Redis, with no other server in between?"))

// edgesError asks for the calendar windows around a time. Now is the time in Redis.
type edgesError struct{ at, now int64 }

func (e *edgesError) Error() string {
	return "the clocks of Redis and this process differ too much for a calendar window"
}

// decode reads the reply and decides every request. A request that could not be decided
// gets its own error.
func (c *call) decode(answer message) error {
	var reports messages
	if answer.isText() {
		const size = 12 // of a state
		text, err := answer.text()
		if err != nil || len(text) != numberSize+size*c.states() || c.longs > 0 {
			return errAnswer
		}
		c.now = number(text)
		for i := range c.counters {
			k := &c.counters[i]
			from := numberSize + size*int(k.place-1)
			k.state = decodeState(text[from:from+size], k.algorithm, c.now)
		}
	} else {
		var err error
		if reports, err = c.unpack(answer); err != nil {
			return err
		}
	}
	for n, i := range c.order {
		g := &c.groups[i]
		pass, err := max(len(g.requests), 1), error(nil)
		if reports.len() > 0 {
			if number, _ := reports.at(0).number(); int(number) == n+1 {
				pass, err = c.readReport(g, reports.at(1))
				reports = reports.cut(2, reports.len())
			}
		}
		if err == nil {
			err = c.decide(g, pass)
		}
		for _, r := range g.requests {
			if r.err == nil {
				r.err = err
			}
		}
	}
	if reports.len() > 0 {
		return errAnswer
	}
	return nil
}

// unpack reads the array form of the reply, and returns the reports about groups.
func (c *call) unpack(answer message) (reports messages, err error) {
	all, err := answer.list()
	if err != nil || all.len() < 2 {
		return messages{}, errAnswer
	}
	many, err := all.at(1).number()
	if err != nil || many < 0 || many > int64(len(c.groups)) || all.len() < 2+2*int(many)+c.states() {
		return messages{}, errAnswer
	}
	if c.now, err = all.at(0).number(); err != nil {
		return messages{}, errAnswer
	}
	from := 2 + 2*int(many)
	reports = all.cut(2, from)
	states := all.cut(from, from+c.states())
	c.found = all.cut(from+c.states(), all.len())
	for i := range c.counters {
		k := &c.counters[i]
		if k.long {
			continue
		}
		text, err := states.at(int(k.place - 1)).text()
		if err != nil {
			return messages{}, errAnswer
		}
		k.state = decodeState(text, k.algorithm, c.now)
	}
	return reports, nil
}

// readReport reads the report about a group that did not pass completely.
func (c *call) readReport(g *group, value message) (pass int, err error) {
	if value.isNumber() {
		n, _ := value.number()
		return int(n), nil
	}
	text, err := value.text()
	if err != nil {
		return 0, errAnswer
	}
	return 0, c.problem(g, text)
}

// problem returns the error for a group that the script could not decide.
func (c *call) problem(g *group, text string) error {
	if at, ok := strings.CutPrefix(text, "EDGES "); ok {
		if t, err := strconv.ParseInt(at, 10, 64); err == nil {
			return &edgesError{at: t, now: c.now}
		}
	}
	if i, ok := strings.CutPrefix(text, "CHARGE "); ok {
		if n, err := strconv.Atoi(i); err == nil && n > 0 && n <= len(g.asks) {
			charge := &g.requests[0].items[n-1].charge
			return charge.ValidateFor(charge.Counter, c.now)
		}
	}
	var keys []string
	for _, a := range g.asks {
		keys = append(keys, c.counters[a.counter].key)
	}
	return &StateError{Keys: keys, Problem: text}
}

// StateError means that a counter cannot be read: its key holds something else, or a
// value that another version of Stint wrote. Other counters are not affected.
type StateError struct {
	Keys    []string // the counter is one of these
	Problem string
}

func (e *StateError) Error() string {
	return fmt.Sprintf("stint: redis: the key of a counter (%s) has a bad value (%s): want one written by this version; delete the key, or use another prefix",
		strings.Join(e.Keys, ", "), e.Problem)
}

// decide answers the requests of a group, of which the first pass were allowed.
func (c *call) decide(g *group, pass int) error {
	if pass < 0 || pass > max(len(g.requests), 1) {
		return errAnswer
	}
	found, err := c.findings(g)
	if err != nil {
		return err
	}
	if len(g.requests) == 0 {
		c.peeks = append(c.peeks, firstOf(found))
		return nil
	}
	switch r := g.requests[0]; g.kind {
	case reset:
		for _, a := range g.asks {
			c.counters[a.counter].state = stint.Counter{}
		}
	case adjust:
		r.makeRoom()
		for i, a := range g.asks {
			c.adjust(&c.counters[a.counter].state, found, i, &r.items[i], &r.out[i])
			r.out[i].Repeated = found != nil && found[i].held < 0
			r.other = r.other || found != nil && found[i].held < -1
		}
		if r.track {
			r.held = make([]int64, len(g.asks))
			for i := range found {
				r.held[i] = found[i].held
			}
		}
	case twins:
		return c.decideTwins(g, r, found, pass)
	case take:
		for _, r := range g.requests[:pass] {
			if err := c.pass(g, r, found); err != nil {
				return err
			}
		}
		var denied []stint.Decision
		for _, r := range g.requests[pass:] {
			if denied == nil {
				if denied = c.deny(g, r, found); denied == nil {
					return errAnswer
				}
			}
			r.makeRoom()
			copy(r.out, denied)
			c.violate(r, found)
		}
	case undo:
	}
	return nil
}

// found is the state of a log when it was asked: its newest entry, the units in it, when
// it recovers, and when enough units leave it for a denied cost. For a penalty it is the whole state,
// and for a changed charge how many places it holds. Of other algorithms, that is 0 if it was not
// changed, -1 if that was because a change with its ID was made before, -2 if that was made together with others, and otherwise 1; of a bucket, what had been given back before of what was used before it
// is added.
type found struct {
	at, used, recovery, leaves int64
	penalty                    stint.State
	held                       int64
}

// findings reads the states of the logs and penalties of a group, indexed like its asks.
// It returns nil if there are none, as in most groups.
func (c *call) findings(g *group) ([]found, error) {
	var out []found
	for i, a := range g.asks {
		changes := g.kind == adjust && g.requests[0].items[i].charge.Cost > 0
		if !c.counters[a.counter].long && !changes {
			continue
		}
		if out == nil {
			out = make([]found, len(g.asks))
		}
		if g.kind == undo || g.kind == reset {
			continue
		}
		if changes {
			text, err := c.nextFound()
			if err != nil {
				return nil, err
			}
			if out[i].held, err = strconv.ParseInt(text, 10, 64); err != nil {
				return nil, errAnswer
			}
		}
		if !c.counters[a.counter].long {
			continue
		}
		text, err := c.nextFound()
		if err != nil {
			return nil, err
		}
		if a.limit < 0 {
			out[i].penalty = decodePenalty(text)
			continue
		}
		if len(text) != 4*numberSize {
			return nil, errAnswer
		}
		f := &out[i]
		f.at, f.used, f.recovery, f.leaves = number(text), number(text[7:]), number(text[14:]), number(text[21:])
	}
	return out, nil
}

// nextFound returns what the script says of the next ask.
func (c *call) nextFound() (string, error) {
	if c.found.len() == 0 {
		return "", errAnswer
	}
	text, err := c.found.at(0).text()
	if err != nil {
		return "", errAnswer
	}
	c.found = c.found.cut(1, c.found.len())
	return text, nil
}

func firstOf(fs []found) (f found) {
	if len(fs) > 0 {
		f = fs[0]
	}
	return f
}

func (f *found) counter() stint.Counter {
	return stint.Counter{At: f.at, Used: f.used, Until: f.recovery}
}

// entry returns the part of a log that stint.Plan needs to compute RetryAfter.
func (f *found) entry() []stint.Entry {
	if f.leaves == 0 {
		return nil
	}
	return []stint.Entry{{At: f.leaves, Units: maxInt}}
}

// take takes from a counter as the script did. A log is already moved to now.
func (it *item) take(c *stint.Counter, log []stint.Entry, now, cost int64, d *stint.Decision) {
	if it.log() {
		it.plan.TakeLog(c, log, now, cost, d)
	} else {
		it.plan.Take(c, now, cost, d)
	}
}

// pass answers an allowed request.
func (c *call) pass(g *group, r *request, found []found) error {
	r.makeRoom()
	if r.track {
		r.before = make([]before, len(g.asks))
	}
	for i, a := range g.asks {
		it, state := &r.items[i], &c.counters[a.counter].state
		if it.penalty != nil {
			if _, r.out[i] = it.penalty.Take(found[i].penalty, time.UnixMicro(c.now), false); !r.out[i].Allowed {
				return errAnswer
			}
			continue
		}
		var log stint.Counter
		if it.log() {
			log = found[i].counter()
			state = &log
		}
		if r.track {
			r.before[i] = before{now: c.now, counter: *state}
		}
		it.take(state, nil, c.now, it.cost, &r.out[i])
		if !r.out[i].Allowed {
			return errAnswer
		}
		if it.log() {
			found[i].at, found[i].used, found[i].recovery = log.At, log.Used, log.Until
		}
	}
	return nil
}

// deny answers a denied request. It returns nil if no ask denies it.
func (c *call) deny(g *group, r *request, found []found) []stint.Decision {
	out := make([]stint.Decision, len(g.asks))
	denied := false
	for i, a := range g.asks {
		if p := r.items[i].penalty; p != nil {
			_, out[i] = p.Take(found[i].penalty, time.UnixMicro(c.now), false)
			denied = denied || !out[i].Allowed
			continue
		}
		it, state, log := &r.items[i], c.counters[a.counter].state, []stint.Entry(nil)
		if it.log() {
			state, log = found[i].counter(), found[i].entry()
		}
		judged := state
		it.take(&judged, log, c.now, it.cost, &out[i])
		if out[i].Allowed {
			(&before{now: c.now, counter: state}).restate(it, &out[i])
		} else {
			denied = true
		}
	}
	if !denied {
		return nil
	}
	return out
}

// violate updates penalties after one more denied take.
func (c *call) violate(r *request, found []found) {
	for i := range r.items {
		it := &r.items[i]
		denied := func(d stint.Decision) bool { return !d.Allowed }
		if it.penalty != nil {
			violation := it.cost > 0 && slices.ContainsFunc(r.out[i-it.guarded:i], denied)
			found[i].penalty, r.out[i] = it.penalty.Take(found[i].penalty, time.UnixMicro(c.now), violation)
		}
	}
}

// restate answers an ask that would have passed if another had not denied the take.
func (b *before) restate(it *item, d *stint.Decision) {
	it.take(&b.counter, b.log, b.now, 0, d)
	d.Allowed = true
}

func (c *call) adjust(state *stint.Counter, found []found, i int, it *item, d *stint.Decision) {
	if it.log() {
		f := &found[i]
		after := f.counter()
		it.take(&after, f.entry(), c.now, 0, d)
		switch renewed := it.limit.Algorithm == stint.Concurrency; {
		case it.charge.Cost == 0 && it.cost > 0:
			d.Cost = min(it.cost, maxInt)
			if renewed {
				d.At = f.at
			}
		case renewed && it.charge.Cost > 0 && it.cost == 0 && f.held > 0:
			d.At, d.Cost = f.at, f.held
		}
		return
	}
	before := stint.State{Counter: *state}
	var after stint.State
	switch {
	case it.charge.Cost == 0:
		after, *d = it.plan.AdjustState(before, c.now, it.cost)
	case found[i].held > 0:
		// What was given back before, of what this charge knew of.
		back := stint.Refunded{From: it.charge.At, At: it.charge.At, Parts: found[i].held - 1}
		before.Past = stint.Past{Until: maxInt, Unit: it.plan.Terms().Unit, Refunds: []stint.Refunded{back}}
		after, *d = it.plan.AmendState(before, c.now, it.charge, it.cost)
	default:
		after, *d = it.plan.TakeState(before, c.now, 0)
	}
	*state = after.Counter
}

// decideTwins answers a take that asks a counter more than once, in the order of its asks.
// The call has peeked at each of them before.
func (c *call) decideTwins(g *group, r *request, found []found, pass int) error {
	r.makeRoom()
	if len(c.peeks) != len(g.asks) {
		return errAnswer
	}
	r.before = make([]before, len(g.asks))
	scratch := map[int32]stint.Counter{}
	for i, a := range g.asks {
		it := &r.items[i]
		b := before{now: c.now, counter: c.counters[a.counter].state}
		state, seen := scratch[a.counter]
		if !seen {
			state = b.counter
		}
		var log []stint.Entry
		if it.log() {
			b.counter, b.log = c.peeks[i].counter(), c.peeks[i].entry()
			state, log = found[i].counter(), found[i].entry()
		}
		r.before[i] = b
		it.take(&state, log, c.now, it.cost, &r.out[i])
		switch {
		case !r.out[i].Allowed && pass > 0:
			return errAnswer
		case r.out[i].Allowed && it.cost > 0:
			scratch[a.counter] = state
		}
	}
	if pass > 0 {
		return nil
	}
	for i := range g.asks {
		if r.out[i].Allowed {
			r.before[i].restate(&r.items[i], &r.out[i])
		}
	}
	r.before = nil
	return nil
}
