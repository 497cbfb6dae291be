package redisstore

import "time"

// SetWall replaces the clock of the process.
func SetWall(s *Store, now func() time.Time) { s.wall = now }
