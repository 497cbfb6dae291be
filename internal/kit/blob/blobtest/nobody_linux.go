package blobtest

import (
	"runtime"
	"syscall"
)

// AsNobody calls f as a user to whom no file belongs, so that permissions of files hold
// also where the tests run as root. That is so only in f's own goroutine.
func AsNobody(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock it: the thread ends with the goroutine
		const nobody = 65534
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0) // without effect for others than root
		f()
	}()
	<-done
}
