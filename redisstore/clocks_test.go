package redisstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// every5 returns a limit of 5 in 10 seconds of each algorithm.
func every5() (out []stint.Limit) {
	for _, a := range stint.Algorithms() {
		l := stint.Limit{Algorithm: a, Max: 5, Window: stint.Every(10 * time.Second)}
		if a == stint.LeakyBucket {
			l.Burst = 4
		}
		out = append(out, l)
	}
	return out
}

// useUp takes all that remains of a subject's counter, and returns the denial that follows.
func useUp(t testing.TB, s stint.Store, subject string, l stint.Limit) stint.Decision {
	t.Helper()
	for range l.Max {
		if !takeOne(t, s, subject, l, 1).Allowed {
			t.Fatalf("%v: less than %d were admitted", l, l.Max)
		}
	}
	d := takeOne(t, s, subject, l, 1)
	if d.Allowed {
		t.Fatalf("%v: more than %d were admitted", l, l.Max)
	}
	return d
}

// TestClockStepsBack uses up a limit, and sets the clock back by an hour, or by 100 days: that of the store, or that of
// a server that has taken over. The client waits no longer than it takes to recover from then on, and
// comes back neither too early nor to more than the limit.
func TestClockStepsBack(t *testing.T) {
	t.Parallel()
	const into = 2 * time.Second
	start := time.Date(2026, time.March, 3, 12, 0, 0, 0, time.UTC)
	type row struct {
		name string
		back time.Duration
	}
	rows := []row{{"single", 100 * 24 * time.Hour}}
	for name := range topologies {
		rows = append(rows, row{name, time.Hour})
	}
	for _, c := range rows {
		back, urlOf := c.back, topologies[c.name]
		t.Run(fmt.Sprint(c.name, " ", back), func(t *testing.T) {
			t.Parallel()
			url := fmt.Sprintf("%s?prefix=b%d", urlOf(t), stores.Add(1))
			now := start
			s := openURL(t, url, redisstore.Options{Now: func() time.Time { return now }})
			// A replica whose clock is behind, and which takes over.
			replica := openURL(t, url, redisstore.Options{Now: func() time.Time { return now.Add(-back) }})
			for _, l := range every5() {
				for what, after := range map[string]func() stint.Store{
					"one store": func() stint.Store { now = now.Add(-back); return s },
					"failover":  func() stint.Store { return replica },
				} {
					now = start.Add(into)
					subject := fmt.Sprint(what, " ", l.Algorithm)
					before := useUp(t, s, subject, l)
					then := after()
					d := takeOne(t, then, subject, l, 1)
					// Of a window it is not known how much of it had passed.
					most := max(before.RetryAfter, l.Window.Length())
					if d.Allowed || d.RetryAfter > most || d.ResetAfter > 2*l.Window.Length() {
						t.Errorf("%v, %s: %v; want a denial for at most %v", l, what, d, most)
					}
					t.Logf("%v, %s: retry after %v, and %v before", l, what, d.RetryAfter, before.RetryAfter)
					now = now.Add(d.RetryAfter - time.Microsecond)
					if early := takeOne(t, then, subject, l, 1); early.Allowed {
						t.Errorf("%v, %s: passes a microsecond before it should", l, what)
					}
					now = now.Add(time.Microsecond)
					if on := takeOne(t, then, subject, l, 1); !on.Allowed {
						t.Errorf("%v, %s: denied after %v, which it was told to wait", l, what, d.RetryAfter)
					}
					now = now.Add(2 * before.ResetAfter)
					useUp(t, then, subject, l)
				}
			}
		})
	}
}

// TestHoldsOutliveFailover has a server take over whose clock is behind. It does not know the places that
// are held by their names any more, so that they cannot be released; they come back by themselves.
func TestHoldsOutliveFailover(t *testing.T) {
	t.Parallel()
	l := parse(t, "3/10s concurrency")
	for _, behind := range []time.Duration{5 * time.Millisecond, time.Second, time.Hour} {
		url := fmt.Sprintf("%s?prefix=b%d", testredis.Shared(t).URL(), stores.Add(1))
		now := storetest.Epoch
		s := openURL(t, url, redisstore.Options{Now: func() time.Time { return now }})
		replica := openURL(t, url, redisstore.Options{Now: func() time.Time { return now.Add(-behind) }})
		first := takeOne(t, s, "alice", l, 1)
		charge := first.Charge()
		takeOne(t, s, "alice", l, 1)
		release := stint.Ask{Key: stint.Key{Subject: "alice", Name: "api"}, Limit: l, Cost: -1, Charge: &charge}
		out, err := storetest.Adjust(t.Context(), replica, []stint.Ask{release})
		want := int64(1)
		var invalid *stint.InvalidError
		switch known := behind <= 10*time.Millisecond; {
		case known && (err != nil || out[0].Remaining != 2):
			t.Errorf("%v behind: %v, %v; want the place released", behind, out, err)
		case known:
			want = 2
		case !errors.As(err, &invalid):
			t.Errorf("%v behind: %v; want a charge from the future to be rejected", behind, err)
		}
		if got := takeOne(t, replica, "alice", l, 0); got.Remaining != want || got.ResetAfter > l.Window.Length()+10*time.Millisecond {
			t.Errorf("%v behind: %v; want %d places, and the others within %v", behind, got, want, l.Window)
		}
		now = now.Add(l.Window.Length() + time.Second)
		if got := takeOne(t, replica, "alice", l, 0).Remaining; got != 3 {
			t.Errorf("%v behind: %d places are back, want 3", behind, got)
		}
	}
}
