package catalog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testpostgres"
)

func TestMain(m *testing.M) {
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

// urls returns where there is an empty database of each kind. Each time that the one in
// memory is opened it is another.
func urls(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{"sqlite file": "", "sqlite memory": "", "postgres": ""}
	for name := range out {
		out[name] = urlOf(t, name)
	}
	return out
}

// urlOf returns where there is another empty database of a kind.
func urlOf(t testing.TB, name string) string {
	t.Helper()
	switch name {
	case "postgres":
		return testpostgres.Shared(t).Database(t)
	case "sqlite file":
		return "sqlite:" + filepath.Join(t.TempDir(), "a b%20c", "stint.db")
	default:
		return "sqlite::memory:"
	}
}
