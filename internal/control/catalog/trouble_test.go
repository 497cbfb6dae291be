package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/lookup"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestDatabaseAway takes the database away from a node, and gives it back: what is known
// stays known and is had at once, what is not is refused, and a change that was made
// meanwhile arrives.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(t *testing.T, s *testpostgres.Server) (url string, away, back func()){
		"killed": func(t *testing.T, s *testpostgres.Server) (string, func(), func()) {
			t.Helper()
			return s.Database(t), func() { s.Kill(t) }, func() { s.Restart(t) }
		},
		"hangs, a standby takes over": func(t *testing.T, s *testpostgres.Server) (string, func(), func()) {
			t.Helper()
			url := s.Database(t)
			standby := s.Standby(t)
			return strings.Replace(url, s.Addr(), s.Addr()+","+standby.Addr(), 1), func() { s.Pause(t) }, func() { standby.Promote(t) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, away, back := take(t, testpostgres.Start(t))
			c := furnished(t, url)
			f := follow(t, url, catalog.Options{Patience: hasty}, catalog.NodeOptions{Poll: time.Second})
			f.knows(t, "ann", "iron")
			at := f.Status().Revision
			asking := f.ask(t, "ann")
			away()
			wait.Nil(t, "that the database is missed", func() error {
				if f.Status().Away == nil {
					return errors.New("it has not noticed")
				}
				return nil
			})
			if !errors.Is(f.Status().Away, catalog.ErrUnavailable) {
				t.Errorf("away: %v, want that the database is out of reach", f.Status().Away)
			}
			if _, err := f.Directory().User(t.Context(), "unknown 1"); !errors.Is(err, lookup.ErrUnavailable) {
				t.Errorf("a user of whom nothing is known: %v", err)
			}
			watch := torture.Start(t)
			for i := range 100 {
				if _, err := f.Directory().User(t.Context(), fmt.Sprintf("unknown 2 %d", i)); !errors.Is(err, lookup.ErrUnavailable) {
					t.Errorf("a user of whom nothing is known: %v", err)
				}
			}
			// One at a time tries, for at most a second.
			torture.AtMost(t, "100 lookups that have no chance", watch.Took(), 5*time.Second)
			if s := f.Status(); s.Revision != at || s.Problem != "" {
				t.Errorf("away, it serves %d, want %d; problem %q", s.Revision, at, s.Problem)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := f.Look(ctx); err == nil {
				t.Error("Look succeeds without the database")
			}

			back()
			f.serves(t, banAtLast(t, c, "eve"))
			if !banned(f.last(), "eve") {
				t.Error("back, it serves what was before")
			}
			// A connection that was begun before may fail later, and be the answer to one look.
			wait.Nil(t, "the database", func() error { return f.Status().Away })
			worst, errs := asking()
			torture.AtMost(t, "the worst lookup of a known user", worst, time.Second)
			if errs != nil {
				t.Errorf("a known user: %v", errs)
			}
			wait.Nil(t, "one of whom nothing was known", func() error {
				_, err := f.Directory().User(t.Context(), "unknown 3")
				return err
			})
		})
	}
}

// banAtLast is ban for one who has yet to find that the database is back.
func banAtLast(t testing.TB, c *catalog.Catalog, id string) (revision int64) {
	t.Helper()
	wait.Nil(t, "the ban", func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		revision, err = c.Bans.Create(ctx, writer, catalog.Entry{User: id})
		if conflict := new(catalog.ConflictError); errors.As(err, &conflict) {
			revision, err = conflict.Found, nil // it was written, and no one could say so
		}
		return err
	})
	return revision
}

// ask asks for a user again and again, until it is told to end. It returns the longest
// time that one took, and an error if any failed.
func (f *follower) ask(t *testing.T, id string) (end func() (worst time.Duration, err error)) {
	t.Helper()
	var worst time.Duration
	var failed error
	var work sync.WaitGroup
	over := make(chan struct{})
	work.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			start := time.Now()
			u, err := f.Directory().User(context.WithoutCancel(t.Context()), id)
			if worst = max(worst, time.Since(start)); err == nil && u == nil {
				err = errors.New("not known any more")
			}
			if err != nil {
				failed = err
			}
		}
	})
	done := sync.OnceFunc(func() {
		close(over)
		work.Wait()
	})
	t.Cleanup(done)
	return func() (time.Duration, error) {
		done()
		return worst, failed
	}
}

// TestDeadListener is a network that forgets connections without a word.
func TestDeadListener(t *testing.T) {
	t.Parallel()
	for name, poll := range map[string]time.Duration{"noticed": rare, "polled": time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testpostgres.Shared(t)
			proxy := testserver.StartProxy(t, server.Addr())
			direct := testdatabase.Postgres(t)
			c := furnished(t, direct)
			f := follow(t, strings.Replace(direct, server.Addr(), proxy.Addr(), 1), catalog.Options{Patience: hasty}, catalog.NodeOptions{Poll: poll})
			f.serves(t, ban(t, c, "eve")) // it listens
			proxy.Forget()
			revision := ban(t, c, "mallory")
			wait.Nil(t, fmt.Sprint("revision ", revision), func() error {
				if got := f.Status().Revision; got != revision {
					return fmt.Errorf("it serves %d, want %d", got, revision)
				}
				return nil
			})
		})
	}
}
