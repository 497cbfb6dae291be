package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// TestRingServers compares what a store says about the servers of a ring with where the counters are.
func TestRingServers(t *testing.T) {
	t.Parallel()
	r := testredis.SharedRing(t)
	s := open(t, r.URL(), redisstore.Options{})
	var want []string
	for _, n := range r.Nodes() {
		want = append(want, n.Addr())
	}
	if got := s.Servers(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("%v, want %v", got, want)
	}
	sum := 0.0
	for name, share := range s.Shares() {
		if sum += share; math.Abs(3*share-1) > 0.1 || !slices.Contains(want, name) {
			t.Errorf("the share of %s is %v", name, share)
		}
	}
	if sum != 1 {
		t.Errorf("the shares add up to %v", sum)
	}
	for i := range 50 {
		a := ask(fmt.Sprint("user:", i), 10)
		if _, err := storetest.Take(t.Context(), s, a); err != nil {
			t.Fatal(err)
		}
		key := string(a[0].Limit.AppendKind([]byte(s.Access().Prefix + ":" + a[0].Key.String() + ":")))
		for _, n := range r.Nodes() {
			if found := n.Do(t, "EXISTS", key) == int64(1); found != (s.Server(&a[0]) == n.Addr()) {
				t.Errorf("%s is said to be on %s; on %s: %v", key, s.Server(&a[0]), n.Addr(), found)
			}
		}
	}
	if err := errors.Join(s.Ping(t.Context()), s.PingServer(t.Context(), want[0])); err != nil {
		t.Error(err)
	}
}

// TestRingTakesTogether takes over several servers at once, in hierarchies that deny here and there. What
// was admitted is what was charged, to the unit.
func TestRingTakesTogether(t *testing.T) {
	t.Parallel()
	s := open(t, testredis.SharedRing(t).URL(), redisstore.Options{})
	const users, workers, rounds = 12, 8, 150
	// on returns a subject on the server that has this number.
	on := func(server int, name string) string {
		for i := 0; ; i++ {
			subject := fmt.Sprint(name, "/", i)
			if a := ask(subject, 1); s.Server(&a[0]) == s.Servers()[server] {
				return subject
			}
		}
	}
	asks := func(user int) []stint.Ask {
		a := append(ask(on(user%3, fmt.Sprint("user:", user)), 60), ask(on(1, fmt.Sprint("tenant:", user%4)), 150)...)
		return append(a, ask(on(2, "everyone"), 400)...)
	}
	var passed [users]atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for n := range rounds {
				user := (n*5 + w) % users
				out, err := storetest.Take(t.Context(), s, asks(user))
				if err != nil {
					t.Error(err)
					return
				}
				if !slices.ContainsFunc(out, func(d stint.Decision) bool { return !d.Allowed }) {
					passed[user].Add(1)
				}
			}
		})
	}
	wg.Wait()
	used, all := map[string]int64{}, int64(0)
	for user := range users {
		all += passed[user].Load()
		for _, a := range asks(user) {
			used[a.Key.Subject] += passed[user].Load()
		}
	}
	if all == 0 || all > 400 {
		t.Errorf("%d admitted of 400", all)
	}
	wait.Nil(t, "what is charged is what was admitted", func() error { // undos may still be under way
		for user := range users {
			out, err := storetest.Take(t.Context(), s, looks(asks(user)))
			if err != nil {
				return err
			}
			for i, a := range asks(user) {
				if got := out[i].Limit - out[i].Remaining; got != used[a.Key.Subject] {
					return fmt.Errorf("%s: %d charged, %d admitted", a.Key.Subject, got, used[a.Key.Subject])
				}
			}
		}
		return nil
	})
	if st := s.Stats(); st.Undone == 0 || st.Kept > 0 {
		t.Errorf("%+v; want some undone, and none kept", st)
	}
}

