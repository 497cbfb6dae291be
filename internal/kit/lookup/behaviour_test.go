package lookup_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/internal/kit/lookup"
)

// This file is long: a model of the cache, and what it is held to.

type (
	options = lookup.Options[row]
	cache   = lookup.Cache[row]
)

// virtual runs a test in virtual time, over a source that has ann and no one else.
func virtual(t *testing.T, o options, test func(t *testing.T, s *source, c *cache)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		s := &source{}
		s.set("ann", 1)
		o.Load = s.load
		test(t, s, open(t, o))
	})
}

// pass lets time pass, and all that goes on then come to rest.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestOptions(t *testing.T) {
	t.Parallel()
	load := new(source).load
	for says, o := range map[string]options{
		"Load is nil":          {},
		"Size -1: want 1 to":   {Load: load, Size: -1},
		"MaxLoads -1: want":    {Load: load, MaxLoads: -1},
		"TTL -1s: want 1ms":    {Load: load, TTL: -time.Second},
		"NegativeTTL 1ns":      {Load: load, NegativeTTL: 1},
		"Timeout -1ns":         {Load: load, Timeout: -1},
		"MaxStale 1000000h0m0": {Load: load, MaxStale: 1e6 * time.Hour},
	} {
		if _, err := lookup.New(o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
}

func TestSingleFlight(t *testing.T) {
	t.Parallel()
	virtual(t, options{}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		s.slow(time.Second)
		var all sync.WaitGroup
		// The first, without whom there would be no load yet, leaves.
		all.Go(func() {
			ctx, leave := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer leave()
			if _, err := c.Get(ctx, "ann"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lookup.ErrUnavailable) {
				t.Errorf("one who leaves: %v", err)
			}
		})
		synctest.Wait()
		for range 100 {
			all.Go(func() { want(t, c, "ann", 1, time.Second) })
		}
		all.Wait()
		if n := s.total(); n != 1 {
			t.Errorf("%d loads for one id, want 1", n)
		}
		want(t, c, "ann", 1, 0)
		if got, want := c.Stats(), (lookup.Stats{Hits: 1, Misses: 101, Loads: 1, Len: 1}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestKnown asks without loading what was never loaded.
func TestKnown(t *testing.T) {
	t.Parallel()
	virtual(t, options{TTL: time.Minute, NegativeTTL: time.Second, MaxStale: time.Hour}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		known := func(id string, want bool, loads int) {
			t.Helper()
			before := s.total()
			v, known, err := c.Known(t.Context(), id)
			synctest.Wait()
			if n := s.total() - before; err != nil || known != want || (v != nil) != (known && id == "ann") || n != loads {
				t.Errorf("%s: %v, %v, %v, %d loads; want known %v and %d loads", id, v, known, err, n, want, loads)
			}
		}
		known("ann", false, 0)
		known("bob", false, 0)
		if got := c.Stats(); got != (lookup.Stats{}) {
			t.Errorf("%+v, want nothing counted", got)
		}
		want(t, c, "ann", 1, 0)
		if v, err := c.Get(t.Context(), "bob"); v != nil || err != nil {
			t.Error(v, err)
		}
		known("ann", true, 0)
		known("bob", true, 0) // not to be there
		pass(2 * time.Second)
		known("bob", false, 0) // it may be there now
		c.Invalidate(s.set("ann", 2), "ann")
		known("ann", true, 1)
		pass(2 * time.Minute)
		known("ann", true, 1) // in the background
		s.fail()
		pass(2 * time.Minute)
		known("bob", false, 0)
		if v, known, err := c.Known(t.Context(), "ann"); v == nil || !known || err != nil {
			t.Errorf("while the source fails: %v, %v, %v", v, known, err)
		}
	})
}

// TestLoadContext checks that a load has what the context of its caller carries, and
// a time limit of its own.
func TestLoadContext(t *testing.T) {
	t.Parallel()
	virtual(t, options{Timeout: 3 * time.Second}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		type key struct{}
		s.hook(func(ctx context.Context, _ string) error {
			end, ok := ctx.Deadline()
			if got := time.Until(end); !ok || got != 3*time.Second || ctx.Value(key{}) != "trace" {
				t.Errorf("a load has %v, and %v", got, ctx.Value(key{}))
			}
			return nil
		}, nil)
		ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), key{}, "trace"), time.Hour)
		defer cancel()
		if _, err := c.Get(ctx, "ann"); err != nil {
			t.Error(err)
		}
	})
}

