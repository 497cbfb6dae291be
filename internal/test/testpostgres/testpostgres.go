// Package testpostgres runs real PostgreSQL servers for tests: one server
// ([Start]), and standbys that stream from it ([Server.Standby]). A test may
// kill, restart and pause what it started, and promote a standby.
//
//	s := testpostgres.Start(t)
//	url := s.Database(t)
//	testpostgres.Exec(t, url, "create table greetings (text text)")
//	s.Kill(t)
//
// Tests that kill nothing use [Shared]: one server for the test process, where
// each test has a database of its own. A package that uses either stops what is
// shared at the end, since Start also uses a shared template:
//
//	func TestMain(m *testing.M) {
//		defer testpostgres.StopShared()
//		m.Run()
//	}
//
// Without postgres a test fails; it is never skipped. Shared servers cannot be
// killed. There are no passwords and no TLS: everyone on this machine is a
// superuser. The package is for tests on Linux.
//
// Invariants:
//
//   - Servers listen on 127.0.0.1 only. They run as nobody if the test runs as
//     root, which postgres does not allow, and otherwise as the user of the test.
//   - Committed data survives a Kill, but not a crash of the machine: nothing is
//     synced to disk.
//   - The invariants of package testserver apply. No shared memory is left behind.
package testpostgres

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stintdev/stint/internal/test/testserver"
)

// Start starts a server for one test, with the built-in databases only. It is
// killed when t ends.
func Start(t testing.TB) *Server {
	t.Helper()
	return testserver.Own(t, startNew)
}

// StopShared stops all shared servers, at the end of TestMain. They must not be used
// afterwards.
func StopShared() { testserver.StopShared() }

// Shared returns the server that all tests of the process share.
var Shared = testserver.Share(func(g *testserver.Group) (*Server, error) {
	s, err := startNew(g)
	if err == nil {
		s.shared = true
	}
	return s, err
})

// Server is one PostgreSQL server. A Restart keeps what was committed.
type Server struct {
	*testserver.Process
	shared    bool
	databases atomic.Int64 // how many were created
}

// URL returns the URL of the database postgres, as in
// postgres://postgres@127.0.0.1:12345/postgres?sslmode=disable.
func (s *Server) URL() string { return s.url("postgres") }

func (s *Server) url(database string) string {
	url := fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", s.Addr(), database)
	if s.shared { // it is never away, but the machine may be busy
		url += "&connect_timeout=60"
	}
	return url
}

// Database creates an empty database and returns its URL. It is dropped when t ends.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test%d", s.databases.Add(1))
	Exec(t, s.URL(), "create database "+name)
	if s.shared { // otherwise it is removed with the server
		t.Cleanup(func() {
			if _, err := Try(s.URL(), "drop database "+name+" with (force)"); err != nil {
				t.Error(err)
			}
		})
	}
	return s.url(name)
}

// Standby starts a read-only replica of this server, and returns when it is
// streaming. It is killed when t ends. Commits do not wait for it, unless
// synchronous_standby_names is set.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	standby := testserver.Own(t, func(g *testserver.Group) (*Server, error) { return startCopy(g, s.URL()) })
	err := testserver.Poll(testserver.ReadyLimit, func() error {
		return standby.expect("streaming", "select status from pg_stat_wal_receiver")
	})
	if err != nil {
		t.Fatal(err)
	}
	return standby
}

// Promote promotes a standby to a primary, and returns when it accepts writes.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	if err := s.expect("t", "select pg_promote()"); err != nil {
		t.Fatal(err)
	}
}

// expect returns an error unless the result of a query is the given single value.
func (s *Server) expect(want, query string) error {
	rows, err := Try(s.URL(), query)
	if err != nil {
		return err
	}
	if len(rows) != 1 || len(rows[0]) != 1 || rows[0][0] != want {
		return fmt.Errorf("%s: %s: got %q, want %q", s, query, rows, want)
	}
	return nil
}

// Exec executes statements, separated by semicolons, on a new connection, and
// returns the rows of the last one as text. NULL is an empty string. An error, or a
// timeout after two minutes, fails the test.
func Exec(t testing.TB, url, sql string) [][]string {
	t.Helper()
	rows, err := Try(url, sql)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// Try is Exec for statements that may fail. Errors of the server wrap a
// [pgconn.PgError].
func Try(url, sql string) ([][]string, error) {
	rows, err := try(url, sql, testserver.ReadyLimit)
	if err != nil {
		return nil, fmt.Errorf("%.200s: %w", sql, err)
	}
	return rows, nil
}

func try(url, sql string, limit time.Duration) ([][]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) == 0 {
		return nil, err
	}
	var rows [][]string
	for _, values := range results[len(results)-1].Rows {
		row := make([]string, len(values))
		for i, v := range values {
			row[i] = string(v)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// Command returns a command that runs as the user of the servers, who owns their
// directories, with the programs of PostgreSQL first in its path.
func Command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd, err := command(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return cmd
}

// template is the directory of an unused cluster: copying it is faster than initdb.
var template = sync.OnceValues(func() (string, error) {
	g, err := testserver.NewShared()
	if err != nil {
		return "", err
	}
	return initialize(g)
})