// TestRingServerDown kills a server under load. Takes of its subjects fail, and no others. When it is back,
// it decides again.
func TestRingServerDown(t *testing.T) {
	t.Parallel()
	r := testredis.StartRing(t, 3)
	s := openURL(t, r.URL(), redisstore.Options{})
	dead := r.Nodes()[1]
	var gone, well [][]stint.Ask
	for i := 0; len(gone) < 10 || len(well) < 10; i++ {
		a := ask(fmt.Sprint("user:", i), 1_000_000)
		if s.Server(&a[0]) == dead.Addr() {
			gone = append(gone, a)
		} else {
			well = append(well, a)
		}
	}
	wait.Nil(t, "a ping", func() error { return s.Ping(t.Context()) })
	var stop atomic.Bool
	var takes atomic.Int64
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; !stop.Load(); i++ {
				if _, err := storetest.Take(t.Context(), s, well[i%len(well)]); err != nil {
					t.Errorf("a subject of a server that is up: %v", err)
					return
				}
				takes.Add(1)
			}
		})
	}
	down := func() error {
		_, err := storetest.Take(t.Context(), s, gone[0])
		if err == nil {
			return errors.New("it still decides")
		}
		only(t, err)
		return nil
	}
	dead.Kill(t)
	wait.Nil(t, "takes of the dead server's subjects fail", down)
	before := takes.Load()
	for _, a := range gone {
		if _, err := storetest.Take(t.Context(), s, a); !errors.Is(err, stint.ErrUnavailable) {
			t.Errorf("a subject of the dead server: %v", err)
		}
		// A take over two servers charges neither, and says which has failed.
		both := append(slices.Clone(a), ask("both", 10)...)
		for i := 0; s.Server(&both[1]) == dead.Addr(); i++ {
			both[1].Key.Subject = fmt.Sprint("both:", i)
		}
		_, err := storetest.Take(t.Context(), s, both)
		var by interface{ FailedServers() []string }
		if !errors.As(err, &by) || !slices.Equal(by.FailedServers(), []string{dead.Addr()}) {
			t.Errorf("%v; want it to blame %s", err, dead.Addr())
		}
		wait.Nil(t, "nothing is charged", func() error {
			out, err := storetest.Take(t.Context(), s, looks(both[1:]))
			if err == nil && out[0].Remaining != 10 {
				err = fmt.Errorf("%d remain of 10", out[0].Remaining)
			}
			return err
		})
	}
	wait.Nil(t, "takes of others go on", func() error {
		if n := takes.Load() - before; n < 100 {
			return fmt.Errorf("%d takes of others", n)
		}
		return nil
	})
	if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), dead.Addr()) || strings.Contains(err.Error(), r.Nodes()[0].Addr()+":") {
		t.Errorf("ping: %v; want %s alone", err, dead.Addr())
	}
	if err := s.PingServer(t.Context(), r.Nodes()[0].Addr()); err != nil {
		t.Error(err)
	}
	dead.Restart(t)
	wait.Nil(t, "the server decides again", func() error { _, err := storetest.Take(t.Context(), s, gone[0]); return err })
	stop.Store(true)
	wg.Wait()
}

// TestRingServerHangs stops a server, which keeps its connections. Takes of its subjects wait as long as
// their callers do, and others not at all.
func TestRingServerHangs(t *testing.T) {
	t.Parallel()
	r := testredis.StartRing(t, 3)
	s := openURL(t, r.URL(), redisstore.Options{})
	wait.Nil(t, "a ping", func() error { return s.Ping(t.Context()) })
	r.Nodes()[1].Pause(t)
	defer r.Nodes()[1].Resume(t)
	hung := 0
	for i := range 60 {
		a := ask(fmt.Sprint("user:", i), 10)
		ctx, cancel := t.Context(), func() {}
		hangs := s.Server(&a[0]) == r.Nodes()[1].Addr()
		if hangs {
			ctx, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
			hung++
		}
		if _, err := storetest.Take(ctx, s, a); hangs != errors.Is(err, stint.ErrUnavailable) || !hangs && err != nil {
			t.Errorf("%s: %v", s.Server(&a[0]), err)
		}
		cancel()
	}
	if hung == 0 {
		t.Error("no subject is there")
	}
}

// TestRingStartsApart opens a store while one of its servers is down: others decide at once, and this one
// once it is up.
func TestRingStartsApart(t *testing.T) {
	t.Parallel()
	r := testredis.StartRing(t, 2)
	dead := r.Nodes()[0]
	dead.Kill(t)
	s := openURL(t, r.URL(), redisstore.Options{})
	for i := range 30 {
		a := ask(fmt.Sprint("user:", i), 10)
		_, err := storetest.Take(t.Context(), s, a)
		if isDead := s.Server(&a[0]) == dead.Addr(); isDead != errors.Is(err, stint.ErrNotApplied) || !isDead && err != nil {
			t.Errorf("%s: %v", s.Server(&a[0]), err)
		}
	}
	dead.Restart(t)
	wait.Nil(t, "a ping", func() error { return s.Ping(t.Context()) })
}
