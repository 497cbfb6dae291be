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

// Sink is a database. Write stores each event once, however often it is given. It returns when
// the events are stored, or soon after ctx has ended. After an error it may have stored any of
// them, and is given all of them again. It must not keep the slice.
type Sink interface {
	Write(ctx context.Context, events []Event) error
}

// PipelineOptions are the settings of a [Pipeline]. Recorder and Sink are required.
type PipelineOptions struct {
	Recorder *Recorder // which only this pipeline may take from
	Sink     Sink
	// Spool is where events are stored while the sink is down. The caller closes it. Nil:
	// they are kept in memory, as far as there is room.
	Spool *Spool
	// Interval is how long events wait if they are fewer than a batch. Default 500 ms.
	Interval time.Duration
	// Timeout is how long a write may take. Default 30 s.
	Timeout time.Duration
	// Log reports when events cannot be written, and when they can be again. Default: none.
	Log *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Pipeline writes events from a recorder to a sink, in batches.
//
// If a write fails, or takes longer than an interval, events go through the spool, in order,
// until that is empty again. A process that is killed loses the events of the last two
// intervals; while it spools, of the last one; and those that wait for others of their second.
//
// If the spool is full or fails too, some MiB are kept in memory, and the rest stays in the
// recorder, which drops events for which it has no room.
type Pipeline struct {
	o PipelineOptions

	jobs    chan []Event
	results chan error
	abort   context.CancelFunc // aborts a write; nil: it was not started
	stop    chan context.Context
	once    sync.Once
	work    sync.WaitGroup
	err     error // of stopping

	mu    sync.Mutex
	state State // as far as it is not the recorder's

	// The rest belongs to the goroutine that runs.

	memory Batch // taken from the recorder, and neither written nor spooled yet
	aged   int   // bytes of memory that were there at the last tick
	busy   int   // bytes that are being written: the first of memory or of the spool
	onDisk bool  // busy is of the spool
	events []Event

	failed   error // of the last write
	spoolErr error // of the spool, for what is in memory
	backoff  time.Duration
	retry    <-chan time.Time // when to write again; nil: now
}

// State is the state of a pipeline.
type State struct {
	Written  int64 // events that the sink has stored
	Dropped  int64 // events for which there was no room
	Folded   int64 // events that another one stands for
	Buffered int64 // bytes in memory: 0 if all events are written or spooled
	Spooled  int64 // bytes on disk
	Bad      int   // damaged segments on disk, which are kept and not read
	// Problem is why events are not written, or not even spooled, and Since when that began.
	// Empty: there is none.
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
	ctx, p.abort = context.WithCancel(context.WithoutCancel(ctx)) // a write that has begun may finish
	p.report(ctx)
	p.work.Go(func() { p.write(ctx) })
	p.work.Go(func() { p.run(ctx) })
}

// Stop stops that. Remaining events are written or, if the sink fails or ctx ends first,
// spooled. An error means that events are lost.
func (p *Pipeline) Stop(ctx context.Context) error {
	p.once.Do(func() {
		if p.abort != nil {
			p.stop <- ctx
			p.work.Wait()
			p.abort()
		}
	})
	return p.err
}

// State returns the current state.
func (p *Pipeline) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.state
	dropped, folded, buffered := p.o.Recorder.stats()
	s.Dropped += dropped
	s.Folded = folded
	s.Buffered += buffered
	return s
}

// write writes batches, while run continues.
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
		p.report(ctx)
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
			p.report(ctx)
			return
		}
	}
}

// take takes what was recorded, and spools it unless it is likely to be written soon.
func (p *Pipeline) take(late bool) {
	if len(p.memory) < memoryBytes {
		p.collect(p.o.Recorder.Take)
	}
	p.spoolErr = nil
	if late || len(p.memory) >= memoryBytes || p.failed != nil || p.spooling() {
		p.spill()
	}
}

// collect takes what was recorded to memory, under the lock, so that State counts it once.
func (p *Pipeline) collect(take func(Batch) Batch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.memory = take(p.memory)
	p.state.Buffered = int64(len(p.memory))
}

func (p *Pipeline) spooling() bool { return p.o.Spool != nil && !p.o.Spool.Empty() }

// spill moves what is in memory to the spool. If some of it is being written, the spool is
// empty, and begins with that.
func (p *Pipeline) spill() {
	if len(p.memory) == 0 || p.o.Spool == nil {
		return
	}
	if p.spoolErr = p.o.Spool.Append(p.memory); p.spoolErr == nil {
		p.forget(len(p.memory))
		p.onDisk = true
	}
}

// forget drops the first n bytes of memory.
func (p *Pipeline) forget(n int) {
	p.memory = append(p.memory[:0], p.memory[n:]...)
	p.aged = max(0, p.aged-n)
}

// begin starts to write the next events, unless a write is under way or has to wait.
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
		switch { // if the first event cannot be read, it never will be
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

// end handles the result of a write.
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

// fail sets the time of the next write, later each time, and random so that nodes that fail
// together do not retry together.
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
	defer context.AfterFunc(ctx, p.abort)()
	if p.busy > 0 && p.onDisk {
		p.abort() // it stays in the spool
		if err := <-p.results; err == nil {
			p.end(nil)
		}
		p.busy = 0
	}
	p.collect(p.o.Recorder.TakeAll)
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
		p.err = fmt.Errorf("record: %d events are lost: %w", n, errors.Join(p.failed, p.spoolErr, ctx.Err()))
	}
}

// report updates the state, and logs changes of it.
func (p *Pipeline) report(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.state
	s.Buffered = int64(len(p.memory))
	if p.o.Spool != nil {
		if bad := p.o.Spool.Bad(); bad > s.Bad {
			p.o.Log.WarnContext(ctx, "damaged segments of the spool are kept as *.bad and not read", "segments", bad)
		}
		s.Spooled, s.Bad = p.o.Spool.Bytes(), p.o.Spool.Bad()
	}
	before := s.Problem
	s.Problem = ""
	if err := errors.Join(p.failed, p.spoolErr); err != nil {
		s.Problem = err.Error()
	}
	switch {
	case before == "" && s.Problem != "":
		s.Since = p.o.Now()
		p.o.Log.WarnContext(ctx, "events cannot be written and are kept", "problem", s.Problem)
	case before != "" && s.Problem == "":
		s.Since = time.Time{}
		p.o.Log.InfoContext(ctx, "events are written again")
	}
}
