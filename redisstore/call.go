package redisstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stintdev/stint"
)

// kind is what a group of asks wants, as lua/main.lua knows it.
type kind byte

const (
	take kind = iota
	adjust
	undo
	twins // a take that asks a counter more than once
)

// maxInt is the largest integer that a double holds with all below it.
const maxInt = 1<<53 - 1

// item is one ask, with its counter's key in Redis.
type item struct {
	key   string
	limit stint.Limit
	cost  int64
}

// log reports whether the counter is a log, which travels differently.
func (it *item) log() bool { return it.limit.Algorithm == stint.SlidingLog }

// charge is what a passed ask did to its counter, so that it can be undone.
type charge struct {
	now           int64
	before, after stint.Counter
	log           found // before, if it is one
	// How the counter stood before any ask of the take.
	stood    stint.Counter
	stoodLog []stint.Entry
}

// call is one call of the script: requests, merged into groups, and the answer
// to them. It is used again and again.
type call struct {
	requests []*request
	groups   []group

	// Counters, each once. Those of logs come last among KEYS, so a counter's
	// place is known only when all have been added.
	counters []counter
	index    map[string]int32
	logs     int

	limits     []stint.Limit
	limitIndex map[stint.Limit]int32

	order []int32 // of the groups in the call
	lone  int     // how many of them are takes of one ask, whose counter no one else asks

	asks int // a measure of how long it will hold Redis
	keys []string
	blob []byte

	// The answer.
	now   int64
	found []rueidis.RedisMessage
	peeks []found // before twins
}

// counter is one key of a call.
type counter struct {
	key   string
	log   bool
	place int32 // among KEYS, from 1
	last  int32 // the last group that asks it
	asks  int32 // how many groups ask it
	state stint.Counter
}

// group is requests that are the same. The script judges them together.
type group struct {
	kind     kind
	requests []*request
	asks     []ask
}

type ask struct{ counter, limit int32 }

// A call is bounded by the time that it holds Redis, which serves no one else
// meanwhile: 64 asks take about a quarter of a millisecond. A request of more
// asks than that travels alone.
const (
	callAsks     = 64
	callRequests = 1024
	// A log costs several commands.
	logAsks = 4
)

func newCall() *call {
	return &call{index: map[string]int32{}, limitIndex: map[stint.Limit]int32{}}
}

func (c *call) reset() {
	clear(c.requests)
	for i := range c.groups {
		clear(c.groups[i].requests)
	}
	clear(c.counters)
	clear(c.index)
	clear(c.limitIndex)
	clear(c.keys)
	c.requests, c.groups, c.counters, c.limits, c.keys = c.requests[:0], c.groups[:0], c.counters[:0], c.limits[:0], c.keys[:0]
	c.logs, c.asks, c.found, c.peeks = 0, 0, nil, nil
}

// add takes the request along, unless the call is full.
func (c *call) add(r *request) bool {
	weight := 0
	for i := range r.items {
		if weight++; r.items[i].log() {
			weight += logAsks - 1
		}
	}
	switch {
	case len(c.requests) == 0:
	case len(c.requests) >= callRequests, r.kind == twins, c.requests[0].kind == twins:
		return false
	case r.kind == take && c.merge(r):
		c.requests = append(c.requests, r)
		return true
	case c.asks+weight > callAsks:
		return false
	}
	c.asks += weight
	c.requests = append(c.requests, r)
	if r.kind == twins {
		// If it is denied, its asks that would have passed are answered as their
		// counters stand, which these peeks tell.
		for i := range r.items {
			c.group(take, r.items[i:i+1], nil)
		}
	}
	c.group(r.kind, r.items, r)
	return true
}

// merge puts the request into the group that is equal to it, if that is the last
// one to ask each of its counters: no one is overtaken.
func (c *call) merge(r *request) bool {
	n := int32(-1)
	for i := range r.items {
		k, ok := c.index[r.items[i].key]
		if !ok || (i > 0 && c.counters[k].last != n) {
			return false
		}
		n = c.counters[k].last
	}
	if n < 0 {
		return false
	}
	g := &c.groups[n]
	if g.kind != take || len(g.asks) != len(r.items) || len(g.requests) == 0 {
		return false
	}
	first := g.requests[0]
	for i := range r.items {
		a, b := &r.items[i], &first.items[i]
		if a.cost != b.cost || a.limit != b.limit || a.key != b.key {
			return false
		}
	}
	g.requests = append(g.requests, r)
	return true
}

