package daemon_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// fillPair creates a database with the contents of a file, and a standby of it.
func fillPair(t *testing.T, text string) (server, standby *testpostgres.Server, database, replica string) {
	t.Helper()
	server = testpostgres.Start(t)
	database = server.Database(t)
	c := openCatalog(t, database)
	_, err := c.Up(t.Context(), 0)
	do(t, err)
	apply(t, c, text)
	standby = server.Standby(t)
	return server, standby, database, strings.Replace(database, server.Addr(), standby.Addr(), 1)
}

// TestDatabaseReplica serves from a standby of the database, which goes away and comes back, and so
// does the database.
func TestDatabaseReplica(t *testing.T) {
	t.Parallel()
	server, standby, database, near := fillPair(t, few)
	c, link := openCatalog(t, database), testserver.StartProxy(t, server.Addr())
	text := strings.ReplaceAll(inDatabase, "%", strings.Replace(database, server.Addr(), link.Addr(), 1)) + "record = { enabled = false }\n"
	replica := set("server.database_replica", near)
	p := start(t, text, replica)
	p.becomes(t, "replica", "ok", "")
	wait.For(t, "the metrics of a replica", func() bool {
		s := p.series(t)
		return s["stint_database_replica_up"] == "1" && s["stint_database_replica_lag_revisions"] == "0" && s["stint_database_replica_lag_seconds"] != ""
	})

	standby.Kill(t)
	p.becomes(t, "replica", "degraded", "what it would answer is asked of the database: it cannot be read")
	apply(t, c, many)
	wait.For(t, "the change", func() bool { return p.series(t)["stint_rules"] == "2" })
	if s := p.series(t); s["stint_database_replica_up"] != "0" || s["stint_database_up"] != "1" {
		t.Error(s)
	}
	standby.Restart(t)
	p.becomes(t, "replica", "ok", "")

	link.Set(t, testserver.Fault{Refuse: true})
	p.becomes(t, "catalog", "degraded", "rules, users and keys are read from the replica, which is at revision 2, and nothing can be changed")
	if s := p.series(t); s["stint_database_replica_up"] != "1" || s["stint_database_up"] != "0" || s["stint_catalog_current"] != "1" {
		t.Error(s)
	}
	do(t, p.Stop(context.WithoutCancel(t.Context())))
	p = start(t, text, replica) // neither a database nor last good rules
	p.becomes(t, "catalog", "degraded", "are read from the replica")
	if got := check(t, p); !strings.Contains(got, `"few"`) {
		t.Error(got)
	}
	// Changes go on elsewhere.
	_, err := c.Bans.Create(t.Context(), "test", catalog.Entry{IP: "192.0.2.1"})
	do(t, err)
	wait.For(t, "the ban", func() bool { return p.series(t)["stint_catalog_revision"] == "3" })
	link.Set(t, testserver.Fault{})
	p.becomes(t, "catalog", "ok", "")
}

// TestReplicaProblems checks that problems with the setting name it, and do not show the password.
func TestReplicaProblems(t *testing.T) {
	t.Parallel()
	const postgres = "database = \"postgres://stint@db/stint\"\n"
	for name, c := range map[string]struct{ text, want string }{
		"no database": {`database_replica = "postgres://me:hunter2@db/x"`, "stint.toml:2:20: server.database_replica: is set without server.database"},
		"sqlite":      {"database = \"sqlite:x.db\"\ndatabase_replica = \"postgres://me:hunter2@db/x\"", "stint.toml:3:20: server.database_replica: want none, or a database in PostgreSQL"},
		"no url":      {postgres + `database_replica = "hunter2"`, "stint.toml:3:20: server.database_replica: want the URL of a PostgreSQL standby, such as"},
		"bad url":     {postgres + `database_replica = "postgres://me:hunter2@db:nonsense/x"`, "stint.toml:3:20: server.database_replica: want the URL of a PostgreSQL standby"},
		"other":       {postgres + `database_replica = "sqlite:x.db"`, "stint.toml:3:20: server.database_replica: want the URL of a PostgreSQL standby"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := daemon.Source{Path: write(t, "stint.toml", "[server]\n"+c.text)}.Load()
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v; want %s alone", err, c.want)
			}
		})
	}
	config, err := daemon.Source{Path: write(t, "stint.toml", "[server]\n"+postgres), Environ: []string{"STINT_SERVER_DATABASE_REPLICA=postgres://me:hunter2@db/x"}}.Load()
	do(t, err)
	for _, s := range config.Settings() {
		if s.Name == "server.database_replica" && (s.Value != "postgres://[redacted]@db/x" || s.Origin != "STINT_SERVER_DATABASE_REPLICA") {
			t.Errorf("%+v", s)
		}
	}
}
