package deadline_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/internal/kit/deadline"
)

func TestShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const length = 800 * time.Millisecond
		s := deadline.New(t.Context(), length)
		for range 100 {
			begin := time.Now()
			ctx := s.Context()
			if again := s.Context(); again != ctx {
				t.Fatal("two calls at one moment have two contexts")
			}
			end, ok := ctx.Deadline()
			if got := end.Sub(begin); !ok || got < length || got > length+length/8 {
				t.Fatalf("a call is given %v, want %v to an eighth more", got, length)
			}
			<-time.After(30 * time.Millisecond)
		}
		<-s.Context().Done()
	})
}

func TestWithin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := deadline.New(context.Background(), time.Second)
		for name, c := range map[string]struct {
			timeout     time.Duration // 0: can be cancelled, and that is all
			least, most time.Duration
		}{
			"sooner":    {100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond},
			"later":     {time.Hour, time.Second, time.Second},
			"cancelled": {0, time.Second, time.Second},
		} {
			begin := time.Now()
			caller, leave := context.WithCancel(context.Background())
			if c.timeout > 0 {
				caller, leave = context.WithTimeout(context.Background(), c.timeout)
			}
			ctx, cancel := s.Within(caller)
			<-ctx.Done()
			if got := time.Since(begin); got < c.least || got > c.most {
				t.Errorf("%s: ended after %v, want %v to %v", name, got, c.least, c.most)
			}
			cancel()
			leave()
		}
		// A caller that cannot leave shares a context.
		ctx, _ := s.Within(context.Background())
		if ctx != s.Context() {
			t.Error("a caller that cannot leave has a context of its own")
		}
	})
}