func TestPanic(t *testing.T) {
	t.Parallel()
	virtual(t, options{}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		s.hook(func(context.Context, string) error { <-time.After(time.Second); panic("no such column") }, nil)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if _, err := c.Get(context.Background(), "ann"); !errors.Is(err, lookup.ErrUnavailable) || !strings.Contains(err.Error(), "no such column") {
					t.Errorf("got %v, want an error that says how it panicked", err)
				}
			})
		}
		all.Wait()
		s.heal()
		pass(time.Second)
		want(t, c, "ann", 1, 0)
	})
}

// TestPastTTL checks that an answer past its TTL is given at once, is loaded again
// meanwhile, and that TTLs are spread.
func TestPastTTL(t *testing.T) {
	t.Parallel()
	virtual(t, options{TTL: 100 * time.Second, MaxLoads: 1000}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		id := func(i int) string { return fmt.Sprint("user", i) }
		const n = 200
		for i := range n {
			s.set(id(i), 1)
			want(t, c, id(i), 1, 0)
		}
		s.slow(time.Millisecond)
		for i := range n {
			s.set(id(i), 2)
		}
		again := func(after time.Duration) int {
			pass(after)
			for i := range n {
				if v, took := get(t, c, id(i)); took > 0 || v == 0 {
					t.Fatalf("version %d after %v", v, took)
				}
			}
			pass(time.Millisecond)
			return s.total() - n
		}
		early, half, late := again(89*time.Second), again(11*time.Second), again(11*time.Second)
		if early != 0 || half < n/4 || half > 3*n/4 || late != n {
			t.Errorf("%d loads again by 89s, %d by 100s, %d by 111s; want none, about half, all", early, half, late)
		}
		for i := range n {
			want(t, c, id(i), 2, 0)
		}
	})
}

// TestStale checks that an answer stays while the source fails, and how often it is
// asked for again.
func TestStale(t *testing.T) {
	t.Parallel()
	virtual(t, options{TTL: time.Minute, MaxStale: time.Hour}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		want(t, c, "ann", 1, 0)
		s.fail()
		begin := time.Now()
		for time.Since(begin) < time.Hour+53*time.Second {
			want(t, c, "ann", 1, 0)
			pass(100 * time.Millisecond)
		}
		loads := s.loads()[1:]
		least := time.Second
		for i := range loads[1:] {
			if gap := loads[i+1].Sub(loads[i]); gap < least || gap > least+least/5+time.Second {
				t.Fatalf("load %d came %v after the one before, want %v", i+2, gap, least)
			}
			least = min(2*least, 30*time.Second)
		}
		if n := len(loads); n < 100 || n > 130 {
			t.Errorf("%d loads in an hour", n)
		}
		pass(14 * time.Second)
		refused(t, c, "ann") // it is an hour beyond its TTL
		s.heal()
		pass(time.Second)
		want(t, c, "ann", 1, 0)
		if got := c.Stats(); got.LoadErrors != int64(len(s.loads()))-2 {
			t.Errorf("%+v after %d loads", got, len(s.loads()))
		}
	})
	virtual(t, options{TTL: time.Minute, MaxStale: -1}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		want(t, c, "ann", 1, 0)
		s.fail()
		pass(67 * time.Second)
		refused(t, c, "ann")
	})
}

