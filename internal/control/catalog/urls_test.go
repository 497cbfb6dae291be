package catalog_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/torture"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("rapid.checks", strconv.Itoa(torture.Rounds(10))); err != nil { // each writes to a PostgreSQL
		panic(err)
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

// urls returns the URLs of a database of each kind without rows.
func urls(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"sqlite":   testdatabase.SQLiteAt(t, filepath.Join(t.TempDir(), "a b%20c", "stint.db")),
		"postgres": testdatabase.Postgres(t),
	}
}

// emptyURLs is urls without a schema.
func emptyURLs(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{"sqlite": "sqlite:" + filepath.Join(t.TempDir(), "stint.db"), "postgres": testpostgres.Shared(t).Database(t)}
}
