package audit

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"math/bits"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/stintdev/stint/engine"
)

// LiveOptions are the settings of a [Live].
type LiveOptions struct {
	// Node is where it is.
	Node string
	// Counters is how many users, tenants, keys and addresses each shard counts, in 10
	// seconds, by requests and again by refusals. There are as many shards as threads,
	// at most 8. A counter takes about 60 bytes, and at most 300. Default 1,024, from 2
	// to 32,768.
	Counters int
	// Top is how many of them are shown. Default 10.
	Top int
	// Privacy is what is shown of addresses, and HashKey, of 16 bytes or more, what
	// their hashes are made with.
	Privacy Privacy
	HashKey []byte
	// Now is the clock of the engine. Default time.Now.
	Now func() time.Time
}

// Live knows what was decided in the last seconds, and who has asked most. It may be
// used by several at once.
type Live struct {
	o      LiveOptions
	began  time.Time
	seed   maphash.Seed
	shards []liveShard // a power of 2
}

var _ engine.Recorder = (*Live)(nil)

// Snapshot is what a [Live] knows at an instant.
type Snapshot struct {
	At   time.Time `json:"at"`
	Node string    `json:"node,omitempty"`
	// Seconds is how long the time was that the rates and the latency are about. Rates
	// are in requests per second.
	Seconds  float64            `json:"seconds"`
	Requests float64            `json:"requests_per_second"`
	Refused  float64            `json:"refused_per_second"`
	Shadow   float64            `json:"shadow_refused_per_second"` // would have been refused
	Outcomes map[string]float64 `json:"outcomes_per_second"`       // all that there are, by name
	Latency  LiveLatency        `json:"latency_us"`
	Talkers  LiveTalkers        `json:"talkers"`
}

// LiveLatency is how long decisions took, in microseconds, without the time that
// requests were held.
type LiveLatency struct {
	P50 int64 `json:"p50"`
	P95 int64 `json:"p95"`
	P99 int64 `json:"p99"`
}

// LiveTalkers are those who have asked most.
type LiveTalkers struct {
	// Seconds is how long the time was in which they were counted: between 10 and 20,
	// unless it has just begun.
	Seconds   float64 `json:"seconds"`
	Users     Talkers `json:"users"`
	Tenants   Talkers `json:"tenants"`
	Keys      Talkers `json:"keys"`
	Addresses Talkers `json:"addresses"`
}

// Talkers are those of one kind, the first first. Counts are never too high.
type Talkers struct {
	ByRequests []Talker `json:"by_requests"`
	ByRefused  []Talker `json:"by_refused"`
	// RequestsOff and RefusedOff are by how much counts may be too low. They are 0 unless
	// there were more names than counters; who has more is not missing.
	RequestsOff int64 `json:"requests_off"`
	RefusedOff  int64 `json:"refused_off"`
}

// Talker is one of them.
type Talker struct {
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	Refused  int64  `json:"refused"`
}