// group adds a group of one request, or of none.
func (c *call) group(k kind, items []item, r *request) {
	n := len(c.groups)
	if n < cap(c.groups) {
		c.groups = c.groups[:n+1]
	} else {
		c.groups = append(c.groups, group{})
	}
	g := &c.groups[n]
	g.kind, g.requests, g.asks = k, g.requests[:0], g.asks[:0]
	if r != nil {
		g.requests = append(g.requests, r)
	}
	for i := range items {
		it := &items[i]
		j, ok := c.index[it.key]
		if !ok {
			j = int32(len(c.counters))
			c.index[it.key] = j
			c.counters = append(c.counters, counter{key: it.key, log: it.log()})
			if it.log() {
				c.logs++
			}
		}
		c.counters[j].last = int32(n)
		c.counters[j].asks++
		l, ok := c.limitIndex[it.limit]
		if !ok {
			l = int32(len(c.limits))
			c.limitIndex[it.limit] = l
			c.limits = append(c.limits, it.limit)
		}
		g.asks = append(g.asks, ask{j, l})
	}
}

// states is how many counters are not logs.
func (c *call) states() int { return len(c.counters) - c.logs }

// redisClock is the time that stands for Redis' own.
const redisClock = -1

// encode writes KEYS and ARGV[1]. Numbers are big-endian; a number that is not
// given its size has 7 bytes.
//
//	now + 1 (0: by Redis' clock), number of limits (2), of states (2), of lone takes (2),
//	  of groups (2)
//	each limit: algorithm (1), tick (3), window, rate, unit, cap, most;
//	  if the window is 0, how many edges of calendar windows follow (1), and those
//	each lone take: count (2), ask
//	each other group: kind (1), count (2), number of asks (1), asks
//	an ask: place in KEYS (2), of the limit (2), cost (8, signed);
//	  of an undo, 8 more numbers: what is expected, and what was before
//
// Near are times whose calendar windows the script may need, at least one.
func (c *call) encode(now int64, near []time.Time) {
	c.place()
	b := put(c.blob[:0], now+1)
	for _, n := range [...]int{len(c.limits), c.states(), c.lone, len(c.groups)} {
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	}
	for i := range c.limits {
		l := &c.limits[i]
		t, _ := l.Terms() // a request's limits are valid
		b = append(b, byte(l.Algorithm), byte(t.Tick>>16), byte(t.Tick>>8), byte(t.Tick))
		b = put(b, t.Window, t.Rate, t.Unit, t.Cap, t.Most)
		if t.Window == 0 {
			b = append(b, byte(4*len(near)))
			for _, t := range near {
				start, end := l.Window.Bounds(t)
				before, _ := l.Window.Bounds(start.Add(-time.Microsecond))
				_, after := l.Window.Bounds(end)
				for _, e := range [...]time.Time{before, start, end, after} {
					b = put(b, max(e.UnixMicro(), 0))
				}
			}
		}
	}
	for _, i := range c.order[:c.lone] {
		g := &c.groups[i]
		b = binary.BigEndian.AppendUint16(b, uint16(max(len(g.requests), 1)))
		b = c.appendAsk(b, g, 0)
	}
	for _, i := range c.order[c.lone:] {
		g := &c.groups[i]
		count := max(len(g.requests), 1)
		b = append(b, byte(g.kind), byte(count>>8), byte(count), byte(len(g.asks)))
		for j := range g.asks {
			b = c.appendAsk(b, g, j)
		}
	}
	c.blob = b
}

func (c *call) appendAsk(b []byte, g *group, i int) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(c.counters[g.asks[i].counter].place))
	b = binary.BigEndian.AppendUint16(b, uint16(g.asks[i].limit+1))
	cost := int64(0)
	if len(g.requests) > 0 {
		cost = max(-maxInt, min(g.requests[0].items[i].cost, maxInt+1))
	}
	b = binary.BigEndian.AppendUint64(b, uint64(cost))
	if g.kind == undo {
		b = g.requests[0].charges[i].append(b, &g.requests[0].items[i])
	}
	return b
}

