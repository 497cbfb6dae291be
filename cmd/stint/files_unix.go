//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

import "syscall"

// openFiles returns the limit of open files of a process.
func openFiles() (limit uint64, ok bool) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, false
	}
	return uint64(r.Cur), true //nolint:unconvert // it is signed on FreeBSD
}
