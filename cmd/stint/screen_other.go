//go:build !darwin && !dragonfly && !freebsd && !linux && !netbsd && !openbsd

package main

import "os"

// isTerminal reports whether there is someone at the other side.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// screenSize returns how many characters fit on any terminal.
func screenSize(*os.File) (width, height int) { return 80, 24 }

// openFiles is not known here.
func openFiles() (most uint64, ok bool) { return 0, false }
