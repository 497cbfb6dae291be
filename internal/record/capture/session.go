package capture

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/bits"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/rule"
)

// Options are the settings of a capture. Engine and Path are required.
type Options struct {
	Engine *engine.Engine
	// Path is the file. It is replaced when the capture has ended.
	Path string
	// For is how long it takes at most. Default 10 minutes, at most an hour.
	For time.Duration
	// MaxBytes is how large the file may be. Default 1 GiB, at least 64 KiB.
	MaxBytes int64
	// MinFree is how many bytes the disk must have left. Default 0: it is not checked.
	MinFree int64
	// Settle is how long only calls are captured, at first. Calls that have begun before are not captured, and must have ended by
	// then: so it is longer than any call to the store. Default 1 second; negative: none.
	Settle time.Duration
	// Buffer is how many bytes wait to be written, at most. Default 32 MiB.
	Buffer int
	// Node and Region say where decisions are made, Version by which version of the program, and Revision by which of the rules.
	Node, Region, Version string
	Revision              int64
	// Shared says that other nodes use the same counters, and Nodes how many use them.
	Shared bool
	Nodes  int
	Log    *slog.Logger // default: none
}

const (
	// MinBytes is the least that a file may have to stay below.
	MinBytes = 64 << 10
	longest  = time.Hour
	// interval is how often what was captured is written, and grace how long decisions that have begun may take to end.
	interval = 100 * time.Millisecond
	grace    = 2 * time.Second
)

// The reasons why a capture ends.
const (
	EndedByTime   = "time"     // it has taken as long as it should
	EndedBySize   = "size"     // the file is as large as it may be
	EndedByDisk   = "disk"     // the disk has no room for more
	EndedByRules  = "rules"    // the rules were replaced by others
	EndedByCaller = "stopped"  // someone has stopped it
	EndedByNode   = "shutdown" // the node has stopped
	EndedByError  = "error"    // the file could not be written
)

// Header is what the decisions of a capture have in common.
type Header struct {
	Format   int       `json:"format"`
	Started  time.Time `json:"started"`
	Node     string    `json:"node"`
	Region   string    `json:"region"`
	Version  string    `json:"version"`
	Revision int64     `json:"revision"`
	Shared   bool      `json:"shared"`
	Nodes    int       `json:"nodes"`
	Case     rule.Case `json:"case"`
	Rules    rule.File `json:"rules"`
	// Headers and Claims are those of which the values are captured.
	Headers []string `json:"headers"`
	Claims  []string `json:"claims"`
}

// format is the version of the format of files.
const format = 1

