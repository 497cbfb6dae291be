//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

import (
	"os"
	"syscall"
	"unsafe"
)

// screenSize returns how many characters fit on a terminal.
func screenSize(f *os.File) (width, height int) {
	var size struct{ rows, columns, _, _ uint16 }
	_, _, failed := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if failed != 0 || size.rows == 0 || size.columns == 0 {
		return 80, 24
	}
	return int(size.columns), int(size.rows)
}
