package record

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/stintdev/stint/engine"
)

// folder stores at most perSecond events of a second that have the same client, rule, endpoint
// and outcome. The last of them stands for all the others of that second, by its weight, so
// that sums over any time of whole seconds stay exact.
//
// Only one goroutine may use it at a time, except for its atomic fields.
type folder struct {
	perSecond int
	streaks   map[streak]*streakState
	swept     int64 // the second of the last sweep

	waiting atomic.Int64 // drafts that wait for the end of their second
	folded  atomic.Int64 // events that another one stands for
}

// streak is what the events have in common that may be folded. It has everything that roll-ups
// and lists tell apart, and nothing that a client can vary at will, such as the method and the path.
type streak struct {
	second                  int64
	user, tenant, key, tier string
	ip                      netip.Addr
	rule, limit, endpoint   string
	outcome                 engine.Outcome
	shadow, cached          bool
}

type streakState struct {
	stored int    // events that were stored by themselves
	last   *draft // stands for the others; nil: there are none
}

// maxStreaks is how many streaks are known at once. Beyond it, events of other clients are
// stored one by one: many clients are bounded by the size of the record. Tests have fewer.
var maxStreaks = 8192

// add appends an event, or keeps it to be stored with others of its second.
func (f *folder) add(b Batch, c *encoder, d *draft) Batch {
	e := &d.event
	k := streak{
		second: e.At.Unix(), user: e.User, tenant: e.Tenant, key: e.Key, tier: e.Tier, ip: e.IP,
		rule: e.Rule, limit: e.Limit, endpoint: e.Endpoint, outcome: e.Outcome, shadow: e.Shadow, cached: e.Cached,
	}
	s := f.streaks[k]
	if s == nil {
		if len(f.streaks) >= maxStreaks {
			return c.append(b, e, d.path, d.weight)
		}
		s = new(streakState)
		f.streaks[k] = s
	}
	switch {
	case s.stored < f.perSecond-1:
		s.stored++
		return c.append(b, e, d.path, d.weight)
	case s.last == nil:
		s.last = &draft{*e, slices.Clone(d.path), d.weight}
		f.waiting.Add(1)
	default:
		s.last.weight += d.weight
		f.folded.Add(1)
	}
	return b
}

// sweep appends the events of seconds that are over, and forgets their streaks a second later:
// decisions that began in a second may end in the next. A second of the future is that of a
// clock that was wrong.
func (f *folder) sweep(b Batch, c *encoder, now int64) Batch {
	if now == f.swept {
		return b
	}
	f.swept = now
	for k, s := range f.streaks {
		ago := now - k.second
		if ago >= 1 || ago < -1 {
			b = f.flush(b, c, s)
		}
		if ago >= 2 || ago < -1 {
			delete(f.streaks, k)
		}
	}
	return b
}

// end appends the events of all seconds.
func (f *folder) end(b Batch, c *encoder) Batch {
	for _, s := range f.streaks {
		b = f.flush(b, c, s)
	}
	return b
}

func (f *folder) flush(b Batch, c *encoder, s *streakState) Batch {
	if s.last == nil {
		return b
	}
	b = c.append(b, &s.last.event, s.last.path, s.last.weight)
	s.last = nil
	f.waiting.Add(-1)
	return b
}
