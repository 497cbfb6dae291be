//go:build exact

package record_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stintdev/stint/internal/record"
)

// TestLiveAllocations counts what it allocates to know of a decision, once there is room:
// nothing, even if every address is another.
func TestLiveAllocations(t *testing.T) {
	l := newLive(t, record.LiveOptions{Counters: 16, Now: (&hand{noon}).now})
	e := denial(noon)
	var n uint32
	record := func() {
		n++
		var ip [4]byte
		binary.BigEndian.PutUint32(ip[:], n)
		e.IP, e.ID[15] = netip.AddrFrom4(ip), byte(n)
		l.Record(t.Context(), &e)
	}
	for range 1000 {
		record()
	}
	if n := testing.AllocsPerRun(1000, record); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
