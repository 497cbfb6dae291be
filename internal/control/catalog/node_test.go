package catalog_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/rule"
)

// This file is long: one node that follows a database, and each way in which the database can change.

const (
	// rare is a poll that is not waited for, and often one for changes that no one is told of.
	rare, often = 1000 * time.Hour, 50 * time.Millisecond
	// patience is how long nodes wait for answers, unless that is for hasty ones: they wait as long as
	// those of the product.
	patience, hasty = 30 * time.Second, time.Nanosecond

	writer = "ann@example.com"
)

// follower is a node with a catalog of its own, as another process has.
type follower struct {
	*catalog.Node
	c *catalog.Catalog

	mu     sync.Mutex
	used   []*catalog.Snapshot
	refuse error // of use
	stop   func()
}

// newFollower returns a node that has not begun.
func newFollower(t testing.TB, url string, o catalog.Options, n catalog.NodeOptions) *follower {
	t.Helper()
	o.Patience = cmp.Or(o.Patience, patience)
	c, err := catalog.Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	if n.Poll == 0 {
		n.Poll = rare
	}
	n.Log = slog.New(slog.DiscardHandler)
	f := &follower{c: c}
	if f.Node, err = c.NewNode(n); err != nil {
		t.Fatal(err)
	}
	f.stop = sync.OnceFunc(func() {
		f.Stop(context.WithoutCancel(t.Context()))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// begin has a node begin.
func (f *follower) begin(t testing.TB) *follower {
	t.Helper()
	var first *catalog.Snapshot
	wait.Nil(t, "the first snapshot", func() (err error) { // connecting may take too long on a busy machine
		first, err = f.First(t.Context())
		return err
	})
	f.used = append(f.used, first)
	f.Start(t.Context(), f.use)
	return f
}

func follow(t testing.TB, url string, o catalog.Options, n catalog.NodeOptions) *follower {
	t.Helper()
	return newFollower(t, url, o, n).begin(t)
}

func (f *follower) use(_ context.Context, s *catalog.Snapshot) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return f.refuse
	}
	f.used = append(f.used, s)
	return nil
}

func (f *follower) refuseWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = err
}

// last returns what is in use.
func (f *follower) last() *catalog.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used[len(f.used)-1]
}

// serves waits until a node serves a revision.
func (f *follower) serves(t testing.TB, revision int64) {
	t.Helper()
	wait.Nil(t, fmt.Sprint("revision ", revision), func() error {
		if s := f.Status(); s.Revision != revision || s.Problem != "" {
			return fmt.Errorf("it serves %d, want %d; problem %q, away: %w", s.Revision, revision, s.Problem, s.Away)
		}
		return nil
	})
}

// looksOn waits until a node has looked some more times.
func (f *follower) looksOn(t testing.TB) {
	t.Helper()
	const some = 5
	before := f.Status().Looks
	wait.Nil(t, "some more looks", func() error {
		if now := f.Status().Looks; now < before+some {
			return fmt.Errorf("%d looks after %d", now, before)
		}
		return nil
	})
}

// tier returns the tier of a user as a node knows it.
func (f *follower) tier(t testing.TB, id string) (string, error) {
	t.Helper()
	u, err := f.Directory().User(t.Context(), id)
	if err != nil {
		return "", err
	}
	if u == nil {
		return "no such user", nil
	}
	return u.Tier, nil
}

// tierOf is tier where it is known.
func (f *follower) tierOf(t testing.TB, id string) string {
	t.Helper()
	tier, err := f.tier(t, id)
	if err != nil {
		t.Fatal(err)
	}
	return tier
}

// knows waits until a node knows a user's tier.
func (f *follower) knows(t testing.TB, id, tier string) {
	t.Helper()
	wait.Nil(t, "the tier of "+id, func() error {
		got, err := f.tier(t, id)
		if err == nil && got != tier {
			err = fmt.Errorf("it is %q, want %q", got, tier)
		}
		return err
	})
}

