package record

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"reflect"
	"runtime"
	"strconv"
	"sync"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
)

// RecorderOptions are the settings of a [Recorder].
type RecorderOptions struct {
	// Sample is the share of the requests that passed without being held of which events
	// are kept: 1 in a whole number. Default 0.01; negative: none.
	Sample float64
	// Buffer is how many events a shard holds until they are taken, in steps of 64 and about
	// 280 bytes each; as many may come while they are being taken. There are as many shards as
	// threads, at most 64. Memory that is not used is given back. Default 4096, at least 256.
	Buffer int
	// Region and Node say where decisions are made.
	Region, Node string
	// Privacy is what is kept of addresses, and HashKey, of 16 bytes or more, what
	// their hashes are made with.
	Privacy Privacy
	HashKey []byte
}

// Recorder writes decisions down in memory, for a [Pipeline] to take. Events for which there
// is no room are dropped and counted.
//
// It keeps every request that was denied or held, or that a rule on trial would have denied.
// Of the others it keeps a sample, which it draws by their ids.
type Recorder struct {
	every  uint64        // of the requests that pass, one in so many is kept; 0: none
	chunks int           // of a shard, at most
	shards []shard       // a power of 2
	half   chan struct{} // a shard is half full

	encoder encoder // used by Take alone
}

var _ engine.Recorder = (*Recorder)(nil)

// shard holds some of the events, in chunks: a server that denies little uses little memory,
// for the garbage collector to scan, and one that is flooded gets more.
type shard struct {
	mu      sync.Mutex
	filling []draft   // the last chunk
	full    [][]draft // those before it
	free    [][]draft
	woken   bool // the pipeline was told that the shard is half full
	dropped int64

	taken [][]draft // used by Take alone
	_     [8]byte   // so that shards do not share a cache line
}

// draft is an event as the engine told it, and for how many decisions it stands. Recording
// costs no more than to copy it: it is encoded when it is taken. Its texts belong to the rules
// or are short names of clients, so that none keeps a request from being freed.
type draft struct {
	event  engine.Event
	weight int64
}

var draftBytes = int64(reflect.TypeFor[draft]().Size())

// chunkDrafts is how many drafts a chunk has: making one takes a microsecond or two.
const chunkDrafts = 64

// NewRecorder returns a recorder.
func NewRecorder(o RecorderOptions) (*Recorder, error) {
	o.Sample, o.Buffer = cmp.Or(o.Sample, 0.01), cmp.Or(o.Buffer, 4096)
	switch {
	case !(o.Sample <= 1): // or it is no number
		return nil, invalid("Sample", strconv.FormatFloat(o.Sample, 'g', -1, 64), "a share of at most 1, 0 for the default, or a negative number for none")
	case o.Buffer < 256:
		return nil, invalid("Buffer", strconv.Itoa(o.Buffer), "256 events or more, or 0 for the default")
	}
	if err := o.Privacy.check(o.HashKey); err != nil {
		return nil, err
	}
	r := &Recorder{
		chunks:  (o.Buffer + chunkDrafts - 1) / chunkDrafts,
		encoder: newEncoder(o.Region, o.Node, o.Privacy, o.HashKey),
		shards:  make([]shard, 1<<bits.Len(uint(min(64, runtime.GOMAXPROCS(0))-1))),
		half:    make(chan struct{}, 1),
	}
	if o.Sample > 0 {
		r.every = uint64(min(math.Round(1/o.Sample), math.MaxInt32))
	}
	return r, nil
}

func invalid(field, value, want string) error {
	return &stint.InvalidError{Field: field, Value: value, Want: want}
}

// Record implements [engine.Recorder]. It copies what it keeps.
func (r *Recorder) Record(e *engine.Event) {
	weight := int64(1)
	if (e.Outcome == engine.Allowed || e.Outcome == engine.Exempt) && !e.Shadow {
		// The 62 random bits of the id are a fraction of which so many make a whole.
		if n, _ := bits.Mul64(binary.BigEndian.Uint64(e.ID[8:])<<2, r.every); n > 0 || r.every == 0 {
			return
		}
		weight = int64(r.every)
	}
	s := &r.shards[int(e.ID[15])&(len(r.shards)-1)]
	s.mu.Lock()
	wake := false
	if len(s.filling) == cap(s.filling) {
		if len(s.full) == r.chunks-1 && s.filling != nil {
			s.dropped++
			s.mu.Unlock()
			return
		}
		wake = s.next(r.chunks / 2)
	}
	s.filling = s.filling[:len(s.filling)+1]
	d := &s.filling[len(s.filling)-1]
	d.event, d.weight = *e, weight
	s.mu.Unlock()
	if wake {
		select {
		case r.half <- struct{}{}:
		default:
		}
	}
}

// next begins another chunk, and reports whether the pipeline has to be told that half of
// them are full.
func (s *shard) next(half int) (wake bool) {
	if s.filling != nil {
		s.full = append(s.full, s.filling)
	}
	if last := len(s.free) - 1; last >= 0 {
		s.filling, s.free = s.free[last], s.free[:last]
	} else {
		s.filling = make([]draft, 0, chunkDrafts)
	}
	wake = !s.woken && len(s.full) >= half
	s.woken = s.woken || wake
	return wake
}

// take takes all chunks.
func (s *shard) take() [][]draft {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full, s.taken = s.taken[:0], s.full
	if s.filling != nil {
		s.taken = append(s.taken, s.filling)
		s.filling = nil
	}
	s.woken = false
	return s.taken
}

// giveBack returns the chunks that were taken, of which as many are kept as were needed now.
func (s *shard) giveBack() {
	for i, drafts := range s.taken {
		clear(drafts) // what it names may go
		s.taken[i] = drafts[:0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, s.taken...)
	most := min(len(s.free), len(s.taken)+1)
	clear(s.free[most:])
	s.free = s.free[:most]
	clear(s.taken)
}

// Take appends what was recorded since the last time. Only one goroutine may call it at a time.
func (r *Recorder) Take(b Batch) Batch {
	for i := range r.shards {
		s := &r.shards[i]
		for _, drafts := range s.take() {
			for j := range drafts {
				b = r.encoder.append(b, &drafts[j].event, drafts[j].weight)
			}
		}
		s.giveBack()
	}
	return b
}

// stats returns how many events were dropped, and how many bytes wait to be taken.
func (r *Recorder) stats() (dropped, buffered int64) {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		dropped += s.dropped
		buffered += int64(len(s.full)*chunkDrafts+len(s.filling)) * draftBytes
		s.mu.Unlock()
	}
	return dropped, buffered
}
