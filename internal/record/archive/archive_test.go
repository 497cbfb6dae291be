package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/kit/blob/blobtest"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
	"github.com/stintdev/stint/internal/test/torture"
)

// TestArchive runs what needs the most of a bucket over a directory and over S3, and all the
// rest in memory.
func TestArchive(t *testing.T) {
	next := blobtest.S3(t)
	buckets := map[string]func(t *testing.T) blob.Bucket{
		"file":   func(t *testing.T) blob.Bucket { t.Helper(); return blobtest.Open(t, "file://"+t.TempDir()) },
		"s3":     func(t *testing.T) blob.Bucket { t.Helper(); return blobtest.Open(t, next()) },
		"memory": func(*testing.T) blob.Bucket { return new(memory) },
	}
	for what, c := range map[string]struct {
		test func(*testing.T, blob.Bucket)
		in   []string
	}{
		"life":      {archiveLife, []string{"file", "s3"}},
		"together":  {archiveTogether, []string{"file", "s3"}},
		"late":      {archiveLate, []string{"memory"}},
		"changed":   {archiveChanged, []string{"memory"}},
		"tampered":  {archiveTampered, []string{"memory"}},
		"healed":    {archiveHealed, []string{"memory"}},
		"overtaken": {archiveOvertaken, []string{"memory"}},
	} {
		for _, kind := range c.in {
			t.Run(what+"/"+kind, func(t *testing.T) {
				t.Parallel()
				c.test(t, buckets[kind](t))
			})
		}
	}
}

// archiveLife is what a month goes through.
func archiveLife(t *testing.T, b blob.Bucket) {
	t.Helper()
	begin := time.Date(2026, time.January, 31, 23, 59, 45, 0, time.UTC)
	all := someEvents(begin, 40) // 15 in January
	all = append(all, someEvents(time.Date(2026, time.March, 31, 23, 59, 59, 999999000, time.UTC), 2)...)
	c, s := inJuly(), newMonths(all...)
	s.events[record.Month{Year: 2025, Month: time.December}] = nil // a month without events
	a := newArchive(t, s, b, c)

	const first = "2025-12 0/0 resumed=false dropped=true held=false; 2026-01 15/2 resumed=false dropped=true held=false; " +
		"2026-02 25/3 resumed=false dropped=true held=false; 2026-03 1/1 resumed=false dropped=true held=false"
	if got := run(t, a); got != first {
		t.Errorf("the first run: %s, want %s", got, first)
	}
	if left := s.all(); len(left) != 1 || left[0].ID != all[41].ID {
		t.Errorf("%d are left, want the one of April", len(left))
	}
	if got := run(t, a); got != "" {
		t.Errorf("another run: %s", got)
	}
	entries, err := a.List(t.Context())
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for i, e := range entries {
		m := e.Manifest
		if e.Problem != nil || e.Unfinished || m == nil || m.Edition != 1 || m.Month != e.Month || m.Month.Month != time.Month(i+1) || e.Bytes < 1000 || !m.Written.Equal(c.now()) {
			t.Errorf("got %+v", e)
		}
	}
	if m := entries[0].Manifest; !m.First.Equal(begin) || !m.Last.Equal(all[14].At) || len(m.Parts) != 2 || m.Parts[0].Events != 10 || m.Parts[1].Events != 5 {
		t.Errorf("got %+v", m)
	}
	if m, err := a.Verify(t.Context(), january); err != nil || m.Events != 15 || m.SHA256 != entries[0].Manifest.SHA256 {
		t.Errorf("verified %+v, %v", m, err)
	}
	wantArchived(t, a, s, january, all[:15])
	wantArchived(t, a, s, february, all[15:40])

	// What was restored stays for a while, and is not written again then.
	if got, want := run(t, a), "2026-01 0/0 resumed=false dropped=false held=true; 2026-02 0/0 resumed=false dropped=false held=true"; got != want {
		t.Errorf("after a restore: %s, want %s", got, want)
	}
	before := names(t, b, "2026-01/")
	c.pass(8 * 24 * time.Hour)
	if got, want := run(t, a), "2026-01 15/2 resumed=false dropped=true held=false; 2026-02 25/3 resumed=false dropped=true held=false"; got != want {
		t.Errorf("a week later: %s, want %s", got, want)
	}
	if after := names(t, b, "2026-01/"); slices.Contains(after, "2026-01/restored.json") || len(after) != len(before)-1 {
		t.Errorf("there are %v, and were %v", after, before)
	}

	if gone, err := a.Expire(t.Context()); err != nil || gone != nil {
		t.Errorf("expired too early: %v, %v", gone, err)
	}
	c.Store(time.Date(2033, time.February, 27, 0, 0, 0, 0, time.UTC).UnixMicro())
	if gone, err := a.Expire(t.Context()); err != nil || !slices.Equal(gone, []record.Month{january}) {
		t.Errorf("expired %v, %v", gone, err)
	}
	if left := names(t, b, "2026-01"); left != nil {
		t.Errorf("left are %v", left)
	}
	if _, err := a.Verify(t.Context(), january); !errors.Is(err, archive.ErrNotArchived) {
		t.Errorf("got %v, want ErrNotArchived", err)
	}
	if _, err := a.Restore(t.Context(), january); !errors.Is(err, archive.ErrNotArchived) {
		t.Errorf("got %v, want ErrNotArchived", err)
	}
}

