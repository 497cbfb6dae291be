package memstore

import "github.com/stintdev/stint"

// A Fingerprint is what a counter is known by.
type Fingerprint = id

// Fingerprint returns that of a counter.
func (s *Store) Fingerprint(k stint.Key, l stint.Limit) Fingerprint {
	return s.idOf(&stint.Ask{Key: k, Limit: l})
}

// Parts returns the halves of a fingerprint.
func (c id) Parts() (lo, hi uint64) { return c.lo, c.hi }

// LogRoom returns for how many entries the log of a sliding_log has room.
func (s *Store) LogRoom(k stint.Key, l stint.Limit) int {
	c := s.Fingerprint(k, l)
	x := s.tableOf(c).acquire(c)
	defer x.release(c)
	return cap(s.logs.get(x.Aux).buf)
}
