package daemon_test

import (
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/wait"
)

// fill creates a database with the contents of a file, and returns its URL.
func fill(t *testing.T, text string) string {
	t.Helper()
	return fillAt(t, testdatabase.SQLite(t), text)
}

// fillAt is fill for the database of a URL.
func fillAt(t *testing.T, url, text string) string {
	t.Helper()
	c := openCatalog(t, url)
	_, err := c.Up(t.Context(), 0)
	do(t, err)
	apply(t, c, text)
	return url
}

func openCatalog(t *testing.T, url string) *catalog.Catalog {
	t.Helper()
	c, err := catalog.Open(url, catalog.Options{})
	do(t, err)
	t.Cleanup(func() { do(t, c.Close()) })
	return c
}

func apply(t *testing.T, c *catalog.Catalog, text string) {
	t.Helper()
	var d catalog.Document
	_, problems := strict.TOML("", []byte(text), &d)
	do(t, problems.Err())
	_, err := c.Apply(t.Context(), &d, catalog.ApplyOptions{Actor: "test"})
	do(t, err)
}

const inDatabase = "[server]\ndatabase = \"%\"\ncatalog = { last_good = \"none\", poll = \"100ms\" }\n"

// TestDatabase serves rules from a database, with their changes, while the file only has
// settings.
func TestDatabase(t *testing.T) {
	t.Parallel()
	url := fill(t, few)
	p := start(t, strings.ReplaceAll(inDatabase, "%", url)+echo(t))
	c := openCatalog(t, url)
	if got := check(t, p); !strings.Contains(got, `"few"`) {
		t.Error(got)
	}
	// Another process writes: all that is served changes.
	apply(t, c, many)
	p.becomes(t, "catalog", "ok", "")
	wait.For(t, "the change", func() bool { return p.series(t)["stint_catalog_revision"] == "2" && p.series(t)["stint_rules"] == "2" })
	// A ban is one row, and so is its end.
	_, err := c.Bans.Create(t.Context(), "test", catalog.Entry{IP: "127.0.0.1", Reason: "a test"})
	do(t, err)
	wait.For(t, "the ban", func() bool { status, _ := p.get(t, "gateway", "/"); return status == 403 })
	ban, err := c.Bans.Get(t.Context(), "ip:127.0.0.1")
	do(t, err)
	do(t, c.Bans.Delete(t.Context(), "test", "ip:127.0.0.1", ban.Version))
	wait.For(t, "the end of the ban", func() bool { status, _ := p.get(t, "gateway", "/"); return status != 403 })
	// Settings are reloaded, and what the database has stays.
	put(t, p.path, strings.ReplaceAll(inDatabase, "%", url)+"[identity]\nipv6_prefix = 56\n"+echo(t))
	do(t, p.Reload(t.Context()))
	if s := p.series(t); s["stint_rules"] != "2" || s["stint_catalog_current"] != "1" || s["stint_database_up"] != "1" {
		t.Error(s)
	}
}

// TestDatabaseProblems checks that problems with the database do not show the password.
func TestDatabaseProblems(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"no url":    {`database = "hunter2"`, "stint.toml:2:12: server.database: want a URL that begins with postgres:// or sqlite:"},
		"bad url":   {`database = "postgres://me:hunter2@db:nonsense/x"`, "stint.toml:2:12: server.database: want a PostgreSQL URL, such as"},
		"no file":   {`database = "sqlite:"`, `stint.toml:2:12: server.database: "sqlite:": want sqlite: and the path of a file`},
		"both":      {"database = \"sqlite:x.db\"\n" + few, "stint.toml:3:1: rules: cannot be in this file if server.database is set: it is in the database; stint apply -f FILE copies it there"},
		"poll":      {`catalog = { poll = "1ms" }`, `server.catalog.poll: "1ms": want from 100ms to 10m`},
		"cache":     {`catalog = { cache_size = 10 }`, "server.catalog.cache_size: 10: want 1000 or more"},
		"cache ttl": {`catalog = { cache_ttl = "0" }`, `server.catalog.cache_ttl: "0": want from 1s to 1d`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := daemon.Source{Path: write(t, "stint.toml", "[server]\n"+c.text)}.Load()
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v; want %s", err, c.want)
			}
		})
	}
}
