package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// reserve returns memory that is never touched, and so takes no space, but counts for the
// garbage collector. Without it, a server with a few megabytes of rules would be collected
// hundreds of times per second, which takes a tenth of its time. With it, the heap grows to
// about 64 MB before the first collection.
//
// Where the runtime has used the memory before, it writes zeros to it, as it did in one of eight starts. So it is
// given back.
func reserve() []byte {
	b := make([]byte, 32<<20)
	giveBack(b)
	return b
}

// relieve gives memory back to the system when the server has become calm, until ctx ends. Otherwise
// a server that was busy would keep the 50 MB of garbage that reserve allows for minutes.
func relieve(ctx context.Context) {
	const interval = 10 * time.Second
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var r relief
	r.note(readHeap())
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if r.note(readHeap()) {
				debug.FreeOSMemory()
				r.given(readHeap())
			}
		}
	}
}

// heap is the state of the heap.
type heap struct {
	held   uint64 // bytes that are not given back
	cycles uint64 // of the garbage collector, so far
}

func readHeap() heap {
	s := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	return heap{cycles: s[0].Value.Uint64(), held: s[1].Value.Uint64() + s[2].Value.Uint64() + s[3].Value.Uint64()}
}

// relief decides when memory is given back.
type relief struct {
	last heap
	low  uint64 // what was held after memory was given back
}

// note reports whether memory should be given back: the garbage collector has not run since the
// last time, so little is going on, and there is some to give.
func (r *relief) note(now heap) bool {
	const some = 8 << 20
	calm := now.cycles == r.last.cycles
	if r.low == 0 || now.held < r.low {
		r.low = now.held
	}
	r.last = now
	return calm && now.held > r.low+some
}

// given notes that memory was given back.
func (r *relief) given(now heap) { r.last, r.low = now, now.held }
