package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// This file is long: values, messages and presence, with the failures that they share.

func TestSideValues(t *testing.T) {
	t.Parallel()
	for name, urlOf := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, ctx := open(t, urlOf(t), redisstore.Options{}).Side(), t.Context()
			want := func(name, value string, exists bool) {
				t.Helper()
				if v, ok, err := x.Get(ctx, name); string(v) != value || ok != exists || err != nil {
					t.Fatalf("%s: %q, %v, %v; want %q, %v", name, v, ok, err, value, exists)
				}
			}
			want("a", "", false)
			for _, v := range []string{"one", "", strings.Repeat("\x00\xff", redisstore.MaxSideValue/2)} {
				if err := x.Set(ctx, "a", []byte(v), time.Minute); err != nil {
					t.Fatal(err)
				}
				want("a", v, true)
			}
			if err := x.Set(ctx, "a", nil, time.Nanosecond); err != nil {
				t.Fatal(err)
			}
			wait.Nil(t, "the value expires", func() error {
				if _, ok, err := x.Get(ctx, "a"); ok || err != nil {
					return fmt.Errorf("still there, %w", err)
				}
				return nil
			})
			var names []string
			for i := range 1200 {
				names = append(names, "many"+strconv.Itoa(i))
			}
			for _, name := range []string{names[0], names[600], names[1199], "kept"} {
				if err := x.Set(ctx, name, []byte("x"), time.Minute); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(x.Delete(ctx, names...), x.Delete(ctx)); err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				want(name, "", false)
			}
			want("kept", "x", true)
		})
	}
}

// TestSideApart uses a prefix and names that look like counters of other stores.
func TestSideApart(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	counter := "{alice}:api:sw"
	var stores []*redisstore.Store
	for _, prefix := range []string{"rl", "rl:side", "rl:present", "rl:side:", "rl:"} {
		stores = append(stores, openURL(t, server.URL()+"?prefix="+prefix, redisstore.Options{}))
	}
	keys := int64(0)
	for i, s := range stores {
		x := s.Side()
		for _, name := range []string{counter, ":" + counter, "side/" + counter, "/" + counter} {
			if _, ok, err := x.Get(t.Context(), name); ok || err != nil {
				t.Errorf("store %d has %s already, or %v", i, name, err)
			}
			if err := x.Set(t.Context(), name, []byte("x"), time.Minute); err != nil {
				t.Error(err)
			}
			if all, err := x.Present(t.Context(), name, "me", time.Minute); len(all) != 1 || err != nil {
				t.Errorf("store %d: %v present in %s, %v; want 1", i, all, name, err)
			}
			keys += 2
		}
		if out, err := storetest.Take(t.Context(), s, ask("alice", 10)); err != nil || out[0].Remaining != 9 {
			t.Errorf("store %d: %v, %v; want 9 remaining", i, out, err)
		}
		keys++
	}
	if n := server.Do(t, "DBSIZE"); n != keys {
		t.Errorf("%d keys, want %d", n, keys)
	}
}

func TestSideRefuses(t *testing.T) {
	t.Parallel()
	x, ctx := open(t, testredis.Shared(t).URL(), redisstore.Options{}).Side(), t.Context()
	name, value := strings.Repeat("n", redisstore.MaxSideName), strings.Repeat("v", redisstore.MaxSideValue)
	get := func(name string) error { _, _, err := x.Get(ctx, name); return err }
	set := func(name, value string, ttl time.Duration) error { return x.Set(ctx, name, []byte(value), ttl) }
	present := func(group, node string, ttl time.Duration) error {
		_, err := x.Present(ctx, group, node, ttl)
		return err
	}
	left := func(group, node string) error {
		_, err := x.Left(ctx, group, node)
		return err
	}
	for _, c := range []struct {
		err  error
		want string // "": nothing
	}{
		{get(name), ""},
		{set(name, value, 1<<63-1), ""},
		{x.Delete(ctx, name), ""},
		{x.Publish(ctx, name, value), ""},
		{present(name, name, 1<<63-1), ""},
		{x.Leave(ctx, name, name, time.Minute), ""},

		{get(""), `name "": want 1 to 512 bytes, not 0`},
		{get(name + "n"), "want 1 to 512 bytes, not 513"},
		{set("", value, 1), "name"},
		{set("a", value+"v", 1), `value "65537 bytes": want at most 65536`},
		{set("a", value, 0), `ttl "0s": want a duration above 0`},
		{set("a", value, -time.Second), "ttl"},
		{x.Delete(ctx, "a", name+"n"), "name"},
		{x.Publish(ctx, "", value), "channel"},
		{x.Publish(ctx, "a", value+"v"), "message"},
		{present("", "n", 1), "group"},
		{present("g", "", 1), "node"},
		{present("g", "n", 0), "ttl"},
		{x.Leave(ctx, "g", "n", 0), "ttl"},
		{left("", "n"), "group"},
		{x.Leave(ctx, "", "n", 1), "group"},
		{x.Leave(ctx, "g", name+"n", 1), "node"},
	} {
		var invalid *stint.InvalidError
		switch {
		case c.want == "":
			if c.err != nil {
				t.Error(c.err)
			}
		case !errors.As(c.err, &invalid) || !strings.Contains(c.err.Error(), c.want):
			t.Errorf("%v; want an InvalidError that says %s", c.err, c.want)
		}
	}
}

