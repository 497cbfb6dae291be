package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/wait"
)

// stintCommand runs a command of stint, and returns what it prints.
func stintCommand(t testing.TB, environ []string, args ...string) (string, error) {
	t.Helper()
	buildProgram(t)
	cmd := exec.CommandContext(t.Context(), program.path, args...)
	cmd.Env = environ
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// toml writes a document to a file.
func toml(t testing.TB, d *catalog.Document) string {
	t.Helper()
	c := openCatalog(t, "sqlite::memory:")
	apply(t, c, d)
	var text strings.Builder
	if err := c.ExportTOML(t.Context(), &text, catalog.ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.toml")
	write(t, file, text.String())
	return file
}

// often has a node look at its database often.
const often = "STINT_SERVER_CATALOG_POLL=300ms"

const anyone = `{"path": "/", "user": "alice", "tier": "gold"}`

// TestHistoryRestart removes the database of two nodes that do not run. When they start, they
// enforce what they did before, say so, and keep it, until the database is accepted.
func TestHistoryRestart(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stint.db")
	url := "sqlite:" + file
	c := openCatalog(t, url)
	request := known(t, c)
	apply(t, c, generation(1))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	kept := []string{"STINT_SERVER_CATALOG_LAST_GOOD=" + t.TempDir(), "STINT_SERVER_CATALOG_LAST_GOOD=" + t.TempDir()}
	start := func() (nodes []*server) {
		for _, k := range kept {
			nodes = append(nodes, follow(t, url, k))
		}
		return nodes
	}
	nodes := start()
	enforces(t, request, 1, nodes...)
	revision := nodes[0].metric(t, "stint_catalog_revision")
	for _, s := range nodes {
		s.stop(t)
	}
	remove(t, file) // the log went with the last connection
	nodes = start()
	enforces(t, anyone, 1, nodes...)
	for _, s := range nodes {
		s.ready(t, `"status": "degraded"`, "the history of the database is refused: it is at revision ", "emptied", "the rules come from disk", "stint apply --accept-history", "SIGHUP")
		s.measures(t, "stint_catalog_history_refused 1", "stint_catalog_current 0", "stint_database_up 1", fmt.Sprint("stint_catalog_revision ", revision))
		// An emptied database knows no keys, which does not make them wrong.
		if err := post(http.DefaultClient, s.api+"/v1/check", request, new(verdict)); err == nil || !strings.Contains(err.Error(), "503") {
			t.Errorf("a key: %v, want 503", err)
		}
	}
	nodes[0].kill(t) // its first start has overwritten nothing
	nodes[0] = follow(t, url, kept[0])
	enforces(t, anyone, 1, nodes[0])
	if out, err := stintCommand(t, []string{kept[0]}, "doctor", "--database", url); err == nil || !strings.Contains(out, "database.history") ||
		!strings.Contains(out, "nodes ") || !strings.Contains(out, "try: restore what the database lacks; or stint apply --accept-history") {
		t.Errorf("doctor: %v, %s", err, out)
	}
	if out, err := stintCommand(t, nil, "apply", "-f", toml(t, generation(2)), "--database", url); err == nil || !strings.Contains(out, "stint apply --accept-history") {
		t.Errorf("apply: %v, %s", err, out)
	}
	if out, err := stintCommand(t, nil, "apply", "-f", toml(t, generation(2)), "--accept-history", "--database", url); err != nil || !strings.Contains(out, "+ history accepted") {
		t.Fatalf("apply: %v, %s", err, out)
	}
	enforces(t, anyone, 2, nodes...)
	for _, s := range nodes {
		s.ready(t, allWell)
		s.measures(t, "stint_catalog_history_refused 0", "stint_catalog_current 1")
	}
	nodes[0].stop(t)
	nodes[0] = follow(t, url, kept[0])
	enforces(t, anyone, 2, nodes[0])
	nodes[0].ready(t, allWell)
}

// TestHistoryRunning empties the database of two nodes while they run, and restores it.
func TestHistoryRunning(t *testing.T) {
	t.Parallel()
	url := testpostgres.Shared(t).Database(t)
	c := openCatalog(t, url)
	request := known(t, c)
	const quiet = "STINT_SERVER_RECORD_ENABLED=false" // or they create tables for months while others are restored
	nodes := []*server{follow(t, url, often, quiet), follow(t, url, often, quiet)}
	enforces(t, request, 0, nodes...)
	dump := filepath.Join(testpostgres.Shared(t).Dir, "history.dump")
	must[string](t)(script(testpostgres.Command(t, "pg_dump", "-Fc", "-f", dump, url)))
	apply(t, c, generation(1)) // which the backup lacks
	enforces(t, request, 1, nodes...)
	testpostgres.Exec(t, url, "drop schema public cascade; create schema public")
	for _, s := range nodes {
		s.ready(t, `"status": "degraded"`, "it has no tables of Stint")
		s.measures(t, "stint_catalog_history_refused 1")
	}
	// No one has created tables, which would be in the way.
	must[string](t)(script(testpostgres.Command(t, "pg_restore", "--no-owner", "-d", url, dump)))
	for _, s := range nodes {
		s.ready(t, `"status": "degraded"`, "it was set back")
	}
	enforces(t, request, 1, nodes...)
	accept := guide(t, recovery, "stint apply --accept-history", "stint ", program.path+" ")
	must[string](t)(script(exec.CommandContext(t.Context(), "sh", "-c", lines(accept)), "STINT_SERVER_DATABASE="+url))
	enforces(t, request, 0, nodes...)
	for _, s := range nodes {
		s.ready(t, allWell)
	}
}

// TestHistoryFile takes the files of a database away while a node writes to them, and puts another
// one in its place. Nothing that was lost counts as written.
func TestHistoryFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, away, other := filepath.Join(dir, "stint.db"), filepath.Join(dir, "away.db"), filepath.Join(dir, "other.db")
	record, recordAway := filepath.Join(dir, "stint-record.db"), filepath.Join(dir, "away-record.db")
	c := openCatalog(t, "sqlite:"+file)
	request := known(t, c)
	o := openCatalog(t, "sqlite:"+other)
	apply(t, o, generation(7))
	if err := errors.Join(c.Close(), o.Close()); err != nil {
		t.Fatal(err)
	}
	s := follow(t, "sqlite:"+file, often, "STINT_SERVER_ADMIN_TOKEN="+adminToken, "STINT_SERVER_RECORD_SPOOL="+t.TempDir(), "STINT_SERVER_RECORD_SAMPLE_EVERY=1")
	enforces(t, request, 0, s)
	ban := func() (status int, text string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url("admin")+"/admin/v1/bans", strings.NewReader(`{"user": "mallory"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+adminToken)
		r.Header.Set("Content-Type", "application/json")
		w, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		return w.StatusCode, string(must[[]byte](t)(io.ReadAll(w.Body)))
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	move(file, away)
	move(record, recordAway)
	if status, text := ban(); status != http.StatusServiceUnavailable || !strings.Contains(text, "deleted or replaced") {
		t.Errorf("a ban: %d %s", status, text)
	}
	s.ready(t, `"status": "degraded"`, "the file of the database was deleted or replaced while it was in use: "+file+" is missing")
	s.measures(t, "stint_database_up 0")
	const written = `stint_record_events_total{what="written"}`
	before := s.metric(t, written)
	for range 20 {
		enforces(t, request, 0, s)
	}
	wait.Nil(t, "events are in the spool", func() error {
		if s.metric(t, "stint_record_spooled_bytes") == 0 {
			return errors.New("no events are in the spool")
		}
		return nil
	})
	if now := s.metric(t, written); now != before {
		t.Errorf("%d events count as written, to a file that is gone", now-before)
	}
	gone(t, file)
	gone(t, record)

	move(recordAway, record)
	move(other, file)
	s.ready(t, `"status": "degraded"`, "the history of the database is refused: it is at revision 1, and was at ")
	s.measures(t, "stint_database_up 1", "stint_catalog_history_refused 1")
	if status, text := ban(); status != http.StatusServiceUnavailable || !strings.Contains(text, "--accept-history") {
		t.Errorf("a ban: %d %s", status, text)
	}
	enforces(t, request, 0, s)

	move(away, file) // over it
	s.measures(t, "stint_database_up 1", "stint_catalog_history_refused 0")
	if status, text := ban(); status != http.StatusCreated {
		t.Errorf("a ban: %d %s", status, text)
	}
	enforces(t, request, 0, s)
	s.stop(t) // which writes what is left
	if _, err := openCatalog(t, "sqlite:"+file).Bans.Get(t.Context(), "user:mallory"); err != nil {
		t.Error(err)
	}
}
