package daemon_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/layer"
)

// TestReturns charges a store that comes back in forty steps: that is told once, with the sums.
func TestReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []layer.Return
		var mu sync.Mutex
		add := daemon.Returns(func(r layer.Return) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, r)
		})
		for range 40 {
			add(layer.Return{Paid: 3, Lost: 2, Expired: 1})
			<-time.After(100 * time.Millisecond)
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if want := (layer.Return{Paid: 120, Lost: 80, Expired: 40}); len(told) != 1 || told[0] != want {
			t.Errorf("told %+v, want once %+v", told, want)
		}

		// If it does not end, it is told now and then, and nothing is told twice.
		told = nil
		for range 1000 {
			add(layer.Return{Paid: 1})
			<-time.After(100 * time.Millisecond)
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		var sum int64
		for _, r := range told {
			sum += r.Paid
		}
		if sum != 1000 || len(told) < 3 || len(told) > 4 {
			t.Errorf("told %d times of %d units, want 3 or 4 times of 1000", len(told), sum)
		}
	})
}
