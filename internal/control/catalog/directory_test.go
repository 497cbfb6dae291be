package catalog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestDirectory makes, changes and deletes one of each kind that is looked up.
func TestDirectory(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			c := furnished(t, url)
			f := follow(t, url, catalog.Options{}, catalog.NodeOptions{})
			d := f.Directory()
			is := func(what string, want bool, get func() (bool, error)) {
				t.Helper()
				wait.Nil(t, what, func() error {
					got, err := get()
					if err == nil && got != want {
						err = fmt.Errorf("%s: %v, want %v", what, got, want)
					}
					return err
				})
			}

			tenant := func() (bool, error) {
				tenant, err := d.Tenant(ctx, "acme")
				return tenant != nil && tenant.Tier == "gold", err
			}
			is("the tenant", false, tenant) // and that is remembered
			version, err := c.Tenants.Create(ctx, writer, catalog.Tenant{ID: "acme", Tier: "gold"})
			if err != nil {
				t.Fatal(err)
			}
			is("the tenant that was made", true, tenant)
			if version, err = c.Tenants.Update(ctx, writer, catalog.Tenant{ID: "acme", Tier: "iron"}, version); err != nil {
				t.Fatal(err)
			}
			is("the gold of the tenant that was changed", false, tenant)
			if err := c.Tenants.Delete(ctx, writer, "acme", version); err != nil {
				t.Fatal(err)
			}
			is("the tenant that was deleted", false, tenant)

			f.knows(t, "cid", "no such user")
			if version, err = c.Users.Create(ctx, writer, catalog.User{ID: "cid", Tier: "gold"}); err != nil {
				t.Fatal(err)
			}
			f.knows(t, "cid", "gold")
			if err := c.Users.Delete(ctx, writer, "cid", version); err != nil {
				t.Fatal(err)
			}
			f.knows(t, "cid", "no such user")

			_, k, _, err := c.CreateKey(ctx, writer, catalog.APIKey{User: "ann"})
			if err != nil {
				t.Fatal(err)
			}
			key := func() (bool, error) {
				key, err := d.Key(ctx, k.ID)
				return key != nil && key.User == "ann" && key.Revoked.IsZero(), err
			}
			knownKey := func() (bool, error) {
				key, known, err := d.(identity.KnownKeys).KnownKey(ctx, k.ID)
				return known && key != nil && key.User == "ann" && key.Revoked.IsZero(), err
			}
			if known, err := knownKey(); known || err != nil {
				t.Errorf("a key that was not looked up is known: %v", err)
			}
			is("the key", true, key)
			is("the key that was looked up", true, knownKey)
			_, err = c.APIKeys.Modify(ctx, writer, k.ID, func(k *catalog.APIKey) error {
				k.Revoked = catalog.Time{Time: time.Now()}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			is("the good of the key that was revoked", false, key)
		})
	}
}

// TestStrangeIDs are what clients may claim to be. None of them is a reason to think
// that the database is away.
func TestStrangeIDs(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := furnished(t, url)
			f := follow(t, url, catalog.Options{}, catalog.NodeOptions{Poll: often})
			for _, id := range []string{"", "\x00", "a\x00b", "\xff\xfe", "\u2028", "'; --", "%", strings.Repeat("x", 255), strings.Repeat("x", 1024), "\ufffd"} {
				if u, err := f.Directory().User(t.Context(), id); u != nil || err != nil {
					t.Errorf("%.20q: %v, %v", id, u, err)
				}
				f.knows(t, "ann", "iron")
			}
			f.serves(t, grade(t, c, "ann", "gold"))

			// A user whose row this program cannot read is an error, and no one else is.
			execute(t, c, append(raise("user", "ben"), `UPDATE stint_users SET body = '{"id":"ben","limits":7}' WHERE id = 'ben'`)...)
			wait.Nil(t, "that ben cannot be read", func() error {
				_, err := f.Directory().User(t.Context(), "ben")
				if err == nil || !strings.Contains(err.Error(), `user "ben" cannot be read`) {
					return fmt.Errorf("%w, want that ben cannot be read", err)
				}
				return nil
			})
			f.knows(t, "ann", "gold")
			f.knows(t, "dan", "no such user")
			// What a newer program knows of a user is not needed here.
			execute(t, c, append(raise("user", "ben"), `UPDATE stint_users SET body = '{"id":"ben","tier":"gold","color":"red"}' WHERE id = 'ben'`)...)
			wait.Nil(t, "the gold of ben", func() error {
				u, err := f.Directory().User(t.Context(), "ben")
				if err == nil && u.Tier != "gold" {
					err = errors.New("ben has no gold")
				}
				return err
			})
		})
	}
}

