package record

import (
	"cmp"
	"context"
	"hash/maphash"
	"math/bits"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/stintdev/stint/engine"
)

// LiveOptions are the settings of a [Live].
type LiveOptions struct {
	// Node says where decisions are made.
	Node string
	// Counters is how many users, tenants, keys and addresses each shard counts in 10
	// seconds, by requests and by denials. There are as many shards as threads, at most 8. A
	// counter takes about 60 bytes, and at most 300. Default 1,024, from 2 to 32,768.
	Counters int
	// Top is how many of each are shown. Default 10.
	Top int
	// Privacy says how addresses are shown. HashKey, of 16 bytes or more, is the key of their
	// hashes.
	Privacy Privacy
	HashKey []byte
	// Leases returns what this node has leased, in a slice of its own. Nil: there are no leases.
	Leases func() []Leased
	// Now is the clock of the engine. Default time.Now.
	Now func() time.Time
}

// Live counts the decisions of the last seconds, and finds the clients with the most requests.
// It may be used by several goroutines at once.
type Live struct {
	o      LiveOptions
	began  time.Time
	seed   maphash.Seed
	shards []liveShard // a power of 2
	units  liveUnits
}

var _ engine.Recorder = (*Live)(nil)

// Snapshot is the state of a [Live] at one time. The tags document its fields.
type Snapshot struct {
	At       time.Time          `json:"at" doc:"The time of the snapshot." example:"2026-01-31T12:00:00Z"`
	Node     string             `json:"node,omitempty" doc:"The name of the node, if only one is shown." example:"node-7"`
	Nodes    []NodeRate         `json:"nodes" nullable:"false" doc:"The nodes that are shown, by name."`
	Alive    int                `json:"nodes_alive" doc:"How many nodes there are. If fewer are shown, the others have sent nothing for some seconds." example:"3"`
	Problem  string             `json:"problem,omitempty" doc:"Why the other nodes are not shown." example:"the database cannot be reached"`
	Seconds  float64            `json:"seconds" doc:"The length of the window of rates and latency, in seconds: 10, or less just after the start." example:"9.5"`
	Requests float64            `json:"requests_per_second" doc:"Requests per second." example:"1234.5"`
	Refused  float64            `json:"refused_per_second" doc:"Requests per second that were refused." example:"34.25"`
	Shadow   float64            `json:"shadow_refused_per_second" doc:"Requests per second that passed, and that a log_only rule would have denied." example:"2"`
	Outcomes map[string]float64 `json:"outcomes_per_second" doc:"Requests per second by outcome. All outcomes are listed." example:"{\"allowed\":1200,\"denied\":34.25}"`
	Latency  LiveLatency        `json:"latency_us" doc:"The time that decisions took, in microseconds, without the time that requests were held."`
	Rules    []RuleRate         `json:"rules" nullable:"false" doc:"The rules that decided the most requests, at most 50, the first first. The name other stands for those that are not counted one by one."`
	Talkers  LiveTalkers        `json:"talkers" doc:"The clients with the most requests."`
	Units    []UnitRate         `json:"units,omitempty" doc:"The units that requests have used under rules with a meter, at most 50, the most first. Missing, if there were none."`
	Leases   []Leased           `json:"leases,omitempty" doc:"What nodes have leased since they were started, of the limits with the most units lent, at most 50, the first first. Missing, if they have leased nothing."`
}

// NodeRate is how many requests per second a node has decided, and refused.
type NodeRate struct {
	Name     string  `json:"name" doc:"The name of the node." example:"node-7"`
	Requests float64 `json:"requests_per_second" doc:"Requests per second that it decided." example:"400"`
	Refused  float64 `json:"refused_per_second" doc:"Requests per second of these that were refused." example:"12.5"`
}

// RuleRate is how many requests per second a rule has decided, and refused.
type RuleRate struct {
	Name     string  `json:"name" doc:"The name of the rule." example:"search"`
	Requests float64 `json:"requests_per_second" doc:"Requests per second that it decided." example:"120.5"`
	Refused  float64 `json:"refused_per_second" doc:"Requests per second of these that were refused." example:"3.5"`
}

