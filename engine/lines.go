package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// lines are the requests of this process that wait for places, by counter, first come first served. Only the first of
// a line asks the store: at once when a place is released here, and otherwise now and then, since other processes
// release places too.
type lines struct {
	now    func() time.Time
	timers Timers

	count atomic.Int32 // of lines, so that most requests need no lock
	mu    sync.Mutex
	all   map[stint.Key][]*spot
}

// spot is a request in a line.
type spot struct {
	of   *lines
	key  stint.Key
	turn chan struct{} // it has become the first, or a place was released
	end  time.Time     // it has waited long enough
}

// A line asks the store for a place every pollPlace, and all lines together at most once every pollLines.
const (
	pollPlace = 50 * time.Millisecond
	pollLines = time.Millisecond
)

// join puts a request at the end of a line, for at most that long.
func (l *lines) join(key stint.Key, most time.Duration) *spot {
	p := &spot{of: l, key: key, turn: make(chan struct{}, 1), end: l.now().Add(most)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[stint.Key][]*spot{}
	}
	if len(l.all[key]) == 0 {
		l.count.Add(1)
	}
	l.all[key] = append(l.all[key], p)
	return p
}

// leave takes the request out of its line. If it was the first, the next one tries.
func (p *spot) leave() {
	l := p.of
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.all[p.key]
	i := slices.Index(line, p)
	line = slices.Delete(line, i, i+1)
	if l.all[p.key] = line; len(line) == 0 {
		delete(l.all, p.key)
		l.count.Add(-1)
	} else if i == 0 {
		line[0].call()
	}
}

func (p *spot) call() {
	select {
	case p.turn <- struct{}{}:
	default: // it has been called
	}
}

// released calls the first of a line.
func (l *lines) released(key stint.Key) {
	if l.count.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := l.all[key]; len(line) > 0 {
		line[0].call()
	}
}

// busy reports whether there is a line.
func (l *lines) busy(key stint.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all[key]) > 0
}

// wait waits until it is time to ask the store. It returns false if the request has waited long enough, or when ctx is
// done.
func (p *spot) wait(ctx context.Context) bool {
	l := p.of
	left := p.end.Sub(l.now())
	if left <= 0 {
		return false
	}
	d := left
	l.mu.Lock()
	if l.all[p.key][0] == p { // otherwise it is called when it is
		d = min(d, max(pollPlace, time.Duration(l.count.Load())*pollLines))
	}
	l.mu.Unlock()
	return l.timers.Pause(ctx, d, p.turn) && l.now().Before(p.end)
}

// standInLine holds a request until it may ask for a place. It returns false if it cannot wait, or not any longer.
func (e *Engine) standInLine(ctx context.Context, w *work, key stint.Key, most time.Duration) bool {
	if w.spot == nil {
		if most <= 0 || !e.waits.enter(w.client) {
			return false
		}
		w.spot = e.lines.join(key, most)
	}
	began := e.now()
	ok := w.spot.wait(ctx)
	w.step.Waited += max(e.since(began), 0)
	return ok
}

// leaveLine is called when the request has a place, or gives up.
func (e *Engine) leaveLine(w *work) {
	if w.spot != nil {
		w.spot.leave()
		w.spot = nil
		e.waits.leave(w.client)
	}
}

// lineFor returns the line that a request has to join before it asks for a place, if there is one already.
func (e *Engine) lineFor(s *Step) (key stint.Key, most time.Duration, found bool) {
	if e.lines.count.Load() == 0 {
		return key, 0, false
	}
	for i := range s.Hits {
		h := &s.Hits[i]
		for j := h.From; j < h.To && h.Rule.Action == rule.Throttle; j++ {
			if a := &s.Asks[j]; a.Limit.Algorithm == stint.Concurrency && e.lines.busy(a.Key) {
				return a.Key, h.Rule.MaxDelay, true
			}
		}
	}
	return key, 0, false
}

// missing returns a place that the request may wait for, and for how long. None if something else denies it.
func (s *Step) missing(ds []stint.Decision) (key stint.Key, most time.Duration) {
	for i := range s.Hits {
		h := &s.Hits[i]
		for j := h.From; j < h.To; j++ {
			a, d := &s.Asks[j], &ds[j]
			if d.Allowed {
				continue
			}
			left := h.Rule.MaxDelay - s.Waited
			if a.Limit.Algorithm != stint.Concurrency || h.Rule.Action != rule.Throttle || d.Basis > stint.Local || left <= 0 {
				return stint.Key{}, 0
			}
			if most == 0 || left < most {
				key, most = a.Key, left
			}
		}
	}
	return key, most
}
