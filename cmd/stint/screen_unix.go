//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

import (
	"os"
	"syscall"
	"unsafe"
)

// window asks a terminal how large it is, which nothing else can tell.
func window(f *os.File) (width, height int, ok bool) {
	var size struct{ rows, columns, _, _ uint16 }
	_, _, failed := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	return int(size.columns), int(size.rows), failed == 0
}

// isTerminal reports whether there is someone at the other side.
func isTerminal(f *os.File) bool {
	_, _, ok := window(f)
	return ok
}

// screenSize returns how many characters fit on a terminal.
func screenSize(f *os.File) (width, height int) {
	width, height, _ = window(f)
	if width == 0 || height == 0 {
		return 80, 24
	}
	return width, height
}

// openFiles returns how many files a process may have open.
func openFiles() (most uint64, ok bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return uint64(limit.Cur), true //nolint:unconvert // it is signed on FreeBSD
}