// LiveLatency is the time that decisions took, in microseconds, without the time that requests
// were held.
type LiveLatency struct {
	P50 int64 `json:"p50" doc:"The median." example:"60"`
	P95 int64 `json:"p95" doc:"The 95th percentile." example:"180"`
	P99 int64 `json:"p99" doc:"The 99th percentile." example:"2500"`
}

// LiveTalkers are the clients with the most requests.
type LiveTalkers struct {
	Seconds   float64 `json:"seconds" doc:"How long they were counted, in seconds: 10 to 20, or less just after the start." example:"15"`
	Users     Talkers `json:"users" doc:"Users."`
	Tenants   Talkers `json:"tenants" doc:"Tenants."`
	Keys      Talkers `json:"keys" doc:"API keys, by their ids."`
	Addresses Talkers `json:"addresses" doc:"Addresses, truncated or hashed as the settings say."`
}

// Talkers are the clients of one kind, the first first. Counts are never too high.
type Talkers struct {
	ByRequests []Talker `json:"by_requests" nullable:"false" doc:"Those with the most requests, the first first."`
	ByRefused  []Talker `json:"by_refused" nullable:"false" doc:"Those with the most refused requests, the first first."`
	// RequestsOff and RefusedOff are by how much counts may be too low: 0 unless there were
	// more names than counters. A name with more than that is not missing.
	RequestsOff int64 `json:"requests_off" doc:"By how much counts of requests may be too low: 0, unless there are very many clients." example:"0"`
	RefusedOff  int64 `json:"refused_off" doc:"By how much counts of refused requests may be too low." example:"0"`
}

// Talker is one client.
type Talker struct {
	Name     string `json:"name" doc:"The id or the address." example:"alice"`
	Requests int64  `json:"requests" doc:"The number of requests." example:"9000"`
	Refused  int64  `json:"refused" doc:"The number of these that were refused." example:"300"`
}

const (
	liveSeconds = 10 // the window of rates
	liveRing    = 16 // seconds that are stored: a larger power of 2
	liveWindow  = 10 // seconds, of which there are two

	liveRules      = 256 // that a shard counts one by one in a second
	liveRulesShown = 50
	// liveTold is how many times as many clients a node tells of as are shown: one that is not among the first of a node may be
	// among the first of all nodes.
	liveTold   = 5
	otherRules = "other"
)

// The kinds of talkers, and what they are counted by.
const (
	liveUser = iota
	liveTenant
	liveKey
	liveAddress
	liveKinds

	byRequests = 0
	byRefused  = 1
)

// liveShard counts some of the decisions.
type liveShard struct {
	mu      sync.Mutex
	seconds [liveRing]liveSecond
	windows [2]liveTalk
	_       [64]byte // so that shards do not share a cache line
}

// liveSecond is the decisions of one second.
type liveSecond struct {
	at       int64 // seconds since the start
	outcomes [engine.Unavailable + 1]int64
	shadow   int64
	latency  Sketch
	rules    ruleCounts
}

// ruleCounts are the decisions of rules in one second. Rules beyond liveRules share a count.
type ruleCounts struct {
	places map[string]int // in counts
	counts []ruleCount
	other  ruleCount
}

type ruleCount struct{ requests, refused int64 }

func (c *ruleCount) add(o ruleCount) {
	c.requests += o.requests
	c.refused += o.refused
}

// of returns the count of a rule.
func (c *ruleCounts) of(name string) *ruleCount {
	at, known := c.places[name]
	switch {
	case known:
		return &c.counts[at]
	case len(c.counts) == liveRules:
		return &c.other
	case c.places == nil:
		c.places = map[string]int{}
	}
	c.places[name] = len(c.counts)
	c.counts = append(c.counts, ruleCount{})
	return &c.counts[len(c.counts)-1]
}

// reset drops all counts, and keeps the memory.
func (c *ruleCounts) reset() {
	clear(c.places)
	c.counts, c.other = c.counts[:0], ruleCount{}
}

// liveTalk counts the clients of one window.
type liveTalk struct {
	at    int64 // windows since the start
	kinds [liveKinds][2]talkers
}

