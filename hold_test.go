package stint_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
)

// failing is a store that can be out of reach.
type failing struct {
	stint.Store
	mu   sync.Mutex
	down bool
	lost bool // it knows none of the charges
}

func (f *failing) set(down bool) {
	f.mu.Lock()
	f.down = down
	f.mu.Unlock()
}

func (f *failing) forget(lost bool) {
	f.mu.Lock()
	f.lost = lost
	f.mu.Unlock()
}

func (f *failing) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if f.mu.Lock(); f.down {
		defer f.mu.Unlock()
		return stint.ErrUnavailable
	}
	f.mu.Unlock()
	return f.Store.Take(ctx, asks, ds)
}

func (f *failing) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	f.mu.Lock()
	down, lost := f.down, f.lost
	f.mu.Unlock()
	switch {
	case down:
		return stint.ErrUnavailable
	case lost:
		return &stint.InvalidError{Field: "charge", Want: "a time that is not in the future"}
	}
	return f.Store.Adjust(ctx, asks, ds)
}

// TestHold holds two places for an hour, by a limit that gives places back after half a minute.
func TestHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		store := &failing{Store: memory}
		l, err := stint.New(store, stint.Options{Limit: parse(t, "2/30s concurrency")})
		if err != nil {
			t.Fatal(err)
		}
		free := func(what string, want int64) {
			t.Helper()
			if d, err := l.Peek(t.Context(), "alice"); err != nil || d.Remaining != want {
				t.Errorf("%s: %+v, %v; want %d places free", what, d, err, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, d, err := l.Hold(ctx, "alice")
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		second, _, err := l.Hold(ctx, "alice")
		if err != nil {
			t.Fatal(err)
		}
		cancel() // a place outlives the call that took it
		denied, d, err := l.Hold(t.Context(), "alice")
		if err != nil || d.Allowed || d.RetryAfter <= 29*time.Second {
			t.Errorf("the third: %+v, %v", d, err)
		}
		denied()
		<-time.After(time.Hour)
		free("after an hour", 0)
		second()
		second()
		free("released twice", 1)

		// Two renewals may fail, and the third keeps the place.
		store.set(true)
		<-time.After(19 * time.Second)
		store.set(false)
		<-time.After(10 * time.Second)
		free("after an outage", 1)

		// If more fail, the place is lost, and taken again when that is possible.
		store.set(true)
		<-time.After(40 * time.Second)
		store.set(false)
		free("after a long outage", 2)
		<-time.After(10 * time.Second)
		free("taken again", 1)

		// The same if the store's clock was set back, so that it does not know the charge.
		store.forget(true)
		<-time.After(10 * time.Second)
		store.forget(false)
		<-time.After(25 * time.Second)
		free("after the clock was set back", 1)
		first()
		free("at the end", 2)

		// What cannot be released comes back by itself.
		release, _, err := l.Hold(t.Context(), "alice")
		if err != nil {
			t.Fatal(err)
		}
		store.set(true)
		release()
		store.set(false)
		free("not released", 1)
		<-time.After(30 * time.Second)
		free("half a minute later", 2)
		synctest.Wait() // and no goroutine is left
	})
}

func TestHoldRefuses(t *testing.T) {
	t.Parallel()
	l := newLimiter(t, "10/30s")
	release, _, err := l.Hold(t.Context(), "alice")
	if invalid := new(stint.InvalidError); !errors.As(err, &invalid) || invalid.Field != "limit" {
		t.Errorf("hold of a sliding_window: %v", err)
	}
	release()
	if release, _, err = newLimiter(t, "10/30s concurrency").Hold(t.Context(), ""); err == nil {
		t.Error("hold of no one")
	}
	release()
}
