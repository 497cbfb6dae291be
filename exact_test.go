//go:build exact

package stint_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stintdev/stint"
)

// The race detector allocates on its own account, so what is counted here is
// counted without it.

func TestNoAllocations(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, text := range []string{
		"100/1m", "100/1m fixed_window", "100/month tz=Europe/Berlin", "100/1m token_bucket", "100/1m burst=10 leaky_bucket",
	} {
		l := parse(t, text)
		var s stint.State
		if n := testing.AllocsPerRun(100, func() { s, _ = l.Take(s, now, 1) }); n != 0 {
			t.Errorf("%s: %v allocations a take", text, n)
		}
	}
}

func TestKeyAppendAllocations(t *testing.T) {
	k := stint.Key{Subject: "user:42", Name: "search"}
	buf := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() { buf = k.Append(buf[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLimiterAllocations(t *testing.T) {
	l := newLimiter(t, "1000000/1s")
	const runs = 10_000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		if _, err := l.Take(t.Context(), "alice"); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	// A collection in between costs a few calls.
	if n := after.TotalAlloc - before.TotalAlloc; n > runs {
		t.Errorf("%d bytes in %d takes", n, runs)
	}
}
