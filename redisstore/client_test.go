package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// with returns a store with a client of the program's own, and a prefix of its own.
func with(t testing.TB, client redis.UniversalClient, o redisstore.ClientOptions) *redisstore.Store {
	t.Helper()
	t.Cleanup(func() { _ = client.Close() })
	if o.Prefix == "" {
		o.Prefix = fmt.Sprint("t", stores.Add(1))
	}
	o.Timeout = 30 * time.Second
	s, err := redisstore.New(client, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// clientOf returns a client of the program's own for a URL of tests.
func clientOf(url string) redis.UniversalClient {
	scheme, addrs, _ := strings.Cut(url, "://")
	o := &redis.UniversalOptions{
		Addrs: strings.Split(strings.TrimSuffix(addrs, "/"), ","), ContextTimeoutEnabled: true,
		DialTimeout: 30 * time.Second, ReadTimeout: 30 * time.Second, PoolTimeout: 30 * time.Second,
	}
	if scheme == "redis+cluster" {
		return redis.NewClusterClient(o.Cluster())
	}
	return redis.NewClient(o.Simple())
}

// TestClient runs the suite with clients of the program's own.
func TestClient(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"single", "cluster"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := topologies[name](t)
			suite := func(t testing.TB, now func() time.Time) stint.Store {
				t.Helper()
				return with(t, clientOf(url), redisstore.ClientOptions{Now: now})
			}
			if name == "single" {
				storetest.Run(t, suite)
			} else {
				storetest.RunExcept(t, suite, "many asks")
			}
		})
	}
}

// TestClientShares counts with what Open returns.
func TestClientShares(t *testing.T) {
	t.Parallel()
	url := testredis.Shared(t).URL()
	prefix := fmt.Sprint("t", stores.Add(1))
	opened := openURL(t, add(url, "prefix="+prefix), redisstore.Options{})
	own := with(t, clientOf(url), redisstore.ClientOptions{Prefix: prefix})
	limit, err := stint.ParseLimit("10/1000h fixed_window")
	if err != nil {
		t.Fatal(err)
	}
	ds := make([]stint.Decision, 1)
	for i, s := range []stint.Store{opened, own, opened, own} {
		if err := s.Take(t.Context(), []stint.Ask{{Key: stint.Key{Subject: "a", Name: "b"}, Limit: limit, Cost: 1}}, ds); err != nil || ds[0].Remaining != int64(9-i) {
			t.Errorf("%d remain after %d, %v", ds[0].Remaining, i+1, err)
		}
	}
	if _, _, err := own.Side().Get(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "Open") {
		t.Errorf("other data: %v", err)
	}
	if err := own.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestClientOnce loses the reply to a call that was applied. The client would repeat the call, and charge it twice.
func TestClientOnce(t *testing.T) {
	t.Parallel()
	var cut atomic.Bool
	client := redis.NewClient(&redis.Options{
		Addr: testredis.Shared(t).Addr(), ContextTimeoutEnabled: true, MaxRetries: 3, ReadTimeout: 30 * time.Second,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, network, addr)
			return &cutting{Conn: conn, cut: &cut}, err
		},
	})
	s := with(t, client, redisstore.ClientOptions{})
	take := func() (int64, error) {
		out, err := storetest.Take(t.Context(), s, ask("alice", 10))
		if err != nil {
			return 0, err
		}
		return out[0].Remaining, nil
	}
	if n, err := take(); n != 9 || err != nil {
		t.Fatal(n, err)
	}
	cut.Store(true)
	if _, err := take(); !errors.Is(err, stint.ErrUnavailable) || errors.Is(err, stint.ErrNotApplied) {
		t.Errorf("without its reply: %v", err)
	}
	if n, err := take(); n != 7 || err != nil {
		t.Errorf("%d remain, %v; want 7 after three takes", n, err)
	}
}

// cutting is a connection that ends in place of the next reply.
type cutting struct {
	net.Conn
	cut   *atomic.Bool
	ended bool
}

func (c *cutting) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.ended = c.ended || n > 0 && c.cut.Swap(false); c.ended {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

// TestClientRejected says what is wrong with a client.
func TestClientRejected(t *testing.T) {
	t.Parallel()
	obeying := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true})
	ring := redis.NewRing(&redis.RingOptions{})
	defer obeying.Close()
	defer ring.Close()
	plain := redis.NewClient(&redis.Options{})
	defer plain.Close()
	for _, c := range []struct {
		client redis.UniversalClient
		o      redisstore.ClientOptions
		says   string
	}{
		{nil, redisstore.ClientOptions{}, "client"},
		{(*redis.Client)(nil), redisstore.ClientOptions{}, "client"},
		{plain, redisstore.ClientOptions{}, "ContextTimeoutEnabled"},
		{ring, redisstore.ClientOptions{}, "redis+ring://"},
		{obeying, redisstore.ClientOptions{Prefix: "a/b"}, "Prefix"},
		{obeying, redisstore.ClientOptions{Timeout: time.Hour}, "Timeout"},
	} {
		if s, err := redisstore.New(c.client, c.o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%T: %v, %v; want %s", c.client, s, err, c.says)
		}
	}
}