func TestOverridesEndByTheClock(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	start := time.Now()
	now := func() time.Time { return start.Add(time.Duration(clock.Load())) }
	f := follow(t, testdatabase.SQLite(t), catalog.Options{Now: now}, catalog.NodeOptions{})
	ctx := t.Context()
	if _, err := f.c.Rules.Create(ctx, writer, base("100/1m")); err != nil {
		t.Fatal(err)
	}
	at, err := f.c.Users.Create(ctx, writer, catalog.User{ID: "ann", Limits: map[string]catalog.Override{
		"requests": {Limit: "7/1m", Until: catalog.Time{Time: start.Add(time.Minute)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	f.serves(t, at)
	for _, row := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {59 * time.Second, 1}, {time.Minute, 0}, {2 * time.Minute, 0}} {
		clock.Store(int64(row.after))
		u, err := f.Directory().User(ctx, "ann")
		if err != nil {
			t.Fatal(err)
		}
		if len(u.Limits) != row.want {
			t.Errorf("after %v there are %d limits, want %d", row.after, len(u.Limits), row.want)
		}
	}
	if got := f.Lookups()["user"].Loads; got != 1 {
		t.Errorf("%d loads, want 1", got)
	}
}

// TestResetUnderLoad begins caches anew while they are in use. No one is refused.
func TestResetUnderLoad(t *testing.T) {
	t.Parallel()
	url := testdatabase.SQLite(t)
	furnished(t, url)
	f := follow(t, url, catalog.Options{}, catalog.NodeOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for ctx.Err() == nil {
				if u, err := f.Directory().User(t.Context(), "ann"); err != nil || u == nil {
					t.Errorf("ann: %v, %v", u, err)
					return
				}
				if _, err := f.Directory().User(t.Context(), strconv.FormatUint(rand.Uint64(), 10)); err != nil {
					t.Errorf("no one: %v", err)
					return
				}
			}
		})
	}
	for range 20 {
		if err := f.Look(t.Context()); err != nil {
			t.Error(err)
		}
	}
	cancel()
	work.Wait()
}

// TestSide has two nodes that share what they have looked up.
func TestSide(t *testing.T) {
	t.Parallel()
	server, redis := testpostgres.Start(t), testredis.Start(t)
	url := server.Database(t)
	c := furnished(t, url)
	node := catalog.NodeOptions{Poll: rare}
	first := follow(t, url, catalog.Options{Side: side(t, redis)}, node)
	second := follow(t, url, catalog.Options{Side: side(t, redis)}, node)
	const ann = "rl:side/directory:user:ann"

	// What one has looked up, the other knows without the database.
	first.knows(t, "ann", "iron")
	first.knows(t, "dan", "no such user")
	old := fmt.Sprint(redis.Do(t, "GET", ann))
	server.Pause(t)
	second.knows(t, "ann", "iron")
	second.knows(t, "dan", "no such user")
	server.Resume(t)

	// What is older than a change is not used, whoever wrote it.
	revision := grade(t, c, "ann", "gold")
	first.serves(t, revision)
	second.serves(t, revision)
	redis.Do(t, "SET", ann, old)
	first.knows(t, "ann", "gold")
	redis.Do(t, "SET", ann, old)
	second.knows(t, "ann", "gold")
	third := follow(t, url, catalog.Options{Side: side(t, redis)}, node)
	redis.Do(t, "SET", ann, old)
	third.knows(t, "ann", "gold")

	// Nor is what no node has written, or one of another database.
	var now map[string]any
	if err := json.Unmarshal([]byte(fmt.Sprint(redis.Do(t, "GET", ann))), &now); err != nil {
		t.Fatal(err)
	}
	fresh, n := follow(t, url, catalog.Options{Side: side(t, redis)}, node), 0
	// unknown puts a value of a user on the side, of whom the database knows nothing.
	unknown := func(what, value string) {
		t.Helper()
		n++
		id := fmt.Sprint("dan", n)
		redis.Do(t, "SET", "rl:side/directory:user:"+id, value)
		if got := fresh.tierOf(t, id); got != "no such user" {
			t.Errorf("%s: %s has %q", what, id, got)
		}
	}
	for name, change := range map[string]map[string]any{
		"another history": {"stamp": "ANOTHER"}, "the future": {"revision": 1 << 50}, "below zero": {"revision": -1},
	} {
		value := map[string]any{"revision": now["revision"], "stamp": now["stamp"], "body": map[string]any{"id": "dan", "tier": "gold"}}
		for k, v := range change {
			value[k] = v
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		unknown(name, string(text))
	}
	for _, garbage := range []string{"", "garbage", "[]", `{"revision":"x"}`, strings.Repeat("x", 1<<20)} {
		unknown(fmt.Sprintf("%.20q", garbage), garbage)
	}

	// Without the side, lookups go on.
	hurried := follow(t, url, catalog.Options{Side: side(t, redis), Patience: hasty}, node)
	redis.Pause(t)
	hurried.knows(t, "ben", "iron")
	redis.Kill(t)
	hurried.knows(t, "no one", "no such user")
	hurried.serves(t, grade(t, c, "ann", "iron"))
	hurried.knows(t, "ann", "iron")
}

func BenchmarkDirectory(b *testing.B) {
	f := follow(b, "sqlite::memory:", catalog.Options{}, catalog.NodeOptions{Migrate: true})
	_, k, _, err := f.c.CreateKey(b.Context(), writer, catalog.APIKey{Name: "a"})
	if err != nil {
		b.Fatal(err)
	}
	d := f.Directory()
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if key, err := d.Key(ctx, k.ID); key == nil || err != nil {
			b.Fatal(key, err)
		}
	}
}
