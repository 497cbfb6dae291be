package redisstore

import (
	"errors"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// Stats are counts since the store was opened.
type Stats struct {
	Requests    uint64 // takes and adjustments sent, once for each part of those that are split
	Calls       uint64 // of the script; fewer, as requests share them
	Scripts     uint64 // times that Redis did not know the script
	Retries     uint64 // because servers were changing places
	Undone      uint64 // charges taken back because another part denied
	Kept        uint64 // charges of these that could not be taken back
	Unavailable uint64 // requests that failed because Redis was out of reach
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
