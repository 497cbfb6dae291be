//go:build darwin || freebsd || linux

package disk

import (
	"math"
	"math/bits"
	"syscall"
)

func free(dir string) (int64, bool) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, false
	}
	high, low := bits.Mul64(uint64(max(0, s.Bavail)), uint64(s.Bsize)) //nolint:unconvert // signed on other systems
	if high > 0 || low > math.MaxInt64 {
		return math.MaxInt64, true
	}
	return int64(low), true
}