// NewLive returns a live view of what is recorded from now on.
func NewLive(o LiveOptions) (*Live, error) {
	o.Counters, o.Top = cmp.Or(o.Counters, 1024), cmp.Or(o.Top, 10)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Leases == nil {
		o.Leases = func() []Leased { return nil }
	}
	switch {
	case o.Counters < 2 || o.Counters > 1<<15:
		return nil, invalid("Counters", strconv.Itoa(o.Counters), "2 to 32768, or 0 for the default")
	case o.Top < 0:
		return nil, invalid("Top", strconv.Itoa(o.Top), "a positive number, or 0 for the default")
	}
	if err := o.Privacy.check(o.HashKey); err != nil {
		return nil, err
	}
	l := &Live{
		o: o, began: o.Now(), seed: maphash.MakeSeed(),
		shards: make([]liveShard, 1<<bits.Len(uint(min(8, runtime.GOMAXPROCS(0))-1))),
	}
	for i := range l.shards {
		for w := range l.shards[i].windows {
			kinds := &l.shards[i].windows[w].kinds
			for k := range kinds {
				kinds[k][byRequests].most, kinds[k][byRefused].most = o.Counters, o.Counters
			}
		}
	}
	return l, nil
}

// Record implements [engine.Recorder]. It reads no clock, as an event has its time and duration.
func (l *Live) Record(_ context.Context, e *engine.Event) {
	second := int64(max(0, e.At.Sub(l.began)+e.Waited+e.Latency) / time.Second)
	refused := !e.Outcome.Passed()
	// Hash before the shard is locked.
	names := [...]string{liveUser: e.User, liveTenant: e.Tenant, liveKey: e.Key}
	var hashes [liveKinds]uint64
	for kind := range names { // by index, to avoid a copy of the array
		if names[kind] != "" {
			hashes[kind] = maphash.String(l.seed, names[kind])
		}
	}
	var ip [16]byte
	if e.IP.IsValid() {
		ip = l.o.Privacy.kept(e.IP)
		hashes[liveAddress] = maphash.Bytes(l.seed, ip[:])
	}

	s := &l.shards[int(e.ID[15])&(len(l.shards)-1)]
	s.mu.Lock()
	now := &s.seconds[second%liveRing]
	if now.at != second {
		now.at, now.shadow = second, 0
		clear(now.outcomes[:])
		now.latency.Reset()
		now.rules.reset()
	}
	now.outcomes[e.Outcome]++
	if e.Shadow && e.Outcome.Passed() {
		now.shadow++
	}
	now.latency.Add(e.Latency, 1)
	if e.Rule != "" {
		one := now.rules.of(e.Rule)
		one.requests++
		if refused {
			one.refused++
		}
	}
	talk := &s.windows[second/liveWindow%2]
	if talk.at != second/liveWindow {
		talk.begin(second / liveWindow)
	}
	for kind := range names {
		if names[kind] == "" {
			continue
		}
		hear(&talk.kinds[kind][byRequests], hashes[kind], names[kind])
		if refused {
			hear(&talk.kinds[kind][byRefused], hashes[kind], names[kind])
		}
	}
	if e.IP.IsValid() {
		hear(&talk.kinds[liveAddress][byRequests], hashes[liveAddress], ip[:])
		if refused {
			hear(&talk.kinds[liveAddress][byRefused], hashes[liveAddress], ip[:])
		}
	}
	s.mu.Unlock()
}

func (w *liveTalk) begin(at int64) {
	w.at = at
	for k := range w.kinds {
		w.kinds[k][byRequests].reset()
		w.kinds[k][byRefused].reset()
	}
}

// Snapshot returns the decisions of the last seconds.
func (l *Live) Snapshot() Snapshot {
	s := Merge([]Part{l.Part()}, l.o.Top)
	s.Alive = 1
	return s
}

