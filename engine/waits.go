package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/stintdev/stint/identity"
)

// waits bounds how many requests are held, and how many of one client, so that no one
// can take all places.
type waits struct {
	most, each int
	all        atomic.Int64 // for those who only want to know

	mu sync.Mutex
	of map[client]int
}

// client is who waits: a key, a user, or an address.
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

func newWaits(most int) waits {
	const share = 16
	return waits{most: most, each: max(most/share, 1), of: map[client]int{}}
}

// enter takes a place, if there is one.
func (w *waits) enter(c client) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if int(w.all.Load()) >= w.most || w.of[c] >= w.each {
		return false
	}
	w.of[c]++
	w.all.Add(1)
	return true
}

// force takes a place whether there is one or not.
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
