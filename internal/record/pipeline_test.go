package record_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/test/wait"
)

func newPipeline(tb testing.TB, o record.PipelineOptions) *record.Pipeline {
	tb.Helper()
	p, err := record.NewPipeline(o)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// table is a database with an index of ids. Before it takes events, it asks on what
// terms.
type table struct {
	terms func(ctx context.Context) (keep int, err error) // with an error, how many are kept; nil: all is well

	mu     sync.Mutex
	ids    map[engine.ID]bool
	order  []int // of new ones
	writes int
}

func (d *table) Write(ctx context.Context, events []record.Event) error {
	keep, err := len(events), error(nil)
	if d.terms != nil {
		var some int
		if some, err = d.terms(ctx); err != nil {
			keep = min(keep, some)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writes++
	if d.ids == nil {
		d.ids = map[engine.ID]bool{}
	}
	for i := range events[:keep] {
		if id := events[i].ID; !d.ids[id] {
			d.ids[id] = true
			d.order = append(d.order, number(id))
		}
	}
	return err
}

func (d *table) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ids)
}

// inOrder reports whether ids have come in their order.
func (d *table) inOrder() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.order {
		if d.order[i] != i {
			return false
		}
	}
	return true
}

var errAway = errors.New("the database is away")

// recordSome records events with numbers from, from+1, ..., to-1, which keep their order.
func recordSome(r *record.Recorder, from, to int) {
	e := denial(noon)
	for n := from; n < to; n++ {
		e.ID = numbered(n)
		r.Record(context.Background(), &e)
	}
}

// TestTrouble records events as fast as they can be taken, and faster.
func TestTrouble(t *testing.T) {
	t.Parallel()
	for name, flood := range map[string]bool{"as fast as they are taken": false, "faster": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trouble(t, 60_000, flood)
		})
	}
}

// trouble records events while the database fails, hangs, dies for a while, and keeps
// some of what it says it has not: each event is there in the end, once, or was counted
// as dropped. That happens only if events flood the recorder. It returns how many bytes
// were in memory at most.
func trouble(t *testing.T, all int, flood bool) (most int64) {
	t.Helper()
	var calls atomic.Int64
	db := &table{terms: func(ctx context.Context) (int, error) {
		switch n := calls.Add(1); {
		case n%29 == 7:
			<-ctx.Done() // it hangs
			return rand.N(5000), ctx.Err()
		case n%7 == 3 || n > 40 && n < 45:
			return rand.N(5000), errAway
		}
		return 0, nil
	}}
	o := record.RecorderOptions{Buffer: 16 << 10}
	if flood {
		o.Buffer = 2 << 10
	}
	r := newRecorder(t, o)
	p := newPipeline(t, record.PipelineOptions{
		Recorder: r, Sink: db, Spool: openSpool(t, record.SpoolOptions{Dir: t.TempDir()}),
		Interval: 50 * time.Millisecond, Timeout: 200 * time.Millisecond,
	})
	p.Start(t.Context())
	const recorders = 4
	var wg sync.WaitGroup
	for part := range recorders {
		wg.Go(func() {
			e := denial(noon)
			for n := part; n < all; n += recorders {
				e.ID = numbered(n)
				e.ID[15] = byte(n / recorders) // of all shards
				r.Record(t.Context(), &e)
				if n%1000 != part {
					continue
				}
				wait.For(t, "room", func() bool {
					buffered := p.State().Buffered
					if part == 0 {
						most = max(most, buffered)
					}
					return flood || buffered < 3<<20
				})
			}
		})
	}
	wg.Wait()
	wait.For(t, "all written", func() bool { s := p.State(); return s.Spooled == 0 && s.Buffered == 0 })
	stop(t, p)
	s := p.State()
	t.Logf("%d writes, %d bytes in memory at most, %+v", db.writes, most, s)
	if int64(db.len())+s.Dropped != int64(all) || !flood && s.Dropped > 0 || s.Written != int64(db.len()) || s.Bad != 0 || s.Problem != "" {
		t.Errorf("%d of %d events are there; %+v", db.len(), all, s)
	}
	for id := range db.ids {
		if n := number(id); n >= all || id[15] != byte(n/recorders) {
			t.Fatalf("event %v was never recorded", id)
		}
	}
	return most
}

// started returns a pipeline with a small spool, in a bubble in which time is virtual.
func started(t *testing.T, db *table) (*record.Recorder, *record.Pipeline) {
	t.Helper()
	r := newRecorder(t, record.RecorderOptions{})
	p := newPipeline(t, record.PipelineOptions{
		Recorder: r, Sink: db, Spool: openSpool(t, record.SpoolOptions{Dir: t.TempDir(), MaxBytes: 1 << 20}), Interval: 500 * time.Millisecond,
	})
	p.Start(t.Context())
	return r, p
}

