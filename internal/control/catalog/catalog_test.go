package catalog_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/catalog/catalogtest"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

// open returns a catalog whose schema is up to date.
func open(t testing.TB, url string) *catalog.Catalog {
	t.Helper()
	c := connect(t, url)
	if _, err := c.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return c
}

// connect returns a catalog as it is.
func connect(t testing.TB, url string) *catalog.Catalog {
	t.Helper()
	c, err := catalog.Open(url, catalog.Options{Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestCatalog(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(t testing.TB) string{
		"sqlite": testdatabase.SQLite, "postgres": testdatabase.Postgres, "memory": func(testing.TB) string { return "sqlite::memory:" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var only []string
			if name == "memory" { // it differs from files in its connections
				only = []string{"kinds", "lost updates", "one winner", "contexts", "closed"}
			}
			catalogtest.Run(t, func(t testing.TB) (*catalog.Catalog, *sql.DB) {
				t.Helper()
				c := open(t, url(t))
				return c, catalog.DB(c)
			}, only...)
		})
	}
}

// TestSecretInFiles looks for the text of a key in what SQLite writes to disk.
func TestSecretInFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := open(t, "sqlite:"+filepath.Join(dir, "stint.db"))
	text, key, _, err := c.CreateKey(t.Context(), "ann", catalog.APIKey{})
	if err != nil {
		t.Fatal(err)
	}
	look := func() {
		t.Helper()
		found := false
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(data), key.Hash)
			if strings.Contains(string(data), text[len(text)-20:]) {
				t.Errorf("%s has the end of the key", f.Name())
			}
		}
		if !found {
			t.Error("no file has the hash of the key")
		}
	}
	look() // also into the write-ahead log
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	look()
}
