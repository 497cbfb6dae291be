package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
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
	other *redisstore.Store // someone else's
	alice stint.Limit
	free  func() // lets bob deny, and waits until the charge is undone
}

func half(t *testing.T, c *testredis.Cluster, alice stint.Limit, cost int64, prepare func(*stuck)) *stuck {
	t.Helper()
	bob := "bob"
	for i := 0; c.Primary(t, "{"+bob+"}") == c.Primary(t, "{alice}"); i++ {
		bob = fmt.Sprint("bob-", i)
	}
	deaf := c.Primary(t, "{"+bob+"}")
	clock := storetest.NewClock()
	prefix := fmt.Sprintf("?timeout=5s&prefix=u%d", stores.Add(1))
	var both [2]*redisstore.Store
	for i := range both {
		var err error
		if both[i], err = redisstore.Open(c.URL()+prefix, redisstore.Options{Now: clock.Now}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { both[i].Close() })
	}
	h := &stuck{clock: clock, other: both[1], alice: alice}
	once := parse(t, "1/1000h")
	takeOne(t, h.other, bob, once, 1)
	if prepare != nil {
		prepare(h)
	}
	left := takeOne(t, h.other, "alice", alice, 0).Remaining
	deaf.Pause(t)
	done := make(chan error, 1)
	go func() {
		out, err := storetest.Take(t.Context(), both[0], []stint.Ask{
			{Key: stint.Key{Subject: "alice", Name: "api"}, Limit: alice, Cost: cost},
			{Key: stint.Key{Subject: bob, Name: "api"}, Limit: once, Cost: 1},
		})
		if err == nil && out[1].Allowed {
			err = errors.New("bob was admitted twice")
		}
		done <- err
	}()
	eventually(t, 3*time.Second, func() error {
		if takeOne(t, h.other, "alice", alice, 0).Remaining == left {
			return errors.New("alice is not charged yet")
		}
		return nil
	})
	h.free = func() {
		t.Helper()
		deaf.Resume(t)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// TestUndoLate undoes a charge after it has recovered and others have charged: their charges must stay.
func TestUndoLate(t *testing.T) {
	t.Parallel()
	c := testredis.StartCluster(t)
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

// TestUndoPart undoes a charge that has partly recovered, or that is among others.
func TestUndoPart(t *testing.T) {
	t.Parallel()
	c := testredis.StartCluster(t)
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

// TestUndoTwin undoes a charge on a log that looks the same as before, but is not.
func TestUndoTwin(t *testing.T) {
	t.Parallel()
	h := half(t, testredis.StartCluster(t), parse(t, "20/1m sliding_log"), 1, func(h *stuck) {
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

// split starts the migration of alice's slot, and migrates one of her counters.
func split(t testing.TB, c *testredis.Cluster, key string) {
	t.Helper()
	from, to := c.Primary(t, "{alice}"), c.Nodes()[0]
	if to == from {
		to = c.Nodes()[1]
	}
	slot := fmt.Sprint(from.Do(t, "CLUSTER", "KEYSLOT", "{alice}"))
	to.Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.Do(t, "CLUSTER", "MYID").(string))
	from.Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.Do(t, "CLUSTER", "MYID").(string))
	host, port, _ := strings.Cut(to.Addr(), ":")
	from.Do(t, "MIGRATE", host, port, key, "0", "5000")
}

// TestMovingSlot takes from counters of which some have been migrated.
func TestMovingSlot(t *testing.T) {
	t.Parallel()
	c := testredis.StartCluster(t)
	s := openURL(t, c.URL(), redisstore.Options{})
	l, once := parse(t, "20/1h"), parse(t, "1/1h")
	asks := []stint.Ask{
		{Key: stint.Key{Subject: "alice", Name: "a"}, Limit: l, Cost: 1},
		{Key: stint.Key{Subject: "alice", Name: "b"}, Limit: l, Cost: 1},
		{Key: stint.Key{Subject: "alice", Name: "a"}, Limit: parse(t, "20/1h token_bucket"), Cost: 1},
	}
	takeOne(t, s, "bob", once, 1)
	if _, err := storetest.Take(t.Context(), s, asks); err != nil {
		t.Fatal(err)
	}
	split(t, c, keyOf(asks[0]))
	// Denied elsewhere, so nothing is charged here.
	out, err := storetest.Take(t.Context(), s, append(asks, stint.Ask{Key: stint.Key{Subject: "bob", Name: "api"}, Limit: once, Cost: 1}))
	if err != nil || out[3].Allowed {
		t.Fatal(out, err)
	}
	for i, a := range asks {
		if out[i].Remaining != 19 || !out[i].Allowed {
			t.Errorf("ask %d is told that %d remain, want 19", i, out[i].Remaining)
		}
		a.Cost = 0
		if out, err := storetest.Take(t.Context(), s, []stint.Ask{a}); err != nil || out[0].Remaining != 19 {
			t.Errorf("ask %d: %v, %v; want 19 remaining", i, out, err)
		}
	}
	if out, err = storetest.Take(t.Context(), s, asks); err != nil || out[0].Remaining != 18 || out[1].Remaining != 18 {
		t.Errorf("%v, %v; want 18 remaining", out, err)
	}
	if err := s.Reset(t.Context(), []stint.Ask{asks[0], asks[2]}); err != nil {
		t.Errorf("reset: %v", err)
	}
	if out, err = storetest.Take(t.Context(), s, asks); err != nil || out[0].Remaining != 19 || out[1].Remaining != 17 || out[2].Remaining != 19 {
		t.Errorf("after reset: %v, %v", out, err)
	}
}

// TestUndoDoesNotHold denies a take whose undo takes longer than the caller waits.
func TestUndoDoesNotHold(t *testing.T) {
	t.Parallel()
	c := testredis.StartCluster(t)
	bob := "bob"
	for i := 0; c.Primary(t, "{"+bob+"}") == c.Primary(t, "{alice}"); i++ {
		bob = fmt.Sprint("bob-", i)
	}
	s := openURL(t, c.URL()+"?timeout=5s", redisstore.Options{})
	l, once := parse(t, "20/1h"), parse(t, "1/1h")
	takeOne(t, s, bob, once, 1)
	takeOne(t, s, "alice", l, 0)
	// The pause lets through what is on its way to alice, and not the undo.
	slow, deaf := c.Primary(t, "{"+bob+"}"), c.Primary(t, "{alice}")
	slow.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	took := make(chan time.Duration, 1)
	go func() {
		start := time.Now()
		_, err := storetest.Take(ctx, s, []stint.Ask{
			{Key: stint.Key{Subject: "alice", Name: "api"}, Limit: l, Cost: 1},
			{Key: stint.Key{Subject: bob, Name: "api"}, Limit: once, Cost: 1},
		})
		only(t, err)
		took <- time.Since(start)
	}()
	eventually(t, 3*time.Second, func() error {
		if takeOne(t, s, "alice", l, 0).Remaining == 20 {
			return errors.New("alice is not charged yet")
		}
		return nil
	})
	deaf.Pause(t)
	slow.Resume(t)
	d := <-took
	deaf.Resume(t)
	if d > 2*time.Second {
		t.Errorf("a take with a deadline of 700ms took %v", d)
	}
}

// TestKept has a charge that cannot be undone, because its server is down.
func TestKept(t *testing.T) {
	t.Parallel()
	c := testredis.StartCluster(t)
	bob := "bob"
	for i := 0; c.Primary(t, "{"+bob+"}") == c.Primary(t, "{alice}"); i++ {
		bob = fmt.Sprint("bob-", i)
	}
	s := openURL(t, c.URL()+"?timeout=1s", redisstore.Options{})
	l, once := parse(t, "20/1h"), parse(t, "1/1h")
	takeOne(t, s, bob, once, 1)
	takeOne(t, s, "alice", l, 0)
	slow, lost := c.Primary(t, "{"+bob+"}"), c.Primary(t, "{alice}")
	slow.Pause(t)
	done := make(chan error, 1)
	go func() {
		_, err := storetest.Take(t.Context(), s, []stint.Ask{
			{Key: stint.Key{Subject: "alice", Name: "api"}, Limit: l, Cost: 1},
			{Key: stint.Key{Subject: bob, Name: "api"}, Limit: once, Cost: 1},
		})
		done <- err
	}()
	eventually(t, 3*time.Second, func() error {
		if takeOne(t, s, "alice", l, 0).Remaining == 20 {
			return errors.New("alice is not charged yet")
		}
		return nil
	})
	lost.Kill(t)
	slow.Resume(t)
	only(t, <-done)
	if st := s.Stats(); st.Undone != 1 || st.Kept != 1 {
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

// TestShortDeadlines has one caller give up, and another that does not.
func TestShortDeadlines(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL()+"?timeout=5s", redisstore.Options{})
	if _, err := storetest.Take(t.Context(), s, ask("alice", 100)); err != nil {
		t.Fatal(err)
	}
	server.Do(t, "CLIENT", "PAUSE", "400", "ALL")
	patient := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	go func() {
		_, err := storetest.Take(context.Background(), s, ask("bob", 100))
		patient <- err
	}()
	if _, err := storetest.Take(ctx, s, ask("alice", 100)); !errors.Is(err, stint.ErrUnavailable) {
		t.Errorf("who gives up: %v; want ErrUnavailable", err)
	}
	if err := <-patient; err != nil {
		t.Errorf("who waits: %v", err)
	}
	server.Do(t, "CLIENT", "PAUSE", "3000", "ALL")
	late, leave := context.WithTimeout(t.Context(), 3*time.Second)
	time.AfterFunc(20*time.Millisecond, leave)
	start := time.Now()
	if _, err := storetest.Take(late, s, ask("alice", 100)); !errors.Is(err, stint.ErrUnavailable) || time.Since(start) > time.Second {
		t.Errorf("who leaves after 20ms: %v after %v", err, time.Since(start))
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
