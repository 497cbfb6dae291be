package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Sink is a database. Write keeps each event once, however often it is given. It returns
// when the events are safe, or soon after ctx has ended. After an error it may have kept any
// of them, and will be given all of them again. It must not keep the slice.
type Sink interface {
	Write(ctx context.Context, events []Event) error
}

// PipelineOptions are the settings of a [Pipeline]. Recorder and Sink are required.
type PipelineOptions struct {
	Recorder *Recorder // which no one else may take from
	Sink     Sink
	// Spool is where events are while the sink is away. It is not closed. Nil: they
	// are kept in memory, as far as there is room.
	Spool *Spool
	// Interval is how long events wait that are fewer than a batch.
	// Default 500 ms.
	Interval time.Duration
	// Timeout is how long a write may take. Default 30 s.
	Timeout time.Duration
	// Log is told when events cannot be written, and when they can again. Default: none.
	Log *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Pipeline brings events from a recorder to a sink.
//
// It writes them in batches. If a write fails, or takes longer than an interval, they go
// through the spool, in their order, until that is empty again. A process that is killed
// loses what it has recorded in the last two intervals; while it spools, in the last one.
//
// If the spool is full or fails, too, some MiB are kept in memory, and the rest stays in the
// recorder, which drops what has no room.
type Pipeline struct {
	o PipelineOptions

	jobs    chan []Event
	results chan error
	cut     context.CancelFunc // ends a write; nil: it was not started
	stop    chan context.Context
	once    sync.Once
	work    sync.WaitGroup
	err     error // of stopping

	mu    sync.Mutex
	state State // as far as it is not the recorder's

	// The rest belongs to the goroutine that runs.

	memory Batch // taken from the recorder, and neither written yet nor spooled
	aged   int   // of it was there at the last tick
	busy   int   // bytes that are being written, the first of memory or of the spool
	onDisk bool  // it is the spool
	events []Event

	failed  error // of the last write
	refused error // of the spool, for what is in memory
	backoff time.Duration
	retry   <-chan time.Time // when to write again; nil: now
}

// State is what a pipeline has done, and what it is waiting for.
type State struct {
	Written  int64 // events that the sink has taken
	Dropped  int64 // those for which there was no room
	Buffered int64 // bytes in memory: 0 if all events are written or spooled
	Spooled  int64 // bytes on disk
	Bad      int   // damaged segments on disk, which are kept and not read
	// Problem is why events are not written, or not even spooled, and Since since
	// when. Empty: there is none.
	Problem string
	Since   time.Time
}

const (
	batchEvents = 5000
	// memoryBytes is how much may wait in memory for a sink that is slower than the
	// recorder.
	memoryBytes = 8 << 20

	firstBackoff, longestBackoff = 100 * time.Millisecond, 5 * time.Second
)

// NewPipeline returns a pipeline. Start it, and Stop it.
func NewPipeline(o PipelineOptions) (*Pipeline, error) {
	o.Interval, o.Timeout = cmp.Or(o.Interval, 500*time.Millisecond), cmp.Or(o.Timeout, 30*time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case o.Recorder == nil:
		return nil, invalid("Recorder", "nil", "what NewRecorder returns")
	case o.Sink == nil:
		return nil, invalid("Sink", "nil", "a database")
	case o.Interval < 0:
		return nil, invalid("Interval", o.Interval.String(), "some time, or 0 for the default")
	case o.Timeout < 0:
		return nil, invalid("Timeout", o.Timeout.String(), "some time, or 0 for the default")
	}
	return &Pipeline{
		o:    o,
		jobs: make(chan []Event), results: make(chan error, 1), stop: make(chan context.Context),
	}, nil
}

// Start begins to write, until Stop is called.
func (p *Pipeline) Start(ctx context.Context) {
	ctx, p.cut = context.WithCancel(context.WithoutCancel(ctx)) // what has begun should end
	p.tell(ctx)
	p.work.Go(func() { p.write(ctx) })
	p.work.Go(func() { p.run(ctx) })
}

// Stop ends that. What is left is written or, if the sink fails or ctx ends before,
// spooled; an error means that it could not be, and is lost.
func (p *Pipeline) Stop(ctx context.Context) error {
	p.once.Do(func() {
		if p.cut != nil {
			p.stop <- ctx
			p.work.Wait()
			p.cut()
		}
	})
	return p.err
}

// State returns how it is.
func (p *Pipeline) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.state
	dropped, buffered := p.o.Recorder.stats()
	s.Dropped += dropped
	s.Buffered += buffered
	return s
}

// write writes what it is given, while others go on.
func (p *Pipeline) write(ctx context.Context) {
	for events := range p.jobs {
		ctx, cancel := context.WithTimeout(ctx, p.o.Timeout)
		err := p.o.Sink.Write(ctx, events)
		cancel()
		p.results <- err
	}
}

