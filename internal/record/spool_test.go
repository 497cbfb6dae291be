package record_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// batch returns the events with numbers from, from+1, ..., to-1.
func batch(from, to int) (b record.Batch) {
	r, err := record.NewRecorder(record.RecorderOptions{Buffer: to - from + 1000})
	if err != nil {
		panic(err)
	}
	for n := from; n < to; n++ {
		r.Record(context.Background(), &engine.Event{ID: numbered(n), Outcome: engine.Denied, User: fmt.Sprint("user-", n)})
	}
	return r.Take(nil)
}

func appendAll(tb testing.TB, s *record.Spool, batches ...record.Batch) {
	tb.Helper()
	for _, b := range batches {
		if err := s.Append(b); err != nil {
			tb.Fatal(err)
		}
	}
}

// replay returns the numbers of the events that are there, and empties the spool.
func replay(tb testing.TB, s *record.Spool) (numbers []int) {
	tb.Helper()
	for {
		b, err := s.Next()
		if err != nil {
			tb.Fatal(err)
		}
		if len(b) == 0 {
			return numbers
		}
		for _, e := range events(tb, b) {
			numbers = append(numbers, number(e.ID))
		}
		s.Done(len(b))
	}
}

func count(from, to int) (numbers []int) {
	for n := from; n < to; n++ {
		numbers = append(numbers, n)
	}
	return numbers
}

// segments returns the paths of files with an ending, oldest first.
func segments(tb testing.TB, dir, ending string) []string {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+ending))
	if err != nil {
		tb.Fatal(err)
	}
	return names
}

// TestSpool is a queue, over several segments and several lives.
func TestSpool(t *testing.T) {
	t.Parallel()
	o := record.SpoolOptions{Dir: filepath.Join(t.TempDir(), "a", "b"), SegmentBytes: 1000}
	s := openSpool(t, o)
	if b, err := s.Next(); len(b) != 0 || err != nil || !s.Empty() {
		t.Fatalf("a new one has %d bytes, %v", len(b), err)
	}
	for n := range 10 {
		appendAll(t, s, batch(10*n, 10*n+10))
	}
	if n := len(segments(t, o.Dir, ".spool")); n < 5 {
		t.Fatalf("%d segments", n)
	}
	s.Close()

	s = openSpool(t, o)
	first, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	s.Done(len(first) / first.Len()) // and nothing more of it
	appendAll(t, s, batch(100, 110))
	if got := replay(t, s); !slices.Equal(got, count(1, 110)) {
		t.Errorf("%v, want 1 to 109", got)
	}
	if left := segments(t, o.Dir, ".spool"); len(left) != 0 || s.Bytes() != 0 || !s.Empty() {
		t.Errorf("%v are left, %d bytes", left, s.Bytes())
	}
	appendAll(t, s, batch(110, 120))
	s.Done(len(batch(110, 112))) // as one who knows what is in it need not read
	if got := replay(t, s); !slices.Equal(got, count(112, 120)) {
		t.Errorf("%v, want 112 to 119", got)
	}
}

// TestLargeSpool has segments and batches that are read in several steps.
func TestLargeSpool(t *testing.T) {
	t.Parallel()
	s := openSpool(t, record.SpoolOptions{Dir: t.TempDir()})
	appendAll(t, s, batch(0, 12_000), batch(12_000, 24_000))
	if s.Bytes() < 5<<18 {
		t.Fatalf("only %d bytes", s.Bytes())
	}
	if got := replay(t, s); !slices.Equal(got, count(0, 24_000)) {
		t.Errorf("%d events", len(got))
	}
}

// TestFullSpool refuses what does not fit, and takes more when there is room.
func TestFullSpool(t *testing.T) {
	t.Parallel()
	s := openSpool(t, record.SpoolOptions{Dir: t.TempDir(), MaxBytes: 3000, SegmentBytes: 1000})
	n := 0
	for ; ; n += 10 {
		if err := s.Append(batch(n, n+10)); err != nil {
			if !strings.Contains(err.Error(), "full") || !strings.Contains(err.Error(), "3000") {
				t.Error(err)
			}
			break
		}
	}
	if n == 0 || s.Bytes() > 3000 {
		t.Fatalf("%d events, %d bytes", n, s.Bytes())
	}
	if got := replay(t, s); !slices.Equal(got, count(0, n)) {
		t.Errorf("%v, want 0 to %d", got, n-1)
	}
	appendAll(t, s, batch(n, n+10))
}

