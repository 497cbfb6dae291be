//go:build !darwin && !dragonfly && !freebsd && !linux && !netbsd && !openbsd

package main

import "os"

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// screenSize returns the usual size of a terminal in characters.
func screenSize(*os.File) (width, height int) { return 80, 24 }

// openFiles does not know the limit on these systems.
func openFiles() (limit uint64, ok bool) { return 0, false }