// archiveLate is about events that come when their month is in the archive already.
func archiveLate(t *testing.T, b blob.Bucket) {
	t.Helper()
	events := someEvents(january.Start(), 35)
	slices.SortFunc(events, func(a, b record.Event) int { return a.At.Compare(b.At) })
	c, s := inJuly(), newMonths(events[1:]...)
	a := newArchive(t, s, b, c)
	run(t, a)
	s.add(events[0])
	if got, want := run(t, a), "2026-01 35/4 resumed=false dropped=true held=false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := names(t, b, "2026-01/"); len(got) != 5 || got[0] != "2026-01/manifest-0002.json" {
		t.Errorf("there are %v, want one manifest and its parts", got)
	}
	wantArchived(t, a, s, january, events)
}

// archiveChanged is about an event that comes between the last look and the drop.
func archiveChanged(t *testing.T, b blob.Bucket) {
	t.Helper()
	events := someEvents(january.Start(), 15)
	s := newMonths(events[:14]...)
	a := newArchive(t, s, b, inJuly())
	s.drop = func() { s.add(events[14]) }
	if report, err := a.Run(t.Context()); !errors.Is(err, record.ErrChanged) || len(report.Months) > 0 || len(s.all()) != 15 {
		t.Errorf("%v, %v, and %d events are left", report, err, len(s.all()))
	}
	if got, want := run(t, a), "2026-01 15/2 resumed=false dropped=true held=false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	wantArchived(t, a, s, january, events)
}

