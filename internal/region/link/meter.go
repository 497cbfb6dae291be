package link

import (
	"sync"
	"time"

	"github.com/stintdev/stint/internal/region/link/linkpb"
)

const (
	outstanding = 16      // pings that may be answered late
	samples     = 16      // pings of which the fastest tells the skew
	maxClock    = 1 << 53 // microseconds; stores keep no later instants
	maxConsent  = 1 << 40 // microseconds
)

// meter measures round trips, and by how much the clocks of two stores differ.
type meter struct {
	clock func() int64

	mu       sync.Mutex
	last     uint64                 // the number of the last ping
	sent     [outstanding]time.Time // by number; zero: answered
	answered int
	smoothed time.Duration
	latest   time.Duration
	samples  [samples]sample
}

type sample struct {
	roundTrip time.Duration
	skew      int64
}

// ping returns the next ping, which is sent now.
func (m *meter) ping(now time.Time) *linkpb.Ping {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	m.sent[m.last%outstanding] = now
	return &linkpb.Ping{Id: m.last}
}

// pong notes an answer that has arrived now, and returns how long after the ping that is. It ignores one to no ping,
// or a second one: then it returns 0.
func (m *meter) pong(p *linkpb.Pong, now time.Time) (after time.Duration, err error) {
	if c := p.GetConsent(); c > maxConsent {
		return 0, refuse(BadMessage, "a consent for %d microseconds, want at most %d", c, uint64(maxConsent))
	}
	if c := p.GetClock(); c < 0 || c > maxClock {
		return 0, refuse(BadMessage, "a clock of %d microseconds, want 0 to %d", c, int64(maxClock))
	}
	ours := m.clock()
	m.mu.Lock()
	defer m.mu.Unlock()
	sent := &m.sent[p.GetId()%outstanding]
	if p.GetId() > m.last || m.last-p.GetId() >= outstanding || sent.IsZero() {
		return 0, nil
	}
	trip := max(now.Sub(*sent), 1)
	*sent = time.Time{}
	m.latest = trip
	if m.answered == 0 {
		m.smoothed = trip
	}
	m.smoothed += (trip - m.smoothed) / 8
	// The clock was read half a round trip ago, and less exactly so the longer that took.
	m.samples[m.answered%samples] = sample{trip, p.GetClock() - (ours - trip.Microseconds()/2)}
	m.answered++
	return trip, nil
}

// Measured is what pings have measured.
type Measured struct {
	// Pings is how many were answered. If there were none, the rest is unknown.
	Pings int
	// RoundTrip is smoothed, and LastRoundTrip is that of the last ping.
	RoundTrip, LastRoundTrip time.Duration
	// Skew is by how much the clock of the other region's store is ahead of the clock of this one's.
	Skew time.Duration
}

func (m *meter) measured() Measured {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := Measured{Pings: m.answered, RoundTrip: m.smoothed, LastRoundTrip: m.latest}
	if m.answered == 0 {
		return out
	}
	best := m.samples[0]
	for _, s := range m.samples[:min(m.answered, samples)] {
		if s.roundTrip < best.roundTrip {
			best = s
		}
	}
	out.Skew = time.Duration(best.skew) * time.Microsecond
	return out
}