// TestInvalidated checks that what was invalidated is waited for, and given only if
// there is no other.
func TestInvalidated(t *testing.T) {
	t.Parallel()
	for name, invalidate := range map[string]func(c *cache, revision int64){
		"one": func(c *cache, revision int64) { c.Invalidate(revision, "eve", "ann") },
		"all": func(c *cache, revision int64) { c.InvalidateAll(revision); c.InvalidateAll(revision - 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtual(t, options{TTL: time.Hour, MaxStale: time.Hour}, func(t *testing.T, s *source, c *cache) {
				t.Helper()
				want(t, c, "ann", 1, 0)
				s.slow(time.Second)
				invalidate(c, 1) // which it has seen
				want(t, c, "ann", 1, 0)
				var all sync.WaitGroup
				revision := s.set("ann", 2)
				want(t, c, "ann", 1, 0) // no one has said so yet
				invalidate(c, revision)
				for range 10 {
					all.Go(func() { want(t, c, "ann", 2, time.Second) })
				}
				all.Wait()
				want(t, c, "ann", 2, 0)
				if n := s.total(); n != 2 {
					t.Errorf("%d loads, want 2", n)
				}

				// The source hangs: some wait for it, once, and no one later.
				s.hang()
				invalidate(c, s.set("ann", 3))
				all.Go(func() {
					ctx, leave := context.WithTimeout(context.Background(), time.Second)
					defer leave()
					if v, err := c.Get(ctx, "ann"); v != nil || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("one who leaves: %v, %v", v, err)
					}
				})
				for range 10 {
					all.Go(func() { want(t, c, "ann", 2, 2*time.Second) })
				}
				all.Wait()
				for range 100 {
					want(t, c, "ann", 2, 0)
					pass(100 * time.Millisecond)
				}
				if n := s.total(); n < 5 || n > 10 {
					t.Errorf("%d loads, of which each took 2s of 10", n-2)
				}
				if got := c.Stats().Stale; got != 110 {
					t.Errorf("%d stale answers, want 110", got)
				}
				s.heal()
				pass(3 * time.Second)
				get(t, c, "ann") // which has it loaded
				synctest.Wait()
				want(t, c, "ann", 3, 0)

				// Nothing is given for longer than MaxStale.
				s.fail()
				invalidate(c, s.set("ann", 4))
				want(t, c, "ann", 3, 0)
				pass(113 * time.Minute)
				want(t, c, "ann", 3, 0)
				pass(20 * time.Minute)
				refused(t, c, "ann")
			})
		})
	}
}

// TestOneFails checks that an id that cannot be loaded, while others can, is not
// waited for again at once.
func TestOneFails(t *testing.T) {
	t.Parallel()
	virtual(t, options{}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		want(t, c, "ann", 1, 0)
		s.hook(func(ctx context.Context, id string) error {
			if id != "ann" {
				return wait(ctx, 1050*time.Millisecond)
			}
			return errors.Join(wait(ctx, time.Second), errDown)
		}, nil)
		c.Invalidate(s.set("ann", 2), "ann")
		var ben sync.WaitGroup
		ben.Go(func() { want(t, c, "ben", 0, 1050*time.Millisecond) })
		want(t, c, "ann", 1, time.Second)
		pass(40 * time.Millisecond)
		refused(t, c, "eve")
		ben.Wait()
		want(t, c, "ann", 1, 0)
		want(t, c, "eve", 0, 1050*time.Millisecond) // the source is well
		s.heal()
		want(t, c, "ann", 2, 0)
		s.hook(func(_ context.Context, id string) error {
			if id == "ann" {
				return errDown
			}
			return nil
		}, nil)
		c.Invalidate(s.set("ann", 3), "ann")
		want(t, c, "ann", 2, 0)
		n := len(s.loads())
		pass(249 * time.Millisecond)
		want(t, c, "ann", 2, 0)
		if again := len(s.loads()); again != n {
			t.Errorf("%d more loads within 250ms", again-n)
		}
	})
}

// TestDown checks that ids of which nothing is known are refused at once while the
// source is down, but for one that tries.
func TestDown(t *testing.T) {
	t.Parallel()
	virtual(t, options{}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		s.fail()
		id := func(i int) string { return fmt.Sprint("user", i) }
		for i := range 10_000 {
			refused(t, c, id(i))
			if i%10 == 0 {
				pass(10 * time.Millisecond)
			}
		}
		if n := s.total(); n < 30 || n > 50 {
			t.Errorf("%d loads in 10s, want one in 250ms", n)
		}

		// It hangs: one waits.
		s.hang()
		waited := 0
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				begin := time.Now()
				if _, err := c.Get(context.Background(), id(i)); !errors.Is(err, lookup.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
				if time.Since(begin) > 0 {
					mu.Lock()
					defer mu.Unlock()
					waited++
				}
			})
			<-time.After(5 * time.Millisecond)
		}
		all.Wait()
		if waited < 2 || waited > 3 {
			t.Errorf("%d waited in 5s for a source that hangs for 2s at a time", waited)
		}

		// It is back.
		s.heal()
		pass(3 * time.Second)
		for i := range 100 {
			want(t, c, id(i), 0, 0)
		}
	})
}

