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
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
)

// RecorderOptions are the settings of a [Recorder].
type RecorderOptions struct {
	// Sample is the share of requests that passed without being held to record: 1 in a whole
	// number. Default 0.01; negative: none.
	Sample float64
	// Buffer is how many events a shard holds until they are taken, in steps of 64, at about
	// 280 bytes each; as many again may arrive meanwhile. There are as many shards as threads,
	// at most 64. Unused memory is freed. Default 4096, at least 256.
	Buffer int
	// PerSecond is how many events of a second are stored that have the same client, rule,
	// endpoint and outcome. The last of them then stands for all the others. 0: all are stored.
	PerSecond int
	// Region and Node say where decisions are made.
	Region, Node string
	// Privacy says how addresses are stored. HashKey, of 16 bytes or more, is the key of their
	// hashes.
	Privacy Privacy
	HashKey []byte
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Recorder buffers events in memory, for a [Pipeline] to take. Events for which there is no
// room are dropped and counted.
//
// It records every request that was denied or held, or that a log_only rule would have denied,
// and a sample of the others, chosen by their ids.
type Recorder struct {
	every  uint64        // one in so many requests that pass is recorded; 0: none
	chunks int           // of a shard, at most
	shards []shard       // a power of 2
	half   chan struct{} // a shard is half full

	// Used by Take alone.
	encoder encoder
	fold    *folder // nil: every event is stored
	now     func() time.Time
}

var _ engine.Recorder = (*Recorder)(nil)

// shard holds some of the events, in chunks, so that a server that denies little uses little
// memory.
type shard struct {
	mu      sync.Mutex
	filling []draft   // the last chunk
	full    [][]draft // those before it
	free    [][]draft
	woken   bool // the pipeline was notified that the shard is half full
	dropped int64

	taken [][]draft // used by Take alone
	_     [8]byte   // so that shards do not share a cache line
}

// draft is an event of the engine and the number of decisions that it stands for. It is
// encoded when it is taken, so that recording is only a copy. Its texts belong to rules or are
// short names of clients, so none of them keeps a request in memory.
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
	case o.PerSecond < 0:
		return nil, invalid("PerSecond", strconv.Itoa(o.PerSecond), "a number of events, or 0 for all")
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
	if r.now = o.Now; r.now == nil {
		r.now = time.Now
	}
	if o.PerSecond > 0 {
		r.fold = &folder{perSecond: o.PerSecond, streaks: map[streak]*streakState{}}
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
		// The 62 random bits of the id are a fraction; it is recorded if that is below 1/every.
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

// next begins another chunk, and reports whether to notify the pipeline that half of them are
// full.
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

// giveBack returns the chunks that were taken. As many of them stay free as were needed.
func (s *shard) giveBack() {
	for i, drafts := range s.taken {
		clear(drafts) // so that their texts can be freed
		s.taken[i] = drafts[:0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, s.taken...)
	keep := min(len(s.free), len(s.taken)+1)
	clear(s.free[keep:])
	s.free = s.free[:keep]
	clear(s.taken)
}

// Take appends the events since the last call, except those that wait for others of their
// second: a later call appends them. Only one goroutine may call it at a time.
func (r *Recorder) Take(b Batch) Batch {
	b = r.drain(b)
	if r.fold != nil {
		b = r.fold.sweep(b, &r.encoder, r.now().Unix())
	}
	return b
}

// TakeAll is like Take, and appends those that wait, too.
func (r *Recorder) TakeAll(b Batch) Batch {
	b = r.drain(b)
	if r.fold != nil {
		b = r.fold.end(b, &r.encoder)
	}
	return b
}

// drain appends the events in the buffer.
func (r *Recorder) drain(b Batch) Batch {
	for i := range r.shards {
		s := &r.shards[i]
		for _, drafts := range s.take() {
			for j := range drafts {
				if r.fold != nil {
					b = r.fold.add(b, &r.encoder, &drafts[j])
				} else {
					b = r.encoder.append(b, &drafts[j].event, drafts[j].weight)
				}
			}
		}
		s.giveBack()
	}
	return b
}

// stats returns how many events were dropped, how many another one stands for, and how many
// bytes wait to be taken.
func (r *Recorder) stats() (dropped, folded, buffered int64) {
	if r.fold != nil {
		folded, buffered = r.fold.folded.Load(), r.fold.waiting.Load()*draftBytes
	}
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		dropped += s.dropped
		buffered += int64(len(s.full)*chunkDrafts+len(s.filling)) * draftBytes
		s.mu.Unlock()
	}
	return dropped, folded, buffered
}
