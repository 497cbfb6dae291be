package main_test

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
)

// found is a finding.
type found struct{ Check, Status, Found, Advice string }

// examine runs the doctor.
func examine(t *testing.T, environ []string, args ...string) (code int, all []found) {
	t.Helper()
	var out, errs bytes.Buffer
	code = stint.Run(t.Context(), append([]string{"doctor", "-o", "json"}, args...), environ, &out, &errs)
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out.String(), errs.String())
	}
	if text := out.String(); strings.Contains(text, "hunter2") {
		t.Errorf("a password is shown: %s", text)
	}
	return code, all
}

// has checks that there is a finding, with advice if it is not ok.
func has(t *testing.T, all []found, check, status, pattern string) {
	t.Helper()
	for _, f := range all {
		if f.Check == check && f.Status == status && regexp.MustCompile(pattern).MatchString(f.Found) {
			if status != "ok" && f.Advice == "" {
				t.Errorf("%s has no advice", check)
			}
			return
		}
	}
	t.Errorf("there is no %s %s %s in %+v", check, status, pattern, all)
}

// elsewhere are settings of listeners on free ports.
var elsewhere = []string{"--set", "server.http.address=127.0.0.1:0", "--set", "server.admin.address=127.0.0.1:0"}

// TestDoctorRing checks what is said of the servers of a ring: each with its share, and whether it decides.
func TestDoctorRing(t *testing.T) {
	t.Parallel()
	r := testredis.StartRing(t, 3)
	n := r.Nodes()
	args := append([]string{"--counters", r.URL()}, elsewhere...)
	_, all := examine(t, []string{"HOME=" + t.TempDir()}, args...)
	for _, s := range n {
		at := "^" + regexp.QuoteMeta(s.Addr()) + ": "
		has(t, all, "counters.ring", "ok", at+`has (29|3\d)\.\d % of all subjects$`)
		has(t, all, "counters.script", "ok", at+"the script runs")
		has(t, all, "counters.budget", "ok", at+"a decision takes")
	}
	n[0].Kill(t)
	code, all := examine(t, []string{"HOME=" + t.TempDir()}, args...)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	dead, well := "^"+regexp.QuoteMeta(n[0].Addr())+": ", "^"+regexp.QuoteMeta(n[1].Addr())+": "
	has(t, all, "counters.ring", "ok", dead+"has .* % of all subjects")
	has(t, all, "counters.reach", "fail", dead+"cannot be reached")
	has(t, all, "counters.script", "fail", dead)
	has(t, all, "counters.script", "ok", well)
}

// TestDoctor checks findings about a working and a broken environment.
func TestDoctor(t *testing.T) {
	t.Parallel()
	postgres, redis := testpostgres.Shared(t).Database(t), testredis.Start(t)
	home := t.TempDir()
	environ := []string{"HOME=" + home}
	var out bytes.Buffer
	if code := stint.Run(t.Context(), []string{"migrate", "up", "--database", postgres}, nil, &out, &out); code != 0 {
		t.Fatal(out.String())
	}
	if code := stint.Run(t.Context(), []string{"apply", "-f", "testdata/catalog.toml", "--database", postgres}, nil, &out, &out); code != 0 {
		t.Fatal(out.String())
	}
	archive := filepath.Join(home, "archive")
	if err := os.Mkdir(archive, 0o700); err != nil {
		t.Fatal(err)
	}
	code, all := examine(t, environ, append([]string{"--database", postgres, "--counters", redis.URL(), "--set", "server.record.archive=file://" + archive}, elsewhere...)...)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	for check, text := range map[string]string{
		"config": "no config file", "counters.script": "runs", "counters.reach": "", "database.reach": "can be reached", "database.schema": "the latest", "database.clock": "differ by",
		"database.write": "can be written to", "database.notify": "notified of changes at once", "rules": "rules: 1", "nodes": "no node", "archive": "months: 0",
		"directories": "server.record.spool: " + home, "ports": "is free", "files": "may be open",
	} {
		has(t, all, check, "ok", text)
	}

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := os.WriteFile(filepath.Join(home, ".local"), nil, 0o600); err != nil { // where a directory would be
		t.Fatal(err)
	}
	code, all = examine(t, environ,
		"--database", "postgres://me:hunter2@127.0.0.1:1/stint?sslmode=disable", "--counters", "redis://me:hunter2@127.0.0.1:1",
		"--set", "server.http.address="+taken.Addr().String(), "--set", "server.admin.address=127.0.0.1:0", "--server", "http://127.0.0.1:1")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	has(t, all, "counters.reach", "fail", "cannot be reached")
	has(t, all, "database.reach", "fail", "out of reach")
	has(t, all, "directories", "fail", "server.catalog.last_good: ")
	has(t, all, "ports", "fail", "server.http.address: ")
	has(t, all, "api", "fail", "cannot reach")

	for _, c := range []struct {
		args                  []string
		code                  int
		check, status, saying string
	}{
		{[]string{"--config", "testdata/bad.toml"}, 1, "config", "fail", "did you mean"},
		{[]string{"--config", "testdata/none.toml"}, 1, "config", "fail", "no such file"},
		{append([]string{"--config", file}, elsewhere...), 0, "rules", "ok", "rules: 3"},
		{elsewhere, 0, "rules", "warn", "every request passes"},
		{append([]string{"--database", "sqlite:" + filepath.Join(home, "none.db"), "--set", "server.catalog.last_good=none", "--set", "server.record.spool=none"}, elsewhere...), 0, "database.reach", "warn", "not exist yet"},
		{append([]string{"--set", "server.admin.insecure=true", "--set", "server.admin.address=0.0.0.0:0"}, elsewhere[:2]...), 0, "config.admin", "warn", "without TLS"},
	} {
		code, all := examine(t, environ, c.args...)
		if code != c.code {
			t.Errorf("%v: exit code %d", c.args, code)
		}
		has(t, all, c.check, c.status, c.saying)
	}
}

