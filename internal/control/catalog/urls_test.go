package catalog_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Many of these tests wait for servers rather than compute, so that it takes less time to
	// run more of them at once than there are processors. A random test writes to a
	// PostgreSQL each time.
	for name, value := range map[string]string{"test.parallel": "6", "rapid.checks": "25"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	testpostgres.StopShared()
	for end := time.Now().Add(10 * time.Second); code == 0; <-time.After(time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		left := strings.Contains(string(stacks), "database/sql.") || strings.Contains(string(stacks), "/internal/control/catalog.(")
		if !left {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", stacks)
			code = 1
		}
	}
	os.Exit(code)
}

// urls returns the URLs of a database of each kind without rows. The one in memory is
// another each time that it is opened.
func urls(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{"sqlite file": "", "sqlite memory": "", "postgres": ""}
	for name := range out {
		out[name] = urlOf(t, name)
	}
	return out
}

// emptyURLs is urls without a schema.
func emptyURLs(t *testing.T) map[string]string {
	t.Helper()
	out := urls(t)
	out["postgres"] = testpostgres.Shared(t).Database(t)
	return out
}

// schema is a PostgreSQL database that has the schema and no rows: to copy it takes a
// fraction of the time of the migrations.
var schema struct {
	once   sync.Once
	err    error
	copies atomic.Int64
}

func copySchema(t testing.TB) string {
	t.Helper()
	server := testpostgres.Shared(t)
	at := func(name string) string { return strings.Replace(server.URL(), "/postgres?", "/"+name+"?", 1) }
	schema.once.Do(func() {
		testpostgres.Exec(t, server.URL(), "create database schema")
		c, err := catalog.Open(at("schema"), catalog.Options{})
		if err == nil {
			_, err = c.Up(t.Context(), 0)
			err = errors.Join(err, c.Close())
		}
		schema.err = err
	})
	if schema.err != nil {
		t.Fatal(schema.err)
	}
	name := fmt.Sprintf("copy%d", schema.copies.Add(1))
	testpostgres.Exec(t, server.URL(), "create database "+name+" template schema")
	t.Cleanup(func() {
		if _, err := testpostgres.Try(server.URL(), "drop database "+name+" with (force)"); err != nil {
			t.Error(err)
		}
	})
	return at(name)
}

// urlOf returns the URL of another database of a kind without rows.
func urlOf(t testing.TB, name string) string {
	t.Helper()
	switch name {
	case "postgres":
		return copySchema(t)
	case "sqlite file":
		return "sqlite:" + filepath.Join(t.TempDir(), "a b%20c", "stint.db")
	default:
		return "sqlite::memory:"
	}
}