// place gives every counter its place among KEYS, and every group its place in
// the call: takes of one ask first, if no one else asks their counter; what is to
// be undone last, so that no answer depends on what came of it.
func (c *call) place() {
	const first, middle, last = 0, 1, 2
	placeOf := func(g *group) int {
		switch k := &c.counters[g.asks[0].counter]; {
		case g.kind == take && len(g.asks) == 1 && k.asks == 1 && !k.log:
			return first
		case g.kind == undo:
			return last
		}
		return middle
	}
	c.order = c.order[:0]
	for place := first; place <= last; place++ {
		for i := range c.groups {
			if placeOf(&c.groups[i]) == place {
				c.order = append(c.order, int32(i))
			}
		}
		if place == first {
			c.lone = len(c.order)
		}
	}
	c.keys = append(c.keys[:0], make([]string, len(c.counters))...)
	state, log := 0, c.states()
	for i := range c.counters {
		p := &state
		if c.counters[i].log {
			p = &log
		}
		c.keys[*p] = c.counters[i].key
		*p++
		c.counters[i].place = int32(*p)
	}
}

// append writes what an undo needs to know.
func (ch *charge) append(b []byte, it *item) []byte {
	if it.log() {
		f := &ch.log
		return put(b, ch.after.At, f.total-it.cost, f.base, f.recovery, ch.after.Until, 0, 0, 0)
	}
	return put(b, ch.after.At, ch.after.Used, ch.after.Aux, ch.after.Until,
		ch.before.At, ch.before.Used, ch.before.Aux, ch.before.Until)
}

func put(b []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		b = append(b, byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return b
}

// errAnswer is an answer that the script cannot have given.
var errAnswer = unavailable(errors.New("the answer is not one that the script gives; is something else behind the URL, or in between?"))

// edgesError asks for the calendar windows around a time. Now is Redis' time.
type edgesError struct{ at, now int64 }

func (e *edgesError) Error() string { return "the clocks are too far apart for a calendar window" }

// decode reads the answer and decides every request. Requests that could not be
// decided get an error of their own.
func (c *call) decode(answer []rueidis.RedisMessage) error {
	if len(answer) < 1+len(c.groups)+c.states() {
		return errAnswer
	}
	var err error
	if c.now, err = answer[0].AsInt64(); err != nil {
		return errAnswer
	}
	groups, rest := answer[1:1+len(c.groups)], answer[1+len(c.groups):]
	states := rest[:c.states()]
	c.found = rest[c.states():]
	for i := range c.counters {
		k := &c.counters[i]
		if k.log {
			continue
		}
		m := &states[k.place-1]
		if m.IsNil() {
			continue
		}
		text, err := m.ToString()
		if err != nil {
			return errAnswer
		}
		// A state that cannot be read is its group's problem, and the script
		// has said so.
		k.state, _ = decodeState(text, strings.HasSuffix(k.key, suffixes[stint.FixedWindow]))
	}
	for n, i := range c.order {
		g, value := &c.groups[i], &groups[n]
		err := errAnswer
		if value.IsInt64() {
			pass, _ := value.AsInt64()
			err = c.decide(g, int(pass))
		} else if text, failed := value.ToString(); failed == nil {
			err = c.problem(g, text)
		}
		for _, r := range g.requests {
			if r.err == nil {
				r.err = err
			}
		}
	}
	return nil
}

// problem makes an error of what the script says about a group.
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

// StateError says that a counter cannot be read: something else lies under its
// key, or another version of Stint wrote it. Other counters are not affected.
type StateError struct {
	Keys    []string // the counter is one of these
	Problem string
}

func (e *StateError) Error() string {
	return fmt.Sprintf("stint: redis: %s under the key of a counter (%s): want what this version wrote; delete it, or use another prefix",
		e.Problem, strings.Join(e.Keys, ", "))
}

// decide answers the requests of a group of which so many passed.
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
		r.out = make([]stint.Decision, len(g.asks))
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
			if denied != nil {
				r.out = append([]stint.Decision(nil), denied...)
				continue
			}
			if r.out = c.deny(g, r, found); r.out == nil {
				return errAnswer
			}
			denied = r.out
		}
	case undo:
	}
	return nil
}

// found is how an ask found a log: its newest entry, the units in it, when it
// recovers, when the units leave it that a denied cost waits for; and, for an
// undo, its base and its total.
type found struct{ at, used, recovery, leaves, base, total int64 }

