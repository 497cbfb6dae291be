// Package pulse measures how long the process did not run: while it was stopped, throttled by a CPU
// quota, waiting for a processor, or collecting garbage. What takes long because of that is not the
// fault of the server that was asked.
//
// A goroutine wakes up every [Beat]. If it wakes up late, the process did not run in between. It runs
// only while someone reads the pulse, and a second longer. Stalls of up to two beats are not noticed.
package pulse

import (
	"sync"
	"sync/atomic"
	"time"
)

// Beat is the time between two beats.
const Beat = 5 * time.Millisecond

// Pulse measures the stalls of this process. It is safe for concurrent use.
type Pulse struct {
	born  time.Time
	state atomic.Pointer[state]
	beats atomic.Bool // the goroutine runs
	read  atomic.Bool // someone has read it since the goroutine last looked

	stop sync.Once
	quit chan struct{}
}

// state is what the last beat found.
type state struct {
	last, lost time.Duration
	beats      bool // false: there will be no other beat, so none can be late
}

// Moment is a reading: the time since the pulse was made, and how much of it the process did not run.
type Moment struct{ Now, Lost time.Duration }

// Since returns how long the process has run and not run since an earlier moment.
func (m Moment) Since(earlier Moment) (ran, lost time.Duration) {
	lost = m.Lost - earlier.Lost
	return max(0, m.Now-earlier.Now-lost), lost
}

// New returns a pulse. The caller must close it.
func New() *Pulse {
	p := &Pulse{born: time.Now(), quit: make(chan struct{})}
	p.state.Store(new(state))
	return p
}

// Close ends the goroutine. Readings remain possible, but notice no more stalls.
func (p *Pulse) Close() { p.stop.Do(func() { close(p.quit) }) }

// Read returns the current moment.
func (p *Pulse) Read() Moment {
	if !p.read.Load() { // a load is cheaper than a store, if many do it
		p.read.Store(true)
	}
	if !p.beats.Load() && p.beats.CompareAndSwap(false, true) {
		p.beat()
		go p.run()
	}
	now := time.Since(p.born)
	s := p.state.Load()
	return Moment{now, s.lost + s.late(now)}
}

// late returns by how much the next beat is late, if it is late enough to be noticed.
func (s *state) late(now time.Duration) time.Duration {
	if gap := now - s.last; s.beats && gap > 2*Beat {
		return gap - Beat
	}
	return 0
}

// beat notes that the process runs.
func (p *Pulse) beat() {
	s, now := p.state.Load(), time.Since(p.born)
	p.state.Store(&state{last: now, lost: s.lost + s.late(now), beats: true})
}

func (p *Pulse) run() {
	tick := time.NewTicker(Beat)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-p.quit:
			p.state.Store(&state{lost: p.state.Load().lost})
			return
		case <-tick.C:
		}
		p.beat()
		if n%int(time.Second/Beat) > 0 || p.read.Swap(false) {
			continue
		}
		p.state.Store(&state{lost: p.state.Load().lost})
		p.beats.Store(false)
		// Whoever reads it now starts it again. Who has read it just before may have seen it run.
		if !p.read.Load() || !p.beats.CompareAndSwap(false, true) {
			return
		}
		p.beat()
	}
}
