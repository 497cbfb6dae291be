package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// counterServers are the Redis servers that have the counters.
type counterServers interface {
	Servers() []string
	PingServer(ctx context.Context, server string) error
}

// counterHealth says whether Redis makes the decisions. It follows what decisions rest on: the breaker of
// each server, and how many decisions were made without Redis. Where there are none, it asks each server
// for one itself.
type counterHealth struct {
	budget time.Duration // of a decision
	report func()        // called when a server fails or is back

	mu         sync.Mutex
	servers    map[string]*serverHealth
	alone, all uint64 // decisions in the last second or so: without Redis, and all
}

// serverHealth is the health of one server. Empty: no problem.
type serverHealth struct {
	open  string // why its breaker is open
	ping  string // why it did not decide when it was asked
	since time.Time
}

func (s *serverHealth) problem() string {
	if s.open != "" {
		return s.open
	}
	return s.ping
}

// set changes the health of a server.
func (h *counterHealth) set(server string, change func(*serverHealth)) {
	h.mu.Lock()
	s := h.servers[server]
	if s == nil {
		if h.servers == nil {
			h.servers = map[string]*serverHealth{}
		}
		s = new(serverHealth)
		h.servers[server] = s
	}
	before := s.problem()
	change(s)
	changed := (before == "") != (s.problem() == "")
	if changed {
		s.since = time.Now()
	}
	h.mu.Unlock()
	if changed && h.report != nil {
		h.report()
	}
}

// breaker notes that the breaker of a server has opened, for a reason, or closed.
func (h *counterHealth) breaker(server string, open bool, reason string) {
	h.set(server, func(s *serverHealth) {
		if s.open = ""; open {
			s.open = reason
		} else {
			s.ping = "" // the server has just decided
		}
	})
}

// breakerState returns the state of the breakers, as the admin API names it.
func (h *counterHealth) breakerState() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.servers {
		if s.open != "" {
			return "open"
		}
	}
	return "closed"
}

// up reports for each server whether it decides.
func (h *counterHealth) up() map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make(map[string]bool, len(h.servers))
	for name, s := range h.servers {
		out[name] = s.problem() == ""
	}
	return out
}

// allDown reports whether no server decides.
func (h *counterHealth) allDown() bool {
	up := h.up()
	for _, works := range up {
		if works {
			return false
		}
	}
	return len(up) > 0
}

// problem describes what is wrong. Empty: Redis makes the decisions.
func (h *counterHealth) problem() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	const alone = "unless a rule says otherwise, this node counts on its own and applies its share of the limits"
	var down []string
	for _, name := range slices.Sorted(maps.Keys(h.servers)) {
		if s := h.servers[name]; s.problem() != "" {
			down = append(down, fmt.Sprintf("%s since %s: %s", name, s.since.UTC().Format(time.RFC3339), s.problem()))
		}
	}
	switch n := len(h.servers); {
	case len(down) > 0 && n == 1:
		return "Redis cannot be used; " + alone + ": " + down[0]
	case len(down) > 0:
		return fmt.Sprintf("%d of %d Redis servers cannot be used; for clients whose counters are there, %s: %s",
			len(down), n, alone, strings.Join(shorten(down), "; "))
	case h.tooMany():
		return fmt.Sprintf("%d of the last %d decisions were made without Redis, which fails or is slow now and then; for them, %s", h.alone, h.all, alone)
	}
	return ""
}

// tooMany reports whether Redis makes too few of the decisions, though its breakers are closed.
func (h *counterHealth) tooMany() bool {
	const some, part = 5, 20 // 5 %
	return h.alone >= some && part*h.alone >= h.all
}

// watch checks the decisions twice a second, and the servers every second, or twice if they fail, until ctx
// is done. takes returns how many decisions there were so far: without Redis, and all.
func (h *counterHealth) watch(ctx context.Context, servers counterServers, takes func() (alone, all uint64)) {
	var work sync.WaitGroup
	defer work.Wait()
	asking := map[string]chan struct{}{} // closed when the answer is there
	type count struct{ alone, all uint64 }
	last := make([]count, 3) // a second ago, half a second ago, now
	last[2].alone, last[2].all = takes()
	last[0], last[1] = last[2], last[2]
	tick := 0
	every(ctx, time.Second/2, func() bool {
		var now count
		now.alone, now.all = takes()
		last = append(last[1:], now)
		h.mu.Lock()
		was := h.tooMany()
		if h.alone, h.all = now.alone-last[0].alone, now.all-last[0].all; now.alone == last[1].alone {
			h.alone = 0 // it is over
		}
		is := h.tooMany()
		h.mu.Unlock()
		if was != is && h.report != nil {
			h.report()
		}
		tick++
		names, up := servers.Servers(), h.up()
		h.keep(names)
		for _, name := range names {
			if tick%2 == 0 && up[name] {
				continue
			}
			if done := asking[name]; done != nil {
				select {
				case <-done:
				default:
					continue
				}
			}
			done := make(chan struct{})
			asking[name] = done
			work.Go(func() {
				defer close(done)
				h.ask(ctx, servers, name)
			})
		}
		maps.DeleteFunc(asking, func(name string, _ chan struct{}) bool { return !slices.Contains(names, name) })
		return true
	})
}

// keep forgets servers that have no counters any more.
func (h *counterHealth) keep(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.servers, func(name string, s *serverHealth) bool { return s.open == "" && !slices.Contains(names, name) })
}

// ask asks a server for a decision, up to three times: one that fails or is slow may be the fault of this
// machine.
func (h *counterHealth) ask(ctx context.Context, servers counterServers, name string) {
	problem, first := "", time.Now()
	for n := 0; n < 3 && time.Since(first) < time.Second; n++ {
		start := time.Now()
		asking, cancel := context.WithTimeout(ctx, h.budget)
		err := servers.PingServer(asking, name)
		cancel()
		if ctx.Err() != nil {
			return
		}
		problem = ""
		if took := time.Since(start); err != nil {
			problem = err.Error()
		} else if took > slowFor(h.budget) {
			problem = fmt.Sprintf("a decision takes %v, more than %v", took.Round(time.Millisecond), slowFor(h.budget))
		}
		if problem == "" {
			break
		}
	}
	h.set(name, func(s *serverHealth) { s.ping = problem })
}

// slowFor returns how long a decision with this budget may take before Redis is too slow: less than the
// budget, or no decision would ever be too slow.
func slowFor(budget time.Duration) time.Duration { return budget / 5 * 4 }
