package xds_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc/test/bufconn"

	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/grpclimit/xds"
)

// These tests are about time, which passes as it likes in a bubble. There are no
// sockets there, so connections are in memory.

const anywhere = "passthrough:///anywhere"

// TestPauses measures the time between attempts.
func TestPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1 << 16)
		s := serve(t, l)
		attempts := make(chan time.Time)
		var up atomic.Bool
		run(t, xds.Options{Server: anywhere, MinPause: time.Second}, func(c *xds.Client) {
			c.DialWith(func(ctx context.Context, _ string) (net.Conn, error) {
				if up.Load() {
					return l.DialContext(ctx)
				}
				select {
				case attempts <- time.Now():
				case <-ctx.Done():
				}
				return nil, errors.New("away")
			})
		})
		last, longest := next(t, attempts), time.Duration(0)
		for i := range 40 {
			bound := min(time.Second<<min(i, 5), 30*time.Second)
			select {
			case now := <-attempts:
				if now.Sub(last) > bound {
					t.Errorf("pause %d took %v, want %v at most", i+1, now.Sub(last), bound)
				}
				longest = max(longest, now.Sub(last))
				last = now
			case <-time.After(time.Minute):
				t.Fatal("no attempt in a minute")
			}
		}
		if longest < 5*time.Second { // 35 draws below a sixth: never
			t.Errorf("no pause took longer than %v", longest)
		}

		// Once there was an answer, pauses are short again.
		up.Store(true)
		q := <-s.sessions
		next(t, q.requests)
		for range 5 {
			q.answers <- answer("1")
			next(t, q.requests)
			close(q.answers)
			began := time.Now()
			q = <-s.sessions
			next(t, q.requests)
			if took := time.Since(began); took > time.Second {
				t.Errorf("a pause of %v after an answer, want 1s at most", took)
			}
		}
	})
}

// silent is a connection whose other side can go without a word.
type silent struct {
	net.Conn
	gone *atomic.Bool
}

func (s silent) Write(b []byte) (int, error) {
	if s.gone.Load() {
		return len(b), nil
	}
	return s.Conn.Write(b)
}

// TestSilence is about a connection that is dead and does not say so.
func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1 << 16)
		s := serve(t, l)
		var gone *atomic.Bool
		c := run(t, xds.Options{Server: anywhere, Ping: time.Minute}, func(c *xds.Client) {
			c.DialWith(func(ctx context.Context, _ string) (net.Conn, error) {
				conn, err := l.DialContext(ctx)
				gone = new(atomic.Bool)
				return silent{conn, gone}, err
			})
		})
		next(t, next(t, s.sessions).requests)
		synctest.Wait()
		began := time.Now()
		gone.Store(true)
		select {
		case q := <-s.sessions:
			next(t, q.requests)
		case <-time.After(time.Hour):
			t.Fatalf("not noticed in an hour: %+v", c.State())
		}
		if took := time.Since(began); took > 90*time.Second {
			t.Errorf("noticed after %v", took)
		}
	})
}

// TestHeldUp checks that a server cannot send more than is used.
func TestHeldUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const answers = 100
		l := bufconn.Listen(1 << 16)
		s := serve(t, l)
		using, used := make(chan struct{}), 0
		c := run(t, xds.Options{
			Server: anywhere,
			Use: func(ctx context.Context, _ []descriptor.Named) error {
				select {
				case <-using:
				case <-ctx.Done():
				}
				used++
				return nil
			},
		}, func(c *xds.Client) {
			c.DialWith(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })
		})
		q := next(t, s.sessions)
		next(t, q.requests)
		large := pack(t, &config.RateLimitConfig{Domain: strings.Repeat("x", 1<<16)})
		var sent atomic.Int64
		go func() {
			for range answers {
				q.answers <- answer("1", large)
				sent.Add(1)
			}
		}()
		synctest.Wait()
		if n := sent.Load(); n > answers/4 {
			t.Errorf("%d answers were taken while the first was not in use", n)
		}
		close(using)
		for range answers {
			next(t, q.requests)
		}
		c.stop()
		if used != answers {
			t.Errorf("used %d answers, want %d", used, answers)
		}
	})
}