const (
	liveSeconds = 10 // that rates are about
	liveRing    = 16 // seconds that are kept: more than that, and a power of 2
	liveWindow  = 10 // seconds, of which there are two
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

// liveShard is some of the decisions.
type liveShard struct {
	mu      sync.Mutex
	seconds [liveRing]liveSecond
	windows [2]liveTalk
	_       [64]byte // so that those who record do not meet
}

// liveSecond is what was decided in one second.
type liveSecond struct {
	at       int64 // since it began
	outcomes [engine.Unavailable + 1]int64
	shadow   int64
	latency  Sketch
}

// liveTalk is who has asked in one window.
type liveTalk struct {
	at    int64 // in windows, since it began
	kinds [liveKinds][2]talkers
}

// NewLive returns one that knows of nothing yet.
func NewLive(o LiveOptions) (*Live, error) {
	o.Counters, o.Top = cmp.Or(o.Counters, 1024), cmp.Or(o.Top, 10)
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case o.Counters < 2 || o.Counters > 1<<15:
		return nil, invalid("Counters", strconv.Itoa(o.Counters), "2 to 32768, or 0 for the default")
	case o.Top < 0:
		return nil, invalid("Top", strconv.Itoa(o.Top), "a positive number, or 0 for the default")
	case o.Privacy > HashIP:
		return nil, invalid("Privacy", strconv.Itoa(int(o.Privacy)), "KeepIP, TruncateIP or HashIP")
	case o.Privacy == HashIP && len(o.HashKey) < 16:
		return nil, invalid("HashKey", strconv.Itoa(len(o.HashKey))+" bytes", "16 bytes or more")
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

// Record implements [engine.Recorder]. It reads no clock: an event says when it began and
// how long it took.
func (l *Live) Record(e engine.Event) {
	second := int64(max(0, e.At.Sub(l.began)+e.Waited+e.Latency) / time.Second)
	refused := !e.Outcome.Passed()
	// What can be done before the shard is taken is.
	names := [...]string{liveUser: e.User, liveTenant: e.Tenant, liveKey: e.Key}
	var hashes [liveKinds]uint64
	for kind, name := range names {
		if name != "" {
			hashes[kind] = maphash.String(l.seed, name)
		}
	}
	var ip [16]byte
	if e.IP.IsValid() {
		ip = l.address(e.IP)
		hashes[liveAddress] = maphash.Bytes(l.seed, ip[:])
	}

	s := &l.shards[int(e.ID[15])&(len(l.shards)-1)]
	s.mu.Lock()
	now := &s.seconds[second%liveRing]
	if now.at != second {
		now.at, now.shadow = second, 0
		clear(now.outcomes[:])
		clear(now.latency.counts)
	}
	now.outcomes[e.Outcome]++
	if e.Shadow {
		now.shadow++
	}
	now.latency.Add(e.Latency, 1)
	talk := &s.windows[second/liveWindow%2]
	if talk.at != second/liveWindow {
		talk.begin(second / liveWindow)
	}
	for kind, name := range names {
		if name == "" {
			continue
		}
		hear(&talk.kinds[kind][byRequests], hashes[kind], name)
		if refused {
			hear(&talk.kinds[kind][byRefused], hashes[kind], name)
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

// address returns what an address is counted as: itself, or its network.
func (l *Live) address(ip netip.Addr) [16]byte {
	raw := ip.As16()
	switch {
	case l.o.Privacy != TruncateIP:
	case ip.Is4() || ip.Is4In6():
		raw[15] = 0
	default:
		clear(raw[6:])
	}
	return raw
}

// Snapshot returns what is known now.
func (l *Live) Snapshot() Snapshot {
	now := l.o.Now()
	elapsed := max(0, now.Sub(l.began))
	second := int64(elapsed / time.Second)
	// since is how long it is since a second began, or since all did. For less than a
	// second no rate is worth the name.
	since := func(first int64) float64 {
		return max(time.Second, elapsed-time.Duration(max(0, first))*time.Second).Seconds()
	}

	var sum liveSecond
	for i := range l.shards {
		l.shards[i].add(&sum, second)
	}
	seconds := since(second - liveSeconds + 1)
	s := Snapshot{
		At: now.UTC(), Node: l.o.Node, Seconds: seconds, Shadow: float64(sum.shadow) / seconds, Outcomes: map[string]float64{},
		Latency: LiveLatency{
			sum.latency.Quantile(0.5).Microseconds(), sum.latency.Quantile(0.95).Microseconds(), sum.latency.Quantile(0.99).Microseconds(),
		},
	}
	for o, n := range sum.outcomes {
		rate := float64(n) / seconds
		s.Outcomes[engine.Outcome(o).String()] = rate
		s.Requests += rate
		if !engine.Outcome(o).Passed() {
			s.Refused += rate
		}
	}

	window := second / liveWindow
	text := func(name []byte) string { return string(name) }
	s.Talkers = LiveTalkers{
		Seconds:   since((window - 1) * liveWindow),
		Users:     l.talkers(liveUser, window, text),
		Tenants:   l.talkers(liveTenant, window, text),
		Keys:      l.talkers(liveKey, window, text),
		Addresses: l.talkers(liveAddress, window, l.show),
	}
	return s
}

// add adds the last seconds.
func (s *liveShard) add(sum *liveSecond, last int64) {
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
	}
}

// talkers returns those of one kind, in the last two windows.
func (l *Live) talkers(kind int, last int64, text func(name []byte) string) Talkers {
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
	for i := range all { // who was refused has asked
		all[i].n[byRequests] = max(all[i].n[byRequests], all[i].n[byRefused])
	}
	first := func(by int) []Talker {
		slices.SortFunc(all, func(a, b talker) int {
			return cmp.Or(cmp.Compare(b.n[by], a.n[by]), cmp.Compare(b.n[byRequests], a.n[byRequests]), slices.Compare(a.name, b.name))
		})
		out := []Talker{} // not null
		for _, t := range all[:min(l.o.Top, len(all))] {
			if t.n[by] > 0 {
				out = append(out, Talker{text(t.name), t.n[byRequests], t.n[byRefused]})
			}
		}
		return out
	}
	return Talkers{ByRequests: first(byRequests), ByRefused: first(byRefused), RequestsOff: off[byRequests], RefusedOff: off[byRefused]}
}

// copy appends the counters of a table, with their names in room of their own, so that
// those who record do not wait until they are sorted.
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

// show returns what is shown of an address.
func (l *Live) show(raw []byte) string {
	ip := netip.AddrFrom16([16]byte(raw)).Unmap()
	switch l.o.Privacy {
	case HashIP:
		mac := hmac.New(sha256.New, l.o.HashKey)
		mac.Write(raw)
		return hex.EncodeToString(mac.Sum(nil)[:hashBytes/2])
	case TruncateIP:
		size := 48
		if ip.Is4() {
			size = 24
		}
		return netip.PrefixFrom(ip, size).String()
	default:
		return ip.String()
	}
}
