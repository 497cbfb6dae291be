package redisstore

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint"
)

// kind is the kind of a group, with the numbers that lua/general.lua uses.
type kind byte

const (
	take kind = iota
	adjust
	undo
	twins // a take that asks a counter more than once
	reset
)

// maxInt is the largest n for which a double holds every integer up to n.
const maxInt = 1<<53 - 1

// item is one ask, with its counter's key in Redis.
type item struct {
	key   string
	limit stint.Limit
	plan  *stint.Plan // of the limit
	cost  int64
	// charge is what an adjustment or an undo changes. Its Cost is 0 if there is none.
	charge stint.Charge
	// sum is that of all changes that are made together with this one, if they need several calls.
	sum int64
	// A penalty, and how many of the asks before it it guards.
	penalty *stint.Penalty
	guarded int
}

// log reports whether the counter is a log, which is encoded differently.
func (it *item) log() bool {
	return it.penalty == nil && (it.limit.Algorithm == stint.SlidingLog || it.limit.Algorithm == stint.Concurrency)
}

func (it *item) bucket() bool {
	return it.penalty == nil && (it.limit.Algorithm == stint.TokenBucket || it.limit.Algorithm == stint.LeakyBucket)
}

// long reports whether the counter's state has no fixed size, as that of a log or a penalty.
func (it *item) long() bool { return it.penalty != nil || it.log() }

// before is a counter before a take, for the case that another part of the take denies.
type before struct {
	now     int64
	counter stint.Counter
	log     []stint.Entry
}

// call is one call of the script: requests merged into groups, and the reply. Calls are
// reused.
type call struct {
	requests []*request
	groups   []group

	// Counters, without duplicates. Logs and penalties come last in KEYS, so the place of
	// a counter is known only when all have been added.
	counters []counter
	index    map[string]int32
	longs    int

	limits     []*stint.Plan
	limitIndex map[stint.Limit]int32

	order []int32 // of the groups in the call
	lone  int     // how many groups are takes of one ask whose counter no other group asks
	plain int     // the same, including takes of several asks
	runs  int     // runs of lone takes

	asks int // weighted: an estimate of how long the call blocks Redis
	keys []string
	blob []byte

	// The reply.
	now   int64
	found messages
	peeks []found // before twins
}

// counter is one key of a call.
type counter struct {
	key       string
	algorithm stint.Algorithm
	long      bool  // it is a log or a penalty
	place     int32 // in KEYS, from 1
	last      int32 // the last group that asks it
	asks      int32 // how many groups ask it
	state     stint.Counter
}

// group holds equal requests, which the script decides together.
type group struct {
	kind     kind
	requests []*request
	asks     []ask
}

type ask struct{ counter, limit int32 }

// A call is bounded because it blocks Redis: 64 asks take about a quarter of a millisecond.
// A request with more asks than that gets a call of its own.
const (
	callAsks     = 64
	callRequests = 1024
	longAsks     = 4 // the weight of a log or a penalty, which takes several commands
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
	clear(c.limits)
	clear(c.keys)
	c.requests, c.groups, c.counters, c.limits, c.keys = c.requests[:0], c.groups[:0], c.counters[:0], c.limits[:0], c.keys[:0]
	c.longs, c.asks, c.found, c.peeks = 0, 0, messages{}, nil
}

// add adds the request, and reports false if the call is full.
func (c *call) add(r *request) bool {
	weight := 0
	for i := range r.items {
		if weight++; r.items[i].long() {
			weight += longAsks - 1
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
		// If it is denied, the asks that would have passed are answered from these peeks.
		for i := range r.items {
			c.group(take, r.items[i:i+1], nil)
		}
	}
	c.group(r.kind, r.items, r)
	return true
}

// merge adds the request to a group of equal requests, if no later group asks any of its
// counters: requests of one counter keep their order.
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
		if a.cost != b.cost || a.limit != b.limit || a.key != b.key || a.penalty != b.penalty {
			return false
		}
	}
	g.requests = append(g.requests, r)
	return true
}

// group adds a group with the request, or with none if r is nil.
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
			c.counters = append(c.counters, counter{key: it.key, algorithm: it.limit.Algorithm, long: it.long()})
			if it.long() {
				c.longs++
			}
		}
		c.counters[j].last = int32(n)
		c.counters[j].asks++
		if it.penalty != nil {
			g.asks = append(g.asks, ask{j, -1})
			continue
		}
		l, ok := c.limitIndex[it.limit]
		if !ok {
			l = int32(len(c.limits))
			c.limitIndex[it.limit] = l
			c.limits = append(c.limits, it.plan)
		}
		g.asks = append(g.asks, ask{j, l})
	}
}

// states returns how many counters have a state of fixed size.
func (c *call) states() int { return len(c.counters) - c.longs }

// redisClock as a time means the clock of Redis.
const redisClock = -1

