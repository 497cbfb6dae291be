//go:build scale

package admin_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

// TestSearchScale searches among very many users, each with a key, and as many clients that
// were seen in traffic, on both databases.
func TestSearchScale(t *testing.T) {
	for _, place := range []string{"sqlite", "postgres"} {
		t.Run(place, func(t *testing.T) {
			target := "sqlite:" + filepath.Join(t.TempDir(), "stint.db")
			series := "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %d) "
			object, number := "json_object", "printf('%%06d', n)"
			if place == "postgres" {
				target = testpostgres.Start(t).Database(t)
				object, number = "jsonb_build_object", "lpad(n::text, 6, '0')"
			}
			users := *scaleUsers
			c, err := catalog.Open(target, catalog.Options{})
			if err != nil {
				t.Fatal(err)
			}
			run := func(statement string) {
				t.Helper()
				if _, err := c.Database().Write.ExecContext(t.Context(), fmt.Sprintf(statement, users)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := c.Up(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Down(t.Context(), 13); err != nil { // so that the migration makes the words
				t.Fatal(err)
			}
			zero, sum := "'2026-01-01T00:00:00Z'", "'sha256:' || lpad(to_hex(n), 64, '0')"
			if place == "sqlite" {
				zero, sum = "1767225600000000", "'sha256:' || printf('%%064x', n)"
			}
			run(`INSERT INTO stint_users (id, body, version, created_at, updated_at, updated_by) ` + series +
				`SELECT 'user' || n || '.name' || (n %% 1000) || '@example.com', ` + object + `('id', 'user' || n || '.name' || (n %% 1000) || '@example.com'), 1, ` + zero + `, ` + zero + `, 'scale' FROM s`)
			run(`INSERT INTO stint_api_keys (id, body, version, created_at, updated_at, updated_by) ` + series +
				`SELECT 'key' || ` + number + `, ` + object + `('id', 'key' || ` + number + `, 'name', 'app ' || n, 'hash', ` + sum + `), 1, ` + zero + `, ` + zero + `, 'scale' FROM s`)
			began := time.Now()
			if _, err := c.Up(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			t.Logf("the migration took %v", time.Since(began).Round(time.Millisecond))
			seen := c.Database().Record.Write
			if _, err := seen.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO stint_seen (kind, name, at) `+series+`SELECT 0, 'user' || n || '.name' || (n %% 1000) || '@example.com', `+zero+` FROM s`, users)); err != nil {
				t.Fatal(err)
			}
			if _, err := seen.ExecContext(t.Context(), fmt.Sprintf(`INSERT INTO stint_seen (kind, name, at) `+series+`SELECT 3, '10.' || (n %% 256) || '.' || (n / 256 %% 256) || '.' || (n / 65536), `+zero+` FROM s`, users)); err != nil {
				t.Fatal(err)
			}
			run("ANALYZE -- %d")
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			h := newTestAPIAt(t, target)
			for _, q := range []struct {
				name string
				text func() string
			}{
				{"all users begin so", func() string { return "user" }},
				{"one letter", func() string { return string(rune('a' + rand.IntN(26))) }},
				{"a part of the id", func() string { return fmt.Sprintf("user%d", rand.IntN(users)) }},
				{"a word in the id", func() string { return fmt.Sprintf("name%d", rand.IntN(1000)) }},
				{"a word that all have", func() string { return "example" }},
				{"the name of a key", func() string { return fmt.Sprintf("app %d", rand.IntN(users)) }},
				{"an address", func() string { return fmt.Sprintf("10.%d.", rand.IntN(256)) }},
				{"nothing", func() string { return fmt.Sprintf("nobody%d", rand.IntN(users)) }},
			} {
				var took []time.Duration
				for range 500 {
					r, w := httptest.NewRequest(http.MethodGet, admin.Prefix+"/search?q="+url.QueryEscape(q.text()), http.NoBody), httptest.NewRecorder()
					r.Header.Set("Authorization", "Bearer "+h.viewer)
					at := time.Now()
					h.api.ServeHTTP(w, r)
					took = append(took, time.Since(at))
					if w.Code != http.StatusOK {
						t.Fatalf("%s: %d %s", q.name, w.Code, w.Body)
					}
				}
				slices.Sort(took)
				p99 := took[len(took)*99/100]
				t.Logf("%-22s p50 %6.2f ms, p99 %6.2f ms", q.name, ms(took[len(took)/2]), ms(p99))
				if p99 > 100*time.Millisecond {
					t.Errorf("%s: p99 %v, want at most 100 ms", q.name, p99)
				}
			}
		})
	}
}
