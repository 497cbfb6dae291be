//go:build scale

package catalog_test

import (
	"encoding/hex"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

var (
	scaleUsers   = flag.Int("users", 10_000_000, "how many users there are, each with an API key")
	scaleLookups = flag.Int("lookups", 4_000_000, "how many lookups are made")
)

// TestScale looks up API keys among very many: nine of ten lookups are of the same one
// per cent of them, and the cache has room for about as many.
func TestScale(t *testing.T) {
	ctx, users := t.Context(), *scaleUsers
	url := testpostgres.Start(t).Database(t)
	c, err := catalog.Open(url, catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Up(ctx, 0); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	fill(t, url, users)
	t.Logf("filled with %d users and keys in %v", users, time.Since(began).Round(time.Second))

	node, err := c.NewNode(catalog.NodeOptions{Log: slog.New(slog.DiscardHandler), CacheSize: max(1000, users/100)})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Stop(ctx)
	if _, err := node.First(ctx); err != nil {
		t.Fatal(err)
	}
	before := heap()
	var mu sync.Mutex
	var warm, cold []time.Duration
	var wg sync.WaitGroup
	const callers = 32
	began = time.Now()
	for range callers {
		wg.Go(func() {
			d := node.Directory()
			var quick, slow []time.Duration
			for range *scaleLookups / callers {
				n := rand.IntN(users/100) * 100 // the hot ones
				hot := rand.IntN(10) != 0
				if !hot {
					n = rand.IntN(users)
				}
				at := time.Now()
				k, err := d.Key(ctx, keyID(n))
				took := time.Since(at)
				if err != nil || k == nil || k.User != userID(n) {
					t.Errorf("%s: %v, %v", keyID(n), k, err)
					return
				}
				if took < 20*time.Microsecond {
					quick = append(quick, took)
				} else {
					slow = append(slow, took)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			warm, cold = append(warm, quick...), append(cold, slow...)
		})
	}
	wg.Wait()
	took := time.Since(began)
	s := node.Lookups()["api_key"]
	all := slices.Concat(warm, cold)
	slices.Sort(all)
	slices.Sort(cold)
	t.Logf("%d lookups by %d callers in %v: %.0f/s", len(all), callers, took.Round(time.Millisecond), float64(len(all))/took.Seconds())
	t.Logf("hit ratio %.3f: %d hits, %d misses; %d remembered, %d MB", float64(s.Hits)/float64(s.Hits+s.Misses), s.Hits, s.Misses, s.Len, (heap()-before)>>20)
	t.Logf("all: p50 %v, p99 %v, p99.9 %v", at(all, 0.5), at(all, 0.99), at(all, 0.999))
	t.Logf("those that took 20 us or more, mostly cold: p50 %v, p99 %v", at(cold, 0.5), at(cold, 0.99))
}

func at(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func userID(n int) string { return fmt.Sprintf("user-%d", n) }
func keyID(n int) string  { return fmt.Sprintf("k%011d", n) }

// fill writes users and keys as quickly as PostgreSQL takes them.
func fill(t *testing.T, url string, users int) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `INSERT INTO stint_tiers (id, body, version, created_at, updated_at, updated_by) VALUES ('free', '{"name": "free"}', 1, now(), now(), 'scale')`); err != nil {
		t.Fatal(err)
	}
	columns := []string{"id", "body", "version", "created_at", "updated_at", "updated_by"}
	now := time.Now()
	copyRows(t, conn, "stint_users", columns, users, func(n int) (string, string) {
		return userID(n), fmt.Sprintf(`{"id": %q, "tier": "free"}`, userID(n))
	}, now)
	copyRows(t, conn, "stint_api_keys", columns, users, func(n int) (string, string) {
		sum, _ := identity.HashSecret(keyID(n), "")
		return keyID(n), fmt.Sprintf(`{"id": %q, "hash": "sha256:%s", "user": %q}`, keyID(n), hex.EncodeToString(sum[:]), userID(n))
	}, now)
	if _, err := conn.Exec(ctx, "ANALYZE"); err != nil {
		t.Fatal(err)
	}
}

func copyRows(t *testing.T, conn *pgx.Conn, table string, columns []string, count int, row func(int) (id, body string), now time.Time) {
	t.Helper()
	const step = 500_000
	for from := 0; from < count; from += step {
		n := from
		_, err := conn.CopyFrom(t.Context(), pgx.Identifier{table}, columns, pgx.CopyFromFunc(func() ([]any, error) {
			if n == min(from+step, count) {
				return nil, nil
			}
			id, body := row(n)
			n++
			return []any{id, body, int64(1), now, now, "scale"}, nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d of %d", table, n, count)
	}
}