// encode writes KEYS and ARGV[1]. Numbers are big-endian and have 7 bytes unless the size is
// given.
//
//	now + 1 (0: the clock of Redis), what the call needs (1; see needs), number of limits (2),
//	  of states (2), of runs (2), of plain takes (2), of groups (2)
//	each run of lone takes, which use the first KEYS: length (2), count (2), cost (8,
//	  signed), limit
//	each plain take, which use the next KEYS: count (2), number of runs (2); each run of its
//	  asks: length (2), cost (8, signed), limit
//	each limit of the other groups
//	each other group: kind (1), count (2), number of asks (2), asks
//	a limit: algorithm (1), tick (3), window, rate, unit, cap, then short for a bucket and
//	  MaxCarried for others; if the window is 0, number of edges of calendar windows (1), edges
//	an ask: place in KEYS (2), number of the limit (2; 0: a penalty), cost (8, signed);
//	  for an adjustment, an undo and a reset, the charge to change: instant, cost (0: there is
//	  none), when it recovers, and the places in KEYS of the mark of a reset (2) and of the
//	  mark of this change (2; 0: none), how long that is kept (0: as stint.Once says), and
//	  the sum of all changes that are made together (0: there is none), which the mark keeps;
//	  for a penalty, how many asks it guards (2), threshold (2), within, number of bans (1),
//	  their lengths
//
// near are times whose calendar windows the script may need, at least one.
func (c *call) encode(now int64, near []time.Time) {
	c.place()
	limits := c.limits
	if c.plain == len(c.groups) {
		limits = nil // the runs have them
	}
	b := append(put(c.blob[:0], now+1), c.needs())
	for _, n := range [...]int{len(limits), c.states(), c.runs, c.plain - c.lone, len(c.groups)} {
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	}
	for lone := c.order[:c.lone]; len(lone) > 0; {
		g, n := &c.groups[lone[0]], c.run(lone)
		b = binary.BigEndian.AppendUint16(b, uint16(n))
		b = c.appendRun(binary.BigEndian.AppendUint16(b, g.count()), g, 0, near)
		lone = lone[n:]
	}
	for _, i := range c.order[c.lone:c.plain] {
		g := &c.groups[i]
		b = binary.BigEndian.AppendUint16(b, g.count())
		runs := len(b)
		b = append(b, 0, 0)
		for j := 0; j < len(g.asks); {
			n := g.run(j)
			b = c.appendRun(binary.BigEndian.AppendUint16(b, uint16(n)), g, j, near)
			binary.BigEndian.PutUint16(b[runs:], binary.BigEndian.Uint16(b[runs:])+1)
			j += n
		}
	}
	for i := range limits {
		b = appendLimit(b, limits[i], near)
	}
	for _, i := range c.order[c.plain:] {
		g := &c.groups[i]
		b = binary.BigEndian.AppendUint16(append(b, byte(g.kind)), g.count())
		b = binary.BigEndian.AppendUint16(b, uint16(len(g.asks)))
		for j := range g.asks {
			b = c.appendAsk(b, g, j)
		}
	}
	c.blob = b
}

// count returns how many requests the group stands for.
func (g *group) count() uint16 { return uint16(max(len(g.requests), 1)) }

// run returns how many consecutive asks, starting with the i-th, have the same limit and cost.
func (g *group) run(i int) int {
	n := 1
	for i+n < len(g.asks) && g.asks[i+n].limit == g.asks[i].limit && g.cost(i+n) == g.cost(i) {
		n++
	}
	return n
}

// appendRun writes the cost and limit of the run that starts with the i-th ask.
func (c *call) appendRun(b []byte, g *group, i int, near []time.Time) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(g.cost(i)))
	return appendLimit(b, c.limits[g.asks[i].limit], near)
}

// needs returns what the script needs for the call: a bit for each algorithm, one for penalties,
// and one for groups that are not takes.
func (c *call) needs() (bits byte) {
	const penalties, changes = 1 << 6, 1 << 7
	for i := range c.limits {
		bits |= 1 << c.limits[i].Limit().Algorithm
	}
	for i := range c.groups {
		if c.groups[i].kind != take {
			bits |= changes
		}
		for _, a := range c.groups[i].asks {
			if a.limit < 0 {
				bits |= penalties
			}
		}
	}
	return bits
}

func appendLimit(b []byte, p *stint.Plan, near []time.Time) []byte {
	l, t := p.Limit(), p.Terms()
	b = append(b, byte(l.Algorithm), byte(t.Tick>>16), byte(t.Tick>>8), byte(t.Tick))
	if l.Algorithm == stint.TokenBucket || l.Algorithm == stint.LeakyBucket {
		t.MaxCarried = short(t)
	}
	b = put(b, t.Window, t.Rate, t.Unit, t.Cap, t.MaxCarried)
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
	return b
}

// short encodes in two bytes how many parts a unit has: a number below 4096 times a power of
// ten. It returns 0 if that is not possible, or if the bucket does not get back exactly one
// part every microsecond: such a bucket has no short state.
func short(t stint.Terms) int64 {
	if t.Tick != 1 || t.Rate != 1 {
		return 0
	}
	n, tens := t.Unit, int64(0)
	for ; n%10 == 0 && tens < 15; tens++ {
		n /= 10
	}
	if n >= 4096 {
		return 0
	}
	return n*16 + tens
}

