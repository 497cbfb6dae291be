package redisstore

import (
	"time"

	"github.com/stintdev/stint"
)

// SetWall replaces the process's clock in a store.
func SetWall(s *Store, now func() time.Time) { s.wall = now }

// SetQueue sets how many requests may wait in a lane.
func SetQueue(s *Store, most int) { s.queue = newQueue(most) }

// Waiting returns how many requests wait in the lane of an ask.
func Waiting(s *Store, a *stint.Ask) int {
	l := s.lane(s.home(string(s.appendKey(nil, a))).now)
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}