// Summary is how a capture went, so far or in all.
type Summary struct {
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Reason  string    `json:"reason,omitempty"`
	// Decisions and Calls are how many are in the file, Unfinished how many decisions have begun that are not, because the capture
	// has ended before they did, and Lost how many records are not, because they came faster than they could be written.
	Decisions  int64 `json:"decisions"`
	Calls      int64 `json:"calls"`
	Unfinished int64 `json:"unfinished"`
	Lost       int64 `json:"lost"`
	Bytes      int64 `json:"bytes"`
	// Lag is by how much the order of records may differ from that of the instants when counters were charged.
	Lag time.Duration `json:"lag"`
	// First and Last are the first and the last instant of a call of a decision in the file, by the clock of counters, in
	// microseconds. Between them, all calls were captured.
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// Session is a capture that is under way.
type Session struct {
	o      Options
	header Header
	file   *file
	terms  terms
	shards []shard // a power of 2
	room   int64   // bytes of a shard
	full   chan struct{}
	stop   func()

	begins   atomic.Bool // decisions are captured
	number   atomic.Uint64
	open     atomic.Int64 // decisions that have begun
	counts   [2]atomic.Int64
	lost     atomic.Int64
	took     atomic.Int64 // the longest call
	first    atomic.Int64 // Summary.First
	last     atomic.Int64
	size     atomic.Int64
	started  time.Time
	ending   chan string
	done     chan struct{}
	finished Summary // once done is closed
	err      error

	// Used by run alone.
	chunk   []byte
	drained time.Duration // the longest time that it took to take what waits
	cut     bool          // nothing more is written
}

// What is counted of records that are written.
const (
	decided = iota
	called
)

var _ engine.Capturer = (*Session)(nil)

// shard holds records that wait to be written.
type shard struct {
	mu sync.Mutex
	b  []byte
	n  [2]int64 // records in b
	_  [64]byte // so that shards do not share a cache line

	out     []byte // used by the writer alone
	written [2]int64
}

// secrets are the headers of credentials.
var secrets = []string{"Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie"}

// Start begins a capture. The error says what is wrong with the options, that the rules look at a header with credentials, or that the
// file cannot be written.
func Start(o Options) (*Session, error) {
	o.For, o.MaxBytes, o.Buffer = cmp.Or(o.For, 10*time.Minute), cmp.Or(o.MaxBytes, 1<<30), cmp.Or(o.Buffer, 32<<20)
	o.Settle = max(cmp.Or(o.Settle, time.Second), 0)
	switch {
	case o.Engine == nil || o.Path == "":
		return nil, invalid("Engine, Path", "", "both")
	case o.For < time.Second || o.For > longest:
		return nil, invalid("for", o.For.String(), "1s to "+stint.Every(longest).String())
	case o.MaxBytes < MinBytes:
		return nil, invalid("max_bytes", strconv.FormatInt(o.MaxBytes, 10), strconv.Itoa(MinBytes)+" or more")
	}
	rules := o.Engine.Rules()
	headers, claims := rules.LooksAt()
	for _, name := range append(slices.Clone(secrets), o.Engine.Identity().KeyHeader()) {
		if slices.Contains(headers, name) {
			return nil, invalid("rules", name, "no rule that looks at this header: it has credentials, which must not be in a file")
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Session{
		o: o, started: time.Now(), full: make(chan struct{}, 1), ending: make(chan string, 1), done: make(chan struct{}),
		shards: make([]shard, 1<<bits.Len(uint(min(16, runtime.GOMAXPROCS(0))-1))),
	}
	s.room = int64(o.Buffer / len(s.shards))
	s.header = Header{
		Format: format, Started: s.started.UTC(), Node: o.Node, Region: o.Region, Version: o.Version, Revision: o.Revision, Shared: o.Shared,
		Nodes: o.Nodes, Case: rules.Case(), Rules: rules.File(), Headers: headers, Claims: claims,
	}
	var err error
	if s.file, err = create(o.Path, o.MaxBytes, o.MinFree, &s.header); err != nil {
		return nil, err
	}
	s.size.Store(s.file.size)
	s.begins.Store(o.Settle == 0)
	s.stop = o.Engine.Capture(s)
	if o.Engine.Rules() != rules {
		s.end(EndedByRules)
	}
	go s.run()
	return s, nil
}

func invalid(field, value, want string) error {
	return &stint.InvalidError{Field: field, Value: strings.TrimSpace(value), Want: want}
}

// Header returns what the decisions have in common.
func (s *Session) Header() *Header { return &s.header }

// Done is closed when the capture has ended, and the file is there.
func (s *Session) Done() <-chan struct{} { return s.done }

// Stop ends the capture, and waits until the file is there or ctx is done.
func (s *Session) Stop(ctx context.Context, reason string) error {
	s.end(reason)
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Until is when it ends at the latest.
func (s *Session) Until() time.Time { return s.started.Add(s.o.For) }

// Summary returns how it goes, or went. The error is that of the file.
func (s *Session) Summary() (Summary, error) {
	select {
	case <-s.done:
		return s.finished, s.err
	default:
		return s.summary(), nil
	}
}

func (s *Session) summary() Summary {
	out := Summary{
		Started: s.started.UTC(), Decisions: s.counts[decided].Load(), Calls: s.counts[called].Load(), Lost: s.lost.Load(),
		Bytes: s.size.Load(), First: s.first.Load(), Last: s.last.Load(),
	}
	out.Unfinished = max(int64(s.number.Load())-out.Decisions, 0)
	return out
}

func (s *Session) end(reason string) {
	select {
	case s.ending <- reason:
	default: // it ends already
	}
}

// Begin implements [engine.Capturer].
func (s *Session) Begin() (number uint64, ok bool) {
	if !s.begins.Load() {
		return 0, false
	}
	s.open.Add(1)
	return s.number.Add(1), true
}

// Called implements [engine.Capturer].
func (s *Session) Called(c *engine.Call) {
	call := Call{Number: c.Number, Kind: c.Kind, Failed: c.Failed, Asks: c.Asks, Decisions: c.Decisions}
	s.write(callFrame, c.Number, called, func(w *wire) {
		raise(&s.took, int64(time.Since(c.Began))) // here, since it is written after that
		w.call(&call)
	})
	if at := instant(c.Decisions); c.Number > 0 && at > 0 {
		s.first.CompareAndSwap(0, at)
		for first := s.first.Load(); at < first && !s.first.CompareAndSwap(first, at); first = s.first.Load() {
		}
		raise(&s.last, at)
	}
}

// instant returns the latest instant of decisions. Penalties have none.
func instant(ds []stint.Decision) (at int64) {
	for i := range ds {
		at = max(at, ds[i].At)
	}
	return at
}

func raise(most *atomic.Int64, n int64) {
	for before := most.Load(); n > before && !most.CompareAndSwap(before, n); before = most.Load() {
	}
}

// Decided implements [engine.Capturer].
func (s *Session) Decided(f *engine.Facts, v *engine.Verdict, err error) {
	verdict := verdicts.Get().(*Verdict) //nolint:forcetypeassert // there is nothing else in it
	defer verdicts.Put(verdict)
	NewVerdict(v, verdict)
	verdict.Failed = err != nil
	s.write(factsFrame, f.Number, decided, func(w *wire) {
		w.facts(f)
		w.verdict(verdict)
	})
	s.open.Add(-1)
}

var verdicts = sync.Pool{New: func() any { return new(Verdict) }}

// Replaced implements [engine.Capturer].
func (s *Session) Replaced() { s.end(EndedByRules) }

// write encodes a record into a buffer, if there is room. Records of one decision are in one shard, so that their order is kept.
func (s *Session) write(kind byte, number uint64, counts int, encode func(w *wire)) {
	sh := &s.shards[int(number)&(len(s.shards)-1)]
	sh.mu.Lock()
	before := len(sh.b)
	w := wire{b: sh.b, terms: &s.terms}
	from := w.begin(kind)
	encode(&w)
	w.end(from)
	size := int64(len(w.b))
	if size <= s.room && len(w.b)-before <= maxFrame {
		sh.b = w.b
		sh.n[counts]++
	} else {
		sh.b = w.b[:before]
		s.lost.Add(1)
	}
	sh.mu.Unlock()
	if size > s.room/2 {
		select {
		case s.full <- struct{}{}:
		default:
		}
	}
}

// run writes what is captured, until the capture ends.
func (s *Session) run() {
	defer close(s.done)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var settle <-chan time.Time
	if s.o.Settle > 0 {
		settle = time.After(s.o.Settle)
	}
	over := time.After(s.o.For)
	var reason string
	for reason == "" {
		select {
		case reason = <-s.ending:
		case <-over:
			reason = EndedByTime
		case <-settle:
			s.begins.Store(true)
		case <-tick.C:
		case <-s.full:
		}
		reason = cmp.Or(s.flush(), reason)
	}
	// What has begun may end. Calls are captured until then, and a little longer, since their order matters.
	s.begins.Store(false)
	for late := time.Now().Add(grace); s.open.Load() > 0 && time.Now().Before(late); s.flush() {
		<-tick.C
	}
	<-tick.C
	s.stop()
	s.flush()
	s.finish(reason)
}

// flush writes what waits. It returns why the capture ends, if it has to: after that, nothing more is written, so that what is in the
// file is all that there was until then.
func (s *Session) flush() (reason string) {
	began := time.Now()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.b, sh.out = sh.out[:0], sh.b
		sh.n, sh.written = [2]int64{}, sh.n
		sh.mu.Unlock()
	}
	s.drained = max(s.drained, time.Since(began))
	s.chunk = append(s.chunk[:0], s.terms.takeFresh()...)
	var counts [2]int64
	for i := range s.shards {
		sh := &s.shards[i]
		s.chunk = append(s.chunk, sh.out...)
		for k := range counts {
			counts[k] += sh.written[k]
		}
		const keep = 1 << 20 // of a burst
		if cap(sh.out) > keep {
			sh.out = nil
		}
	}
	if len(s.chunk) == 0 || s.cut {
		return ""
	}
	err := s.file.write(s.chunk)
	s.size.Store(s.file.size)
	switch {
	case err == nil:
		for k := range counts {
			s.counts[k].Add(counts[k])
		}
		return ""
	case errors.Is(err, errFull):
		reason = EndedBySize
	case errors.Is(err, errDisk):
		reason = EndedByDisk
	default:
		reason, s.err = EndedByError, err
	}
	s.cut = true
	return reason
}

// finish ends the file.
func (s *Session) finish(reason string) {
	sum := s.summary()
	sum.Ended, sum.Reason = time.Now().UTC(), reason
	sum.Lag = time.Duration(s.took.Load()) + s.drained
	if err := s.file.finish(&sum); s.err == nil {
		s.err = err
	}
	if s.err != nil {
		sum.Reason = EndedByError
	}
	sum.Bytes = s.file.size
	s.finished = sum
	s.o.Log.Info("capture ended", "reason", sum.Reason, "decisions", sum.Decisions, "lost", sum.Lost, "unfinished", sum.Unfinished, "bytes", sum.Bytes)
}
