// Package catalogtest is the conformance suite for the databases of a catalog: all of them
// have to give the same answers.
//
//	func TestCatalog(t *testing.T) {
//		catalogtest.Run(t, func(t testing.TB) (*catalog.Catalog, *sql.DB) {
//			c, err := catalog.Open(url, catalog.Options{})
//			...
//			return c, db
//		})
//	}
//
// It uses a catalog as its callers do, and reads all tables to see what a write left behind.
// It checks which text can be stored and which is rejected, that a failed write changes
// nothing, that every other write raises the revision by one and is logged, and that
// concurrent writers lose no update.
package catalogtest

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Open returns an empty catalog with the latest schema, and access to its tables. It closes
// both when t ends.
type Open func(t testing.TB) (*catalog.Catalog, *sql.DB)

// Run runs the suite, or only some of its checks, against the catalogs that open returns.
func Run(t *testing.T, open Open, only ...string) {
	t.Helper()
	for name, check := range map[string]func(*suite){
		"kinds":           checkKinds,
		"fields":          checkFields,
		"pages":           checkPages,
		"filters":         checkFilters,
		"rule filters":    checkRuleFilters,
		"subjects":        checkSubjects,
		"bad queries":     checkBadQueries,
		"lost updates":    checkLostUpdates,
		"one winner":      checkOneWinner,
		"revisions":       checkRevisions,
		"invalid values":  checkInvalid,
		"references":      checkReferences,
		"spellings":       checkSpellings,
		"upgrades":        checkUpgraded,
		"keys":            checkKeys,
		"tokens":          checkTokens,
		"first token":     checkFirstToken,
		"ticket key":      checkTicketKey,
		"invalid tokens":  checkInvalidTokens,
		"sessions":        checkSessions,
		"scopes":          checkScopes,
		"sign-ins":        checkSignIns,
		"changes":         checkChanges,
		"revert kinds":    checkRevertKinds,
		"revert all":      checkRevertAll,
		"invalid reverts": checkInvalidReverts,
		"trial":           checkTrial,
		"check rules":     checkRuleChecks,
		"order rules":     checkOrder,
		"hostile ids":     checkHostileIDs,
		"hostile text":    checkHostileText,
		"hostile rules":   checkHostileRules,
		"hostile actors":  checkHostileActors,
		"contexts":        checkContexts,
		"closed":          checkClosed,
	} {
		if only != nil && !slices.Contains(only, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, db := open(t)
			check(&suite{Catalog: c, db: db, t: t})
		})
	}
}

// suite is a catalog under test.
type suite struct {
	*catalog.Catalog
	db *sql.DB
	t  *testing.T
}

const (
	// actor is who writes.
	actor = "ann@example.com"
	// prepare creates a limit, a tier and a user with these names.
	limit, tier, owner = "requests", "gold", "owner"

	invalid = http.StatusUnprocessableEntity
)

// prepare writes what other records refer to.
func (s *suite) prepare() {
	s.t.Helper()
	ctx := s.t.Context()
	s.must(s.Rules.Create(ctx, actor, catalog.Rule{Name: "base", CountBy: []dimension{"user"}, Limits: []namedLimit{{Name: limit, Limit: "100/1m"}}}))
	s.must(s.Tiers.Create(ctx, actor, catalog.Tier{Name: tier}))
	s.must(s.Users.Create(ctx, actor, catalog.User{ID: owner}))
}

// check ends the test if err is not nil.
func (s *suite) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// must returns the version that a write made.
func (s *suite) must(version int64, err error) int64 {
	s.t.Helper()
	s.check(err)
	return version
}

// failure returns the error of a call with another result.
func failure(_ any, err error) error { return err }

// rejected checks that err has an HTTP status and contains all texts.
func (s *suite) rejected(status int, err error, texts ...string) {
	s.t.Helper()
	if got := catalog.Status(err); got != status || err == nil {
		s.t.Errorf("got %d (%.300v), want %d", got, err, status)
		return
	}
	if errors.Is(err, catalog.ErrUnavailable) {
		s.t.Errorf("got %.300v, but the database is up", err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			s.t.Errorf("got %.300q, want an error with %q", err, text)
		}
	}
	if len(err.Error()) > 20_000 {
		s.t.Errorf("the error has %d bytes", len(err.Error()))
	}
}

// problem checks that err has a problem with the path, and contains all texts.
func (s *suite) problem(err error, path string, texts ...string) {
	s.t.Helper()
	s.rejected(invalid, err, texts...)
	var problems strict.Problems
	if !errors.As(err, &problems) || !slices.ContainsFunc(problems, func(p strict.Problem) bool { return p.Path == path }) {
		s.t.Errorf("got %.300v, want a problem with %q", err, path)
	}
}

// unchanged returns a function that checks that no table has changed since.
func (s *suite) unchanged() (check func()) {
	s.t.Helper()
	before := Dump(s.t, s.db)
	return func() {
		s.t.Helper()
		if after := Dump(s.t, s.db); after != before {
			s.t.Errorf("the tables have changed from\n%s\nto\n%s", before, after)
		}
	}
}

// revision returns the revision of the database.
func (s *suite) revision() (n int64) {
	s.t.Helper()
	s.check(s.db.QueryRowContext(s.t.Context(), "SELECT revision FROM stint_catalog").Scan(&n))
	return n
}

// change is an entry of the log of changes.
type change struct {
	revision, place int64
	actor, kind, id string
	before, after   any // decoded JSON
	stamped, timed  bool
}

// changes returns the log after a revision.
func (s *suite) changes(after int64) (out []change) {
	s.t.Helper()
	rows, err := s.db.QueryContext(s.t.Context(), `SELECT revision, place, actor, kind, subject, coalesce(CAST(before AS TEXT), 'null'),
		coalesce(CAST(after AS TEXT), 'null'), stamp <> '', at IS NOT NULL FROM stint_changes WHERE revision > $1 ORDER BY revision, place`, after)
	s.check(err)
	defer rows.Close()
	for rows.Next() {
		var c change
		var before, after []byte
		s.check(rows.Scan(&c.revision, &c.place, &c.actor, &c.kind, &c.id, &before, &after, &c.stamped, &c.timed))
		s.check(errors.Join(json.Unmarshal(before, &c.before), json.Unmarshal(after, &c.after)))
		out = append(out, c)
	}
	s.check(rows.Err())
	return out
}

// decoded returns a value as it is after a round trip through JSON.
func (s *suite) decoded(v any) (out any) {
	s.t.Helper()
	text, err := json.Marshal(v)
	s.check(err)
	s.check(json.Unmarshal(text, &out))
	return out
}

// equal compares values as JSON.
func (s *suite) equal(what string, got, want any) {
	s.t.Helper()
	if g, w := s.decoded(got), s.decoded(want); !reflect.DeepEqual(g, w) {
		s.t.Errorf("%s: got %v, want %v", what, g, w)
	}
}

// Dump returns the rows of all tables as text.
func Dump(t testing.TB, db *sql.DB) string {
	t.Helper()
	tables := "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
	if strings.Contains(fmt.Sprintf("%T", db.Driver()), "sqlite") {
		tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
	}
	var b strings.Builder
	for _, table := range lines(t, db, tables) {
		fmt.Fprintf(&b, "%s\n\t%s\n", table, strings.Join(lines(t, db, "SELECT * FROM "+table+" ORDER BY 1, 2"), "\n\t"))
	}
	return b.String()
}

// lines returns the rows of a query as text.
func lines(t testing.TB, db *sql.DB, query string) (out []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
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
