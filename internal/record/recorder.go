package record

import (
	"cmp"
	"context"
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
	// 320 bytes each and their paths; as many again may arrive meanwhile. There are as many shards as threads,
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
	// Paths says how paths are stored.
	Paths Paths
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
	filling chunk   // the last one
	full    []chunk // those before it
	free    []chunk
	woken   bool // the pipeline was notified that the shard is half full
	dropped int64

	taken []chunk  // used by Take alone
	_     [48]byte // so that shards do not share a cache line
}

// chunk is some drafts, and their paths.
type chunk struct {
	drafts []draft
	paths  []byte
}

// draft is an event of the engine and the number of decisions that it stands for. It is
// encoded when it is taken, so that recording is only a copy. Its texts belong to rules or are
// short names of clients, and its path is copied, so none of them keeps a request in memory.
type draft struct {
	event  engine.Event // without its path
	path   []byte       // of the chunk
	weight int64
}

var draftBytes = int64(reflect.TypeFor[draft]().Size())

const (
	// chunkDrafts is how many drafts a chunk has: making one takes a microsecond or two.
	chunkDrafts = 64
	// chunkPaths is how many bytes of paths a chunk keeps room for.
	chunkPaths = chunkDrafts * 64
)

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
	if err := o.Paths.check(); err != nil {
		return nil, err
	}
	r := &Recorder{
		chunks:  (o.Buffer + chunkDrafts - 1) / chunkDrafts,
		encoder: newEncoder(o.Region, o.Node, o.Paths, o.Privacy, o.HashKey),
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
func (r *Recorder) Record(_ context.Context, e *engine.Event) {
	weight := int64(1)
	if e.Routine() {
		if !r.samples(e.ID) {
			return
		}
		weight = int64(r.every)
	}
	s := &r.shards[int(e.ID[15])&(len(r.shards)-1)]
	s.mu.Lock()
	wake := false
	c := &s.filling
	if len(c.drafts) == cap(c.drafts) {
		if len(s.full) == r.chunks-1 && c.drafts != nil {
			s.dropped++
			s.mu.Unlock()
			return
		}
		wake = s.next(r.chunks / 2)
	}
	c.drafts = c.drafts[:len(c.drafts)+1]
	d := &c.drafts[len(c.drafts)-1]
	d.event, d.weight = *e, weight
	d.event.Path = ""
	from := len(c.paths)
	c.paths = r.encoder.paths.appendPath(c.paths, e.Path)
	d.path = c.paths[from:len(c.paths):len(c.paths)]
	s.mu.Unlock()
	if wake {
		select {
		case r.half <- struct{}{}:
		default:
		}
	}
}

// samples reports whether a request that passed is recorded: if the 62 random bits of its id, as a fraction, are below
// 1/every.
func (r *Recorder) samples(id engine.ID) bool {
	n, _ := bits.Mul64(binary.BigEndian.Uint64(id[8:])<<2, r.every)
	return n == 0 && r.every > 0
}

// Keeps reports whether the event of a receipt is recorded, by this node or another one with the same Sample, unless
// there was no room for it or another event stands for it.
func (r *Recorder) Keeps(receipt *engine.Receipt) bool {
	return receipt.Notable || r.samples(receipt.ID)
}

// next begins another chunk, and reports whether to notify the pipeline that half of them are
// full.
func (s *shard) next(half int) (wake bool) {
	if s.filling.drafts != nil {
		s.full = append(s.full, s.filling)
	}
	if last := len(s.free) - 1; last >= 0 {
		s.filling, s.free = s.free[last], s.free[:last]
	} else {
		s.filling = chunk{drafts: make([]draft, 0, chunkDrafts)}
	}
	wake = !s.woken && len(s.full) >= half
	s.woken = s.woken || wake
	return wake
}

// take takes all chunks.
func (s *shard) take() []chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full, s.taken = s.taken[:0], s.full
	if s.filling.drafts != nil {
		s.taken = append(s.taken, s.filling)
		s.filling = chunk{}
	}
	s.woken = false
	return s.taken
}

// giveBack returns the chunks that were taken. As many of them stay free as were needed.
func (s *shard) giveBack() {
	for i := range s.taken {
		c := &s.taken[i]
		clear(c.drafts) // so that their texts can be freed
		if c.drafts = c.drafts[:0]; cap(c.paths) > chunkPaths {
			c.paths = nil // clients can make it grow
		}
		c.paths = c.paths[:0]
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
		for _, c := range s.take() {
			for j := range c.drafts {
				if d := &c.drafts[j]; r.fold != nil {
					b = r.fold.add(b, &r.encoder, d)
				} else {
					b = r.encoder.append(b, &d.event, d.path, d.weight)
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
		buffered += int64(len(s.full)*chunkDrafts+len(s.filling.drafts)) * draftBytes
		s.mu.Unlock()
	}
	return dropped, folded, buffered
}
