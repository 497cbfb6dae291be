//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd)

package disk

import "os"

// Lock does nothing: on this system the operator has to give each process its own directory.
func Lock(*os.File) error { return nil }

// Unlock does nothing.
func Unlock(*os.File) error { return nil }