// base is a rule that gives users something to have.
func base(limit string) catalog.Rule {
	return catalog.Rule{Name: "base", CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: "requests", Limit: limit}}}
}

// furnished returns a catalog with a rule, two tiers and two users.
func furnished(t testing.TB, url string) *catalog.Catalog {
	t.Helper()
	c := open(t, url)
	d := &catalog.Document{
		File:  rule.File{Rules: []rule.Rule{base("100/1m")}, Tiers: []rule.Tier{{Name: "gold"}, {Name: "iron"}}},
		Users: []catalog.User{{ID: "ann", Tier: "iron"}, {ID: "ben", Tier: "iron"}},
	}
	if _, err := c.Apply(t.Context(), d, catalog.ApplyOptions{Actor: writer}); err != nil {
		t.Fatal(err)
	}
	return c
}

// grade gives a user a tier, and returns the revision of that.
func grade(t testing.TB, c *catalog.Catalog, id, tier string) int64 {
	t.Helper()
	revision, err := c.Users.Modify(t.Context(), writer, id, func(u *catalog.User) error {
		u.Tier = tier
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// ban bans a user, and returns the revision of that.
func ban(t testing.TB, c *catalog.Catalog, id string) int64 {
	t.Helper()
	revision, err := c.Bans.Create(t.Context(), writer, catalog.Entry{User: id})
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// execute runs statements as others might, behind the catalog's back, at once.
func execute(t testing.TB, c *catalog.Catalog, statements ...string) {
	t.Helper()
	tx, err := catalog.DB(c).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to undo
	for _, s := range statements {
		if _, err := tx.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func banned(s *catalog.Snapshot, id string) bool {
	return s.Lists.Banned.Find(&identity.Subject{User: id}, time.Now()) != nil
}

func TestChangesReachEveryNode(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := furnished(t, url)
			nodes := []*follower{follow(t, url, catalog.Options{}, catalog.NodeOptions{}), follow(t, url, catalog.Options{}, catalog.NodeOptions{})}
			ctx := t.Context()
			more := catalog.Rule{Name: "more", Match: rule.Match{Paths: []string{"/more"}}, Action: rule.Allow}
			for _, step := range []struct {
				name   string
				change func() (int64, error)
				seen   func(s *catalog.Snapshot) bool
			}{
				{
					"rule", func() (int64, error) { return c.Rules.Create(ctx, writer, more) },
					func(s *catalog.Snapshot) bool { return s.Rules.Len() == 2 },
				},
				{
					"tier", func() (int64, error) { return c.Tiers.Create(ctx, writer, catalog.Tier{Name: "lead"}) },
					func(s *catalog.Snapshot) bool { return s.Rules.Tier("lead") },
				},
				{
					"ban", func() (int64, error) { return c.Bans.Create(ctx, writer, catalog.Entry{User: "eve"}) },
					func(s *catalog.Snapshot) bool { return banned(s, "eve") },
				},
				{
					"exemption", func() (int64, error) { return c.Exemptions.Create(ctx, writer, catalog.Entry{User: "bot"}) },
					func(s *catalog.Snapshot) bool {
						return s.Lists.Exempt.Find(&identity.Subject{User: "bot"}, time.Now()) != nil
					},
				},
			} {
				revision, err := step.change()
				if err != nil {
					t.Fatal(err)
				}
				for i, n := range nodes {
					n.serves(t, revision)
					if s := n.last(); s.Revision != revision || !step.seen(s) {
						t.Errorf("%s: node %d uses revision %d, which is not the change", step.name, i, s.Revision)
					}
				}
			}
			for i, n := range nodes {
				n.mu.Lock()
				for j, s := range n.used[1:] {
					if s.Revision <= n.used[j].Revision {
						t.Errorf("node %d was given revision %d after %d", i, s.Revision, n.used[j].Revision)
					}
				}
				n.mu.Unlock()
			}

			// What is looked up one by one.
			loads := make([]uint64, len(nodes))
			for i, n := range nodes {
				n.knows(t, "ann", "iron")
				n.knows(t, "ben", "iron")
				loads[i] = n.Status().Loads
			}
			revision := grade(t, c, "ann", "gold")
			for i, n := range nodes {
				n.knows(t, "ann", "gold")
				n.serves(t, revision)
				n.knows(t, "ben", "iron")
				if got := n.Status().Loads; got != loads[i] {
					t.Errorf("node %d has loaded all rules %d times for a user", i, got-loads[i])
				}
				if got := n.Lookups()["user"].Loads; got != 3 {
					t.Errorf("node %d has loaded users %d times, want 3: ben has not changed", i, got)
				}
			}
		})
	}
}

// TestNodesOfOneCatalog have nothing to hear of each other by but the process.
func TestNodesOfOneCatalog(t *testing.T) {
	t.Parallel()
	f := newFollower(t, "sqlite::memory:", catalog.Options{}, catalog.NodeOptions{Migrate: true}).begin(t)
	f.serves(t, ban(t, f.c, "eve"))
	if !banned(f.last(), "eve") {
		t.Error("the ban is not in use")
	}
}

func TestBurst(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const writers, each = 8, 10
			c := furnished(t, url)
			f := follow(t, url, catalog.Options{}, catalog.NodeOptions{})
			watch, before := torture.Start(t), f.Status()
			var all sync.WaitGroup
			for w := range writers {
				all.Go(func() {
					for i := range each {
						if _, err := c.Bans.Create(t.Context(), writer, catalog.Entry{User: fmt.Sprintf("u%d-%d", w, i)}); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			f.serves(t, ban(t, c, "eve"))
			if s := f.last(); !banned(s, "eve") || !banned(s, fmt.Sprintf("u%d-%d", writers-1, each-1)) {
				t.Error("what is served lacks a ban")
			}
			// A pause of 400 ms between loads, after some shorter ones, and after a moment without changes: on a
			// busy machine there are some.
			now, most := f.Status(), 20+uint64(watch.Took()/(200*time.Millisecond))
			torture.AtMost(t, "loads", now.Loads-before.Loads, most)
			torture.AtMost(t, "looks", now.Looks-before.Looks, 2*most)
		})
	}
}

// TestPoisonedNotifications are those of others, who can say what they like.
func TestPoisonedNotifications(t *testing.T) {
	t.Parallel()
	url := testdatabase.Postgres(t)
	redis := testredis.Start(t)
	c := furnished(t, url)
	f := follow(t, url, catalog.Options{Side: side(t, redis)}, catalog.NodeOptions{})
	for name, tell := range map[string]func(message string){
		"postgres": func(message string) {
			testpostgres.Exec(t, url, "select pg_notify('stint_catalog', '"+message+"')")
		},
		"redis": func(message string) { redis.Do(t, "PUBLISH", "rl:side/catalog", message) },
	} {
		for _, message := range []string{"", "garbage", "-1", "999999999999999999999", `{"revision":1e999}`, "revision=3", strings.Repeat("x", 7999)} {
			f.looksAfter(t, name+" "+message[:min(len(message), 20)], func() { tell(message) })
		}
	}
	before, watch := f.Status(), torture.Start(t)
	testpostgres.Exec(t, url, "select pg_notify('stint_catalog', 'x' || i) from generate_series(1, 1000) i")
	for i := range 100 {
		redis.Do(t, "PUBLISH", "rl:side/catalog", strconv.Itoa(i))
	}
	f.serves(t, grade(t, c, "ann", "gold")) // it comes after all of them
	now := f.Status()
	torture.AtMost(t, "looks", now.Looks-before.Looks, 5+uint64(watch.Took()/(20*time.Millisecond)))
	if now.Loads != before.Loads || now.Problem != "" || now.Away != nil {
		t.Errorf("after nothing but notifications: %+v, before %+v", now, before)
	}
}

// looksAfter waits until a node has looked since something was done.
func (f *follower) looksAfter(t *testing.T, what string, do func()) {
	t.Helper()
	before := f.Status().Looks
	do()
	wait.Nil(t, "a look after "+what, func() error {
		if f.Status().Looks == before {
			return errors.New(what + ": it has not looked")
		}
		return nil
	})
}

// side returns what is beside the counters of a Redis.
func side(t testing.TB, s *testredis.Server) catalog.Side {
	t.Helper()
	store, err := redisstore.Open(s.URL()+"?timeout=30s&dial_timeout=30s", redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store.Side()
}

func TestUseFails(t *testing.T) {
	t.Parallel()
	f := follow(t, testdatabase.SQLite(t), catalog.Options{}, catalog.NodeOptions{Poll: often})
	if _, err := f.c.Users.Create(t.Context(), writer, catalog.User{ID: "ann"}); err != nil {
		t.Fatal(err)
	}
	f.refuseWith(errors.New("no room for it"))
	before := f.Status().Revision
	at := ban(t, f.c, "eve")
	wait.Nil(t, "the problem", func() error {
		if p := f.Status().Problem; p != fmt.Sprintf("revision %d: no room for it", at) {
			return fmt.Errorf("problem %q", p)
		}
		return nil
	})
	loads := f.Status().Loads
	f.looksOn(t)
	if s := f.Status(); s.Loads != loads || s.Revision > before+1 || banned(f.last(), "eve") {
		t.Errorf("the same revision is tried again, or served: %+v", s)
	}
	f.refuseWith(nil)
	next, err := f.c.Users.Create(t.Context(), writer, catalog.User{ID: "ben"})
	if err != nil {
		t.Fatal(err)
	}
	f.serves(t, next)
	if !banned(f.last(), "eve") {
		t.Error("the next revision is served without the one before")
	}
}

// TestStop leaves nothing behind, whatever a node was about.
func TestStop(t *testing.T) {
	t.Parallel()
	t.Run("not started", func(t *testing.T) {
		t.Parallel()
		newFollower(t, "sqlite::memory:", catalog.Options{}, catalog.NodeOptions{}).stop()
	})
	t.Run("twice", func(t *testing.T) {
		t.Parallel()
		f := follow(t, testdatabase.SQLite(t), catalog.Options{}, catalog.NodeOptions{})
		f.Stop(t.Context())
		f.stop()
	})
	t.Run("the database hangs", func(t *testing.T) {
		t.Parallel()
		server := testpostgres.Start(t)
		url := server.Database(t)
		open(t, url)
		f := follow(t, url, catalog.Options{Patience: hasty}, catalog.NodeOptions{Poll: often})
		server.Pause(t)
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			_, _ = f.Directory().User(t.Context(), "no one") // it is under way, too
		}()
		wait.Nil(t, "a lookup", func() error {
			if f.Lookups()["user"].Loads == 0 {
				return errors.New("no lookup yet")
			}
			return nil
		})
		watch := torture.Start(t)
		f.stop()
		<-asked
		torture.AtMost(t, "stopped after", watch.Took(), 5*time.Second)
		server.Resume(t)
	})
}

// TestStopLeavesNoGoroutine runs alone, so that all goroutines are its own.
func TestStopLeavesNoGoroutine(t *testing.T) { //nolint:paralleltest // it counts goroutines
	url := testdatabase.SQLite(t)
	furnished(t, url)
	redis := testredis.Start(t)
	stacks := func() string {
		buffer := make([]byte, 1<<20)
		return string(buffer[:runtime.Stack(buffer, true)])
	}
	f := follow(t, url, catalog.Options{Side: side(t, redis)}, catalog.NodeOptions{})
	f.knows(t, "ann", "iron")
	f.stop()
	if left := stacks(); strings.Contains(left, "catalog.(*Node)") || strings.Contains(left, "catalog.(*embedded)") || strings.Contains(left, "lookup.(*Cache") {
		t.Errorf("goroutines are left:\n%s", left)
	}
}
