package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

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
func (c *call) decode(answer rueidis.RedisMessage) error {
	var reports []rueidis.RedisMessage
	if answer.IsString() {
		const size = 12 // of a state
		text, err := answer.ToString()
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
		if len(reports) > 0 {
			if number, _ := reports[0].AsInt64(); int(number) == n+1 {
				pass, err = c.readReport(g, &reports[1])
				reports = reports[2:]
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
	if len(reports) > 0 {
		return errAnswer
	}
	return nil
}

// unpack reads the array form of the reply, and returns the reports about groups.
func (c *call) unpack(answer rueidis.RedisMessage) (reports []rueidis.RedisMessage, err error) {
	all, err := answer.ToArray()
	if err != nil || len(all) < 2 {
		return nil, errAnswer
	}
	n, err := all[1].AsInt64()
	if err != nil || n < 0 || n > int64(len(c.groups)) || len(all) < 2+2*int(n)+c.states() {
		return nil, errAnswer
	}
	if c.now, err = all[0].AsInt64(); err != nil {
		return nil, errAnswer
	}
	reports, all = all[2:2+2*n], all[2+2*n:]
	states := all[:c.states()]
	c.found = all[c.states():]
	for i := range c.counters {
		k := &c.counters[i]
		if k.long {
			continue
		}
		m := &states[k.place-1]
		if m.IsNil() {
			continue
		}
		text, err := m.ToString()
		if err != nil {
			return nil, errAnswer
		}
		k.state = decodeState(text, k.algorithm, c.now)
	}
	return reports, nil
}

// readReport reads the report about a group that did not pass completely.
func (c *call) readReport(g *group, value *rueidis.RedisMessage) (pass int, err error) {
	if value.IsInt64() {
		n, _ := value.AsInt64()
		return int(n), nil
	}
	text, err := value.ToString()
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
	case adjust:
		r.makeRoom()
		for i, a := range g.asks {
			c.adjust(&c.counters[a.counter].state, found, i, &r.items[i], &r.out[i])
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
// it recovers, when enough units leave it for a denied cost; and, for an undo, its base and
// total. For a penalty it is the whole state.
type found struct {
	at, used, recovery, leaves, base, total int64
	penalty                                 stint.State
}

// findings reads the states of the logs and penalties of a group, indexed like its asks.
// It returns nil if there are none, as in most groups.
func (c *call) findings(g *group) ([]found, error) {
	var out []found
	for i, a := range g.asks {
		if !c.counters[a.counter].long {
			continue
		}
		if out == nil {
			out = make([]found, len(g.asks))
		}
		if g.kind == undo {
			continue
		}
		if len(c.found) == 0 {
			return nil, errAnswer
		}
		text, err := c.found[0].ToString()
		if err != nil {
			return nil, errAnswer
		}
		c.found = c.found[1:]
		if a.limit < 0 {
			out[i].penalty = decodePenalty(text)
			continue
		}
		if len(text) != 6*numberSize {
			return nil, errAnswer
		}
		out[i] = found{
			at: number(text), used: number(text[7:]), recovery: number(text[14:]),
			leaves: number(text[21:]), base: number(text[28:]), total: number(text[35:]),
		}
	}
	return out, nil
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

// pass answers an allowed request.
func (c *call) pass(g *group, r *request, found []found) error {
	r.makeRoom()
	if r.track {
		r.charges = make([]charge, len(g.asks))
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
		if found != nil && it.log() {
			log = found[i].counter()
			state = &log
		}
		if r.track {
			r.charges[i].now, r.charges[i].before, r.charges[i].initial = c.now, *state, *state
			if found != nil {
				r.charges[i].log = found[i]
			}
		}
		next := *state
		it.plan.TakeLog(&next, nil, c.now, it.cost, &r.out[i])
		if !r.out[i].Allowed {
			return errAnswer
		}
		if it.cost > 0 {
			*state = next
			if found != nil && it.log() {
				found[i].at, found[i].used, found[i].recovery = next.At, next.Used, next.Until
				found[i].total += it.cost
			}
		}
		if r.track {
			r.charges[i].after = *state
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
		if found != nil && it.log() {
			state, log = found[i].counter(), found[i].entry()
		}
		judged := state
		it.plan.TakeLog(&judged, log, c.now, it.cost, &out[i])
		if out[i].Allowed {
			restate(it.plan, state, nil, c.now, &out[i])
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

// restate answers an ask that passed before another ask denied the take.
func (ch *charge) restate(p *stint.Plan, d *stint.Decision) {
	restate(p, ch.initial, ch.initialLog, ch.now, d)
}

// restate answers an ask that would have passed if another had not denied the take.
func restate(p *stint.Plan, state stint.Counter, log []stint.Entry, now int64, d *stint.Decision) {
	p.TakeLog(&state, log, now, 0, d)
	d.Allowed = true
}

func (c *call) adjust(state *stint.Counter, found []found, i int, it *item, d *stint.Decision) {
	if found != nil && it.log() {
		after := found[i].counter()
		it.plan.TakeLog(&after, found[i].entry(), c.now, 0, d)
		return
	}
	next, answer := it.plan.AdjustState(stint.State{Counter: *state}, c.now, it.cost)
	*state, *d = next.Counter, answer
}

// decideTwins answers a take that asks a counter more than once, in the order of its asks.
// The call has peeked at each of them before.
func (c *call) decideTwins(g *group, r *request, found []found, pass int) error {
	r.makeRoom()
	if len(c.peeks) != len(g.asks) {
		return errAnswer
	}
	r.charges = make([]charge, len(g.asks))
	scratch := map[int32]stint.Counter{}
	for i, a := range g.asks {
		it, ch := &r.items[i], &r.charges[i]
		ch.now, ch.initial = c.now, c.counters[a.counter].state
		state, seen := scratch[a.counter]
		if !seen {
			state = ch.initial
		}
		var log []stint.Entry
		if it.log() {
			ch.initial, ch.initialLog, ch.log = c.peeks[i].counter(), c.peeks[i].entry(), found[i]
			state, log = found[i].counter(), found[i].entry()
		}
		next := state
		it.plan.TakeLog(&next, log, c.now, it.cost, &r.out[i])
		switch {
		case !r.out[i].Allowed && pass > 0:
			return errAnswer
		case r.out[i].Allowed && it.cost > 0:
			scratch[a.counter] = next
			ch.before, ch.after = state, next
		}
	}
	if pass > 0 {
		return nil
	}
	for i := range g.asks {
		if r.out[i].Allowed {
			r.charges[i].restate(r.items[i].plan, &r.out[i])
		}
	}
	r.charges = nil
	return nil
}