// findings reads what the asks of logs in the group found, in place of their
// index in the group. Most groups ask none.
func (c *call) findings(g *group) ([]found, error) {
	var out []found
	for i, a := range g.asks {
		if !c.counters[a.counter].log {
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
		if err != nil || len(text) != 6*numberSize {
			return nil, errAnswer
		}
		c.found = c.found[1:]
		out[i] = found{number(text), number(text[7:]), number(text[14:]), number(text[21:]), number(text[28:]), number(text[35:])}
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

// entry is as much of a log as the specification needs to answer: what leaves it
// in time for the cost.
func (f *found) entry() []stint.Entry {
	if f.leaves == 0 {
		return nil
	}
	return []stint.Entry{{At: f.leaves, Units: maxInt}}
}

// pass answers a request that has passed.
func (c *call) pass(g *group, r *request, found []found) error {
	r.out = make([]stint.Decision, len(g.asks))
	if r.track {
		r.charges = make([]charge, len(g.asks))
	}
	for i, a := range g.asks {
		it, state := &r.items[i], &c.counters[a.counter].state
		var log stint.Counter
		if found != nil && it.log() {
			log = found[i].counter()
			state = &log
		}
		if r.track {
			r.charges[i].now, r.charges[i].before, r.charges[i].stood = c.now, *state, *state
			if found != nil {
				r.charges[i].log = found[i]
			}
		}
		next := *state
		it.limit.TakeIn(&next, nil, c.now, it.cost, &r.out[i])
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

// deny answers a request that was denied, or returns nil if it should not have
// been.
func (c *call) deny(g *group, r *request, found []found) []stint.Decision {
	out := make([]stint.Decision, len(g.asks))
	denied := false
	for i, a := range g.asks {
		it, state, log := &r.items[i], c.counters[a.counter].state, []stint.Entry(nil)
		if found != nil && it.log() {
			state, log = found[i].counter(), found[i].entry()
		}
		judged := state
		it.limit.TakeIn(&judged, log, c.now, it.cost, &out[i])
		if out[i].Allowed {
			stand(&it.limit, state, nil, c.now, &out[i])
		} else {
			denied = true
		}
	}
	if !denied {
		return nil
	}
	return out
}

// stand answers an ask that passed, and that another ask of the take has undone.
func (ch *charge) stand(l *stint.Limit, d *stint.Decision) {
	stand(l, ch.stood, ch.stoodLog, ch.now, d)
}

// stand answers an ask that would have passed, had not another denied.
func stand(l *stint.Limit, state stint.Counter, log []stint.Entry, now int64, d *stint.Decision) {
	l.TakeIn(&state, log, now, 0, d)
	d.Allowed = true
}

func (c *call) adjust(state *stint.Counter, found []found, i int, it *item, d *stint.Decision) {
	if found != nil && it.log() {
		after := found[i].counter()
		it.limit.TakeIn(&after, found[i].entry(), c.now, 0, d)
		return
	}
	next, answer := it.limit.Adjust(stint.State{Counter: *state}, time.UnixMicro(c.now), it.cost)
	*state, *d = next.Counter, answer
}

// decideTwins follows a take that asks a counter more than once, in the order
// of its asks. Before it came a peek for each ask.
func (c *call) decideTwins(g *group, r *request, found []found, pass int) error {
	r.out = make([]stint.Decision, len(g.asks))
	if len(c.peeks) != len(g.asks) {
		return errAnswer
	}
	r.charges = make([]charge, len(g.asks))
	scratch := map[int32]stint.Counter{}
	for i, a := range g.asks {
		it, ch := &r.items[i], &r.charges[i]
		ch.now, ch.stood = c.now, c.counters[a.counter].state
		state, seen := scratch[a.counter]
		if !seen {
			state = ch.stood
		}
		var log []stint.Entry
		if it.log() {
			ch.stood, ch.stoodLog, ch.log = c.peeks[i].counter(), c.peeks[i].entry(), found[i]
			state, log = found[i].counter(), found[i].entry()
		}
		next := state
		it.limit.TakeIn(&next, log, c.now, it.cost, &r.out[i])
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
			r.charges[i].stand(&r.items[i].limit, &r.out[i])
		}
	}
	r.charges = nil
	return nil
}
