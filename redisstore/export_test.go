package redisstore

import "time"

// SetWall replaces the process's clock in a store.
func SetWall(s *Store, now func() time.Time) { s.wall = now }
