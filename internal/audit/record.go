package audit

import (
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
	// Sample is the share of the decisions that let a request pass, without having
	// held it, of which events are kept: 1 in a whole number. Default 0.01; negative:
	// none.
	Sample float64
	// Buffer is how many events a shard holds until they are taken. There are as many
	// shards as threads, at most 64, each with room for twice as many, of about 280 bytes
	// each. Default 4096, at least 256.
	Buffer int
	// Region and Node are where it is.
	Region, Node string
	// Privacy is what is kept of addresses, and HashKey, of 16 bytes or more, what
	// their hashes are made with.
	Privacy Privacy
	HashKey []byte
}

// Recorder writes decisions down in memory, for a [Pipeline] to take. What finds no room
// is dropped and counted.
//
// Those that have refused or held a request, and those that a rule that is only tried
// out would have refused, are all kept; of the others a sample is, which is drawn by
// their ids.
type Recorder struct {
	every  uint64        // it is one in so many that is kept of those that pass; 0: none
	shards []shard       // a power of 2
	half   chan struct{} // a shard is half full

	encoder encoder // of who takes
}

var _ engine.Recorder = (*Recorder)(nil)

// shard is some of the events.
type shard struct {
	mu      sync.Mutex
	filling []draft
	woken   bool // it was said that it is half full
	dropped int64

	spare []draft  // of who takes
	_     [40]byte // so that those who record do not meet
}

// draft is an event as it was told, for how many decisions it stands. To copy it is what
// recording costs: who takes it writes it as it is kept. Its texts are those of the rules, or
// names of clients, which are short and their own: none keeps a request from being freed.
type draft struct {
	event  engine.Event
	weight int64
}

var draftBytes = int64(reflect.TypeFor[draft]().Size())

// NewRecorder returns a recorder.
func NewRecorder(o RecorderOptions) (*Recorder, error) {
	if o.Sample == 0 {
		o.Sample = 0.01
	}
	if o.Buffer == 0 {
		o.Buffer = 4096
	}
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
		encoder: newEncoder(o.Region, o.Node, o.Privacy, o.HashKey),
		shards:  make([]shard, 1<<bits.Len(uint(min(64, runtime.GOMAXPROCS(0))-1))),
		half:    make(chan struct{}, 1),
	}
	if o.Sample > 0 {
		r.every = uint64(min(math.Round(1/o.Sample), math.MaxInt32))
	}
	for i := range r.shards {
		r.shards[i].filling, r.shards[i].spare = make([]draft, 0, o.Buffer), make([]draft, 0, o.Buffer)
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
	n := len(s.filling)
	if n == cap(s.filling) {
		s.dropped++
		s.mu.Unlock()
		return
	}
	s.filling = s.filling[:n+1]
	d := &s.filling[n]
	d.event, d.weight = *e, weight
	wake := !s.woken && len(s.filling) > cap(s.filling)/2
	s.woken = s.woken || wake
	s.mu.Unlock()
	if wake {
		select {
		case r.half <- struct{}{}:
		default:
		}
	}
}

// Take appends what was recorded, and begins anew. Only one may do so at a time.
func (r *Recorder) Take(b Batch) Batch {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		s.filling, s.spare = s.spare[:0], s.filling
		s.woken = false
		s.mu.Unlock()
		for i := range s.spare {
			b = r.encoder.append(b, &s.spare[i].event, s.spare[i].weight)
		}
		clear(s.spare) // what it names may go
	}
	return b
}

// stats returns how many events were dropped, and how many bytes those are that are to be taken.
func (r *Recorder) stats() (dropped, buffered int64) {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		dropped += s.dropped
		buffered += int64(len(s.filling)) * draftBytes
		s.mu.Unlock()
	}
	return dropped, buffered
}