func (p *Pipeline) run(ctx context.Context) {
	defer close(p.jobs)
	tick := time.NewTicker(p.o.Interval)
	defer tick.Stop()
	for {
		p.begin()
		p.tell(ctx)
		select {
		case <-tick.C:
			late := p.aged > 0
			p.take(late)
			p.aged = len(p.memory)
		case <-p.o.Recorder.half:
			p.take(false)
		case err := <-p.results:
			p.end(err)
		case <-p.retry:
			p.retry = nil
		case stopping := <-p.stop:
			p.finish(stopping)
			p.tell(ctx)
			return
		}
	}
}

// take takes what was recorded, and spools it unless it can be expected to be written
// soon.
func (p *Pipeline) take(late bool) {
	if len(p.memory) < memoryBytes {
		p.collect()
	}
	p.refused = nil
	if late || len(p.memory) >= memoryBytes || p.failed != nil || p.spooling() {
		p.spill()
	}
}

// collect takes what was recorded to memory. It is at all times counted in one of them.
func (p *Pipeline) collect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.memory = p.o.Recorder.Take(p.memory)
	p.state.Buffered = int64(len(p.memory))
}

func (p *Pipeline) spooling() bool { return p.o.Spool != nil && !p.o.Spool.Empty() }

// spill moves what is in memory to the spool. If some of it is being written, the spool
// is empty, and begins with that.
func (p *Pipeline) spill() {
	if len(p.memory) == 0 || p.o.Spool == nil {
		return
	}
	if p.refused = p.o.Spool.Append(p.memory); p.refused == nil {
		p.forget(len(p.memory))
		p.onDisk = true
	}
}

// forget drops the first n bytes of memory.
func (p *Pipeline) forget(n int) {
	p.memory = append(p.memory[:0], p.memory[n:]...)
	p.aged = max(0, p.aged-n)
}

// begin has the next events written, if it is time for that.
func (p *Pipeline) begin() {
	for p.busy == 0 && p.retry == nil {
		next := p.memory
		if p.onDisk = p.spooling(); p.onDisk {
			var err error
			if next, err = p.o.Spool.Next(); err != nil {
				p.fail(err)
				return
			}
			if len(next) == 0 {
				continue // there was nothing left in it
			}
		}
		if len(next) == 0 {
			return
		}
		p.events, p.busy, _ = next.Events(p.events[:0], batchEvents)
		switch { // if it could not read the first, it never will
		case p.busy > 0:
			p.jobs <- p.events
		case p.onDisk:
			p.o.Spool.Quarantine()
		default:
			record, _ := next.first()
			p.forget(len(record))
			p.drop(1)
		}
	}
}

// end is told how a write has ended.
func (p *Pipeline) end(err error) {
	n := p.busy
	p.busy = 0
	switch {
	case err != nil:
		p.fail(err)
		if !p.onDisk {
			p.spill()
		}
		return
	case p.onDisk:
		p.o.Spool.Done(n)
	default:
		p.forget(n)
	}
	p.failed, p.backoff = nil, 0
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.Written += int64(len(p.events))
}

// fail has it wait before the next write, longer each time. Nodes that fail together
// do not come back together.
func (p *Pipeline) fail(err error) {
	p.failed = err
	p.backoff = min(max(2*p.backoff, firstBackoff), longestBackoff)
	p.retry = time.After(p.backoff/2 + rand.N(p.backoff/2))
}

func (p *Pipeline) drop(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.Dropped += int64(n)
}

// finish writes or spools what is left.
func (p *Pipeline) finish(ctx context.Context) {
	defer context.AfterFunc(ctx, p.cut)()
	if p.busy > 0 && p.onDisk {
		p.cut() // there is no hurry
		if err := <-p.results; err == nil {
			p.end(nil)
		}
		p.busy = 0
	}
	p.collect()
	if p.o.Spool == nil {
		p.failed, p.retry = nil, nil // this is the last chance
	}
	for {
		if p.busy > 0 {
			p.end(<-p.results)
		}
		if len(p.memory) == 0 || p.failed != nil || p.spooling() || ctx.Err() != nil {
			break
		}
		p.begin()
	}
	p.spill()
	if n := p.memory.Len(); n > 0 {
		p.drop(n)
		p.forget(len(p.memory))
		p.err = fmt.Errorf("record: %d events are lost: %w", n, errors.Join(p.failed, p.refused, ctx.Err()))
	}
}

// tell says how it is.
func (p *Pipeline) tell(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.state
	s.Buffered = int64(len(p.memory))
	if p.o.Spool != nil {
		if bad := p.o.Spool.Bad(); bad > s.Bad {
			p.o.Log.WarnContext(ctx, "segments of the spool are damaged, they are kept as *.bad and not read", "segments", bad)
		}
		s.Spooled, s.Bad = p.o.Spool.Bytes(), p.o.Spool.Bad()
	}
	before := s.Problem
	s.Problem = ""
	if err := errors.Join(p.failed, p.refused); err != nil {
		s.Problem = err.Error()
	}
	switch {
	case before == "" && s.Problem != "":
		s.Since = p.o.Now()
		p.o.Log.WarnContext(ctx, "events cannot be written, they are kept", "problem", s.Problem)
	case before != "" && s.Problem == "":
		s.Since = time.Time{}
		p.o.Log.InfoContext(ctx, "events are written again")
	}
}
