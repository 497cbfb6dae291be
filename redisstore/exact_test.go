//go:build exact

package redisstore_test

import (
	"fmt"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// TestAllocations counts the allocations of a decision.
func TestAllocations(t *testing.T) {
	s := open(t, testredis.Shared(t).URL(), redisstore.Options{})
	for _, a := range stint.Algorithms() {
		asks := []stint.Ask{{Key: stint.Key{Subject: "user:123456", Name: "api"}, Limit: limitOf(a, 10_000), Cost: 1}}
		one := func() {
			if _, err := storetest.Take(t.Context(), s, asks); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			one()
		}
		var before, after runtime.MemStats
		const runs = 500
		runtime.ReadMemStats(&before)
		allocs := testing.AllocsPerRun(runs, one)
		runtime.ReadMemStats(&after)
		if bytes := (after.TotalAlloc - before.TotalAlloc) / runs; allocs > 10 || bytes > 2048 {
			t.Errorf("%v: %v allocations of %d bytes, want at most 10 of 2048", a, allocs, bytes)
		} else {
			t.Logf("%v: %v allocations, %d bytes", a, allocs, bytes)
		}
	}
}

// TestMemory compares the memory of a counter in Redis with docs/redis.md.
func TestMemory(t *testing.T) {
	const counters = 100_000
	server := testredis.Start(t)
	used := func() int {
		_, rest, _ := strings.Cut(server.Do(t, "INFO", "memory").(string), "used_memory:")
		n, err := strconv.Atoi(strings.SplitN(rest, "\r", 2)[0])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, c := range []struct {
		limit       string
		takes       int
		cost        int64
		usage, most int // MEMORY USAGE, and of used_memory
	}{
		// None recovers meanwhile.
		{"100/1000h", 1, 1, 88, 150},
		{"100/1000h", 2, 1, 88, 150},
		{"100/1000h fixed_window", 2, 1, 88, 150},
		{"100/3600000123us", 1, 90, 120, 182}, // a long name
		{"100/1h token_bucket", 1, 90, 88, 150},
		{"100/1h burst=100 leaky_bucket", 1, 90, 88, 150},
		{"99/1000h token_bucket", 1, 1, 104, 166},
	} {
		s, err := redisstore.Open(patient(server.URL()), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := stint.ParseLimit(c.limit)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		asks := func(i int) []stint.Ask {
			return []stint.Ask{{Key: stint.Key{Subject: fmt.Sprintf("user:%06d", i), Name: "api"}, Limit: l, Cost: c.cost}}
		}
		// What Redis needs for the script and its caller is not the counters'.
		if _, err := storetest.Take(t.Context(), s, asks(0)); err != nil {
			t.Fatal(err)
		}
		server.Do(t, "FLUSHALL")
		before := used()
		const takers = 50
		for g := range takers {
			wg.Go(func() {
				for i := g; i < counters; i += takers {
					for range c.takes { // the second writes only a count
						if _, err := storetest.Take(t.Context(), s, asks(i)); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		each := sort.Search(1000, func(n int) bool { return before+n*counters >= used() })
		// The first value that a call writes may have room that it does not need.
		usage := 1000
		for i := range 100 {
			usage = min(usage, int(server.Do(t, "MEMORY", "USAGE", keyOf(asks(i)[0])).(int64)))
		}
		s.Close()
		t.Logf("%s: %d bytes by MEMORY USAGE, %d by used_memory", c.limit, usage, each)
		if usage > c.usage || each > c.most {
			t.Errorf("%s: %d bytes by MEMORY USAGE and %d by used_memory; docs/redis.md says %d and %d", c.limit, usage, each, c.usage, c.most)
		}
	}
}
