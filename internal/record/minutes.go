package record

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/engine"
)

// Minutes counts by minute who is denied, for the alerts of a node that records nothing. It counts only
// while it is on, this node alone, and keeps an hour. It may be used by several goroutines at once.
type Minutes struct {
	privacy Privacy
	hashKey []byte
	on      atomic.Bool

	mu   sync.Mutex
	ring [minutesKept]minuteDenied
}

var _ engine.Recorder = (*Minutes)(nil)

const (
	minutesKept = 64 // an hour and a little
	// minuteDenials is how many clients are counted in a minute, by rule. More are not.
	minuteDenials = 2000
)

type minuteDenied struct {
	minute int64 // since 1970
	denied map[denial]int64
}

// denial is who was denied, by which rule.
type denial struct {
	kind       int
	name, rule string
}

// NewMinutes returns minutes that count nothing yet. Addresses are kept as in the record.
func NewMinutes(privacy Privacy, hashKey []byte) (*Minutes, error) {
	if err := privacy.check(hashKey); err != nil {
		return nil, err
	}
	return &Minutes{privacy: privacy, hashKey: hashKey}, nil
}

// Turn begins or ends counting.
func (m *Minutes) Turn(on bool) {
	if m.on.Swap(on) && !on {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ring = [minutesKept]minuteDenied{}
	}
}

// Record implements [engine.Recorder].
func (m *Minutes) Record(_ context.Context, e *engine.Event) {
	if e.Outcome != engine.Denied || !m.on.Load() {
		return
	}
	at := e.At.Unix() / 60
	var ip string
	if e.IP.IsValid() {
		raw := m.privacy.kept(e.IP)
		ip = string(raw[:])
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.ring[at%minutesKept]
	if c.minute != at {
		*c = minuteDenied{at, map[denial]int64{}}
	}
	for kind, name := range [...]string{liveUser: e.User, liveTenant: e.Tenant, liveKey: e.Key, liveAddress: ip} {
		d := denial{kind, name, e.Rule}
		if n, known := c.denied[d]; name != "" && (known || len(c.denied) < minuteDenials) {
			c.denied[d] = n + 1
		}
	}
}

// Denied is how often a client was denied.
type Denied struct {
	Name   string
	Denied int64
}

// DeniedMore returns the clients of a kind (user, tenant, key or ip) that were denied more often than a number, the most often denied first.
func (m *Minutes) DeniedMore(from, to time.Time, by, rule string, than int64) (out []Denied) {
	kind := slices.Index([]string{liveUser: "user", liveTenant: "tenant", liveKey: "key", liveAddress: "ip"}, by)
	sums := map[string]int64{}
	m.mu.Lock()
	for at := from.Unix() / 60; at < to.Unix()/60; at++ {
		if c := &m.ring[at%minutesKept]; c.minute == at {
			for d, n := range c.denied {
				if d.kind == kind && (rule == "" || rule == d.rule) {
					sums[d.name] += n
				}
			}
		}
	}
	m.mu.Unlock()
	hasher := newHasher(m.hashKey)
	for name, n := range sums {
		if n > than {
			if kind == liveAddress {
				raw := [16]byte([]byte(name))
				if m.privacy == HashIP {
					hasher.hash(raw[:])
				}
				name = m.privacy.text(raw)
			}
			out = append(out, Denied{name, n})
		}
	}
	slices.SortFunc(out, func(a, b Denied) int { return cmp.Or(cmp.Compare(b.Denied, a.Denied), strings.Compare(a.Name, b.Name)) })
	return out
}
