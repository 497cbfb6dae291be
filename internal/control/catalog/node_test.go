package catalog_test

import (
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
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/rule"
)

// This file is long: one node that follows a database, and each way in which the database can change.

const (
	// soon is far less than a poll that is not to be waited for, and far more than
	// anything takes.
	soon = 30 * time.Second
	rare = 10 * time.Minute
	// often is a poll for changes that no one is told of.
	often = 50 * time.Millisecond

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
	within(t, soon, func() (err error) { // connecting may take too long on a busy machine
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

// within waits until a check is content.
func within(t testing.TB, limit time.Duration, check func() error) time.Duration {
	t.Helper()
	start := time.Now()
	if err := testserver.Poll(limit, check); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// serves waits until a node serves a revision.
func (f *follower) serves(t testing.TB, revision int64) time.Duration {
	t.Helper()
	return within(t, soon, func() error {
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
	within(t, soon, func() error {
		if now := f.Status().Looks; now < before+some {
			return fmt.Errorf("%d looks after %d", now, before)
		}
		return nil
	})
}

// tierOf returns the tier of a user as a node knows it.
func (f *follower) tierOf(t testing.TB, id string) string {
	t.Helper()
	u, err := f.Directory().User(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if u == nil {
		return "no such user"
	}
	return u.Tier
}

// knows waits until a node knows a user's tier.
func (f *follower) knows(t testing.TB, id, tier string) time.Duration {
	t.Helper()
	return within(t, soon, func() error {
		if _, err := f.Directory().User(t.Context(), id); err != nil {
			return err // a busy machine may need more than one attempt
		}
		if got := f.tierOf(t, id); got != tier {
			return fmt.Errorf("the tier of %s is %q, want %q", id, got, tier)
		}
		return nil
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

// both returns where there are databases that several processes can share.
func both(t *testing.T) map[string]string {
	t.Helper()
	all := urls(t)
	delete(all, "sqlite memory")
	return all
}

func banned(s *catalog.Snapshot, id string) bool {
	return s.Lists.Banned.Find(&identity.Subject{User: id}, time.Now()) != nil
}

func TestChangesReachEveryNode(t *testing.T) {
	t.Parallel()
	for name, url := range both(t) {
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
					t.Logf("%s: node %d after %v", step.name, i, n.serves(t, revision))
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
				t.Logf("user: node %d after %v", i, n.knows(t, "ann", "gold"))
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
	for name, url := range both(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const writers, each = 8, 40
			c := furnished(t, url)
			f := follow(t, url, catalog.Options{}, catalog.NodeOptions{})
			start, before := time.Now(), f.Status()
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
			if s := f.last(); !banned(s, "eve") || !banned(s, "u7-39") {
				t.Error("what is served lacks a ban")
			}
			took, now := time.Since(start), f.Status()
			loads, looks := now.Loads-before.Loads, now.Looks-before.Looks
			t.Logf("%d changes in %v: %d loads, %d looks", writers*each, took, loads, looks)
			// A pause of 400 ms between loads, after some shorter ones, and after a moment without changes: on a
			// busy machine there are some.
			if most := 20 + uint64(took/(200*time.Millisecond)); loads > most || looks > 2*most {
				t.Errorf("%d loads and %d looks in %v, want at most %d and %d", loads, looks, took, most, 2*most)
			}
		})
	}
}

// TestPoisonedNotifications are those of others, who can say what they like.
func TestPoisonedNotifications(t *testing.T) {
	t.Parallel()
	url := copySchema(t)
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
	before, start := f.Status(), time.Now()
	testpostgres.Exec(t, url, "select pg_notify('stint_catalog', 'x' || i) from generate_series(1, 10000) i")
	for i := range 100 {
		redis.Do(t, "PUBLISH", "rl:side/catalog", strconv.Itoa(i))
	}
	f.serves(t, grade(t, c, "ann", "gold")) // it comes after all of them
	took, now := time.Since(start), f.Status()
	t.Logf("10,100 notifications in %v: %d looks", took, now.Looks-before.Looks)
	if looks := now.Looks - before.Looks; looks > 5+uint64(took/(20*time.Millisecond)) {
		t.Errorf("%d looks in %v", looks, took)
	}
	if now.Loads != before.Loads || now.Problem != "" || now.Away != nil {
		t.Errorf("after nothing but notifications: %+v, before %+v", now, before)
	}
}

// looksAfter waits until a node has looked since something was done.
func (f *follower) looksAfter(t *testing.T, what string, do func()) {
	t.Helper()
	before := f.Status().Looks
	do()
	within(t, soon, func() error {
		if f.Status().Looks == before {
			return errors.New(what + ": it has not looked")
		}
		return nil
	})
}

// side returns what is beside the counters of a Redis.
func side(t testing.TB, s *testredis.Server) catalog.Side {
	t.Helper()
	store, err := redisstore.Open(s.URL(), redisstore.Options{})
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
	f := newFollower(t, "sqlite::memory:", catalog.Options{}, catalog.NodeOptions{Migrate: true, Poll: often}).begin(t)
	if _, err := f.c.Users.Create(t.Context(), writer, catalog.User{ID: "ann"}); err != nil {
		t.Fatal(err)
	}
	f.refuseWith(errors.New("no room for it"))
	before := f.Status().Revision
	at := ban(t, f.c, "eve")
	within(t, soon, func() error {
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
		f := newFollower(t, "sqlite::memory:", catalog.Options{}, catalog.NodeOptions{Migrate: true}).begin(t)
		f.Stop(t.Context())
		f.stop()
	})
	t.Run("the database hangs", func(t *testing.T) {
		t.Parallel()
		server := testpostgres.Start(t)
		url := server.Database(t)
		open(t, url)
		f := follow(t, url, catalog.Options{}, catalog.NodeOptions{Poll: often})
		server.Pause(t)
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			_, _ = f.Directory().User(t.Context(), "no one") // it is under way, too
		}()
		within(t, soon, func() error {
			if f.Lookups()["user"].Loads == 0 {
				return errors.New("no lookup yet")
			}
			return nil
		})
		start := time.Now()
		f.stop()
		<-asked
		took := time.Since(start)
		t.Logf("stopped after %v", took)
		if most := 5 * time.Second; took > most {
			t.Errorf("stopped after %v, want at most %v", took, most)
		}
		server.Resume(t)
	})
}

// TestStopLeavesNoGoroutine runs alone, so that all goroutines are its own.
func TestStopLeavesNoGoroutine(t *testing.T) { //nolint:paralleltest // it counts goroutines
	url := urls(t)["sqlite file"]
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
