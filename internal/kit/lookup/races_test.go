package lookup_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/internal/kit/lookup"
)

// TestInvalidationRaces changes rows, and says so, while others read them: no one may
// be given a version that was invalidated before he asked.
func TestInvalidationRaces(t *testing.T) {
	t.Parallel()
	const ids, changes = 8, 2000
	s := &source{}
	s.hook(yield, yield)
	// Most are evicted at some time.
	c := open(t, options{Load: s.load, Size: ids / 2, TTL: time.Millisecond, NegativeTTL: time.Millisecond, MaxLoads: 3})
	var told [ids]atomic.Int64 // versions
	var ended atomic.Bool
	var writers, readers sync.WaitGroup
	for i := range ids {
		id := fmt.Sprint("user", i)
		writers.Go(func() {
			for version := range changes / ids {
				if revision := s.set(id, version+1); version%5 == 0 {
					c.InvalidateAll(revision)
				} else {
					c.Invalidate(revision, id)
				}
				told[i].Store(int64(version + 1))
				runtime.Gosched()
			}
		})
		for range 2 {
			readers.Go(func() {
				for !ended.Load() {
					least := told[i].Load()
					v, err := c.Get(t.Context(), id)
					switch {
					case err != nil:
						t.Error(err)
						return
					case v == nil && least > 0, v != nil && int64(v.version) < least:
						t.Errorf("%s: got %v, which was invalidated before %d", id, v, least)
						return
					}
				}
			})
		}
	}
	writers.Wait()
	ended.Store(true)
	readers.Wait()
	for i := range ids {
		if v, _ := get(t, c, fmt.Sprint("user", i)); v != changes/ids {
			t.Errorf("user%d: version %d in the end, want %d", i, v, changes/ids)
		}
	}
}

func yield(context.Context, string) error {
	for range rand.IntN(3) {
		runtime.Gosched()
	}
	return nil
}

// TestModel does what may be done with a cache, in any order, and checks its promises.
func TestModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		rapid.Check(struct{ rapid.TB }{t}, model) // of which virtual time has no deadline
	})
}

func model(t *rapid.T) {
	s := &source{}
	c, err := lookup.New(options{Load: s.load, Size: 4, TTL: time.Minute, MaxStale: time.Hour, MaxLoads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ids := rapid.SampledFrom([]string{"ann", "ben", "eve", "guy", "ida", "joe"})
	latest, told := map[string]int{}, map[string]int{} // versions
	well := true
	gets := int64(0)
	t.Repeat(map[string]func(*rapid.T){
		"get": func(t *rapid.T) {
			id, begin, version := ids.Draw(t, "id"), time.Now(), 0
			v, err := c.Get(context.Background(), id)
			if v != nil {
				version = v.version
			}
			gets++
			switch took, st := time.Since(begin), c.Stats(); {
			case took > 2*time.Second:
				t.Fatalf("%s took %v", id, took)
			case err != nil && (well || !errors.Is(err, lookup.ErrUnavailable)):
				t.Fatalf("%s: %v", id, err)
			case err == nil && (version > latest[id] || well && version < told[id]):
				t.Fatalf("%s: version %d of %d, told %d", id, version, latest[id], told[id])
			case st.Hits+st.NegativeHits+st.Stale+st.Misses != gets:
				t.Fatalf("%+v after %d Gets", st, gets)
			}
		},
		"change": func(t *rapid.T) {
			id := ids.Draw(t, "id")
			latest[id]++
			revision := s.set(id, latest[id])
			switch rapid.SampledFrom([]string{"told", "all", "not"}).Draw(t, "how") {
			case "told":
				c.Invalidate(revision, id)
				told[id] = latest[id]
			case "all":
				c.InvalidateAll(revision)
				maps.Copy(told, latest)
			}
		},
		"source": func(t *rapid.T) {
			how := rapid.SampledFrom([]string{"fail", "hang", "slow", "heal"}).Draw(t, "how")
			map[string]func(){"fail": s.fail, "hang": s.hang, "slow": func() { s.slow(time.Second) }, "heal": s.heal}[how]()
			if well = how == "slow" || how == "heal"; well {
				// What has failed is over, and then one notices that it is.
				pass(3 * time.Second)
				_, _ = c.Get(context.Background(), fmt.Sprint("new", gets))
				gets++
				pass(time.Second)
			}
		},
		"pass": func(t *rapid.T) {
			pass(time.Duration(rapid.SampledFrom([]int{1, 100, 1000, 10_000, 70_000, 5_000_000}).Draw(t, "ms")) * time.Millisecond)
		},
	})
}
