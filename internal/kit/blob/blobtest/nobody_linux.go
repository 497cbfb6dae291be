package blobtest

import (
	"runtime"
	"syscall"
)

// AsNobody calls f as a user that owns no files, so that file permissions apply even if tests
// run as root. They apply to the goroutine of f only.
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
