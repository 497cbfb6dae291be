package gossip

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxMeters is how many limits are counted apart. Further ones are counted together, without a name.
const maxMeters = 1024

// meters counts what the layer does: in all, and by limit.
type meters struct {
	lost, refused, duplicate atomic.Int64

	mu     sync.Mutex
	limits map[string]*meter
}

// meter is that of one limit.
type meter struct {
	admitted, received, short, shares, bound, beyond atomic.Int64
	measured                                         atomic.Bool
}

// of returns the meter of a limit.
func (m *meters) of(limit string) *meter {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limits == nil {
		m.limits = map[string]*meter{}
	}
	if m.limits[limit] == nil {
		if len(m.limits) >= maxMeters {
			limit = ""
		}
		if m.limits[limit] == nil {
			m.limits[limit] = new(meter)
		}
	}
	return m.limits[limit]
}

// raise raises a number to at least n.
func raise(number *atomic.Int64, n int64) {
	for old := number.Load(); n > old && !number.CompareAndSwap(old, n); old = number.Load() {
	}
}

// Stats is what a node has done since it started.
type Stats struct {
	// Lost is how many units others may never have been told of, Refused how many batches of others were
	// refused, and Duplicate how many came again, and were not charged again.
	Lost, Refused, Duplicate int64
	Counters                 int // of which it is remembered what the others know
	Limits                   []LimitStats
}

// LimitStats is what a node has done of a limit.
type LimitStats struct {
	Limit    string // [stint.Key.Limit]; empty: of further limits, together
	Admitted int64  // units
	Received int64  // units that other regions have admitted
	Short    int64  // takes that were denied for want of credit, or of a share
	Shares   int64  // takes that were decided by this node's share
	// Bound is how many units all regions together may admit beyond the limit, and Beyond the most that
	// this node has seen, if it is measured: see [Measured].
	Bound, Beyond int64
	Measured      bool
}

// Stats returns what this node has done.
func (s *Store) Stats() Stats {
	out := Stats{Lost: s.meters.lost.Load(), Refused: s.meters.refused.Load(), Duplicate: s.meters.duplicate.Load()}
	for i := range s.ledger.shards {
		sh := &s.ledger.shards[i]
		sh.mu.Lock()
		out.Counters += len(sh.accounts)
		sh.mu.Unlock()
	}
	s.meters.mu.Lock()
	defer s.meters.mu.Unlock()
	for name, m := range s.meters.limits {
		out.Limits = append(out.Limits, LimitStats{
			name, m.admitted.Load(), m.received.Load(), m.short.Load(), m.shares.Load(), m.bound.Load(), m.beyond.Load(), m.measured.Load(),
		})
	}
	slices.SortFunc(out.Limits, func(a, b LimitStats) int { return cmp.Compare(a.Limit, b.Limit) })
	return out
}

// PeerStats is how this node stands with another region.
type PeerStats struct {
	Region string
	Heard  bool // it has answered a moment ago
	Cut    bool // no node of this region hears from it
	Alone  bool // it says that it is cut off from some region
	// Consents says that none of its nodes admits shares, so that this region goes on as usual.
	Consents bool
	// Backlog is of how many counters it has to be told, and Unacknowledged how many batches it has not
	// acknowledged. Lag is how long ago the oldest of them was made, or how long the last one took.
	Backlog, Unacknowledged int
	Lag                     time.Duration
}

// Peers returns how this node stands with the other regions.
func (s *Store) Peers() []PeerStats {
	out := make([]PeerStats, len(s.peers))
	now := s.elapsed()
	for i, p := range s.peers {
		p.mu.Lock()
		lag := p.lag
		if len(p.sent) > 0 {
			lag = max(lag, now-p.sent[0].at)
		}
		hears := s.hears(p, now)
		out[i] = PeerStats{
			Region: p.name, Heard: hears, Cut: p.cut.Load(), Alone: hears && p.alone.Load(), Consents: now < p.consent.Load(),
			Backlog: len(p.queue), Unacknowledged: len(p.sent), Lag: time.Duration(lag) * time.Microsecond,
		}
		p.mu.Unlock()
	}
	return out
}
