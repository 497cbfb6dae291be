// Package testdatabase makes databases that have the schema of Stint and no rows. They are copies of
// one that is migrated once in a process: to migrate takes longer than most tests.
package testdatabase

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

// Each runs a test with a database of each kind.
func Each(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	for name, url := range map[string]func(testing.TB) string{"postgres": Postgres, "sqlite": SQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, url(t))
		})
	}
}

// SQLite returns the URL of a database in files of its own, which are removed when t ends.
func SQLite(t testing.TB) string {
	t.Helper()
	return SQLiteAt(t, filepath.Join(t.TempDir(), "stint.db"))
}

// SQLiteAt is SQLite for a file with a path that ends in stint.db.
func SQLiteAt(t testing.TB, path string) string {
	t.Helper()
	files, err := sqlite()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return "sqlite:" + path
}

// sqlite returns the files of a database, by name: that of the catalog, and that of the record.
var sqlite = sync.OnceValues(func() (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "stint-schema-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := migrate("sqlite:" + filepath.Join(dir, "stint.db")); err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		text, readErr := os.ReadFile(filepath.Join(dir, e.Name()))
		files[e.Name()], err = text, errors.Join(err, readErr)
	}
	return files, err
})

// Postgres returns the URL of a database in the server that all tests of the process share. It is
// dropped when t ends.
func Postgres(t testing.TB) string {
	t.Helper()
	server := testpostgres.Shared(t)
	at := func(name string) string { return strings.Replace(server.URL(), "/postgres?", "/"+name+"?", 1) }
	template.once.Do(func() {
		if _, template.err = testpostgres.Try(server.URL(), "create database schema"); template.err == nil {
			template.err = migrate(at("schema"))
		}
	})
	if template.err != nil {
		t.Fatal(template.err)
	}
	name := fmt.Sprintf("copy%d", template.copies.Add(1))
	testpostgres.Exec(t, server.URL(), "create database "+name+" template schema")
	t.Cleanup(func() {
		if _, err := testpostgres.Try(server.URL(), "drop database "+name+" with (force)"); err != nil {
			t.Error(err)
		}
	})
	return at(name)
}

// template is the database that is copied in PostgreSQL.
var template struct {
	once   sync.Once
	err    error
	copies atomic.Int64
}

// migrate brings a database up to date, and that of its record.
func migrate(url string) error {
	d, err := database.Open(url)
	if err != nil {
		return err
	}
	_, err = d.Up(context.Background(), 0)
	if err == nil && d.Record != d {
		_, err = d.Record.Up(context.Background(), 0)
	}
	return errors.Join(err, d.Close()) // which leaves SQLite in one file each
}
