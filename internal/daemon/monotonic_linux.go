package daemon

import (
	"syscall"
	"unsafe"
)

// monotonic returns CLOCK_MONOTONIC in microseconds, which package time does not provide.
func monotonic() int64 {
	const clockMonotonic = 1
	var t syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&t)), 0) // cannot fail
	return t.Nano() / 1000
}
