package redisstore

import (
	"errors"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// Stats are counts since the store was opened.
type Stats struct {
	Requests    uint64 // takes and adjustments sent; each part of a split one counts
	Calls       uint64 // calls of the script, which requests share
	Scripts     uint64 // times that Redis did not have the script
	Retries     uint64 // during failovers and migrations
	Undone      uint64 // parts undone because another part of the take denied
	Kept        uint64 // parts that could not be undone, and stay charged
	Unavailable uint64 // requests that failed because Redis could not be reached
	BadStates   uint64 // requests that failed because a counter could not be read
}

type counts struct {
	requests, calls, scripts, retries, undone, kept, unavailable, badStates atomic.Uint64
}

// Stats returns the counts so far.
func (s *Store) Stats() Stats {
	c := &s.stats
	return Stats{
		Requests:    c.requests.Load(),
		Calls:       c.calls.Load(),
		Scripts:     c.scripts.Load(),
		Retries:     c.retries.Load(),
		Undone:      c.undone.Load(),
		Kept:        c.kept.Load(),
		Unavailable: c.unavailable.Load(),
		BadStates:   c.badStates.Load(),
	}
}

// count counts a request that failed.
func (c *counts) count(err error) {
	var state *StateError
	switch {
	case errors.As(err, &state):
		c.badStates.Add(1)
	case errors.Is(err, stint.ErrUnavailable):
		c.unavailable.Add(1)
	}
}