func TestSidePresent(t *testing.T) {
	t.Parallel()
	for name, urlOf := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, ctx := open(t, urlOf(t), redisstore.Options{}).Side(), t.Context()
			for _, c := range []struct {
				group, node string
				ttl         time.Duration
				want        int
			}{
				{"g", "a", time.Hour, 1},
				{"g", "b", time.Hour, 2},
				{"g", "c", 2 * time.Hour, 3},
				{"other", "a", time.Hour, 1},
				{"g", "\x00{\xff}", time.Hour, 4},
				{"g", "a", time.Millisecond, 4}, // it does not shorten the group's life
			} {
				before := time.Now().Add(-time.Millisecond)
				all, err := x.Present(ctx, c.group, c.node, c.ttl)
				if len(all) != c.want || err != nil {
					t.Fatalf("%+v: %v, %v", c, all, err)
				}
				i := slices.IndexFunc(all, func(p redisstore.Presence) bool { return p.Node == c.node })
				if i < 0 || time.UnixMilli(all[i].Until).Before(before.Add(c.ttl)) || time.Until(time.UnixMilli(all[i].Until)) > c.ttl {
					t.Fatalf("%+v: %v", c, all)
				}
			}
			for range 2 {
				if err := x.Leave(ctx, "g", "c", time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			wait.Nil(t, "a's time ends", func() error {
				if all, err := x.Present(ctx, "g", "b", time.Hour); len(all) != 2 || err != nil {
					return fmt.Errorf("%v present, %w", all, err)
				}
				return nil
			})
			// Only who has said so has left.
			for node, want := range map[string]bool{"a": false, "b": false, "c": true, "nobody": false} {
				if left, err := x.Left(ctx, "g", node); left != want || err != nil {
					t.Errorf("%s has left: %v, %v; want %v", node, left, err, want)
				}
			}
			if left, err := x.Left(ctx, "other", "c"); left || err != nil {
				t.Errorf("c has left another group: %v, %v", left, err)
			}
		})
	}
}

// TestSidePresentExpires checks that a group expires with its last member, not with its first.
func TestSidePresentExpires(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	x := open(t, server.URL(), redisstore.Options{}).Side()
	for _, c := range []struct{ ttl, want time.Duration }{
		{time.Hour, time.Hour},
		{time.Minute, time.Hour},
		{2 * time.Hour, 2 * time.Hour},
	} {
		server.Do(t, "SCRIPT", "FLUSH")
		if _, err := x.Present(t.Context(), "g", c.ttl.String(), c.ttl); err != nil {
			t.Fatal(err)
		}
		key := server.Do(t, "KEYS", "*").([]any)[0].(string)
		if ms := server.Do(t, "PTTL", key).(int64); ms > c.want.Milliseconds() || ms < (c.want-time.Minute).Milliseconds() {
			t.Errorf("after %v the group lives for %dms, want %v", c.ttl, ms, c.want)
		}
	}
}

// ear is a subscriber.
type ear struct {
	heard  chan string // "(connected)", or a message
	cancel context.CancelFunc
	done   chan struct{}
}

const connected = "(connected)"