// archiveTampered changes the files of a month in every way.
func archiveTampered(t *testing.T, b blob.Bucket) {
	t.Helper()
	events := someEvents(january.Start(), 25)
	c, s := inJuly(), newMonths(events...)
	a := newArchive(t, s, b, c)
	run(t, a)
	files := names(t, b, "2026-01/")
	if len(files) != 4 {
		t.Fatalf("there are %v", files)
	}
	for _, name := range files[:2] { // the manifest and a part
		r, err := b.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		good, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		flipped := func(i int) []byte {
			out := bytes.Clone(good)
			out[i] ^= 1
			return out
		}
		bad := map[string][]byte{
			"empty": {}, "torn": good[:len(good)-1], "longer": append(bytes.Clone(good), 'x'), "first byte": flipped(0), "middle": flipped(len(good) / 2), "last byte": flipped(len(good) - 1),
			"another file": toParquet(t, someEvents(january.Start(), 10)),
		}
		if strings.Contains(name, "manifest") {
			for what, change := range map[string][2]string{
				"fewer events": {`"events": 25`, `"events": 24`}, "another part": {`"part-0001-00002`, `"part-0001-00001`}, "outside": {`"part-`, `"../part-`},
				"another month": {`"month": "2026-01"`, `"month": "2026-02"`}, "another time": {`"written": "2026-07-15`, `"written": "2026-07-16`},
				"another edition": {`"edition": 1`, `"edition": 2`}, "an unknown field": {`"edition"`, `"x": 1, "edition"`},
			} {
				if bad[what] = []byte(strings.Replace(string(good), change[0], change[1], 1)); bytes.Equal(bad[what], good) {
					t.Errorf("%s: there is no %s", what, change[0])
				}
			}
		} else {
			bad["missing"] = nil
		}
		for what, text := range bad {
			err := b.Delete(t.Context(), name)
			if text != nil {
				err = b.Put(t.Context(), name, bytes.NewReader(text))
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Verify(t.Context(), january); !errors.Is(err, archive.ErrDamaged) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s, %s: %v, want ErrDamaged and the name", name, what, err)
			}
			if _, err := a.Restore(t.Context(), january); !errors.Is(err, archive.ErrDamaged) || len(s.all()) > 0 {
				t.Errorf("%s, %s: restored %d, %v", name, what, len(s.all()), err)
			}
			if e, err := a.List(t.Context()); err != nil || len(e) != 1 || (e[0].Problem == nil) == strings.Contains(name, "manifest") {
				t.Errorf("%s, %s: listed %+v, %v", name, what, e, err)
			}
		}
		if err := b.Put(t.Context(), name, bytes.NewReader(good)); err != nil {
			t.Fatal(err)
		}
	}
	// Two at once are both named.
	for _, name := range files[1:3] {
		if err := b.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Verify(t.Context(), january); err == nil || !strings.Contains(err.Error(), files[1]) || !strings.Contains(err.Error(), files[2]) {
		t.Errorf("got %v, want both names", err)
	}
	// And late events are not mixed with what is damaged.
	c.pass(8 * 24 * time.Hour)
	s.add(events[0])
	if _, err := a.Run(t.Context()); !errors.Is(err, archive.ErrDamaged) || len(s.all()) != 1 {
		t.Errorf("%v, and %d are left", err, len(s.all()))
	}
}

// archiveHealed is about an archive that is damaged while the events are still there.
func archiveHealed(t *testing.T, b blob.Bucket) {
	t.Helper()
	events := someEvents(january.Start(), 25)
	s := newMonths(events...)
	a := newArchive(t, s, b, inJuly())
	run(t, a)
	s.add(events...)
	if err := b.Put(t.Context(), names(t, b, "2026-01/part")[1], strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if got, want := run(t, a), "2026-01 25/3 resumed=false dropped=true held=false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := names(t, b, "2026-01/"); len(got) != 4 || got[0] != "2026-01/manifest-0002.json" {
		t.Errorf("there are %v, want a new edition", got)
	}
	wantArchived(t, a, s, january, events)
}

// archiveTogether is about several who run at once.
func archiveTogether(t *testing.T, b blob.Bucket) {
	t.Helper()
	events := append(someEvents(january.Start(), 30), someEvents(february.Start(), 30)...)
	s, c := newMonths(events...), inJuly()
	var all sync.WaitGroup
	var done atomic.Int64
	for range 5 {
		a := newArchive(t, s, b, c)
		all.Go(func() {
			switch _, err := a.Run(t.Context()); {
			case err == nil:
				done.Add(1)
			case !errors.Is(err, archive.ErrBusy):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if done.Load() == 0 {
		t.Error("none has done it")
	}
	a := newArchive(t, s, b, c)
	wantArchived(t, a, s, january, events[:30])
	wantArchived(t, a, s, february, events[30:])
	if leases := names(t, b, "lease/"); len(leases) > 3 {
		t.Errorf("%d leases are left", len(leases))
	}
}

// archiveOvertaken is about one who stands still in the middle for longer than others wait.
func archiveOvertaken(t *testing.T, b blob.Bucket) {
	t.Helper()
	events := someEvents(january.Start(), 30)
	c, slow, quick := inJuly(), newMonths(events...), newMonths()
	quick.events = slow.events // one database
	n := 0
	slow.next = func() {
		if n++; n != 15 {
			return
		}
		if _, err := newArchive(t, quick, b, c).Run(t.Context()); !errors.Is(err, archive.ErrBusy) || !strings.Contains(err.Error(), "node-1, until 2026-07-15T12:15:00Z") {
			t.Errorf("got %v, want that another works on it, and until when", err)
		}
		c.pass(16 * time.Minute)
		run(t, newArchive(t, quick, b, c))
	}
	if _, err := newArchive(t, slow, b, c).Run(t.Context()); !errors.Is(err, archive.ErrBusy) {
		t.Errorf("the one who was overtaken: %v", err)
	}
	wantArchived(t, newArchive(t, quick, b, c), quick, january, events)
}

// TestArchiveKilled ends runs after each of their writes in turn, and checks that
// nothing is lost or twice there at any moment.
func TestArchiveKilled(t *testing.T) {
	t.Parallel()
	events := someEvents(january.Start(), 15)
	for _, edition := range []int{1, 2} {
		t.Run(fmt.Sprintf("edition %d", edition), func(t *testing.T) {
			t.Parallel()
			resumed, step := 0, int64(1)
			if edition == 2 && !torture.Enabled {
				step = 3
			}
			for writes := int64(0); ; writes += step {
				b, c, s := blob.Bucket(new(memory)), inJuly(), newMonths(events...)
				if edition == 2 {
					s = newMonths(events[:12]...)
					run(t, newArchive(t, s, b, c))
					s.add(events[12:]...)
				}
				dying := &flaky{Bucket: b}
				dying.left.Store(writes)
				_, killed := newArchive(t, s, dying, c).Run(t.Context())

				// Whatever the source has not is in the archive.
				a := newArchive(t, newMonths(), b, c)
				c.pass(16 * time.Minute) // the lease of one who was killed
				if left := len(s.all()); left != 15 && edition == 1 {
					if m, err := a.Verify(t.Context(), january); left != 0 || err != nil || m.Events != 15 {
						t.Fatalf("after %d writes: %d events are left, and in the archive %v, %v", writes, left, m, err)
					}
				}
				if killed == nil {
					if resumed == 0 || writes < 6 {
						t.Errorf("%d runs were continued, of %d that were killed", resumed, writes)
					}
					break
				}
				a = newArchive(t, s, b, c)
				report, err := a.Run(t.Context())
				if err != nil {
					t.Fatalf("after %d writes: %v", writes, err)
				}
				if strings.Contains(outcome(report), "resumed=true") {
					resumed++
				}
				if files := names(t, b, "2026-01/"); len(files) != 3 {
					t.Errorf("after %d writes: there are %v, want a manifest and 2 parts", writes, files)
				}
				wantArchived(t, a, s, january, events)
			}
		})
	}
}

// TestArchiveContinued checks that a run that goes on with what another has begun
// notices what came in between.
func TestArchiveContinued(t *testing.T) {
	t.Parallel()
	events := someEvents(january.Start(), 35)
	b, c, s := blob.Bucket(new(memory)), inJuly(), newMonths(events[1:]...)
	dying := &flaky{Bucket: b}
	dying.left.Store(5) // the lease, and two parts
	if _, err := newArchive(t, s, dying, c).Run(t.Context()); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	if got := names(t, b, "2026-01/"); len(got) != 3 {
		t.Fatalf("there are %v, want two parts and how far it came", got)
	}
	a := newArchive(t, s, b, c)
	if e, err := a.List(t.Context()); err != nil || len(e) != 1 || !e[0].Unfinished || e[0].Manifest != nil || e[0].Problem != nil {
		t.Errorf("listed as %+v, %v", e, err)
	}
	s.add(events[0])
	c.pass(16 * time.Minute)
	if got, want := run(t, a), "2026-01 35/4 resumed=false dropped=true held=false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	wantArchived(t, a, s, january, events)
}

// TestArchiveNotWritable checks that nothing is dropped if nothing can be written.
func TestArchiveNotWritable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		bucket blob.Bucket
		want   error
	}{
		"a file in its place": {blobtest.Open(t, "file://"+file+"/archive"), blob.ErrUnreachable},
		"no permission":       {forbidden{blobtest.Open(t, "file://"+dir)}, blob.ErrNotPermitted},
	} {
		s := newMonths(someEvents(january.Start(), 5)...)
		_, err := newArchive(t, s, c.bucket, inJuly()).Run(t.Context())
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "nothing was dropped") || len(s.all()) != 5 {
			t.Errorf("%s: %v, and %d events are left", name, err, len(s.all()))
		}
	}
}

// TestArchiveOneFails checks that a month that cannot be archived does not hold up others.
func TestArchiveOneFails(t *testing.T) {
	t.Parallel()
	b, s := blob.Bucket(new(memory)), newMonths(append(someEvents(january.Start(), 5), someEvents(february.Start(), 5)...)...)
	if err := b.Put(t.Context(), "2026-01/manifest-0001.json", strings.NewReader("{}")); err != nil {
		t.Fatal(err)
	}
	report, err := newArchive(t, s, b, inJuly()).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "2026-01/manifest-0001.json") || len(report.Months) != 1 || len(s.all(january)) != 5 || len(s.all(february)) != 0 {
		t.Errorf("%v, %v", outcome(report), err)
	}
}

// TestArchiveRefuses checks that a source that breaks its promises is found out.
func TestArchiveRefuses(t *testing.T) {
	t.Parallel()
	b := blob.Bucket(new(memory))
	s := newMonths(someEvents(january.Start(), 5)...)
	s.events[january][engine.ID{1}] = record.Event{ID: engine.ID{1}, At: february.Start()} // in the wrong month
	_, err := newArchive(t, s, b, inJuly()).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "is not in its place") || len(s.all()) != 6 {
		t.Errorf("got %v", err)
	}
}