// TestDoctorServer checks a running server.
func TestDoctorServer(t *testing.T) {
	t.Parallel()
	h := serveAdmin(t, file)
	here := []string{"--set", "server.http.address=" + strings.TrimPrefix(h.http, "http://"), "--set", "server.admin.address=" + strings.TrimPrefix(h.admin, "http://")}
	code, all := examine(t, h.environ, here...)
	for _, c := range []struct{ check, saying string }{
		{"ports", "already running"}, {"api", "the role admin"}, {"api.version", "dev"}, {"api.clock", "differ by"}, {"health", "are healthy"}, {"nodes", "the latest"},
	} {
		has(t, all, c.check, "ok", c.saying)
	}
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	// It finds the server by itself, but has no token.
	code, all = examine(t, nil, here...)
	has(t, all, "api", "warn", "")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	code, all = examine(t, []string{"STINT_TOKEN=wrong"}, append(here, "--server", h.admin)...)
	has(t, all, "api", "fail", "")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	var out, errs bytes.Buffer
	if code := stint.Run(t.Context(), append([]string{"doctor"}, here...), h.environ, &out, &errs); code != 0 || !strings.Contains(out.String(), ", 0 failed\n") {
		t.Errorf("exit code %d, %s%s", code, out.String(), errs.String())
	}
	h.end(t)
}