// listen subscribes until the test ends. It returns when it is subscribed.
func listen(t testing.TB, x *redisstore.Side, channel string) *ear {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	e := &ear{heard: make(chan string, 1000), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		x.Subscribe(ctx, channel, func(message string, again bool) {
			if again {
				message += connected
			}
			e.heard <- message
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-e.done
	})
	e.want(t, connected)
	return e
}

// want waits for the next message.
func (e *ear) want(t testing.TB, want string) {
	t.Helper()
	var m string
	wait.For(t, fmt.Sprintf("%q", want), func() bool {
		select {
		case m = <-e.heard:
			return true
		default:
			return false
		}
	})
	if m != want {
		t.Fatalf("heard %q, want %q", m, want)
	}
}

// reaches waits until messages arrive again after a lost connection.
func (e *ear) reaches(t testing.TB, x *redisstore.Side) {
	t.Helper()
	sent := 0
	wait.Nil(t, "a message", func() error {
		if sent++; sent%20 == 1 { // some may be lost
			if err := x.Publish(t.Context(), "news", "back"); err != nil {
				return err
			}
		}
		for {
			select {
			case m := <-e.heard:
				if m == "back" {
					return nil
				}
			default:
				return errors.New("heard nothing")
			}
		}
	})
}

func TestSideMessages(t *testing.T) {
	t.Parallel()
	for name, urlOf := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := urlOf(t)
			s := open(t, url, redisstore.Options{})
			other := open(t, url, redisstore.Options{}).Side()
			x := s.Side()
			ears := []*ear{listen(t, x, "news"), listen(t, x, "news"), listen(t, s.Side(), "{news}")}
			if err := other.Publish(t.Context(), "news", "of another prefix"); err != nil {
				t.Fatal(err)
			}
			// More than can wait; no one is told twice, and none of another's.
			var want []string
			for i := range 200 {
				want = append(want, fmt.Sprintf("%d\x00\xff", i))
				if err := x.Publish(t.Context(), "news", want[i]); err != nil {
					t.Fatal(err)
				}
			}
			if err := x.Publish(t.Context(), "{news}", ""); err != nil {
				t.Fatal(err)
			}
			for _, m := range want {
				ears[0].want(t, m)
				ears[1].want(t, m)
			}
			ears[2].want(t, "")
			for i, e := range ears {
				if len(e.heard) > 0 {
					t.Errorf("ear %d: %q more", i, <-e.heard)
				}
			}
			if _, err := storetest.Take(t.Context(), s, ask("alice", 10)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSideSlow has a subscriber that blocks. Counters and other subscribers are not delayed.
func TestSideSlow(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL()+"?timeout=500ms&dial_timeout=30s", redisstore.Options{}) // after which a connection is dropped
	x := openURL(t, server.URL(), redisstore.Options{}).Side()
	busy, again := make(chan struct{}), make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		s.Side().Subscribe(ctx, "news", func(_ string, connected bool) {
			if connected {
				again <- struct{}{}
				return
			}
			<-busy
		})
	})
	<-again
	quick := listen(t, x, "news")
	for i := range 500 {
		if err := x.Publish(t.Context(), "news", strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 500 {
		quick.want(t, strconv.Itoa(i))
	}
	wait.Nil(t, "a take", func() error { _, err := storetest.Take(t.Context(), s, ask("alice", 10)); return err })
	listeners(t, server, subscribed(t, server), 1)
	for len(again) > 0 { // before it was blocked
		<-again
	}
	close(busy)
	wait.For(t, "the slow one is told that it had been disconnected", func() bool { return len(again) > 0 })
	cancel()
	wg.Wait()
}

// subscribed returns the only channel that has subscribers.
func subscribed(t testing.TB, server *testredis.Server) string {
	t.Helper()
	channels := server.Do(t, "PUBSUB", "CHANNELS", "*side/*").([]any)
	if len(channels) != 1 {
		t.Fatalf("channels %v, want one", channels)
	}
	return channels[0].(string)
}

// listeners waits for a number of subscribed connections.
func listeners(t testing.TB, server *testredis.Server, channel string, want int64) {
	t.Helper()
	wait.Nil(t, "the connections that listen", func() error {
		if n := server.Do(t, "PUBSUB", "NUMSUB", channel).([]any)[1]; n != want {
			return fmt.Errorf("%v connections listen, want %d", n, want)
		}
		return nil
	})
}

// TestSideSilence breaks the connection without closing it.
func TestSideSilence(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	proxy := testredis.StartProxy(t, server)
	x := openURL(t, proxy.URL()+"?timeout=500ms&dial_timeout=500ms", redisstore.Options{}).Side()
	e := listen(t, x, "news")
	channel := subscribed(t, server)

	proxy.Forget()
	e.want(t, connected)
	e.reaches(t, x)

	proxy.Set(t, testredis.Fault{Swallow: true})
	listeners(t, server, channel, 0)
	if err := x.Publish(t.Context(), "news", "lost"); !errors.Is(err, stint.ErrUnavailable) {
		t.Errorf("publish: %v; want ErrUnavailable", err)
	}
	proxy.Set(t, testredis.Fault{})
	e.reaches(t, x)
}

// TestSideOutage subscribes while Redis is down, and stops Redis again later.
func TestSideOutage(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	server.Kill(t)
	x := openURL(t, server.URL()+"?timeout=300ms&dial_timeout=300ms", redisstore.Options{}).Side()
	unavailable := func() {
		t.Helper()
		_, _, get := x.Get(t.Context(), "a")
		_, present := x.Present(t.Context(), "g", "me", time.Minute)
		for i, err := range []error{
			get, present, x.Set(t.Context(), "a", nil, time.Minute), x.Delete(t.Context(), "a"),
			x.Publish(t.Context(), "news", "x"), x.Leave(t.Context(), "g", "me", time.Minute),
		} {
			if !errors.Is(err, stint.ErrUnavailable) {
				t.Errorf("%d: %v; want ErrUnavailable", i, err)
			}
		}
	}
	unavailable()
	server.Restart(t)
	e := listen(t, x, "news")
	server.Kill(t)
	unavailable()
	server.Restart(t)
	e.want(t, connected)
	e.reaches(t, x)

	patient := open(t, server.URL(), redisstore.Options{}).Side()
	if _, _, err := patient.Get(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	watch := torture.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := patient.Get(ctx, "a"); !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("get: %v; want ErrUnavailable because of the deadline", err)
	}
	torture.AtMost(t, "until a deadline of 20ms was noticed", watch.Took(), 200*time.Millisecond)
	unavailable()
	server.Resume(t)
}

// TestSideReplaced has sentinels promote another primary while the old one keeps running and does not
// notice, as if they could not reach it.
func TestSideReplaced(t *testing.T) {
	t.Parallel()
	servers, next := testredis.StartSentinels(t), testredis.Start(t)
	x := open(t, servers.URL(), redisstore.Options{}).Side()
	e := listen(t, x, "news")
	host, port, _ := strings.Cut(next.Addr(), ":")
	name := servers.URL()[strings.LastIndexByte(servers.URL(), '/')+1:]
	for _, s := range servers.Nodes() {
		s.Do(t, "SENTINEL", "REMOVE", name)
		s.Do(t, "SENTINEL", "MONITOR", name, host, port, "2")
	}
	e.want(t, connected)
	next.Do(t, "PUBLISH", subscribed(t, next), "here")
	e.want(t, "here")
}

// TestSideACL uses Side as a user with the documented ACL rules.
func TestSideACL(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	allow(t, "stint", server)
	x := openURL(t, "redis://stint:PASSWORD@"+server.Addr(), redisstore.Options{}).Side()
	e := listen(t, x, "news")
	_, _, get := x.Get(t.Context(), "a")
	_, present := x.Present(t.Context(), "g", "me", time.Minute)
	_, left := x.Left(t.Context(), "g", "me")
	if err := errors.Join(
		get, present, left, x.Set(t.Context(), "a", nil, time.Minute), x.Delete(t.Context(), "a"),
		x.Publish(t.Context(), "news", "x"), x.Leave(t.Context(), "g", "me", time.Minute),
	); err != nil {
		t.Error(err)
	}
	e.want(t, "x")
}

// TestSideEnds ends subscriptions by their context and by closing the store, during a call, and checks that
// no goroutines remain.
func TestSideEnds(t *testing.T) { //nolint:paralleltest // it looks at all goroutines
	for name, urlOf := range topologies {
		t.Run(name, func(t *testing.T) {
			url := urlOf(t)
			before := runtime.NumGoroutine()
			s := open(t, url, redisstore.Options{})
			x := s.Side()
			e, others := listen(t, x, "news"), []*ear{listen(t, x, "news"), listen(t, x, "other")}
			e.cancel()
			<-e.done

			inside, closed := make(chan struct{}), make(chan struct{})
			var err error
			go func() {
				defer close(closed)
				x.Subscribe(t.Context(), "news", func(string, bool) {
					close(inside)
					for !errors.Is(err, stint.ErrClosed) { // until the store closes, and is not kept from it
						_, _, err = x.Get(t.Context(), "a")
					}
				})
			}()
			<-inside
			s.Close()
			<-closed
			for _, e := range others {
				<-e.done
			}
			x.Subscribe(t.Context(), "news", func(string, bool) { t.Error("told of a closed store") })
			if err := x.Set(t.Context(), "a", nil, time.Minute); !errors.Is(err, stint.ErrClosed) {
				t.Errorf("set: %v; want ErrClosed", err)
			}
			wait.Nil(t, "no goroutines are left", func() error {
				if n := runtime.NumGoroutine(); n > before {
					buf := make([]byte, 1<<20)
					return fmt.Errorf("%d goroutines, %d before: %s", n, before, buf[:runtime.Stack(buf, true)])
				}
				return nil
			})
		})
	}
}
