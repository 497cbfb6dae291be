package layer_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
)

// far is a store that answers after some time, and counts takes.
type far struct {
	stint.Store
	takes atomic.Int64
}

func (f *far) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	f.takes.Add(1)
	<-time.After(5 * time.Millisecond)
	return f.Store.Take(ctx, asks, ds)
}

// TestDenyHerd has many callers ask for a leased limit that is used up: one of them asks the store in each term,
// and none waits for it.
func TestDenyHerd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		store := &far{Store: memory}
		cache, err := layer.DenyCache(store, layer.DenyCacheOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Close()
		ask := stint.Ask{
			Key: stint.Key{Subject: "user:42"}, Limit: stint.PerHour(1), Cost: 1,
			Policy: &stint.Policy{Lease: 100 * time.Millisecond},
		}
		take := func() (waited time.Duration) {
			begin, ds := time.Now(), make([]stint.Decision, 1)
			if err := cache.Take(t.Context(), []stint.Ask{ask}, ds); err != nil {
				t.Error(err)
			}
			if d := &ds[0]; !d.Allowed && d.RetryAfter <= 0 {
				t.Errorf("denied, and may retry after %v", d.RetryAfter)
			}
			return time.Since(begin)
		}
		take() // all there is
		take()
		store.takes.Store(0)
		var callers sync.WaitGroup
		var waited atomic.Int64
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			for range 64 {
				callers.Go(func() {
					if take() > 0 {
						waited.Add(1)
					}
				})
			}
			<-time.After(time.Millisecond)
		}
		callers.Wait()
		if n := store.takes.Load(); n < 9 || n > 10 || waited.Load() != n {
			t.Errorf("the store was asked %d times in ten terms, and %d callers have waited", n, waited.Load())
		}
	})
}
