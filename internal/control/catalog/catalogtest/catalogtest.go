// Package catalogtest is the suite that the databases of a catalog are held to. Both
// have to give the same answers, and the suite says which:
//
//	func TestCatalog(t *testing.T) {
//		catalogtest.Run(t, func(t testing.TB) (*catalog.Catalog, *sql.DB) {
//			c, err := catalog.Open(url, catalog.Options{})
//			...
//			return c, db
//		})
//	}
//
// It looks at a catalog as its callers do and, for what a write leaves behind, at all
// tables. It knows which text can be stored and which is refused; that a write that
// fails changes nothing; that each one that does something raises the revision by one,
// and is in the log of changes; and that no update is lost, whoever writes at once.
//
// It refuses to measure, to sleep, and to know one database from another, but for how
// its tables are listed.
package catalogtest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Open returns an empty catalog whose schema is up to date, and a way into its tables.
// Both are closed when t ends, by Open's own doing.
type Open func(t testing.TB) (*catalog.Catalog, *sql.DB)

// Run runs the suite against the catalogs that open returns.
func Run(t *testing.T, open Open) {
	t.Helper()
	for _, check := range []struct {
		name string
		run  func(h *house)
	}{
		{"each kind", checkKinds},
		{"every field", checkFields},
		{"pages", checkPages},
		{"filters", checkFilters},
		{"bad queries", checkBadQueries},
		{"again under the same id", checkABA},
		{"lost updates", checkLostUpdates},
		{"one writer of many", checkOneWriter},
		{"revisions at once", checkRevisions},
		{"an id stays", checkIDStays},
		{"refused", checkRefused},
		{"refused with others", checkRefusedWithOthers},
		{"entries by any spelling", checkSpellings},
		{"tier of a user", checkUpgraded},
		{"keys", checkKeys},
		{"tokens", checkTokens},
		{"first token", checkFirstToken},
		{"bad tokens", checkBadTokens},
		{"sessions", checkSessions},
		{"log of changes", checkChanges},
		{"bad queries of the log", checkBadChangeQueries},
		{"revert each kind", checkRevertKinds},
		{"revert all", checkRevertAll},
		{"revert what cannot be", checkRevertRefused},
		{"trial", checkTrial},
		{"rules checked", checkRuleChecks},
		{"rules ordered", checkOrder},
		{"rules found", checkRuleFilters},
		{"subjects found", checkSubjects},
		{"hostile ids", checkHostileIDs},
		{"hostile text", checkHostileText},
		{"hostile rules", checkHostileRules},
		{"hostile actors", checkHostileActors},
		{"contexts", checkContexts},
		{"closed", checkClosed},
	} {
		t.Run(check.name, func(t *testing.T) {
			t.Parallel()
			h := &house{t: t}
			h.Catalog, h.db = open(t)
			check.run(h)
		})
	}
}

// house is a catalog under test.
type house struct {
	*catalog.Catalog
	db *sql.DB
	t  *testing.T
	// unwatched says that writes that fail are looked for in the end, by [house.watch]:
	// there are too many to look at all tables after each.
	unwatched bool
	good      int64 // writes, of those that were deleted again
}

// watch returns a function that checks that nothing is there but what there was, and that
// nothing was written but the good writes.
func (h *house) watch(t *testing.T) (check func()) {
	t.Helper()
	h.unwatched = true
	things := func() string {
		_, rest, _ := strings.Cut(Dump(t, h.db), "\nstint_exemptions\n") // what is before it is the log, too
		return rest + strings.Join(lines(t, h.db, "SELECT * FROM stint_api_keys"), "") + strings.Join(lines(t, h.db, "SELECT * FROM stint_bans"), "")
	}
	before, start := things(), h.revision(t)
	return func() {
		t.Helper()
		if after := things(); after != before {
			t.Errorf("what was refused or deleted has changed\n%s\nto\n%s", before, after)
		}
		if n, logged := h.revision(t)-start, int64(len(h.changes(t, start))); n != 2*h.good || logged != n || h.good == 0 {
			t.Errorf("%d things were made and deleted in %d revisions and %d changes", h.good, n, logged)
		}
	}
}

// actor is who writes.
const actor = "ann@example.com"

// limit is the name of a limit that every house has, tier one of its tiers, and owner
// one of its users.
const limit, tier, owner = "requests", "gold", "owner"

