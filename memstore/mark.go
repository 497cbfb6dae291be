package memstore

import "github.com/stintdev/stint"

// A mark is kept beside a counter, like a counter, as long as a charge of it may be changed: that it
// was reset, and when, or that a change with an ID was made. A mark is only read and written while its
// shard is locked.

// markOf returns the fingerprint of the mark of a change with that ID, or of a reset if it is empty.
func (s *Store) markOf(c id, change string) id { return c.with(s.names.of(change), mark) }

// mark returns what tells charges of the counter from those of others.
func (c id) mark() uint32 { return uint32(c.lo) }

// setMark makes a mark, or prolongs it.
func (s *Store) setMark(c id, f from, now, until int64) {
	sh := s.shardOf(c)
	x := sh.acquire(c)
	if x == nil {
		x = sh.insert(c, kept{from: f}, now)
	}
	x.Counter = stint.Counter{At: now, Used: 1, Until: until}
	x.worth = 1 // like one unit
	x.release(c)
}

// applies reports whether a change of a charge has anything to change: it was not made before, and the
// counter was not reset since. The cells of all items are locked.
func (s *Store) applies(items []item, c id, charge *stint.Charge, now int64) bool {
	marked := func(change string) (at int64, ok bool) {
		m := s.markOf(c, change)
		for i := range items {
			if x := items[i].cell; items[i].id == m && x != nil && x.Until > now {
				return x.At, true
			}
		}
		return 0, false
	}
	if at, reset := marked(""); reset && charge.At <= at {
		return false
	}
	if charge.ID == "" {
		return true
	}
	_, made := marked(charge.ID)
	return !made
}
