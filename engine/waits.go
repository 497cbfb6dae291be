package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/stintdev/stint/identity"
)

// waits bounds how many requests are held in total and per client, so that no client can occupy all
// places.
type waits struct {
	maxTotal, maxEach int
	all               atomic.Int64 // atomic, so that Engine.Waiting needs no lock

	mu sync.Mutex
	of map[client]int
}

// client identifies who waits: a key, a user or a network.
type client struct {
	key, user string
	net       netip.Prefix
}

func clientOf(s *identity.Subject) client {
	switch {
	case s.Key != "":
		return client{key: s.Key}
	case s.User != "":
		return client{user: s.User}
	default:
		return client{net: s.Net}
	}
}

func newWaits(maxTotal int) waits {
	const share = 16
	return waits{maxTotal: maxTotal, maxEach: max(maxTotal/share, 1), of: map[client]int{}}
}

// enter takes a place if one is free.
func (w *waits) enter(c client) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if int(w.all.Load()) >= w.maxTotal || w.of[c] >= w.maxEach {
		return false
	}
	w.of[c]++
	w.all.Add(1)
	return true
}

// force takes a place even if none is free.
func (w *waits) force(c client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of[c]++
	w.all.Add(1)
}

// leave gives a place back.
func (w *waits) leave(c client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Add(-1)
	if w.of[c]--; w.of[c] == 0 {
		delete(w.of, c)
	}
}
