package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

func parse(t testing.TB, text string) stint.Limit {
	t.Helper()
	l, err := stint.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// takeOne takes from a subject's counter, or peeks if the cost is 0.
func takeOne(t testing.TB, s stint.Store, subject string, l stint.Limit, cost int64) stint.Decision {
	t.Helper()
	out, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: stint.Key{Subject: subject, Name: "api"}, Limit: l, Cost: cost}})
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// stuck is a cluster with an unfinished take: it has charged alice, and waits for bob, whose server is
// paused and will deny.
type stuck struct {
	clock *storetest.Clock
	store *redisstore.Store // that takes
	other *redisstore.Store // someone else's
	alice stint.Limit
	deaf  *testredis.Server // bob's
	done  chan error        // receives the error of the take
	leave func()            // makes the caller of the take leave
	free  func()            // lets bob deny, and waits until the charge is undone
}

func half(t *testing.T, c *testredis.Cluster, alice stint.Limit, cost int64, prepare func(*stuck)) *stuck {
	t.Helper()
	bob := elsewhere(t, c, "bob", "alice")
	url, clock := addPrefix(c.URL()), storetest.NewClock()
	h := &stuck{
		clock: clock, alice: alice, deaf: c.Primary(t, "{"+bob+"}"), done: make(chan error, 1),
		store: openURL(t, url, redisstore.Options{Now: clock.Now}), other: openURL(t, url, redisstore.Options{Now: clock.Now}),
	}
	once := parse(t, "1/1000h")
	takeOne(t, h.other, bob, once, 1)
	takeOne(t, h.store, bob, once, 0) // it is connected
	if prepare != nil {
		prepare(h)
	}
	left := takeOne(t, h.other, "alice", alice, 0).Remaining
	ctx, leave := context.WithCancel(t.Context())
	t.Cleanup(leave)
	h.leave = leave
	h.deaf.Pause(t)
	go func() {
		out, err := storetest.Take(ctx, h.store, []stint.Ask{
			{Key: stint.Key{Subject: "alice", Name: "api"}, Limit: alice, Cost: cost},
			{Key: stint.Key{Subject: bob, Name: "api"}, Limit: once, Cost: 1},
		})
		if err == nil && out[1].Allowed {
			err = errors.New("bob was admitted twice")
		}
		h.done <- err
	}()
	wait.For(t, "alice is charged", func() bool { return takeOne(t, h.other, "alice", alice, 0).Remaining < left })
	h.free = func() {
		t.Helper()
		h.deaf.Resume(t)
		if err := <-h.done; err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// TestUndo undoes charges in one cluster, whose servers are paused and, at last, killed.
func TestUndo(t *testing.T) {
	t.Parallel()
	c := testredis.StartPrimaries(t, 3)
	for _, row := range []struct {
		name string
		run  func(*testing.T, *testredis.Cluster)
	}{
		{"late", undoLate}, {"part", undoPart}, {"twin", undoTwin}, {"left", undoLeft}, {"does not hold", undoDoesNotHold}, {"kept", undoKept},
	} {
		t.Run(row.name, func(t *testing.T) { row.run(t, c) }) //nolint:paralleltest // they pause the same servers
	}
}

// undoLate undoes a charge after it has recovered and others have charged: their charges must stay.
func undoLate(t *testing.T, c *testredis.Cluster) {
	t.Helper()
	for text, later := range map[string]time.Duration{
		"1/1m fixed_window":            time.Minute,
		"1/1m":                         2 * time.Minute,
		"1/1m sliding_log":             time.Minute,
		"1000/1s burst=1 token_bucket": time.Second,
	} {
		t.Run(text, func(t *testing.T) { //nolint:paralleltest // they pause the same server
			h := half(t, c, parse(t, text), 1, nil)
			h.clock.Add(later)
			first := takeOne(t, h.other, "alice", h.alice, 1)
			h.free()
			if second := takeOne(t, h.other, "alice", h.alice, 1); !first.Allowed || second.Allowed {
				t.Errorf("admitted %v and %v at one instant, of 1", first.Allowed, second.Allowed)
			}
		})
	}
}

// undoPart undoes a charge that has partly recovered, or that is among others.
func undoPart(t *testing.T, c *testredis.Cluster) {
	t.Helper()
	for _, row := range []struct {
		limit string
		later time.Duration
		want  int64 // of 10 that remain, after 4 to be undone and 3 more later
	}{
		{"10/1m fixed_window", time.Second, 7},
		{"10/1m", time.Second, 7},
		{"10/1m", time.Minute, 7}, // from what was carried
		{"10/1m sliding_log", time.Second, 7},
		{"10/10s token_bucket", 2 * time.Second, 7},          // 2 of the 4 have come back by themselves
		{"10/10s burst=9 leaky_bucket", time.Second, 10 - 3}, // 1 of the 4
	} {
		t.Run(row.limit, func(t *testing.T) { //nolint:paralleltest // they pause the same server
			h := half(t, c, parse(t, row.limit), 4, nil)
			h.clock.Add(row.later)
			takeOne(t, h.other, "alice", h.alice, 3)
			h.free()
			if got := takeOne(t, h.other, "alice", h.alice, 0).Remaining; got != row.want {
				t.Errorf("%d remain, want %d", got, row.want)
			}
		})
	}
}

// undoTwin undoes a charge on a log that looks the same as before, but is not.
func undoTwin(t *testing.T, c *testredis.Cluster) {
	t.Helper()
	h := half(t, c, parse(t, "20/1m sliding_log"), 1, func(h *stuck) {
		takeOne(t, h.other, "alice", h.alice, 10)
		h.clock.Add(10 * time.Second)
	})
	h.clock.Add(20 * time.Second)
	give := stint.Ask{Key: stint.Key{Subject: "alice", Name: "api"}, Limit: h.alice, Cost: -3}
	if _, err := storetest.Adjust(t.Context(), h.other, []stint.Ask{give}); err != nil {
		t.Fatal(err)
	}
	takeOne(t, h.other, "alice", h.alice, 3)
	h.free()
	h.clock.Add(31 * time.Second) // the 10 have left, the 3 have not
	if got := takeOne(t, h.other, "alice", h.alice, 0).Remaining; got != 17 {
		t.Errorf("%d remain, want 17", got)
	}
}

// undoLeft has the caller leave, and undoes the charge all the same.
func undoLeft(t *testing.T, c *testredis.Cluster) {
	t.Helper()
	h := half(t, c, parse(t, "10/1m"), 1, nil)
	h.leave()
	if err := <-h.done; !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("take: %v; want ErrUnavailable, because the caller has left", err)
	}
	h.deaf.Resume(t)
	wait.For(t, "alice has her unit back", func() bool { return takeOne(t, h.other, "alice", h.alice, 0).Remaining == 10 })
	if n := h.store.Stats().Undone; n != 1 {
		t.Errorf("%d undone, want 1", n)
	}
}

// undoDoesNotHold denies a take whose undo takes longer than the caller waits.
func undoDoesNotHold(t *testing.T, c *testredis.Cluster) {
	t.Helper()
	h := half(t, c, parse(t, "20/1h"), 1, nil)
	alices := c.Primary(t, "{alice}")
	alices.Pause(t)
	h.deaf.Resume(t)
	wait.For(t, "the undo is under way", func() bool { return h.store.Stats().Undone == 1 })
	h.leave()
	err := <-h.done
	if n := h.store.Stats().Kept; n != 0 {
		t.Error("the caller had to wait until the undo had failed")
	}
	alices.Resume(t)
	only(t, err)
}

// undoKept has a charge that cannot be undone, because its server is down.
func undoKept(t *testing.T, c *testredis.Cluster) {
	t.Helper()
	h := half(t, c, parse(t, "20/1h"), 1, nil)
	c.Primary(t, "{alice}").Kill(t)
	h.deaf.Resume(t)
	only(t, <-h.done)
	if st := h.store.Stats(); st.Undone != 1 || st.Kept != 1 {
		t.Errorf("%+v; want one charge that could not be undone", st)
	}
}

// TestNoSubject uses keys with an empty subject, which are in different slots.
func TestNoSubject(t *testing.T) {
	t.Parallel()
	s := open(t, testredis.SharedCluster(t).URL(), redisstore.Options{})
	var asks []stint.Ask
	for _, name := range []string{"a", "b", "c"} {
		asks = append(asks, stint.Ask{Key: stint.Key{Name: name}, Limit: parse(t, "10/1h"), Cost: 1})
	}
	for range 2 {
		if out, err := storetest.Take(t.Context(), s, asks); err != nil || out[0].Remaining != 9 || out[2].Remaining != 9 {
			t.Fatal(out, err)
		}
		if err := s.Reset(t.Context(), asks[:3]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShortDeadlines has callers give up, and another that does not.
func TestShortDeadlines(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL(), redisstore.Options{})
	if _, err := storetest.Take(t.Context(), s, ask("alice", 100)); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	patient := make(chan error, 1)
	go func() {
		_, err := storetest.Take(context.Background(), s, ask("bob", 100))
		patient <- err
	}()
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	late, leave := context.WithTimeout(t.Context(), 20*time.Second) // sooner than the store gives up
	defer leave()
	for ctx, want := range map[context.Context]error{short: context.DeadlineExceeded, late: context.Canceled} {
		if ctx == late {
			time.AfterFunc(20*time.Millisecond, leave)
		}
		if _, err := storetest.Take(ctx, s, ask("alice", 100)); !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, want) {
			t.Errorf("%v; want ErrUnavailable because of %v", err, want)
		}
	}
	server.Resume(t)
	if err := <-patient; err != nil {
		t.Errorf("who waits: %v", err)
	}
}

// TestFarCalendars uses calendar windows that are far apart, and extreme clocks.
func TestFarCalendars(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	s := open(t, testredis.Shared(t).URL(), redisstore.Options{Now: clock.Now})
	spec := storetest.Spec(clock.Now)
	asks := func(names ...string) (out []stint.Ask) {
		for _, name := range names {
			for _, text := range []string{"10/day", "10/week", "10/month tz=Asia/Tokyo", "10/year tz=America/New_York", "10/1h"} {
				out = append(out, stint.Ask{Key: stint.Key{Subject: "alice", Name: name + text}, Limit: parse(t, text), Cost: 1})
			}
		}
		return out
	}
	steps := []struct {
		at   time.Time
		asks []stint.Ask
	}{
		{storetest.Epoch.AddDate(3, 0, 0), asks("a")},
		{storetest.Epoch.AddDate(1, 0, 0), asks("b")},
		{storetest.Epoch, asks("c")},
		{storetest.Epoch, asks("a", "b", "c", "d")},
		{storetest.Epoch.AddDate(1, 0, 0), asks("d", "a")},
		{time.Unix(3*86400, 0), asks("e")},
		{time.Unix(0, 0), asks("f")},
		{time.Date(2230, 1, 1, 0, 0, 0, 0, time.UTC), asks("g", "a")},
	}
	for i, step := range steps {
		clock.Set(step.at)
		for verb, of := range map[string]func(context.Context, stint.Store, []stint.Ask) ([]stint.Decision, error){
			"take": storetest.Take, "adjust": storetest.Adjust,
		} {
			want, err := of(t.Context(), spec, step.asks)
			if err != nil {
				t.Fatal(err)
			}
			got, err := of(t.Context(), s, step.asks)
			if err != nil || !storetest.Agree(got, want) {
				t.Errorf("step %d, %s: %v, %v; want %v", i, verb, got, err, want)
			}
		}
	}
	// A counter of the future does not make others pay.
	clock.Set(storetest.Epoch)
	before := s.Stats().Calls
	for range 10 {
		for _, name := range []string{"a", "c"} {
			if _, err := storetest.Take(t.Context(), s, asks(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if calls := s.Stats().Calls - before; calls > 50 {
		t.Errorf("20 takes in %d calls", calls)
	}
}
