//go:build exact

package lookup_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"

	"github.com/stintdev/stint/internal/kit/lookup"
	"github.com/stintdev/stint/internal/test/torture"
)

// The race detector allocates on its own account, so what is counted here is
// counted without it.

func TestNoAllocations(t *testing.T) {
	s := &source{rows: map[string]int{"ann": 1}}
	c := open(t, lookup.Options[row]{Load: s.load})
	for _, id := range []string{"ann", "no one"} {
		get := func() {
			if _, err := c.Get(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		get()
		if got := testing.AllocsPerRun(10_000, get); got != 0 {
			t.Errorf("%s: %v allocations", id, got)
		}
	}
}

// TestMemoryScan asks for very many ids that are made up, while a thousand are in use
// now and then.
func TestMemoryScan(t *testing.T) {
	const size, made, used = 10_000, 200_000, 1_000
	c := open(t, lookup.Options[row]{Size: size, Load: func(_ context.Context, id string) (lookup.Answer[row], error) {
		if id[0] == 'u' {
			return lookup.Answer[row]{Value: new(row)}, nil
		}
		return lookup.Answer[row]{}, nil
	}})
	get := func(id string) {
		if _, err := c.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	hot := make([]string, used)
	for i := range hot {
		hot[i] = "used" + strconv.Itoa(i)
		get(hot[i])
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var before uint64
	for i := range made {
		if i == 3*size {
			before = heap()
		}
		get("made up " + strconv.Itoa(i))
		if i%10 == 0 {
			get(hot[i/10%used])
		}
		if i%1000 == 0 {
			if n := c.Stats().Len; n > size+size/10 { // what is to be evicted is for a moment
				t.Fatalf("%d answers are kept, of at most %d", n, size)
			}
		}
	}
	// A little for buffers of the map that have come to their size meanwhile.
	torture.AtMost(t, "bytes of the heap", heap(), before+256<<10)
	begin := c.Stats()
	for _, id := range hot {
		get(id)
	}
	after := c.Stats()
	t.Logf("%d of %d in use were there; %d bytes; %+v", after.Hits-begin.Hits, used, before, after)
	if kept := after.Hits - begin.Hits; kept < used*99/100 {
		t.Errorf("%d of %d ids in use are still there", kept, used)
	}
	if after.Len > size || after.Evictions < made-size {
		t.Errorf("%+v: want at most %d, and the others evicted", after, size)
	}
}