// TestDownWhileQueued checks that those who wait for a load to begin are refused as
// soon as the source is known to be down, and that one who tries and leaves does not
// keep others from it.
func TestDownWhileQueued(t *testing.T) {
	t.Parallel()
	virtual(t, options{MaxLoads: 2}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		s.hang()
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				begin := time.Now()
				_, err := c.Get(context.Background(), fmt.Sprint("user", i))
				if took := time.Since(begin); !errors.Is(err, lookup.ErrUnavailable) || took != 2*time.Second {
					t.Errorf("got %v after %v, want to be refused after 2s", err, took)
				}
			})
		}
		all.Wait()
		if n := s.total(); n > 4 {
			t.Errorf("%d loads", n)
		}
		pass(time.Second)
		ctx, leave := context.WithTimeout(context.Background(), time.Millisecond)
		defer leave()
		if _, err := c.Get(ctx, "ann"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the one who tries: %v", err)
		}
		s.heal()
		pass(3 * time.Second)
		want(t, c, "ann", 1, 0)
	})
}

// TestMaxLoads checks that there are no more loads at once, that callers wait for
// theirs until their context ends, and that no one loads for those who have left.
func TestMaxLoads(t *testing.T) {
	t.Parallel()
	virtual(t, options{MaxLoads: 4, TTL: time.Minute}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		s.slow(time.Second)
		id := func(i int) string { return fmt.Sprint("user", i) }
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				if _, took := get(t, c, id(i)); took > 3*time.Second {
					t.Errorf("took %v", took)
				}
			})
		}
		synctest.Wait()
		for i := range 100 {
			all.Go(func() {
				ctx, leave := context.WithTimeout(context.Background(), 500*time.Millisecond)
				defer leave()
				if _, err := c.Get(ctx, fmt.Sprint("gone", i)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("one who leaves: %v", err)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if _, most := s.atOnce(); most != 4 || s.total() != 12 {
			t.Errorf("%d loads, %d at once; want 12, 4 at once", s.total(), most)
		}
	})
}

// TestBackground checks that loads for which no one waits are half of all at most, and
// that those which find no room are made later.
func TestBackground(t *testing.T) {
	t.Parallel()
	virtual(t, options{MaxLoads: 4, TTL: time.Minute}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		id := func(i int) string { return fmt.Sprint("user", i) }
		for i := range 10 {
			s.set(id(i), 1)
			get(t, c, id(i))
			s.set(id(i), 2)
		}
		pass(2 * time.Minute)
		s.slow(time.Second)
		for i := range 10 {
			want(t, c, id(i), 1, 0)
			want(t, c, id(i), 1, 0)
		}
		synctest.Wait()
		if now, _ := s.atOnce(); now != 2 {
			t.Errorf("%d loads in the background, want 2 of 4", now)
		}
		for range 60 {
			for i := range 10 {
				get(t, c, id(i))
			}
			pass(100 * time.Millisecond)
		}
		if _, most := s.atOnce(); most != 2 || s.total() != 20 {
			t.Errorf("%d loads, %d at once; want 20, 2 at once", s.total(), most)
		}
		for i := range 10 {
			want(t, c, id(i), 2, 0)
		}
	})
}

// TestInvalidatedMeanwhile checks that a load that has read what was invalidated
// before it is done is made again.
func TestInvalidatedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		invalidate func(c *cache, revision int64)
		times      int // of three loads
		cached     bool
		version    int
	}{
		"one":              {func(c *cache, r int64) { c.Invalidate(r, "ann") }, 1, false, 2},
		"all":              {func(c *cache, r int64) { c.InvalidateAll(r) }, 1, false, 2},
		"one, in the map":  {func(c *cache, r int64) { c.Invalidate(r, "ann") }, 1, true, 2},
		"all, in the map":  {func(c *cache, r int64) { c.InvalidateAll(r) }, 1, true, 2},
		"twice":            {func(c *cache, r int64) { c.Invalidate(r, "ann") }, 2, false, 3},
		"each time":        {func(c *cache, r int64) { c.Invalidate(r, "ann") }, 3, false, 3},
		"another":          {func(c *cache, r int64) { c.Invalidate(r, "ben") }, 1, false, 1},
		"by what was seen": {func(c *cache, r int64) { c.Invalidate(r-1, "ann") }, 1, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtual(t, options{TTL: time.Minute}, func(t *testing.T, s *source, cc *cache) {
				t.Helper()
				if c.cached {
					want(t, cc, "ann", 1, 0)
					pass(2 * time.Minute)
				}
				n := 0
				s.hook(nil, func(context.Context, string) error {
					<-time.After(time.Second)
					if n++; n <= c.times {
						c.invalidate(cc, s.set("ann", n+1))
					}
					return nil
				})
				if c.cached {
					want(t, cc, "ann", 1, 0) // and it is loaded
					pass(time.Second)
				} else {
					want(t, cc, "ann", c.version, time.Duration(min(c.times+1, 3, c.version))*time.Second)
				}
				s.heal()
				pass(2 * time.Second)
				last := c.times + 1
				if c.version == 1 {
					last = 1 // it was not told
				}
				want(t, cc, "ann", last, 0)
			})
		})
	}
}