// TestDamagedSpool finds in damaged segments what can be found, and the others whole.
func TestDamagedSpool(t *testing.T) {
	t.Parallel()
	size := len(batch(10, 11)) // of an event, from 10 to 99
	const header = 8
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 0x10; return b }
	}
	for name, c := range map[string]struct {
		damage func([]byte) []byte // to the second of three segments, with 20 to 29
		left   []int
		bad    int
	}{
		"none":              {cut(header + 10*size), count(20, 30), 0},
		"torn record":       {cut(header + 10*size - 1), count(20, 29), 0},
		"torn frame":        {cut(header + 5*size + 7), count(20, 25), 0},
		"torn header":       {cut(3), nil, 0},
		"empty file":        {cut(0), nil, 0},
		"zeros at the end":  {func(b []byte) []byte { clear(b[header+5*size:]); return b }, count(20, 25), 0},
		"zeros and a tail":  {func(b []byte) []byte { clear(b[header+5*size : header+7*size]); return b }, count(20, 25), 1},
		"a wrong bit":       {flip(header + 5*size + 30), count(20, 25), 1},
		"a wrong length":    {flip(header + 5*size + 1), count(20, 25), 1},
		"a wrong checksum":  {flip(header + 9*size + 5), count(20, 29), 1},
		"another file":      {func([]byte) []byte { return []byte("this is not a segment") }, nil, 1},
		"a version to come": {flip(7), nil, 1},
		"garbage behind":    {func(b []byte) []byte { return append(b, "garbage, and more of it"...) }, count(20, 30), 1},
		"cut garbage":       {func(b []byte) []byte { return append(b, "garbage"...) }, count(20, 30), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := record.SpoolOptions{Dir: t.TempDir(), SegmentBytes: 1}
			s := openSpool(t, o)
			appendAll(t, s, batch(10, 20), batch(20, 30), batch(30, 40))
			s.Close()
			victim := segments(t, o.Dir, ".spool")[1]
			text, err := os.ReadFile(victim)
			if err != nil {
				t.Fatal(err)
			}
			text = c.damage(bytes.Clone(text))
			if err := os.WriteFile(victim, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(o.Dir, "notes.txt"), nil, 0o600); err != nil {
				t.Fatal(err)
			}

			s = openSpool(t, o)
			appendAll(t, s, batch(40, 50))
			want := slices.Concat(count(10, 20), c.left, count(30, 50))
			if got := replay(t, s); !slices.Equal(got, want) || s.Bad() != c.bad {
				t.Errorf("%v and %d bad\nwant\n%v and %d", got, s.Bad(), want, c.bad)
			}
			bad := segments(t, o.Dir, ".bad")
			if len(bad) != c.bad || len(segments(t, o.Dir, ".spool")) != 0 {
				t.Fatalf("in quarantine: %v", bad)
			}
			kept := int64(0)
			if c.bad > 0 {
				if got, err := os.ReadFile(bad[0]); err != nil || !bytes.Equal(got, text) {
					t.Errorf("what is in quarantine has changed: %v", err)
				}
				kept = int64(len(text))
			}
			if s.Bytes() != kept {
				t.Errorf("%d bytes are left, want %d", s.Bytes(), kept)
			}
			s.Close()
			s = openSpool(t, o)
			appendAll(t, s, batch(50, 60)) // under a number that none has had
			if got := replay(t, s); !slices.Equal(got, count(50, 60)) || s.Bad() != c.bad {
				t.Errorf("then %v, %d bad", got, s.Bad())
			}
		})
	}
}

// TestSpoolUnderWay has segments change while they are in use.
func TestSpoolUnderWay(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"deleted":   os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, 20) },
	} {
		o := record.SpoolOptions{Dir: t.TempDir(), SegmentBytes: 1}
		s := openSpool(t, o)
		appendAll(t, s, batch(0, 10), batch(10, 20))
		if err := damage(segments(t, o.Dir, ".spool")[0]); err != nil {
			t.Fatal(err)
		}
		if got := replay(t, s); !slices.Equal(got, count(10, 20)) || s.Bad() != 1 {
			t.Errorf("%s: %v, %d bad", name, got, s.Bad())
		}
		appendAll(t, s, batch(20, 30))
		if got := replay(t, s); !slices.Equal(got, count(20, 30)) {
			t.Errorf("%s: then %v", name, got)
		}
	}
}

// TestSpoolFails has a directory in which nothing can be made.
func TestSpoolFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openSpool(t, record.SpoolOptions{Dir: dir})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(batch(0, 1)); err == nil || !s.Empty() || s.Bytes() != 0 {
		t.Errorf("%v, %d bytes", err, s.Bytes())
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	appendAll(t, s, batch(0, 1))
	if got := replay(t, s); !slices.Equal(got, count(0, 1)) {
		t.Error(got)
	}
}

// TestOpenSpool is about directories that cannot be used.
func TestOpenSpool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	openSpool(t, record.SpoolOptions{Dir: dir})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    record.SpoolOptions
		says string
	}{
		"in use":   {record.SpoolOptions{Dir: dir}, dir + " is in use by another process"},
		"a file":   {record.SpoolOptions{Dir: file}, file},
		"none":     {record.SpoolOptions{}, "Dir"},
		"bytes":    {record.SpoolOptions{Dir: dir, MaxBytes: -1}, "MaxBytes"},
		"segments": {record.SpoolOptions{Dir: dir, SegmentBytes: -1}, "SegmentBytes"},
	} {
		if s, err := record.OpenSpool(c.o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v; want %q", name, s, err, c.says)
		}
	}
}

// TestReopenSpool opens a spool that was closed, while processes are started that have a
// copy of every open file for a moment.
func TestReopenSpool(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stopped:
				return
			default:
				_ = exec.Command(exe, "-test.run", "^$").Run() // whatever it does
			}
		}
	})
	dir := t.TempDir()
	for range 2000 {
		s, err := record.OpenSpool(record.SpoolOptions{Dir: dir})
		if err != nil {
			t.Error(err)
			break
		}
		s.Close()
	}
	close(stopped)
	wg.Wait()
}

// FuzzSegment has anything for a segment. It is read to its end, and the next one is
// found behind it.
func FuzzSegment(f *testing.F) {
	dir := f.TempDir()
	s := openSpool(f, record.SpoolOptions{Dir: dir})
	appendAll(f, s, batch(0, 3))
	s.Close()
	text, err := os.ReadFile(segments(f, dir, ".spool")[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:50])
	f.Fuzz(func(t *testing.T, segment []byte) {
		o := record.SpoolOptions{Dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(o.Dir, "1.spool"), segment, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openSpool(t, o)
		appendAll(t, s, batch(7, 8))
		var last []record.Event
		for !s.Empty() {
			b, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			if len(b) > 0 {
				last, _, _ = b.Events(nil, 1<<20) // which may be none
				s.Done(len(b))
			}
		}
		if len(last) == 0 || number(last[len(last)-1].ID) != 7 {
			t.Errorf("the last are %v", last)
		}
	})
}
