package catalog_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/wait"
)

// counting is a catalog whose clock is set, with the users ann and bob, and a key of ann.
type counting struct {
	*catalog.Catalog
	now *time.Time
	key string
}

// midnight is the last one of a January.
var midnight = time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)

func newCounting(t *testing.T, url string) counting {
	t.Helper()
	now := midnight.Add(12 * time.Hour)
	c, err := catalog.Open(url, catalog.Options{Now: func() time.Time { return now }, Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"ann", "bob"} {
		if _, err := c.Users.Create(t.Context(), "test", catalog.User{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	_, k, _, err := c.CreateKey(t.Context(), "test", catalog.APIKey{User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	return counting{c, &now, k.ID}
}

// onEachCounting runs a test on each kind of database.
func onEachCounting(t *testing.T, test func(t *testing.T, c counting)) {
	t.Helper()
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) { test(t, newCounting(t, url)) })
	}
}

// user returns what is stored of a user.
func (c counting) user(t *testing.T, id string) string {
	t.Helper()
	s, err := c.UserStatus(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	seen := "never"
	if !s.LastSeen.IsZero() {
		seen = s.LastSeen.Format("Jan 2 15:04:05.000000")
	}
	return fmt.Sprintf("%d today, %d this month, %d, %d exceeded, %s", s.Today, s.ThisMonth, s.Total, s.Exceeded, seen)
}

func flush(t *testing.T, u *catalog.Usage) {
	t.Helper()
	if err := u.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func is(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

func TestUsage(t *testing.T) {
	onEachCounting(t, func(t *testing.T, c counting) {
		t.Helper()
		u := c.NewUsage(catalog.UsageOptions{})
		noon := *c.now
		is(t, "ann, before", c.user(t, "ann"), "0 today, 0 this month, 0, 0 exceeded, never")
		for i := range 300 {
			u.Record(t.Context(), &engine.Event{User: "ann", Key: c.key, At: noon.Add(time.Duration(i) * time.Microsecond)})
		}
		for _, e := range []engine.Event{
			{User: "ann", Outcome: engine.Denied, Rule: "search"},
			{User: "ann", Outcome: engine.Denied, Rule: "search"},
			{User: "ann", Outcome: engine.Denied, Rule: "login"},
			{User: "bob", Outcome: engine.Denied, Rule: "search"},
			{User: "stranger", Outcome: engine.Denied, Rule: "search"},
			{User: "ann", Outcome: engine.Allowed, Shadow: true, Rule: "tried"},
			{User: "ann", Outcome: engine.Banned, Rule: "search"},
			{User: "ann", Outcome: engine.Blocked, Rule: "never"},
			{User: "ann", Key: c.key, Outcome: engine.Unauthorized},
			{Outcome: engine.Denied, Rule: "search"}, // no one
			{Key: c.key},
		} {
			e.At = noon
			u.Record(t.Context(), &e)
		}
		if s := u.Stats(); s.Pending != 3+1 && s.Pending != 3+2 { // the key came without ann, too
			t.Errorf("before: %+v", s)
		}
		flush(t, u)
		flush(t, u)
		if s := u.Stats(); s != (catalog.UsageStats{Flushed: 3 + 1}) {
			t.Errorf("after: %+v", s)
		}
		is(t, "ann", c.user(t, "ann"), "306 today, 306 this month, 306, 3 exceeded, Jan 31 12:00:00.000299")
		is(t, "bob", c.user(t, "bob"), "1 today, 1 this month, 1, 1 exceeded, Jan 31 12:00:00.000000")
		k, err := c.KeyStatus(t.Context(), c.key)
		if err != nil || k.Total != 301 || !k.LastUsed.Equal(noon.Add(299*time.Microsecond)) || k.Value.ID != c.key {
			t.Errorf("key: %+v, %v", k, err)
		}
		if _, err := c.UserStatus(t.Context(), "stranger"); catalog.Status(err) != 404 {
			t.Errorf("stranger: %v", err)
		}
		if _, err := c.KeyStatus(t.Context(), "stranger"); catalog.Status(err) != 404 {
			t.Errorf("stranger: %v", err)
		}

		// It is no change of the catalog.
		before, err := c.Users.Get(t.Context(), "bob")
		if err != nil {
			t.Fatal(err)
		}
		if v, err := c.Users.Create(t.Context(), "test", catalog.User{ID: "eve"}); err != nil || v != before.Version+2 { // and the key
			t.Errorf("version %d after %d: %v", v, before.Version, err)
		}

		// It goes with its user.
		if err := c.Users.Delete(t.Context(), "test", "bob", before.Version); err != nil {
			t.Fatal(err)
		}
		u.Record(t.Context(), &engine.Event{User: "bob", At: noon})
		flush(t, u)
		if _, err := c.Users.Create(t.Context(), "test", catalog.User{ID: "bob"}); err != nil {
			t.Fatal(err)
		}
		is(t, "another bob", c.user(t, "bob"), "0 today, 0 this month, 0, 0 exceeded, never")
	})
}

func TestUsageOfDays(t *testing.T) {
	onEachCounting(t, func(t *testing.T, c counting) {
		t.Helper()
		u, other := c.NewUsage(catalog.UsageOptions{}), c.NewUsage(catalog.UsageOptions{})
		record := func(u *catalog.Usage, n int, at time.Time) {
			for range n {
				u.Record(t.Context(), &engine.Event{User: "ann", At: at})
			}
		}
		yesterday, today, tomorrow := midnight.Add(-time.Microsecond), midnight, midnight.AddDate(0, 0, 1)
		record(u, 1, yesterday)
		flush(t, u)
		*c.now = today
		is(t, "a new day", c.user(t, "ann"), "0 today, 1 this month, 1, 0 exceeded, Jan 30 23:59:59.999999")
		record(u, 2, today)
		flush(t, u)
		is(t, "today", c.user(t, "ann"), "2 today, 3 this month, 3, 0 exceeded, Jan 31 00:00:00.000000")
		record(other, 4, yesterday) // it is late
		flush(t, other)
		is(t, "late", c.user(t, "ann"), "2 today, 7 this month, 7, 0 exceeded, Jan 31 00:00:00.000000")

		// The same within what is written at once, in any order.
		record(u, 8, tomorrow)
		record(u, 16, today)
		record(u, 32, tomorrow.Add(24*time.Hour-time.Microsecond))
		*c.now = tomorrow
		flush(t, u)
		is(t, "a new month", c.user(t, "ann"), "40 today, 40 this month, 63, 0 exceeded, Feb 1 23:59:59.999999")
		record(other, 64, today)
		flush(t, other)
		is(t, "late", c.user(t, "ann"), "40 today, 40 this month, 127, 0 exceeded, Feb 1 23:59:59.999999")
		*c.now = tomorrow.AddDate(0, 1, 0)
		is(t, "a month later", c.user(t, "ann"), "0 today, 0 this month, 127, 0 exceeded, Feb 1 23:59:59.999999")
	})
}

// TestUsageAddsUp has nodes write the same rows at once, and users be written meanwhile.
func TestUsageAddsUp(t *testing.T) {
	t.Parallel()
	const nodes, writers, rounds, users = 3, 3, 2, 20
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			first := newCounting(t, url)
			for i := range users {
				if _, err := first.Users.Create(t.Context(), "test", catalog.User{ID: fmt.Sprint("user", i)}); err != nil {
					t.Fatal(err)
				}
			}
			var wg sync.WaitGroup
			for i := range nodes {
				c := first.Catalog
				if i > 0 {
					var err error
					if c, err = catalog.Open(url, catalog.Options{Now: func() time.Time { return *first.now }, Patience: patience}); err != nil {
						t.Fatal(err)
					}
					defer c.Close()
				}
				u := c.NewUsage(catalog.UsageOptions{})
				for range writers {
					wg.Go(func() {
						for range rounds {
							for i := range users {
								u.Record(t.Context(), &engine.Event{User: fmt.Sprint("user", i), Key: first.key, At: *first.now, Outcome: engine.Denied, Rule: "r"})
							}
							if err := u.Flush(t.Context()); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			wg.Go(func() {
				for i := range users {
					_, err := first.Users.Modify(t.Context(), "test", fmt.Sprint("user", i), func(u *catalog.User) error {
						u.Tenant = "t"
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
			wg.Wait()
			const each = nodes * writers * rounds
			for i := range users {
				is(t, "user", first.user(t, fmt.Sprint("user", i)), fmt.Sprintf("%d today, %[1]d this month, %[1]d, %[1]d exceeded, Jan 31 12:00:00.000000", each))
			}
			if k, err := first.KeyStatus(t.Context(), first.key); err != nil || k.Total != each*users {
				t.Errorf("key: %d, %v; want %d", k.Total, err, each*users)
			}
		})
	}
}

func TestUsageIsKept(t *testing.T) {
	onEachCounting(t, func(t *testing.T, c counting) {
		t.Helper()
		u := c.NewUsage(catalog.UsageOptions{MaxIDs: 3})
		record := func(users ...string) {
			for _, id := range users {
				u.Record(t.Context(), &engine.Event{User: id, At: *c.now, Outcome: engine.Denied, Rule: "r"})
			}
		}
		execute(t, c.Catalog, "ALTER TABLE stint_user_usage RENAME TO elsewhere")
		fail := func() {
			t.Helper()
			if err := u.Flush(t.Context()); err == nil {
				t.Error("it is written")
			}
		}
		for range 3 {
			record("ann", "x")
			fail()
		}
		if s := u.Stats(); s.Dropped != 0 || s.Pending != 2 || s.Errors != 3 {
			t.Errorf("nothing is dropped: %+v", s)
		}
		record("bob", "y", "z", "w") // of whom there are three, and then one of them is kept
		if s := u.Stats(); s.Dropped != 1 || s.Pending != 2+3 {
			t.Errorf("one is dropped: %+v", s)
		}
		record("bob", "bob")
		fail()
		s := u.Stats()
		if s.Pending != 3 || s.Dropped < 1+2 || s.Dropped > 1+(1+3) {
			t.Errorf("two more are dropped: %+v", s)
		}
		execute(t, c.Catalog, "ALTER TABLE elsewhere RENAME TO stint_user_usage")
		flush(t, u)
		record("bob")
		flush(t, u)
		is(t, "ann", c.user(t, "ann"), "3 today, 3 this month, 3, 3 exceeded, Jan 31 12:00:00.000000")
		if s := u.Stats(); s.Pending != 0 || s.Flushed != 3+1 || s.Errors != 4 {
			t.Errorf("in the end: %+v", s)
		}
	})
}

// flushSoon is flush for when connections may have yet to be found broken.
func flushSoon(t *testing.T, u *catalog.Usage) {
	t.Helper()
	wait.Nil(t, "the database", func() error { return u.Flush(t.Context()) })
}

// TestUsageOutlivesTheDatabase kills a server, and looks whether anything is lost.
func TestUsageOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	server := testpostgres.Start(t)
	c := newCounting(t, server.Database(t))
	var log strings.Builder
	u := c.NewUsage(catalog.UsageOptions{Interval: rare, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		u.Record(t.Context(), &engine.Event{User: "ann", At: *c.now})
		flushSoon(t, u)
		server.Kill(t)
		for range 2 {
			u.Record(t.Context(), &engine.Event{User: "ann", At: *c.now})
			if err := u.Flush(t.Context()); catalog.Status(err) != 503 {
				t.Errorf("without a server: %v", err)
			}
		}
		server.Restart(t)
	}
	u.Record(t.Context(), &engine.Event{User: "ann", At: *c.now})
	flushSoon(t, u)
	is(t, "ann", c.user(t, "ann"), "10 today, 10 this month, 10, 0 exceeded, Jan 31 12:00:00.000000")
	if text := log.String(); strings.Count(text, "cannot be written") != 3 || strings.Count(text, "written again") != 3 {
		t.Errorf("it should say so once each time:\n%s", text)
	}

	// One that does not answer is not waited for.
	u.Start(t.Context())
	u.Record(t.Context(), &engine.Event{User: "ann", At: *c.now})
	server.Pause(t)
	hurry, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := u.Stop(hurry); catalog.Status(err) != 503 || u.Stats().Pending != 1 {
		t.Errorf("a server that is silent: %v, %+v", err, u.Stats())
	}
	server.Resume(t)
	if err := u.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestUsageIsWrittenBehind(t *testing.T) {
	onEachCounting(t, func(t *testing.T, c counting) {
		t.Helper()
		u := c.NewUsage(catalog.UsageOptions{Interval: time.Millisecond})
		u.Start(t.Context())
		u.Record(t.Context(), &engine.Event{User: "ann", At: *c.now})
		wait.For(t, "a write", func() bool { return u.Stats().Flushed > 0 })
		slow := c.NewUsage(catalog.UsageOptions{Interval: time.Hour})
		slow.Start(t.Context())
		slow.Record(t.Context(), &engine.Event{User: "ann", At: *c.now})
		for _, u := range []*catalog.Usage{u, slow, slow, c.NewUsage(catalog.UsageOptions{})} { // the last was not started
			if err := u.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		is(t, "ann", c.user(t, "ann"), "2 today, 2 this month, 2, 0 exceeded, Jan 31 12:00:00.000000")
	})
}

// TestUsageOfAnyText has ids that no database would take.
func TestUsageOfAnyText(t *testing.T) {
	onEachCounting(t, func(t *testing.T, c counting) {
		t.Helper()
		u := c.NewUsage(catalog.UsageOptions{})
		bad := []string{"a\x00", "\xff", "\ufffd", strings.Repeat("x", 256), "a\nb"}
		for _, id := range bad {
			u.Record(t.Context(), &engine.Event{User: id, Key: id, At: *c.now, Outcome: engine.Denied, Rule: id})
		}
		if s := u.Stats(); s.Pending != 0 || s.Dropped != int64(2*len(bad)) {
			t.Errorf("%+v", s)
		}
		odd := []string{"'; DROP TABLE stint_users; --", "%", `\`, `"`, "$1", "😀", strings.Repeat("é", 127)}
		for _, id := range odd {
			if _, err := c.Users.Create(t.Context(), "test", catalog.User{ID: id}); err != nil {
				t.Fatal(err)
			}
			u.Record(t.Context(), &engine.Event{User: id, At: *c.now, Outcome: engine.Denied, Rule: id})
		}
		flush(t, u)
		for _, id := range odd {
			is(t, id, c.user(t, id), "1 today, 1 this month, 1, 1 exceeded, Jan 31 12:00:00.000000")
		}
	})
}

func BenchmarkUsageRecord(b *testing.B) {
	c, err := catalog.Open("sqlite::memory:", catalog.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	u := c.NewUsage(catalog.UsageOptions{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		e := engine.Event{User: "a-user-of-twenty-byte", Key: "0123456789ABCDEF", At: midnight}
		for pb.Next() {
			u.Record(b.Context(), &e)
		}
	})
}