// TestJoinedLate checks that one who has asked after the last invalidation, but while
// the last load that is tried was under way, gets what he should.
func TestJoinedLate(t *testing.T) {
	t.Parallel()
	virtual(t, options{}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		n := 0
		s.hook(nil, func(context.Context, string) error {
			<-time.After(time.Second)
			if n++; n <= 3 {
				c.Invalidate(s.set("ann", n+1), "ann")
				<-time.After(time.Second)
			}
			return nil
		})
		var first sync.WaitGroup
		first.Go(func() { want(t, c, "ann", 3, 6*time.Second) })
		pass(5500 * time.Millisecond)
		want(t, c, "ann", 4, 1500*time.Millisecond)
		first.Wait()
	})
}

// TestLags checks what becomes of a source that answers with less than it has
// announced: it is asked three times, and not for every Get.
func TestLags(t *testing.T) {
	t.Parallel()
	virtual(t, options{}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		want(t, c, "ann", 1, 0)
		c.Invalidate(99, "ann")
		for range 100 {
			want(t, c, "ann", 1, 0)
		}
		if n := s.total(); n != 4 {
			t.Errorf("%d loads, want 1 and 3", n)
		}
		s.mu.Lock()
		s.revision = 99
		s.mu.Unlock()
		s.set("ann", 2)
		pass(time.Second)
		want(t, c, "ann", 2, 0)
		want(t, c, "ann", 2, 0)
		if n := s.total(); n != 5 {
			t.Errorf("%d loads, want 5", n)
		}
	})
}

// TestNegative checks that it is remembered that there is none, for a shorter time,
// after which no one is told so without a look.
func TestNegative(t *testing.T) {
	t.Parallel()
	virtual(t, options{TTL: time.Hour, NegativeTTL: time.Minute}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		want(t, c, "ben", 0, 0)
		s.slow(time.Second)
		s.set("ben", 1)
		pass(53 * time.Second)
		want(t, c, "ben", 0, 0)
		pass(14 * time.Second)
		want(t, c, "ben", 1, time.Second)
		pass(50 * time.Minute)
		want(t, c, "ben", 1, 0)

		want(t, c, "eve", 0, time.Second)
		c.Invalidate(s.set("eve", 1), "eve")
		want(t, c, "eve", 1, time.Second)

		want(t, c, "guy", 0, time.Second)
		pass(2 * time.Minute)
		s.fail()
		want(t, c, "guy", 0, 0)
		pass(time.Hour)
		want(t, c, "guy", 0, 0)
		if got := c.Stats(); got.NegativeHits != 1 || got.Stale != 2 || got.Hits != 1 || got.Misses != 5 {
			t.Errorf("%+v", got)
		}
	})
}

// TestUntil checks that values change when they are said to, whatever the source does.
func TestUntil(t *testing.T) {
	t.Parallel()
	later := func(v *row, now time.Time) (*row, time.Time) {
		if v.version >= 12 {
			return nil, time.Time{}
		}
		return &row{max(v.version, 9) + 1}, now.Add(10 * time.Second)
	}
	load := func(t *testing.T, s *source, c *cache) {
		t.Helper()
		s.until = time.Now().Add(10 * time.Second)
		want(t, c, "ann", 1, 0)
		s.until = time.Time{}
		pass(9 * time.Second)
		want(t, c, "ann", 1, 0)
	}
	virtual(t, options{Rebuild: later}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		load(t, s, c)
		c.Invalidate(s.set("ann", 2), "ann")
		s.fail()
		for version := 10; version <= 12; version++ {
			pass(time.Second)
			want(t, c, "ann", version, 0)
			want(t, c, "ann", version, 0)
			pass(9 * time.Second)
			want(t, c, "ann", version, 0)
		}
		pass(time.Second)
		want(t, c, "ann", 0, 0)
		s.heal()
		pass(time.Second)
		get(t, c, "ann")
		synctest.Wait()
		want(t, c, "ann", 2, 0) // it was not forgotten that it is invalidated
	})
	// It is due by the time that it arrives.
	virtual(t, options{Rebuild: later}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		s.until = time.Now().Add(time.Second)
		s.slow(time.Second)
		want(t, c, "ann", 10, time.Second)
		want(t, c, "ann", 10, 0)
	})
	virtual(t, options{}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		load(t, s, c)
		s.set("ann", 2)
		s.slow(time.Second)
		pass(time.Second)
		want(t, c, "ann", 2, time.Second)
		// An answer that has been is as good as any that the source has.
		s.until = time.Now()
		c.Invalidate(s.set("ann", 3), "ann")
		want(t, c, "ann", 3, time.Second)
		want(t, c, "ann", 3, 0)
	})
	virtual(t, options{Rebuild: func(*row, time.Time) (*row, time.Time) { panic("no tier") }}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		load(t, s, c)
		pass(time.Second)
		if _, err := c.Get(context.Background(), "ann"); !errors.Is(err, lookup.ErrUnavailable) || !strings.Contains(err.Error(), "no tier") {
			t.Errorf("got %v, want an error that says how it panicked", err)
		}
	})
}

