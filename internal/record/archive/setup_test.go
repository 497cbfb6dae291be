package archive_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/test/torture"
)

// months is a Source in memory.
type months struct {
	mu     sync.Mutex
	events map[record.Month]map[engine.ID]record.Event
	drop   func() // called before a month is dropped
	next   func() // called before each event
}

var _ archive.Source = (*months)(nil)

func newMonths(events ...record.Event) *months {
	s := &months{events: map[record.Month]map[engine.ID]record.Event{}}
	s.add(events...)
	return s
}

func (s *months) add(events ...record.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		m := record.MonthOf(e.At)
		if s.events[m] == nil {
			s.events[m] = map[engine.ID]record.Event{}
		}
		if _, ok := s.events[m][e.ID]; !ok {
			s.events[m][e.ID] = e
		}
	}
}

// all returns the events in the order of cursors.
func (s *months) all(of ...record.Month) (out []record.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m, events := range s.events {
		if of == nil || slices.Contains(of, m) {
			out = slices.AppendSeq(out, maps.Values(events))
		}
	}
	slices.SortFunc(out, func(a, b record.Event) int { return cmp.Or(a.At.Compare(b.At), bytes.Compare(a.ID[:], b.ID[:])) })
	return out
}

func (s *months) Months(context.Context) (out []record.MonthSize, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m, events := range s.events {
		out = append(out, record.MonthSize{Month: m, Events: int64(len(events))})
	}
	return out, nil
}

func (s *months) Events(ctx context.Context, m record.Month, after record.Cursor) iter.Seq2[record.Event, error] {
	return func(yield func(record.Event, error) bool) {
		for _, e := range s.all(m) {
			if e.At.Before(after.At) || (e.At.Equal(after.At) && bytes.Compare(e.ID[:], after.ID[:]) <= 0) {
				continue
			}
			if s.next != nil {
				s.next()
			}
			if err := ctx.Err(); err != nil {
				yield(record.Event{}, err)
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (s *months) Drop(_ context.Context, m record.Month, events int64) error {
	if s.drop != nil {
		s.drop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := int64(len(s.events[m])); n != events {
		return fmt.Errorf("%v has %d: %w", m, n, record.ErrChanged)
	}
	delete(s.events, m)
	return nil
}

func (s *months) Restore(_ context.Context, m record.Month, events []record.Event) error {
	for _, e := range events {
		if record.MonthOf(e.At) != m {
			return fmt.Errorf("%v is not in %v", e.At, m)
		}
	}
	s.add(events...)
	return nil
}

// flaky is a bucket that fails from some write on, as one does whose process is killed.
type flaky struct {
	blob.Bucket
	left atomic.Int64
}

var errKilled = errors.New("killed")

func (f *flaky) allow() error {
	if f.left.Add(-1) < 0 {
		return errKilled
	}
	return nil
}

func (f *flaky) Put(ctx context.Context, name string, r io.Reader) error {
	if err := f.allow(); err != nil {
		return err
	}
	return f.Bucket.Put(ctx, name, r)
}

func (f *flaky) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if err := f.allow(); err != nil {
		return err
	}
	return f.Bucket.PutIfAbsent(ctx, name, data)
}

func (f *flaky) Delete(ctx context.Context, name string) error {
	if err := f.allow(); err != nil {
		return err
	}
	return f.Bucket.Delete(ctx, name)
}

// forbidden is a bucket that may only be read. Root may write to any directory, so there is
// none to be had for a test.
type forbidden struct{ blob.Bucket }

func (forbidden) Check(context.Context) error { return blob.ErrNotPermitted }

var (
	january  = record.Month{Year: 2026, Month: time.January}
	february = record.Month{Year: 2026, Month: time.February}
)

// clock is a clock that is set by hand.
type clock struct{ atomic.Int64 }

func (c *clock) now() time.Time       { return time.UnixMicro(c.Load()) }
func (c *clock) pass(d time.Duration) { c.Add(d.Microseconds()) }

// inJuly returns a clock that stands at the 15th of July: January to March are older
// than 90 days.
func inJuly() *clock {
	c := new(clock)
	c.Store(time.Date(2026, time.July, 15, 12, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func newArchive(t *testing.T, s archive.Source, b blob.Bucket, c *clock) *archive.Archive {
	t.Helper()
	a, err := archive.New(s, b, archive.Options{PartEvents: 10, Now: c.now, Node: "node-1"})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func run(t *testing.T, a *archive.Archive) string {
	t.Helper()
	report, err := a.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return outcome(report)
}

func outcome(report archive.Report) string {
	var out []string
	for _, m := range report.Months {
		out = append(out, fmt.Sprintf("%v %d/%d resumed=%v dropped=%v held=%v", m.Month, m.Events, m.Parts, m.Resumed, m.Dropped, !m.Held.IsZero()))
	}
	return strings.Join(out, "; ")
}

func names(t *testing.T, b blob.Bucket, prefix string) (out []string) {
	t.Helper()
	for o, err := range b.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, o.Name)
	}
	return out
}

// wantArchived checks that the archive has these events of a month, and the source none,
// by restoring them.
func wantArchived(t *testing.T, a *archive.Archive, s *months, m record.Month, want []record.Event) {
	t.Helper()
	if got := s.all(m); len(got) > 0 {
		t.Errorf("%v has still %d events", m, len(got))
	}
	if n, err := a.Restore(t.Context(), m); err != nil || n != int64(len(want)) {
		t.Errorf("restored %d of %v, %v, want %d", n, m, err, len(want))
	}
	if got := s.all(m); !slices.EqualFunc(got, want, recordtest.Same) {
		t.Errorf("%v has %d events after it was restored, want the %d that it had", m, len(got), len(want))
	}
}

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", strconv.Itoa(torture.Rounds(15))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
