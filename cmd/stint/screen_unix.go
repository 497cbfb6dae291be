//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

import (
	"os"
	"syscall"
	"unsafe"
)

// window returns the size of a terminal. ok is false if the file is not a terminal.
func window(f *os.File) (width, height int, ok bool) {
	var size struct{ rows, columns, _, _ uint16 }
	_, _, failed := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	return int(size.columns), int(size.rows), failed == 0
}

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool {
	_, _, ok := window(f)
	return ok
}

// screenSize returns the size of a terminal in characters.
func screenSize(f *os.File) (width, height int) {
	width, height, _ = window(f)
	if width == 0 || height == 0 {
		return 80, 24
	}
	return width, height
}

// openFiles returns the limit of open files of a process.
func openFiles() (limit uint64, ok bool) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, false
	}
	return uint64(r.Cur), true //nolint:unconvert // it is signed on FreeBSD
}