func TestArchiveCancelled(t *testing.T) {
	t.Parallel()
	b, c, s := blob.Bucket(new(memory)), inJuly(), newMonths(someEvents(january.Start(), 30)...)
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	s.next = func() {
		if n++; n == 25 {
			cancel()
		}
	}
	if _, err := newArchive(t, s, b, c).Run(ctx); !errors.Is(err, context.Canceled) || len(s.all()) != 30 {
		t.Errorf("got %v", err)
	}
	// The lease was given back, so the next need not wait.
	s.next = nil
	if got, want := run(t, newArchive(t, s, b, c)), "2026-01 30/3 resumed=true dropped=true held=false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestArchiveProgress(t *testing.T) {
	t.Parallel()
	const n = 6000
	s := newMonths(someEvents(january.Start(), n)...)
	var steps []string
	a, err := archive.New(s, blob.Bucket(new(memory)), archive.Options{
		Now: inJuly().now, Progress: func(done, all int64, what string) { steps = append(steps, fmt.Sprint(what, " ", done, "/", all)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, a)
	if _, err := a.Restore(t.Context(), january); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"writing 2026-01 4096/6000", "writing 2026-01 6000/6000", "verifying 2026-01 6000/6000",
		"verifying 2026-01 6000/6000", "restoring 2026-01 5000/6000", "restoring 2026-01 6000/6000",
	}
	if !slices.Equal(steps, want) {
		t.Errorf("got %q, want %q", steps, want)
	}
}

func TestArchiveOptions(t *testing.T) {
	t.Parallel()
	b := blob.Bucket(new(memory))
	for says, o := range map[string]archive.Options{
		"Retention 1h0m0s: want at least 24h": {Retention: time.Hour},
		"Retention -1ns":                      {Retention: -1},
		"Keep 24h0m0s: want at least the Ret": {Keep: 24 * time.Hour},
		"Hold -1ns":                           {Hold: -1},
		"PartEvents -1":                       {PartEvents: -1},
	} {
		if _, err := archive.New(newMonths(), b, o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
	if _, err := archive.New(nil, b, archive.Options{}); err == nil {
		t.Error("an archive of nothing")
	}
}