// furnish writes what others refer to.
func (h *house) furnish(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	_, err := h.Rules.Create(ctx, actor, catalog.Rule{Name: "base", CountBy: []dimension{"user"}, Limits: []namedLimit{{Name: limit, Limit: "100/1m"}}})
	check(t, err)
	_, err = h.Tiers.Create(ctx, actor, catalog.Tier{Name: tier})
	check(t, err)
	_, err = h.Users.Create(ctx, actor, catalog.User{ID: owner})
	check(t, err)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// revision returns that of the database.
func (h *house) revision(t testing.TB) (n int64) {
	t.Helper()
	check(t, h.db.QueryRowContext(t.Context(), "SELECT revision FROM stint_catalog").Scan(&n))
	return n
}

// change is a line of the log of changes.
type change struct {
	revision, place int64
	actor, kind, id string
	before, after   any // decoded
	stamped, timed  bool
}

// changes returns the log, beginning after a revision.
func (h *house) changes(t testing.TB, after int64) (out []change) {
	t.Helper()
	rows, err := h.db.QueryContext(t.Context(), `SELECT revision, place, actor, kind, subject, before, after,
		stamp <> '', at IS NOT NULL FROM stint_changes WHERE revision > $1 ORDER BY revision, place`, after)
	check(t, err)
	defer rows.Close()
	for rows.Next() {
		var c change
		var before, after sql.NullString
		check(t, rows.Scan(&c.revision, &c.place, &c.actor, &c.kind, &c.id, &before, &after, &c.stamped, &c.timed))
		c.before, c.after = decoded(t, before), decoded(t, after)
		out = append(out, c)
	}
	check(t, rows.Err())
	return out
}

func decoded(t testing.TB, text sql.NullString) (v any) {
	t.Helper()
	if text.Valid {
		check(t, json.Unmarshal([]byte(text.String), &v))
	}
	return v
}

// jsonOf returns a value as JSON has it.
func jsonOf(t testing.TB, v any) (out any) {
	t.Helper()
	text, err := json.Marshal(v)
	check(t, err)
	check(t, json.Unmarshal(text, &out))
	return out
}

// Dump returns the rows of all tables, as text.
func Dump(t testing.TB, db *sql.DB) string {
	t.Helper()
	list := "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
	if strings.Contains(fmt.Sprintf("%T", db.Driver()), "sqlite") {
		list = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
	}
	var b strings.Builder
	for _, table := range lines(t, db, list) {
		fmt.Fprintf(&b, "%s\n", table)
		for _, line := range lines(t, db, "SELECT * FROM "+table+" ORDER BY 1, 2") {
			fmt.Fprintf(&b, "\t%s\n", line)
		}
	}
	return b.String()
}

func lines(t testing.TB, db *sql.DB, query string) (out []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	check(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	check(t, err)
	values, into := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		check(t, rows.Scan(into...))
		for i, v := range values {
			if text, ok := v.([]byte); ok {
				values[i] = string(text)
			}
		}
		out = append(out, strings.Trim(fmt.Sprint(values), "[]"))
	}
	check(t, rows.Err())
	return out
}

// refuses runs a write that has to fail with a status, and leave nothing behind. The
// error has to say all that is said.
func (h *house) refuses(t *testing.T, status int, write func(context.Context) error, says ...string) {
	t.Helper()
	var before string
	if !h.unwatched {
		before = Dump(t, h.db)
	}
	err := write(t.Context())
	if got := catalog.Status(err); got != status {
		t.Errorf("got %d (%.300v), want %d", got, err, status)
		return
	}
	if errors.Is(err, catalog.ErrUnavailable) {
		t.Errorf("got %.300v, and the database is there", err)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("got %.300q, want an error that says %q", err, text)
		}
	}
	if len(err.Error()) > 20_000 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	if h.unwatched {
		return
	}
	if after := Dump(t, h.db); after != before {
		t.Errorf("what failed with %.300v has changed\n%s\nto\n%s", err, before, after)
	}
}

// names says whether the error is problems, of which one is about what has the path.
func names(err error, path string) bool {
	var problems strict.Problems
	if !errors.As(err, &problems) {
		return false
	}
	for _, p := range problems {
		if p.Path == path {
			return true
		}
	}
	return false
}

// equal compares values as JSON.
func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if g, w := jsonOf(t, got), jsonOf(t, want); !reflect.DeepEqual(g, w) {
		t.Errorf("%s: got %v, want %v", what, g, w)
	}
}