// TestDoctorCase examines upstreams that ignore the case of paths, and others.
func TestDoctorCase(t *testing.T) {
	t.Parallel()
	serving := func(same func(path string) bool) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !same(r.URL.Path) {
				http.NotFound(w, r)
			}
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	ignores := serving(func(path string) bool { return strings.EqualFold(path, "/healthz") })
	exact := serving(func(path string) bool { return path == "/healthz" })
	all := serving(func(string) bool { return true })
	const rules = "[[rules]]\nname = \"search\"\nmatch = { paths = [\"/search\"] }\nlimits = [{ name = \"n\", limit = \"1/1s\" }]\n"
	const check = "check = { path = \"/healthz\" }\n"
	for _, c := range []struct{ text, status, found string }{
		{rules + "[[upstreams]]\ntargets = [\"" + ignores + "\"]\n" + check, "warn", "serves /HEALTHZ like /healthz"},
		{rules + "[[upstreams]]\ntargets = [\"" + exact + "\"]\n" + check, "ok", "tells paths apart by case, as rules do"},
		{rules + "[[upstreams]]\ntargets = [\"" + all + "\"]\n" + check, "ok", "it is not known"},
		{rules + "[[upstreams]]\ntargets = [\"" + ignores + "\"]\n", "ok", "no health check"},
		{rules + "[[upstreams]]\ntargets = [\"" + ignores + "\"]\ncase = \"ignore\"\n" + check, "ok", "of this upstream"},
		{rules + "[[upstreams]]\ntargets = [\"http://127.0.0.1:1\"]\n" + check, "warn", "it is not known"},
		{"[server]\ncase = \"ignore\"\n" + rules, "ok", "rules ignore the case"},
		{rules, "ok", "/SEARCH like /search"},
	} {
		file := filepath.Join(t.TempDir(), "stint.toml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, all := examine(t, nil, append([]string{"--config", file, "--set", "server.gateway.address=127.0.0.1:0"}, elsewhere...)...)
		has(t, all, "paths.case", c.status, c.found)
		if code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

// TestDoctorLeases examines leases and splits that help, and those that cannot.
func TestDoctorLeases(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t).URL()
	const (
		cluster = "redis+cluster://127.0.0.1:1"
		penalty = "penalty = { threshold = 3, within = \"1h\", cooldown = \"1m\" }\n"
		tier    = "[[tiers]]\nname = \"pro\"\n"
	)
	dir := t.TempDir()
	file := func(limit, more string) string {
		path := filepath.Join(dir, "stint.toml")
		text := "[[rules]]\nname = \"search\"\ncount_by = [\"user\"]\nlimits = [{ name = \"n\", " + limit + " }]\n" + more
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct{ counters, limit, more, check, status, found string }{
		{redis, `limit = "4800/1m", lease = "100ms"`, "", "rules.lease", "ok", "limits with a lease: 1, with a split: 0"},
		{redis, `limit = "4799/1m", lease = "101ms"`, "", "rules.lease", "ok", "lease: 1"},
		{redis, `limit = "4000/1m", lease = "100ms"`, "", "rules.lease", "warn", "^search/n: at most about 6.7 requests pass within 100ms, .* from about 8 on: 8 for each node$"},
		{redis, `limit = "4800/1m", lease = "100ms"`, "[server]\nreplicas = 2\n", "rules.lease", "warn", "from about 16 on: 8 for each node$"},
		{redis, `limit = "4800/1m", lease = "100ms"`, "cost = 2\n", "rules.lease", "warn", "about 4 requests pass"},
		{redis, `limit = "100/day", lease = "10s"`, "", "rules.lease", "warn", "about 0.012 requests pass within 10s"},
		{redis, `limit = "100/day", lease = "10s"`, tier + `limits = { n = "1000000/day" }`, "rules.lease", "ok", "lease: 1"},
		{redis, `limit = "100/day", lease = "10s"`, tier + `limits = { n = "unlimited" }`, "rules.lease", "warn", "about 0.012"},
		{redis, `limit = "4800/1m", lease = "100ms"`, penalty, "rules.lease", "warn", "search/n: each request asks Redis whether the client is banned"},
		{redis, `limit = "4800/1m", split = 8`, "", "rules.split", "warn", "search/n: one Redis server has all counters"},
		{cluster, `limit = "4800/1m", lease = "100ms", split = 8`, "", "rules.lease", "ok", "limits with a lease: 1, with a split: 1"},
		{cluster, `limit = "4800/1m", split = 8`, "cost = { meter = \"llm.total_tokens\", reserve = 600, max = 600 }\n", "rules.lease", "ok", "with a split: 1"},
		{cluster, `limit = "4800/1m", split = 8`, "cost = { meter = \"llm.total_tokens\", reserve = 600, max = 601 }\n", "rules.split", "warn", "^search/n: a request may cost 601 units, and more than 600 can never pass, since one of 8 counters has to hold them$"},
		{cluster, `limit = "4800/1m", split = 8`, "cost = { header = \"X-Cost\", max = 600 }\n" + tier + `limits = { n = "800/1m" }`, "rules.split", "warn", "^search/n of the tier pro: a request may cost 600 units, and more than 100 "},
		{"memory:", `limit = "4800/1m", lease = "100ms", split = 8`, "", "rules.lease", "warn", "search/n: the counters are in memory, so the lease has no use"},
		{"memory:", `limit = "4800/1m", lease = "100ms", split = 8`, "", "rules.split", "warn", "search/n: the counters are in memory, so the split has no use"},
		{"memory:", `limit = "4800/1m", lease = "100ms"`, "enabled = false", "rules", "warn", "every request passes"},
	} {
		_, all := examine(t, nil, append([]string{"--config", file(c.limit, c.more), "--counters", c.counters}, elsewhere...)...)
		has(t, all, c.check, c.status, c.found)
	}

	// A server does not accept this in a file, but cannot know what comes with a database.
	var out bytes.Buffer
	database := []string{"--database", "sqlite:" + filepath.Join(dir, "stint.db")}
	closed := file(`limit = "4800/1m", lease = "100ms"`, `on_store_failure = "closed"`)
	for _, args := range [][]string{{"migrate", "up"}, {"apply", "-f", closed}} {
		if code := stint.Run(t.Context(), append(args, database...), nil, &out, &out); code != 0 {
			t.Fatal(out.String())
		}
	}
	code, all := examine(t, nil, append(append(database, "--set", "server.catalog.last_good=none", "--set", "server.record.spool=none"), elsewhere...)...)
	has(t, all, "rules.lease", "fail", "search/n: the counters are in memory, which is never away")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
}

// TestDoctorRegions examines rules of a database that regions share, on nodes with and without regions.
func TestDoctorRegions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, database := filepath.Join(dir, "stint.toml"), []string{"--database", "sqlite:" + filepath.Join(dir, "stint.db")}
	text := "[region]\nname = \"eu\"\n[[rules]]\nname = \"search\"\nregions = \"gossip\"\nlimits = [{ name = \"n\", limit = \"10/1s\" }]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, args := range [][]string{{"migrate", "up"}, {"apply", "-f", file}} {
		if code := stint.Run(t.Context(), append(args, database...), nil, &out, &out); code != 0 {
			t.Fatal(out.String())
		}
	}
	args := append(append(database, "--set", "server.catalog.last_good=none", "--set", "server.record.spool=none"), elsewhere...)
	code, all := examine(t, nil, args...)
	has(t, all, "rules.regions", "fail", `rules\[0\].regions: "gossip": this is no region: add \[region\] with a name and peers, or remove regions`)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	code, all = examine(t, nil, append(args, "--set", "region.name=eu")...)
	has(t, all, "rules", "ok", "rules: 1")
	if code != 0 {
		t.Errorf("exit code %d: %v", code, all)
	}
}

// TestDoctorReplica checks what is said of a replica of the database.
func TestDoctorReplica(t *testing.T) {
	t.Parallel()
	server := testpostgres.Start(t)
	database := server.Database(t)
	var out bytes.Buffer
	for _, args := range [][]string{{"migrate", "up"}, {"apply", "-f", "testdata/catalog.toml"}} {
		if code := stint.Run(t.Context(), append(args, "--database", database), nil, &out, &out); code != 0 {
			t.Fatal(out.String())
		}
	}
	standby := server.Standby(t)
	near := strings.Replace(database, server.Addr(), standby.Addr(), 1)
	look := func(replica, status, saying string) {
		t.Helper()
		_, all := examine(t, []string{"HOME=" + t.TempDir()}, append([]string{"--database", database, "--set", "server.database_replica=" + replica}, elsewhere...)...)
		has(t, all, "database.replica", status, saying)
	}
	look(near, "ok", `is at revision 1, 0 behind the database, and \d+\.\d s old`)
	look(strings.Replace(near, "postgres@", "postgres:hunter2@", 1), "ok", `^postgres://\[redacted\]@`)
	look(standby.URL(), "fail", "it has no tables of Stint")
	look("postgres://me:hunter2@127.0.0.1:1/stint", "fail", "it cannot be read: the database is out of reach")
	testpostgres.Exec(t, standby.URL(), "select pg_wal_replay_pause()")
	c, err := catalog.Open(database, catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, user := range []string{"u1", "u2"} {
		if _, err := c.Bans.Create(t.Context(), "test", catalog.Entry{User: user}); err != nil {
			t.Fatal(err)
		}
	}
	look(near, "warn", `is at revision 1, 2 behind the database, and \d+\.\d s old`)
	testpostgres.Exec(t, standby.URL(), "select pg_wal_replay_resume()")
	server.Pause(t)
	look(near, "warn", "cannot be compared with the database")
	server.Resume(t)
	standby.Promote(t)
	look(near, "warn", "is no standby")
}
