package testserver

import (
	"os"
	"syscall"
	"unsafe"
)

// Memory returns a value in a file that is mapped into memory: processes that open the same file share it, and it
// outlives one that is killed. T has no pointers, and its fields are atomic.
func Memory[T any](path string) (*T, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := int(unsafe.Sizeof(*new(T)))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(b))), nil
}