func (c *call) appendAsk(b []byte, g *group, i int) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(c.counters[g.asks[i].counter].place))
	b = binary.BigEndian.AppendUint16(b, uint16(g.asks[i].limit+1))
	b = binary.BigEndian.AppendUint64(b, uint64(g.cost(i)))
	if len(g.requests) > 0 && g.requests[0].items[i].penalty != nil && g.kind != reset {
		return appendPenalty(b, &g.requests[0].items[i])
	}
	if g.kind == adjust || g.kind == undo || g.kind == reset {
		b = c.appendChange(b, g.requests[0], &g.requests[0].items[i])
	}
	return b
}

// appendChange appends what a change of a charge needs, and the keys of its marks.
func (c *call) appendChange(b []byte, r *request, it *item) []byte {
	var pastMark, changeMark uint16
	mark := func(name string) uint16 {
		c.keys = append(c.keys, it.key+markSeparator+name)
		return uint16(len(c.keys))
	}
	// Without a subject, which no valid key is, a mark would be in another slot.
	if it.penalty == nil && !r.bare && !strings.Contains(it.key, "{}") {
		if it.charge.Cost > 0 || r.kind == reset || it.cost < 0 && it.bucket() {
			pastMark = mark("")
		}
		if it.charge.ID != "" {
			changeMark = mark(it.charge.ID)
		}
	}
	b = put(b, it.charge.At, it.charge.Cost, min(it.charge.Until(), maxInt))
	b = binary.BigEndian.AppendUint16(b, pastMark)
	b = binary.BigEndian.AppendUint16(b, changeMark)
	return put(b, it.charge.Keep.Microseconds(), it.sum)
}

// markSeparator stands between a counter's key and the ID of a change, or nothing: a mark beside the
// counter holds its past, or says that the change was made. No key of a counter has a space.
const markSeparator = " "

// cost returns the cost of the i-th ask, capped at one more than any limit has.
func (g *group) cost(i int) int64 {
	if len(g.requests) == 0 {
		return 0
	}
	return max(-maxInt, min(g.requests[0].items[i].cost, maxInt+1))
}

// run returns how many of the lone takes, starting with the first, differ only in their counter.
func (c *call) run(lone []int32) int {
	first := &c.groups[lone[0]]
	for n, i := range lone {
		g := &c.groups[i]
		if g.asks[0].limit != first.asks[0].limit || len(g.requests) != len(first.requests) || g.cost(0) != first.cost(0) {
			return n
		}
	}
	return len(lone)
}

func appendPenalty(b []byte, it *item) []byte {
	p := it.penalty
	steps := max(len(p.Multipliers), 1)
	b = append(b, byte(it.guarded>>8), byte(it.guarded), byte(p.Threshold>>8), byte(p.Threshold))
	b = append(put(b, p.Within.Microseconds()), byte(steps))
	for i := range steps {
		b = put(b, p.Ban(p.Threshold+int64(i)))
	}
	return b
}

// place orders the groups, and the counters in KEYS. Takes whose counters no other group asks
// come first, those of one ask before the others. Resets come after all that is charged: what is
// charged at the instant of a reset counts as charged before it, and could not be given back. Undos
// come last, so that no decision depends on their result.
func (c *call) place() {
	const lone, plain, middle, resets, last = 0, 1, 2, 3, 4
	placeOf := func(g *group) int {
		switch {
		case g.kind == undo:
			return last
		case g.kind == reset:
			return resets
		case g.kind != take || slices.ContainsFunc(g.asks, func(a ask) bool {
			k := &c.counters[a.counter]
			return k.asks > 1 || k.long
		}):
			return middle
		case len(g.asks) > 1:
			return plain
		}
		return lone
	}
	c.order = c.order[:0]
	for place := lone; place <= last; place++ {
		for i := range c.groups {
			if placeOf(&c.groups[i]) == place {
				c.order = append(c.order, int32(i))
			}
		}
		switch place {
		case lone:
			c.lone = len(c.order)
		case plain:
			c.plain = len(c.order)
		}
	}
	c.runs = 0
	for lone := c.order[:c.lone]; len(lone) > 0; c.runs++ {
		lone = lone[c.run(lone):]
	}
	c.keys = append(c.keys[:0], make([]string, len(c.counters))...)
	state, long := 0, c.states()
	give := func(k *counter) {
		p := &state
		if k.long {
			p = &long
		}
		c.keys[*p] = k.key
		*p++
		k.place = int32(*p)
	}
	for i := range c.counters {
		c.counters[i].place = 0 // set if the call is sent again
	}
	for _, i := range c.order[:c.plain] {
		for _, a := range c.groups[i].asks {
			give(&c.counters[a.counter])
		}
	}
	for i := range c.counters {
		if c.counters[i].place == 0 {
			give(&c.counters[i])
		}
	}
}

func put(b []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		b = append(b, byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return b
}