// pass lets time pass, and everyone do what is to be done then.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func stop(t *testing.T, p *record.Pipeline) {
	t.Helper()
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestInterval writes what there is after an interval, and nothing if there is nothing.
func TestInterval(t *testing.T) {
	t.Parallel()
	db := new(table)
	synctest.Test(t, func(t *testing.T) {
		r, p := started(t, db)
		recordSome(r, 0, 3)
		pass(499 * time.Millisecond)
		if db.len() != 0 {
			t.Errorf("%d events are there before the interval ends", db.len())
		}
		pass(time.Minute)
		if s := p.State(); db.len() != 3 || db.writes != 1 || s.Written != 3 || s.Buffered != 0 || s.Spooled != 0 {
			t.Errorf("%d events in %d writes; %+v", db.len(), db.writes, s)
		}
		recordSome(r, 3, 5)
		stop(t, p)
	})
	if !db.inOrder() || db.len() != 5 {
		t.Errorf("%d events after Stop, want 5", db.len())
	}
}

// TestAway has the database go away, and come back: events are on disk meanwhile, and
// follow in their order.
func TestAway(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	db := &table{terms: func(context.Context) (int, error) {
		if away.Load() {
			return 2, errAway // though it has kept two
		}
		return 0, nil
	}}
	synctest.Test(t, func(t *testing.T) {
		r, p := started(t, db)
		recordSome(r, 0, 10)
		pass(time.Second)
		away.Store(true)
		start := time.Now()
		for n := 10; n < 610; n += 10 {
			recordSome(r, n, n+10)
			pass(time.Second)
		}
		s := p.State()
		if db.len() != 12 || s.Written != 10 || s.Buffered != 0 || s.Spooled == 0 || s.Dropped != 0 {
			t.Errorf("%d events; %+v", db.len(), s)
		}
		if !strings.Contains(s.Problem, errAway.Error()) || s.Since.Before(start) || s.Since.Sub(start) > time.Second {
			t.Errorf("problem %q since %v", s.Problem, s.Since.Sub(start))
		}
		// 100, 200, ... 3,200 ms, and then every 5 s, or half of that.
		if db.writes < 16 || db.writes > 40 {
			t.Errorf("%d writes in a minute", db.writes)
		}
		away.Store(false)
		recordSome(r, 610, 620)
		pass(10 * time.Second)
		if s := p.State(); db.len() != 620 || s.Written != 620 || s.Spooled != 0 || s.Problem != "" || !s.Since.IsZero() {
			t.Errorf("%d events; %+v", db.len(), s)
		}
		stop(t, p)
	})
	if !db.inOrder() {
		t.Error("they are not in their order")
	}
}

// TestSlow has a write that takes long. Meanwhile it is on disk, with what follows, and
// when it ends it is not written again.
func TestSlow(t *testing.T) {
	t.Parallel()
	var wait atomic.Int64
	db := &table{terms: func(context.Context) (int, error) {
		<-time.After(time.Duration(wait.Load()))
		return 0, nil
	}}
	synctest.Test(t, func(t *testing.T) {
		r, p := started(t, db)
		wait.Store(int64(20 * time.Second))
		recordSome(r, 0, 10)
		pass(600 * time.Millisecond)
		if s := p.State(); s.Buffered == 0 || s.Spooled != 0 {
			t.Errorf("at first: %+v", s)
		}
		for n := 10; n < 110; n += 10 {
			recordSome(r, n, n+10)
			pass(time.Second)
		}
		if s := p.State(); s.Buffered != 0 || s.Spooled == 0 || s.Written != 0 || s.Problem != "" {
			t.Errorf("then: %+v", s)
		}
		wait.Store(0)
		pass(20 * time.Second)
		if s := p.State(); db.writes != 2 || s.Written != 110 || s.Spooled != 0 {
			t.Errorf("in the end: %d writes, %+v", db.writes, s)
		}
		stop(t, p)
	})
	if !db.inOrder() {
		t.Error("they are not in their order")
	}
}

// TestNoRoom has the spool full while the database is away: then events wait in memory,
// and those that find no room there are dropped and counted.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	away.Store(true)
	db := &table{terms: func(context.Context) (int, error) {
		if away.Load() {
			return 0, errAway
		}
		return 0, nil
	}}
	const all = 80_000
	synctest.Test(t, func(t *testing.T) {
		r, p := started(t, db)
		for n := 0; n < all; n += 2000 {
			recordSome(r, n, n+2000)
			pass(time.Second)
		}
		s := p.State()
		if s.Dropped == 0 || s.Spooled > 1<<20 || s.Buffered > 40<<20 || !strings.Contains(s.Problem, "is full") {
			t.Errorf("%+v", s)
		}
		away.Store(false)
		pass(10 * time.Minute)
		s = p.State()
		if s.Problem != "" || s.Buffered != 0 || s.Spooled != 0 || int64(db.len())+s.Dropped != all || s.Written != int64(db.len()) {
			t.Errorf("%d events; %+v", db.len(), s)
		}
		stop(t, p)
	})
}

