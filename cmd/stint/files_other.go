//go:build !darwin && !dragonfly && !freebsd && !linux && !netbsd && !openbsd

package main

// openFiles does not know the limit on these systems.
func openFiles() (limit uint64, ok bool) { return 0, false }