// Part returns the decisions of the last seconds, to be added to those of other nodes.
func (l *Live) Part() Part {
	now := l.o.Now()
	elapsed := max(0, now.Sub(l.began))
	second := int64(elapsed / time.Second)
	// since is how long ago a second or the view began, but at least a second: rates of less
	// mean nothing.
	since := func(first int64) float64 {
		return max(time.Second, elapsed-time.Duration(max(0, first))*time.Second).Seconds()
	}

	var sum liveSecond
	rules := map[string]ruleCount{}
	for i := range l.shards {
		l.shards[i].add(&sum, rules, second)
	}
	window := second / liveWindow
	p := Part{
		Node: l.o.Node, At: now.UTC(), Seconds: since(second - liveSeconds + 1), Outcomes: map[string]int64{}, Shadow: sum.shadow,
		Units: l.units.sums(second), Leases: mostLent(l.o.Leases()), Talked: since((window - 1) * liveWindow),
	}
	p.Latency, _ = sum.latency.AppendBinary(nil)
	for o, n := range sum.outcomes {
		p.Outcomes[engine.Outcome(o).String()] = n
	}
	for name, c := range rules {
		p.Rules = append(p.Rules, partRule{name, c.requests, c.refused})
	}

	text := func(name []byte) string { return string(name) }
	hasher := newHasher(l.o.HashKey)
	address := func(name []byte) string {
		raw := [16]byte(name)
		if l.o.Privacy == HashIP {
			hasher.hash(raw[:])
		}
		return l.o.Privacy.text(raw)
	}
	for kind, to := range p.kinds() {
		if kind == liveAddress {
			text = address
		}
		*to = l.talkers(kind, window, text)
	}
	return p
}

// add adds the last seconds.
func (s *liveShard) add(sum *liveSecond, rules map[string]ruleCount, last int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := max(0, last-liveSeconds+1); at <= last; at++ {
		one := &s.seconds[at%liveRing]
		if one.at != at {
			continue // nothing was decided then
		}
		for o, n := range one.outcomes {
			sum.outcomes[o] += n
		}
		sum.shadow += one.shadow
		sum.latency.Merge(&one.latency)
		for name, at := range one.rules.places {
			n := one.rules.counts[at]
			n.add(rules[name])
			rules[name] = n
		}
		if other := one.rules.other; other.requests > 0 {
			other.add(rules[otherRules])
			rules[otherRules] = other
		}
	}
}

// talkers returns the clients of one kind, in the last two windows.
func (l *Live) talkers(kind int, last int64, text func(name []byte) string) partTalkers {
	type talker struct {
		name []byte
		n    [2]int64
	}
	places := map[uint64]int{}
	var all []talker
	var off [2]int64
	var heard []counter
	var names []byte
	for i := range l.shards {
		for at := max(0, last-1); at <= last; at++ {
			for by := range off {
				var lost int64
				heard, names, lost = l.shards[i].copy(at, kind, by, heard[:0], names)
				off[by] += lost
				for _, c := range heard {
					place, ok := places[c.hash]
					if !ok {
						place = len(all)
						places[c.hash] = place
						all = append(all, talker{name: c.name})
					}
					all[place].n[by] += c.n
				}
			}
		}
	}
	for i := range all { // every refused request was a request
		all[i].n[byRequests] = max(all[i].n[byRequests], all[i].n[byRefused])
	}
	out := partTalkers{Heard: []Talker{}, Lost: off}
	for by := range off {
		rest := all[len(out.Heard):]
		slices.SortFunc(rest, func(a, b talker) int {
			return cmp.Or(cmp.Compare(b.n[by], a.n[by]), cmp.Compare(b.n[byRequests], a.n[byRequests]), slices.Compare(a.name, b.name))
		})
		for i, t := range rest {
			if i == liveTold*l.o.Top || t.n[by] == 0 {
				out.Left[by] = t.n[by]
				break
			}
			out.Heard = append(out.Heard, Talker{text(t.name), t.n[byRequests], t.n[byRefused]})
		}
	}
	return out
}

// copy appends the counters of a table, with copies of their names, so that they can be sorted
// without the lock.
func (s *liveShard) copy(at int64, kind, by int, heard []counter, names []byte) (_ []counter, _ []byte, lost int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.windows[at%2]
	if w.at != at {
		return heard, names, 0
	}
	t := &w.kinds[kind][by]
	for _, c := range t.counters {
		start := len(names)
		names = append(names, c.name...)
		c.name = names[start:len(names):len(names)]
		heard = append(heard, c)
	}
	return heard, names, t.lost
}
