package main_test

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
)

// TestReserveMemory reserves memory in a place that was reserved before, where the runtime writes zeros: it takes no space.
func TestReserveMemory(t *testing.T) {
	before := resident(t)
	for range 3 {
		b := stint.Reserve()
		if grown := resident(t) - before; grown > 8<<20 {
			t.Errorf("%d MB are resident", grown>>20)
		}
		runtime.KeepAlive(b)
		runtime.GC()
	}
}

// resident returns how much memory of this process is resident, without that of files, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	value, _, _ := strings.Cut(rest, " kB")
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