// TestClockGoesBack checks that answers of a future that is not to come are loaded
// again, and that pauses end.
func TestClockGoesBack(t *testing.T) {
	t.Parallel()
	var back time.Duration
	virtual(t, options{TTL: time.Minute, Now: func() time.Time { return time.Now().Round(0).Add(-back) }}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		want(t, c, "ann", 1, 0)
		want(t, c, "ben", 0, 0)
		s.set("ann", 2)
		s.set("ben", 2)
		back = time.Hour
		want(t, c, "ann", 1, 0)
		synctest.Wait()
		want(t, c, "ann", 2, 0)
		want(t, c, "ben", 2, 0)

		s.fail()
		refused(t, c, "eve")
		refused(t, c, "eve")
		pass(2 * time.Minute)
		want(t, c, "ann", 2, 0)
		synctest.Wait()
		s.heal()
		back = 100 * time.Hour
		want(t, c, "eve", 0, 0)
		s.set("ann", 3)
		want(t, c, "ann", 2, 0)
		synctest.Wait()
		want(t, c, "ann", 3, 0)
	})
}

func TestLongID(t *testing.T) {
	t.Parallel()
	virtual(t, options{}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		if _, err := c.Get(context.Background(), strings.Repeat("a", 1025)); err == nil || errors.Is(err, lookup.ErrUnavailable) || s.total() != 0 {
			t.Errorf("got %v, want an error that says how long an id may be", err)
		}
		want(t, c, strings.Repeat("a", 1024), 0, 0)
		want(t, c, "", 0, 0)
	})
}

// TestClose checks that loads are cancelled and waited for. That nothing is left is
// what the end of virtual time checks.
func TestClose(t *testing.T) {
	t.Parallel()
	virtual(t, options{MaxLoads: 1}, func(t *testing.T, s *source, c *cache) {
		t.Helper()
		want(t, c, "ann", 1, 0)
		s.hang()
		for _, id := range []string{"ben", "ben", "eve"} { // one is under way, one queued
			go func() {
				if _, err := c.Get(context.Background(), id); !errors.Is(err, lookup.ErrUnavailable) {
					t.Errorf("%s: %v", id, err)
				}
			}()
		}
		synctest.Wait()
		begin := time.Now()
		c.Close()
		c.Close()
		if now, _ := s.atOnce(); now != 0 || time.Since(begin) > 0 {
			t.Errorf("%d loads are left, after %v", now, time.Since(begin))
		}
		want(t, c, "ann", 1, 0)
		if _, err := c.Get(context.Background(), "ben"); !errors.Is(err, lookup.ErrUnavailable) {
			t.Errorf("after Close: %v", err)
		}
		if got := c.Stats(); got.Loads != 2 || got.LoadErrors != 0 {
			t.Errorf("%+v: want no errors, the source is well", got)
		}
	})
}

// TestLeavesNothing runs beside no other test: it looks at all goroutines.
func TestLeavesNothing(t *testing.T) {
	s := &source{}
	left := func() string {
		buf := make([]byte, 1<<20)
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "lookup.(*Cache[...])") {
				return g
			}
		}
		return ""
	}
	for range 20 {
		c := open(t, options{Load: s.load, Size: 10})
		for i := range 200 {
			get(t, c, fmt.Sprint("user", i))
		}
		c.Close()
		// One that has said that it is done may have yet to return.
		for left() != "" { // until the end of the run, which shows it
			runtime.Gosched()
		}
	}
}
