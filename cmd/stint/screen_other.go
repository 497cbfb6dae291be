//go:build !darwin && !dragonfly && !freebsd && !linux && !netbsd && !openbsd

package main

import "os"

// screenSize returns how many characters fit on any terminal.
func screenSize(*os.File) (width, height int) { return 80, 24 }
