//go:build exact

package identity_test

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/test/torture"
)

// The race detector allocates on its own account, and so do pools under it.

func TestAllocations(t *testing.T) {
	for name, c := range cases(t) {
		var s identity.Subject
		got := testing.AllocsPerRun(100, func() {
			if err := c.resolver.Resolve(t.Context(), c.request, start, &s); err != nil || s.Source != c.source {
				t.Fatal(s, err)
			}
		})
		if got > 0 {
			t.Errorf("%s: %v allocations, want none", name, got)
		}
	}
}

// TestMemory checks that tokens beyond those that are remembered take no room.
func TestMemory(t *testing.T) {
	s := newSigner(t, "HS256")
	o := s.options(t)
	o.Remember = 1280
	r := open(t, identity.Options{JWT: o})
	user := 0
	heap := func(tokens int) uint64 {
		for range tokens {
			user++
			resolve(t, r, from(client, "Authorization", "Bearer "+s.sign(t, claims{"sub": strconv.Itoa(user)})))
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	empty := heap(0)
	full := heap(4*1280) - empty
	torture.AtMost(t, "bytes after twice as many tokens", heap(8*1280)-empty, 2*full)
}
