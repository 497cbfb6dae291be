package daemon

import (
	"syscall"
	"unsafe"
)

// monotonic returns CLOCK_MONOTONIC in microseconds, which package time does not tell.
func monotonic() int64 {
	const clockMonotonic = 1
	var t syscall.Timespec
	// It cannot fail: the clock is there, and so is the place for its time.
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano() / 1000
}
