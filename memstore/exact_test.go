//go:build exact

package memstore_test

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

// The race detector allocates on its own account, so what is counted here is
// counted without it.

// TestMemory counts what a million keys cost: bytes, and objects that the
// collector would have to visit.
func TestMemory(t *testing.T) {
	const keys = 1 << 20
	s := newStore(t, memstore.Options{MaxKeys: 2 * keys})
	a := ask("", "5/1h")
	buf := []byte("user:0000000000000000000")
	bytes, objects := heap()
	asks, ds := make([]stint.Ask, 1), make([]stint.Decision, 1)
	for i := range keys {
		a.Key.Subject = string(strconv.AppendInt(buf[:5], int64(i), 10))
		asks[0] = a
		if err := s.Take(t.Context(), asks, ds); err != nil {
			t.Fatal(err)
		}
	}
	moreBytes, moreObjects := heap()
	perKey := float64(moreBytes-bytes) / keys
	objectsPerKey := float64(int64(moreObjects)-int64(objects)) / keys
	if perKey > 80 || objectsPerKey > 0.01 {
		t.Errorf("%.1f bytes and %.4f objects a key; want at most 80 and 0.01", perKey, objectsPerKey)
	}
	t.Logf("%.1f bytes and %.4f objects a key", perKey, objectsPerKey)
	runtime.KeepAlive(s)
}

// TestSweepMemory has nearly all of many counters recover: the sweep gives their room back, and those
// that stay lose nothing.
func TestSweepMemory(t *testing.T) {
	const keys, stay = 1 << 16, 1 << 12
	clock := storetest.NewClock()
	s := newStore(t, memstore.Options{Now: clock.Now})
	before, _ := heap()
	for i := range keys {
		limit := "5/1s"
		if i < stay {
			limit = "5/1h"
		}
		take(t, s, ask(strconv.Itoa(i), limit))
	}
	full, _ := heap()
	clock.Add(1 << 26 * time.Microsecond) // a minute, and takes sweep if it is a multiple of 1,024
	for i := 0; s.Stats().Keys > stay; i++ {
		clock.Add(1024 * time.Microsecond)
		take(t, s, ask(strconv.Itoa(i%stay), "5/1h"))
		if i == keys {
			t.Fatalf("%+v", s.Stats())
		}
	}
	after, _ := heap()
	if after-before > (full-before)/4 {
		t.Errorf("%d bytes for %d counters, and %d for %d of them", full-before, keys, after-before, stay)
	}
	for i := range stay {
		a := ask(strconv.Itoa(i), "5/1h")
		a.Cost = 0
		if d := take(t, s, a)[0]; d.Remaining >= 5 {
			t.Fatalf("%d: %s", i, storetest.Format(d))
		}
	}
}

// heap returns how much is in use.
func heap() (bytes, objects uint64) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.HeapObjects
}

func TestNoAllocations(t *testing.T) {
	s := stint.Store(newStore(t, memstore.Options{}))
	for _, limit := range []string{
		"1000000/1h", "1000000/1h fixed_window", "1000000/month tz=Europe/Berlin", "10000/1h sliding_log",
		"1000000/1h token_bucket", "1000000/1h burst=1000000 leaky_bucket", "1/1h", "1/1h sliding_log",
	} {
		for _, n := range []int{1, 3, 8} {
			asks, ds := make([]stint.Ask, n), make([]stint.Decision, n)
			for i := range asks {
				asks[i] = ask("user:42", limit)
				asks[i].Key.Name = fmt.Sprint(limit, n, i)
			}
			take := func() {
				if err := s.Take(t.Context(), asks, ds); err != nil {
					t.Fatal(err)
				}
			}
			take() // makes the counters
			log := 0
			if asks[0].Limit.Algorithm == stint.SlidingLog && asks[0].Limit.Max > 1 {
				log = 100 * n // it grows
			}
			if n == 1 {
				if got := bytesPerRun(take); got > log {
					t.Errorf("%s, one ask that is not compiled: %d bytes a take", limit, got)
				}
			}
			for i := range asks {
				asks[i].Plan, _ = asks[i].Limit.Compile()
			}
			if got := bytesPerRun(take); got > log {
				t.Errorf("%s, %d asks: %d bytes a take", limit, n, got)
			}
		}
	}
}

// TestManyLimitsAllocations takes from counters of 5,000 different limits in turn, one ask and two at a
// time.
func TestManyLimitsAllocations(t *testing.T) {
	const limits = 5000
	s := stint.Store(newStore(t, memstore.Options{}))
	asks := make([]stint.Ask, limits)
	for i := range asks {
		a := stint.Algorithms()[i%6]
		if a == stint.SlidingLog || a == stint.Concurrency {
			a = stint.SlidingWindow // its log would grow
		}
		l := stint.Limit{Algorithm: a, Max: 1_000_000 + int64(i), Window: stint.Every(time.Hour)}
		if a == stint.LeakyBucket {
			l.Burst = 1000
		}
		plan, err := l.Compile()
		if err != nil {
			t.Fatal(err)
		}
		asks[i] = stint.Ask{Key: stint.Key{Subject: "user:42", Name: strconv.Itoa(i)}, Limit: l, Plan: plan, Cost: 1}
	}
	for _, n := range []int{1, 2} {
		ds, at := make([]stint.Decision, n), 0
		take := func() {
			if err := s.Take(t.Context(), asks[at:at+n], ds); err != nil || !ds[0].Allowed {
				t.Fatal(asks[at], ds, err)
			}
			at = (at + n) % limits
		}
		for range limits { // makes the counters
			take()
		}
		if got := bytesPerRun(take); got > 0 {
			t.Errorf("%d asks: %d bytes a take", n, got)
		}
	}
}

// bytesPerRun returns how many bytes a function allocates, which is what an allocation comes to
// that is made by one call in many. Others may allocate a few meanwhile: a fraction does not count.
func bytesPerRun(f func()) int {
	const runs = 10_000
	before := allocated()
	for range runs {
		f()
	}
	return int(allocated()-before) / runs
}

// allocated returns how many bytes have been allocated so far.
//
//go:noinline
func allocated() uint64 {
	var m runtime.MemStats // large, and best not in a frame whose size matters
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
