package catalog_test

import (
	"database/sql"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/catalog/catalogtest"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

// ask returns the rows of a query as text, each in one line.
func ask(t *testing.T, db *sql.DB, query string, args ...any) (out []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query, args...)
	if err != nil {
		t.Fatal(query, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		var line []string
		for _, v := range values {
			line = append(line, v.String)
		}
		out = append(out, strings.Join(line, " "))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestMigrationFiles(t *testing.T) {
	t.Parallel()
	list := func(dialect string) (names []string) {
		files, err := filepath.Glob("../../kit/database/migrations/" + dialect + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range files {
			names = append(names, filepath.Base(f))
			if want := regexp.MustCompile(`^\d{5}_[a-z_]+\.sql$`); !want.MatchString(names[i]) || i > 0 && names[i][:5] == names[i-1][:5] {
				t.Errorf("%s: want a name like %v, with a number of its own", f, want)
			}
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(text), "-- +goose Up\n") || !strings.Contains(string(text), "\n-- +goose Down\n") || strings.Contains(string(text), "NO TRANSACTION") {
				t.Errorf("%s: want Up, then Down, each in one transaction", f)
			}
		}
		return names
	}
	if a, b := list("postgres"), list("sqlite"); !slices.Equal(a, b) || len(a) == 0 {
		t.Errorf("PostgreSQL has %q, SQLite has %q", a, b)
	}
}

// schemaOf describes all tables but the one of the migrations, in words that both
// databases have in common.
func schemaOf(t *testing.T, c *catalog.Catalog, isPostgres bool) map[string][]string {
	t.Helper()
	tables := "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name <> 'stint_migrations'"
	// The name of the table comes first. The types are those of SQLite, and so are generated columns.
	columns := `SELECT m.name, x.type, CASE WHEN x."notnull" OR x.pk > 0 THEN 'not null' ELSE 'null' END,
		CASE WHEN x.hidden > 0 THEN 'generated' ELSE '' END, x.name FROM sqlite_master m, pragma_table_xinfo(m.name) x WHERE m.type = 'table' ORDER BY m.name, x.cid`
	// Nothing, and cascade, as PostgreSQL abbreviates them.
	keys := `SELECT m.name, 'primary', group_concat(x.name ORDER BY x.pk) FROM sqlite_master m, pragma_table_xinfo(m.name) x WHERE m.type = 'table' AND x.pk > 0 GROUP BY m.name
		UNION ALL SELECT m.name, 'unique', (SELECT group_concat(name) FROM pragma_index_info(l.name)) FROM sqlite_master m, pragma_index_list(m.name) l WHERE m.type = 'table' AND l.origin = 'u'
		UNION ALL SELECT m.name, 'foreign ' || f."table" || ' ' || CASE f.on_delete WHEN 'NO ACTION' THEN 'a' WHEN 'CASCADE' THEN 'c' ELSE f.on_delete END, f."from"
			FROM sqlite_master m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table'
		UNION ALL SELECT m.name, 'index ' || l.name || CASE WHEN l.partial THEN ' partial ' ELSE '  ' END, (SELECT group_concat(coalesce(name, 'lower')) FROM pragma_index_info(l.name))
			FROM sqlite_master m, pragma_index_list(m.name) l WHERE m.type = 'table' AND l.origin = 'c'` // PostgreSQL names expressions by their function, of which there is one
	if isPostgres {
		tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'stint_migrations'"
		columns = `SELECT table_name, CASE data_type WHEN 'text' THEN 'TEXT' WHEN 'jsonb' THEN 'TEXT' WHEN 'bigint' THEN 'INTEGER'
			WHEN 'timestamp with time zone' THEN 'INTEGER' WHEN 'boolean' THEN 'INTEGER'
			WHEN 'smallint' THEN 'INTEGER' WHEN 'uuid' THEN 'BLOB' WHEN 'bytea' THEN 'BLOB' ELSE data_type END,
			CASE is_nullable WHEN 'YES' THEN 'null' ELSE 'not null' END, CASE is_generated WHEN 'ALWAYS' THEN 'generated' ELSE '' END, column_name
			FROM information_schema.columns WHERE table_schema = 'public' ORDER BY table_name, ordinal_position`
		keys = `SELECT c.conrelid::regclass, CASE c.contype WHEN 'p' THEN 'primary' WHEN 'u' THEN 'unique' WHEN 'f' THEN 'foreign ' || c.confrelid::regclass || ' ' || CAST(c.confdeltype AS TEXT) END,
			(SELECT string_agg(a.attname, ',' ORDER BY n) FROM unnest(c.conkey) WITH ORDINALITY k (num, n) JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.num)
			FROM pg_constraint c WHERE c.connamespace = 'public'::regnamespace AND c.contype IN ('p', 'u', 'f')
			UNION ALL SELECT x.indrelid::regclass, 'index ' || i.relname || CASE WHEN x.indpred IS NULL THEN '  ' ELSE ' partial ' END,
			(SELECT string_agg(a.attname, ',' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = x.indexrelid)
			FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE i.relnamespace = 'public'::regnamespace
			AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = x.indexrelid AND c.contype IN ('p', 'u'))`
	}
	out := map[string][]string{}
	for _, table := range ask(t, catalog.DB(c), tables) {
		out[table] = []string{}
	}
	for _, line := range append(ask(t, catalog.DB(c), columns), sorted(ask(t, catalog.DB(c), keys))...) {
		if table, rest, _ := strings.Cut(line, " "); out[table] != nil {
			out[table] = append(out[table], rest)
		}
	}
	return out
}

func sorted(lines []string) []string {
	slices.Sort(lines)
	return lines
}

// TestTwins compares the schemas of both databases at every version, on the way up and
// on the way down.
func TestTwins(t *testing.T) {
	t.Parallel()
	small, large := connect(t, "sqlite::memory:"), connect(t, testpostgres.Shared(t).Database(t))
	seen := map[int64]map[string][]string{}
	compare := func(version int64, tables map[string]bool) {
		t.Helper()
		a, b := schemaOf(t, small, false), schemaOf(t, large, true)
		if names := slices.Sorted(maps.Keys(a)); !slices.Equal(names, slices.Sorted(maps.Keys(b))) {
			t.Errorf("version %d: SQLite has %q, PostgreSQL has %q", version, names, slices.Sorted(maps.Keys(b)))
		}
		for table := range a {
			tables[table] = true
			if !slices.Equal(a[table], b[table]) {
				t.Errorf("version %d: %s is\n%s\nin SQLite, and\n%s\nin PostgreSQL", version, table, strings.Join(a[table], "\n"), strings.Join(b[table], "\n"))
			}
		}
		if before, ok := seen[version]; ok && !maps.EqualFunc(a, before, slices.Equal) {
			t.Errorf("version %d is another on the way down: %v, was %v", version, a, before)
		}
		seen[version] = a
	}
	schema, err := small.Schema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	compare(0, all)
	for _, m := range schema.Migrations {
		for _, c := range []*catalog.Catalog{small, large} {
			applied, err := c.Up(t.Context(), m.Version)
			if err != nil || len(applied) != 1 || applied[0].Version != m.Version || applied[0].Name == "" {
				t.Fatalf("up to %d: applied %+v, %v", m.Version, applied, err)
			}
		}
		compare(m.Version, all)
	}
	if len(all) < 10 {
		t.Errorf("only %d tables were compared", len(all))
	}
	for _, c := range []*catalog.Catalog{small, large} {
		s, err := c.Schema(t.Context())
		if err != nil || s.Current != s.Latest || slices.ContainsFunc(s.Migrations, func(m catalog.Migration) bool { return m.Applied.IsZero() }) {
			t.Errorf("got %+v, %v", s, err)
		}
		if again, err := c.Up(t.Context(), 0); err != nil || again != nil {
			t.Errorf("up again: applied %v, %v", again, err)
		}
	}
	for i, m := range slices.Backward(schema.Migrations) {
		v, before := m.Version, int64(0)
		if i > 0 {
			before = schema.Migrations[i-1].Version
		}
		for _, c := range []*catalog.Catalog{small, large} {
			if undone, err := c.Down(t.Context(), -1); err != nil || len(undone) != 1 || undone[0].Version != v {
				t.Fatalf("down from %d: undone %+v, %v", v, undone, err)
			}
		}
		compare(before, all)
	}
	if left := seen[0]; len(left) != 0 {
		t.Errorf("all is undone, and there are %v", left)
	}
	for _, c := range []*catalog.Catalog{small, large} {
		if undone, err := c.Down(t.Context(), -1); err != nil || undone != nil {
			t.Errorf("down from nothing: undone %v, %v", undone, err)
		}
		if _, err := c.Up(t.Context(), 0); err != nil {
			t.Errorf("up again: %v", err)
		}
		if undone, err := c.Down(t.Context(), 0); err != nil || len(undone) != len(schema.Migrations) {
			t.Errorf("down to nothing: undone %v, %v", undone, err)
		}
	}
}

// first fills every table of version 1, as it was, with n rows or more.
func first(t *testing.T, c *catalog.Catalog, isPostgres bool, n int) {
	t.Helper()
	now := "1700000000000000"
	if isPostgres {
		now = "TIMESTAMPTZ '2023-11-14T22:13:20Z'"
	}
	numbers := "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < " + strconv.Itoa(n) + ") "
	row := func(table, id, body string) string {
		if isPostgres {
			body = "CAST(" + body + " AS JSONB)"
		}
		return numbers + "INSERT INTO " + table + " (id, body, version, created_at, updated_at, updated_by) SELECT " + id + ", " + body + ", n, " + now + ", " + now + ", 'ann' FROM numbers"
	}
	hash := `'sha256:' || substr('0000000000000000000000000000000000000000000000000000000000000000' || n, length('' || n) + 1)`
	null := "NULL"
	body := `'{}'`
	if isPostgres {
		null, body = "CAST(NULL AS JSONB)", "CAST('{}' AS JSONB)"
	}
	for _, statement := range []string{
		row("stint_rules", "'r' || n", `'{"name":"r' || n || '","match":{"paths":["/p' || n || '"]},"limits":[{"name":"requests","limit":"' || n || '/1m"}]}'`),
		row("stint_tiers", "'t' || n", `'{"name":"t' || n || '","limits":{"requests":"' || n || '/1h"}}'`),
		row("stint_tenants", "'o' || n", `'{"id":"o' || n || '","tier":"t' || n || '"}'`),
		row("stint_users", "'u' || n", `'{"id":"u' || n || '","tier":"t' || n || '","tenant":"o' || n || '","blocked":{"reason":"x"}}'`),
		row("stint_api_keys", "'keykeykey' || n", `'{"id":"keykeykey' || n || '","user":"u' || n || '","hash":"' || `+hash+` || '"}'`),
		row("stint_exemptions", "'user:u' || n", `'{"user":"u' || n || '"}'`),
		row("stint_bans", "'tenant:o' || n", `'{"tenant":"o' || n || '"}'`),
		numbers + "INSERT INTO stint_changes (revision, place, stamp, at, actor, kind, subject, before, after) SELECT n, 0, 's' || n, " + now + ", 'ann', 'user', 'u' || n, " + null + ", " + body + " FROM numbers",
		"UPDATE stint_catalog SET revision = " + strconv.Itoa(n) + ", stamp = 's" + strconv.Itoa(n) + "'",
	} {
		if _, err := catalog.DB(c).ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// TestUpWithRows brings a database of the first version, which is full, up to date.
func TestUpWithRows(t *testing.T) {
	t.Parallel()
	const n = 300
	for name, url := range emptyURLs(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, ctx := connect(t, url), t.Context()
			if _, err := c.Up(ctx, 1); err != nil {
				t.Fatal(err)
			}
			first(t, c, name == "postgres", n)
			db := catalog.DB(c)
			tables := []string{"stint_rules", "stint_tiers", "stint_tenants", "stint_users", "stint_api_keys", "stint_exemptions", "stint_bans", "stint_changes", "stint_catalog"}
			before := map[string][]string{}
			for _, table := range tables {
				before[table] = ask(t, db, "SELECT * FROM "+table+" ORDER BY 1, 2")
			}
			if _, err := c.Up(ctx, 0); err != nil {
				t.Fatal(err)
			}
			for _, table := range tables {
				after := ask(t, db, "SELECT * FROM "+table+" ORDER BY 1, 2")
				if len(after) < 1 || len(after) < n && table != "stint_catalog" {
					t.Fatalf("%s has %d rows", table, len(after))
				}
				// A later version may have columns of its own, behind.
				if len(after) != len(before[table]) || !strings.HasPrefix(after[0], before[table][0]) || !strings.HasPrefix(after[len(after)-1], before[table][len(after)-1]) {
					t.Errorf("%s had %d rows, and has %d; the first is %q, was %q", table, len(before[table]), len(after), after[0], before[table][0])
				}
			}
			u, err := c.Users.Get(ctx, "u234")
			if err != nil || u.Value.Tier != "t234" || u.Value.Blocked == nil || u.Version != 234 || u.By != "ann" || u.Created.UnixMicro() != 1_700_000_000_000_000 {
				t.Errorf("got %+v, %v", u, err)
			}
			if list, err := c.APIKeys.List(ctx, catalog.Query{Filters: map[string]string{"user_id": "u7"}}); err != nil || len(list) != 1 {
				t.Errorf("got %+v, %v", list, err)
			}
			if v, err := c.Users.Update(ctx, "bob", catalog.User{ID: "u234", Tier: "t1"}, 234); err != nil || v != n+1 {
				t.Errorf("updated as version %d, %v", v, err)
			}
		})
	}
}

// TestUpAtOnce has many bring a database up to date at once, as nodes do that start
// together.
func TestUpAtOnce(t *testing.T) {
	t.Parallel()
	const nodes = 4
	for name, url := range emptyURLs(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			applied := make([][]catalog.Migration, nodes)
			var all sync.WaitGroup
			for i := range nodes {
				c := connect(t, url)
				all.Go(func() {
					var err error
					if applied[i], err = c.Up(t.Context(), 0); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			c := connect(t, url)
			s, err := c.Schema(t.Context())
			if err != nil || s.Current != s.Latest {
				t.Fatalf("got %+v, %v", s, err)
			}
			var versions []int64
			for _, m := range slices.Concat(applied...) {
				versions = append(versions, m.Version)
			}
			slices.Sort(versions)
			var want []int64
			for _, m := range s.Migrations {
				want = append(want, m.Version)
			}
			if !slices.Equal(versions, want) {
				t.Errorf("applied %v, want each of %v once", versions, want)
			}
			rows := ask(t, catalog.DB(c), "SELECT version_id FROM stint_migrations WHERE version_id > 0 ORDER BY version_id")
			if got := strings.Join(rows, " "); got != strings.Trim(fmt.Sprint(want), "[]") {
				t.Errorf("noted %s, want %v", got, want)
			}
			if n := ask(t, catalog.DB(c), "SELECT count(*) FROM stint_catalog"); n[0] != "1" {
				t.Errorf("there are %s revisions", n[0])
			}
		})
	}
}

// TestAhead opens a database that a later program has brought up to date.
func TestAhead(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, ctx := open(t, url), t.Context()
			applied := "TRUE"
			if name != "postgres" {
				applied = "1"
			}
			if _, err := catalog.DB(c).ExecContext(ctx, "INSERT INTO stint_migrations (version_id, is_applied) VALUES (99, "+applied+")"); err != nil {
				t.Fatal(err)
			}
			before := catalogtest.Dump(t, catalog.DB(c))
			if done, err := c.Up(ctx, 0); err != nil || done != nil {
				t.Errorf("up: %v, %v", done, err)
			}
			s, err := c.Schema(ctx)
			if err != nil || s.Current != 99 || s.Latest >= 99 || s.Migrations[len(s.Migrations)-1].Version != s.Latest {
				t.Errorf("got %+v, %v", s, err)
			}
			if undone, err := c.Down(ctx, -1); err == nil || undone != nil {
				t.Errorf("what this program does not know was undone: %v, %v", undone, err)
			}
			if after := catalogtest.Dump(t, catalog.DB(c)); after != before {
				t.Errorf("it has changed\n%s\nto\n%s", before, after)
			}
			if _, err := c.Tenants.Create(ctx, "ann", catalog.Tenant{ID: "acme"}); err != nil {
				t.Error(err)
			}
		})
	}
}
