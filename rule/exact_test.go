//go:build exact

package rule_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/rule"
)

// TestMatchHostileMemory has long paths with many readings. Their time is linear, and a
// small multiple of that of a long path without any. So is their memory.
func TestMatchHostileMemory(t *testing.T) {
	f, _ := manyRules(100)
	s, err := rule.Compile(f)
	if err != nil {
		t.Fatal(err)
	}
	// cost returns the shortest time of several runs, as the machine may be busy, and the
	// memory of one.
	cost := func(part string, size int) (quickest time.Duration, memory uint64) {
		a := attrs()
		a.Path = "/" + strings.Repeat(part, size/len(part))
		quickest = time.Hour
		var before, after runtime.MemStats
		for range 50 {
			runtime.ReadMemStats(&before)
			start := time.Now()
			s.Match(nil, a)
			quickest = min(quickest, time.Since(start))
			runtime.ReadMemStats(&after)
		}
		return quickest, after.TotalAlloc - before.TotalAlloc
	}
	const long = 8 << 10 // longer ones would be interrupted on a busy machine
	plain, _ := cost("a", long)
	for _, part := range hostilePaths {
		most := 100 * plain // there are 5 readings, or 13
		if strings.Contains(part, "..") {
			most *= 5 // and more with dot segments
		}
		took, memory := cost(part, long)
		quarter, _ := cost(part, long/4)
		if memory > 20*long {
			t.Errorf("%q takes %d bytes", part, memory)
		}
		torture.AtMost(t, fmt.Sprintf("%q: time", part), took, most)
		torture.AtMost(t, fmt.Sprintf("%q: time, of a quarter of it", part), took, 20*quarter)
	}
}