// TestStop leaves what was recorded on disk if the database does not answer, for the
// next process; and says so if that is not possible.
func TestStop(t *testing.T) {
	t.Parallel()
	hangs := func(ctx context.Context) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	dir := t.TempDir()
	for name, early := range map[string]time.Duration{"nothing under way": 0, "a write under way": 600 * time.Millisecond, "spooling": time.Minute} {
		db := &table{terms: hangs}
		synctest.Test(t, func(t *testing.T) {
			o := record.SpoolOptions{Dir: filepath.Join(dir, name)}
			r := newRecorder(t, record.RecorderOptions{})
			s, err := record.OpenSpool(o)
			if err != nil {
				t.Fatal(err)
			}
			p := newPipeline(t, record.PipelineOptions{Recorder: r, Sink: db, Spool: s})
			p.Start(t.Context())
			recordSome(r, 0, 10)
			pass(early)
			recordSome(r, 10, 20)
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if err := p.Stop(ctx); err != nil || time.Since(start) > 3*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(start))
			}
			if err := p.Stop(ctx); err != nil {
				t.Errorf("%s: again: %v", name, err)
			}
			if s := p.State(); s.Spooled == 0 || s.Buffered != 0 || s.Dropped != 0 {
				t.Errorf("%s: %+v", name, s)
			}
			s.Close()

			db.terms = nil
			if s, err = record.OpenSpool(o); err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			p = newPipeline(t, record.PipelineOptions{Recorder: r, Sink: db, Spool: s})
			p.Start(t.Context())
			synctest.Wait()
			if db.len() != 20 || !db.inOrder() {
				t.Errorf("%s: the next process has found %d events, want 20", name, db.len())
			}
			stop(t, p)
		})
	}

	synctest.Test(t, func(t *testing.T) {
		db := &table{terms: hangs}
		r := newRecorder(t, record.RecorderOptions{})
		p := newPipeline(t, record.PipelineOptions{Recorder: r, Sink: db})
		p.Start(t.Context())
		recordSome(r, 0, 10)
		pass(time.Hour)
		if s := p.State(); s.Buffered == 0 || s.Dropped != 0 || !strings.Contains(s.Problem, "deadline") {
			t.Errorf("without a spool: %+v", s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := p.Stop(ctx); err == nil || !strings.Contains(err.Error(), "10 events are lost") {
			t.Error(err)
		}
		if s := p.State(); s.Dropped != 10 || s.Buffered != 0 {
			t.Errorf("without a spool: %+v", s)
		}
	})
}

// TestUnknown puts aside what is intact and not to be understood.
func TestUnknown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSpool(t, record.SpoolOptions{Dir: dir, SegmentBytes: 1})
	b := batch(0, 3)
	b[2*len(b)/3+8] = 99 // the version of the third
	appendAll(t, s, b, batch(3, 5))
	db := new(table)
	r := newRecorder(t, record.RecorderOptions{})
	var log bytes.Buffer
	p := newPipeline(t, record.PipelineOptions{Recorder: r, Sink: db, Spool: s, Log: slog.New(slog.NewTextHandler(&log, nil))})
	p.Start(t.Context())
	wait.For(t, "written", func() bool { return db.len() == 4 })
	r.Record(t.Context(), &engine.Event{ID: numbered(5), Outcome: 99}) // there is no such outcome
	recordSome(r, 6, 8)
	stop(t, p)
	if got := p.State(); db.len() != 6 || got.Bad != 1 || got.Written != 6 || got.Dropped != 1 || len(segments(t, dir, ".bad")) != 1 {
		t.Errorf("%+v", got)
	}
	if strings.Count(log.String(), "damaged") != 1 {
		t.Errorf("the log says:\n%s", &log)
	}
}

// TestPipelineOptions refuses what makes no sense.
func TestPipelineOptions(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, record.RecorderOptions{})
	for field, o := range map[string]record.PipelineOptions{
		"Recorder": {Sink: new(table)},
		"Sink":     {Recorder: r},
		"Interval": {Recorder: r, Sink: new(table), Interval: -1},
		"Timeout":  {Recorder: r, Sink: new(table), Timeout: -1},
	} {
		_, err := record.NewPipeline(o)
		if e := new(stint.InvalidError); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if err := newPipeline(t, record.PipelineOptions{Recorder: r, Sink: new(table)}).Stop(t.Context()); err != nil {
		t.Errorf("one that was not started: %v", err)
	}
}
