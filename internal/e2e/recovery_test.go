package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/rule"
	"github.com/stintdev/stint/storetest"
)

// This file is long: a backup, a disaster and a restore are one story.

// scripts is the directory of the backup scripts.
const scripts = "../../deploy/backup"

// The documents whose commands these tests run.
const (
	recovery = "docs/disaster-recovery.md"
	backups  = "deploy/backup/README.md"
)

// drill is how the blocks of these documents begin that the tests below run.
var drill = map[string][]string{
	recovery: {
		"redis-restore.sh --aof ", "cp -Rp ", "postgres-restore.sh /srv/", "cd /srv/backups/sqlite", "stint apply -f rules.toml --prune ", "stint apply --accept-history",
		"psql \"$DATABASE_URL\" -c ", "psql \"$DATABASE_URL\" -At ", "postgres-restore.sh --apart ",
	},
	backups: {"psql -c ", "pg_dump ", "ACL SETUSER backup ", "CREATE ROLE backup "},
}

// guide returns the commands of a block of a document, with pairs of strings replaced, each of
// which must be there.
func guide(t testing.TB, file, start string, pairs ...string) []string {
	t.Helper()
	var out []string
	for _, b := range testdoc.In(t, file, "sh", "text", "sql") {
		if !strings.HasPrefix(b.Text, start) || !slices.Contains(drill[file], start) {
			continue
		}
		if out != nil {
			t.Fatalf("%s: another block begins with %s", b, start)
		}
		b.Text = replace(t, b.Text, pairs...)
		for _, c := range b.Commands() {
			out = append(out, c.Text)
		}
	}
	if out == nil {
		t.Fatalf("%s has no block that begins with %s", file, start)
	}
	return out
}

// lines makes a script of commands that are all to work.
func lines(commands []string) string { return "set -e\n" + strings.Join(commands, "\n") }

// TestRecoveryDocument checks that the other tests run all commands of the documents, and that
// what the documents have cron run exists.
func TestRecoveryDocument(t *testing.T) {
	t.Parallel()
	jobs := 0
	for file, known := range drill {
		for _, b := range testdoc.In(t, file, "sh", "text", "sql") {
			if strings.HasPrefix(b.Text, "# /etc/cron.d/") {
				jobs++
				checkJob(t, b)
			} else if !slices.ContainsFunc(known, func(start string) bool { return strings.HasPrefix(b.Text, start) }) {
				t.Errorf("%s: no test runs\n%s", b, b.Text)
			}
		}
	}
	if jobs != 3 {
		t.Errorf("there are %d jobs, want 3", jobs)
	}
}

// checkJob checks a file for cron: there is such a script, and it knows the variables.
func checkJob(t *testing.T, b testdoc.Block) {
	t.Helper()
	job := regexp.MustCompile(`(?m)^(?:[\d*]+ ){5} \w+  /usr/local/lib/stint/([\w-]+\.sh)( /\S+)? >/dev/null$`).FindStringSubmatch(b.Text)
	if job == nil {
		t.Fatalf("%s: no job in\n%s", b, b.Text)
	}
	help := command(t, filepath.Join(scripts, job[1]), "--help")
	for _, m := range regexp.MustCompile(`(?m)^([A-Z_]+)=`).FindAllStringSubmatch(b.Text, -1) {
		if !strings.Contains(help, m[1]) && m[1] != "PATH" {
			t.Errorf("%s: %s has no variable %s", b, job[1], m[1])
		}
	}
}

// long is a rule whose counters no test outlives.
const long = `
[[rules]]
name     = "quota"
count_by = ["user"]
limits   = [{ name = "quota", limit = "10/1000h sliding_log" }]
`

// script runs a script and returns the last line of its output, or its error.
func script(cmd *exec.Cmd, environ ...string) (string, error) {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, environ...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, complaint.String())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

// must returns a function that returns the result of a call, or fails the test.
func must[T any](t testing.TB) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// write writes a file that is readable for all.
func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// remove removes a file or directory, which must exist.
func remove(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// gone checks that a file does not exist.
func gone(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there, %v", path, err)
	}
}

// TestRecoveryRedis loses the Redis with the counters, and restores it from a backup.
func TestRecoveryRedis(t *testing.T) {
	t.Parallel()
	for _, appending := range []string{"yes", "no"} {
		t.Run("appendonly "+appending, func(t *testing.T) {
			t.Parallel()
			recoverRedis(t, appending == "yes")
		})
	}
}

func recoverRedis(t *testing.T, appending bool) {
	t.Helper()
	settings := must[string](t)(filepath.Abs(filepath.Join(scripts, "redis.conf")))
	args := []string{"--include", settings}
	if !appending {
		args = append(args, "--appendonly", "no")
	}
	redis := testredis.Start(t, args...)
	redis.Do(t, strings.Fields(guide(t, backups, "ACL SETUSER backup ")[0])...)
	node := serve(t, long+fmt.Sprintf("[[upstreams]]\ntargets = [\"http://%s\"]\n", newApp(t).address), append(counting(redis.URL()), "STINT_SERVER_REPLICAS=1")...)
	pass := func(n int) (passed int) {
		for range n {
			if node.check(t, `{"path": "/", "user": "alice"}`).Allowed {
				passed++
			}
		}
		return passed
	}
	takes := everyCounter(t)
	fill(t, redis, takes)
	if n := pass(7); n != 7 {
		t.Fatalf("%d of 7 passed", n)
	}

	dir := t.TempDir()
	old := filepath.Join(dir, "redis-20200101T000000Z.rdb")
	write(t, old, "")
	write(t, old+".sha256", "")
	backup := must[string](t)(script(exec.CommandContext(t.Context(), filepath.Join(scripts, "redis-backup.sh")),
		"BACKUP_DIR="+dir, "BACKUP_KEEP=1", "REDIS_URL="+redis.URL(), "REDIS_USER=backup", "REDISCLI_AUTH=PASSWORD"))
	gone(t, old)
	gone(t, old+".sha256")
	at := time.Now()
	keys, decisions := counters(t, redis), peek(t, redis, takes, at)
	if len(keys) != len(takes)+1 {
		t.Fatalf("%d counters, want those of %d takes and of the node", len(keys), len(takes))
	}

	// What is counted from here on will be lost.
	fill(t, redis, takes)
	if n := pass(1); n != 1 || reflect.DeepEqual(counters(t, redis), keys) {
		t.Fatal("nothing was counted after the backup")
	}

	begun := time.Now()
	redis.Kill(t)
	for _, name := range []string{"dump.rdb", "appendonlydir"} {
		if appending || name == "dump.rdb" {
			remove(t, filepath.Join(redis.Dir, name))
		}
	}
	node.ready(t, "Redis cannot be used")
	_, health := get(t, node.api+"/readyz")
	if shown := blocks(t, "metrics.md", "json"); len(shown) != 1 {
		t.Errorf("metrics.md has %d blocks", len(shown))
	} else if err := testdoc.SameJSON(health, shown[0]); err != nil {
		t.Errorf("metrics.md: %v: got %s", err, health)
	}
	restore := lines(guide(t, recovery, "redis-restore.sh --aof ", "redis-restore.sh", "'"+must[string](t)(filepath.Abs(scripts))+"'/redis-restore.sh",
		"/srv/backups/redis/redis-20270131T091700Z.rdb", backup, "/var/lib/redis", redis.Dir, "redis: ", must[*user.User](t)(user.Current()).Username+": "))
	if !appending {
		restore = replace(t, restore, "--aof ", "")
	}
	again := func() (string, error) { return script(exec.CommandContext(t.Context(), "sh", "-c", restore)) }
	must[string](t)(again())
	if _, err := again(); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("restored over what is there: %v", err)
	}
	redis.Restart(t)
	node.ready(t, allWell)
	t.Logf("recovered after %v", time.Since(begun))
	if got := counters(t, redis); !maps.Equal(got, keys) {
		t.Errorf("got %d counters, and not the %d of the backup", len(got), len(keys))
	}
	if got := peek(t, redis, takes, at); !reflect.DeepEqual(got, decisions) {
		t.Errorf("decided %+v, want %+v", got, decisions)
	}
	if n := pass(5); n != 3 {
		t.Errorf("%d passed, want the 3 that were left", n)
	}
	redis.Restart(t) // It has what it was restored from on disk.
	if got := len(counters(t, redis)); got != len(keys) {
		t.Errorf("%d counters after another restart, want %d", got, len(keys))
	}

	text := must[[]byte](t)(os.ReadFile(backup))
	text[len(text)/2] ^= 1
	write(t, backup, string(text))
	if _, err := script(exec.CommandContext(t.Context(), filepath.Join(scripts, "redis-restore.sh"), backup, t.TempDir())); err == nil ||
		!strings.Contains(err.Error(), "is damaged") {
		t.Errorf("a damaged backup: %v", err)
	}
}

// everyCounter returns takes that create every kind of counter, for a few subjects.
func everyCounter(t testing.TB) (takes [][]stint.Ask) {
	t.Helper()
	penalty := must[*stint.Penalty](t)(stint.ParsePenalty("3/1000h cooldown=500h"))
	for n := range int64(20) {
		ask := func(name, limit string, cost int64) stint.Ask {
			return stint.Ask{Key: stint.Key{Subject: fmt.Sprint("user:", n), Name: name}, Limit: must[stint.Limit](t)(stint.ParseLimit(limit)), Cost: cost}
		}
		for _, a := range []string{"sliding_window", "fixed_window", "sliding_log", "token_bucket", "leaky_bucket burst=99"} {
			takes = append(takes, []stint.Ask{ask(a, "100/1000h "+a, 1+n)})
		}
		tooMuch := ask("penalty", "1/1000h", 2)
		takes = append(takes, []stint.Ask{tooMuch, {Key: tooMuch.Key, Penalty: penalty, Cost: 1}})
	}
	return takes
}

// fill takes what passes.
func fill(t testing.TB, redis *testredis.Server, takes [][]stint.Ask) {
	t.Helper()
	store := must[*redisstore.Store](t)(redisstore.Open(patiently(redis.URL()), redisstore.Options{}))
	defer store.Close()
	for _, asks := range takes {
		must[[]stint.Decision](t)(storetest.Take(t.Context(), store, asks))
	}
}

// peek decides takes at a time, without counting them.
func peek(t testing.TB, redis *testredis.Server, takes [][]stint.Ask, at time.Time) (out []stint.Decision) {
	t.Helper()
	store := must[*redisstore.Store](t)(redisstore.Open(patiently(redis.URL()), redisstore.Options{Now: func() time.Time { return at }}))
	defer store.Close()
	for _, asks := range takes {
		asks = slices.Clone(asks)
		for i := range asks {
			asks[i].Cost = 0
		}
		out = append(out, must[[]stint.Decision](t)(storetest.Take(t.Context(), store, asks))...)
	}
	return out
}

// counters returns all counters, with their values and expiry times.
func counters(t testing.TB, redis *testredis.Server) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, key := range redis.Do(t, "KEYS", "rl:{*").([]any) {
		key := key.(string)
		if strings.Contains(key, ":stint-probe:") {
			continue // by which a node asks whether Redis decides
		}
		out[key] = fmt.Sprint(redis.Do(t, "GET", key), redis.Do(t, "PEXPIRETIME", key))
	}
	return out
}

// TestRecoveryPostgres loses the server with the catalog, and later reverts a mistaken
// change.
func TestRecoveryPostgres(t *testing.T) {
	t.Parallel()
	pg := testpostgres.Start(t)
	place := func(names ...string) string { return filepath.Join(append([]string{pg.Dir}, names...)...) }
	data, archive := place("data"), place("wal")
	account := "postgres"
	do := func(name string, args ...string) (string, error) {
		if filepath.Ext(name) == ".sh" {
			name = place("scripts", name)
		}
		return script(testpostgres.Command(t, name, args...), "PGHOST=127.0.0.1", fmt.Sprint("PGPORT=", pg.Port), "PGUSER="+account,
			"BACKUP_DIR="+place("backups"), "BACKUP_KEEP=1", "WAL_ARCHIVE="+archive)
	}
	must[string](t)(do("mkdir", archive, place("backups"), place("backups", "base-20200101T000000Z")))
	// The user of the servers may not be able to read the files of a developer.
	if err := os.CopyFS(place("scripts"), os.DirFS(scripts)); err != nil {
		t.Fatal(err)
	}
	must[string](t)(do("sh", "-c", `echo "include '$1'" >>"$2"`, "sh", place("scripts", "postgresql.conf"), place("data", "postgresql.conf")))
	testpostgres.Exec(t, pg.URL(), fmt.Sprintf(`alter system set archive_command = '%s "%%p" "%%f" %s'`, place("scripts", "postgres-archive-wal.sh"), archive))
	pg.Restart(t)
	url := pg.Database(t)
	// rows returns the data, except for what nodes write themselves.
	rows := func() string {
		cmd := testpostgres.Command(t, "pg_dump", "-t", "stint_*", "-T", "stint_nodes", "-T", "stint_*_usage", "-T", "stint_rollout_minutes", url)
		out := must[[]byte](t)(cmd.Output())
		return string(slices.Concat(slices.DeleteFunc(bytes.SplitAfter(out, []byte("\n")), func(line []byte) bool {
			return bytes.HasPrefix(line, []byte(`\restrict `)) || bytes.HasPrefix(line, []byte(`\unrestrict `)) // each time another word
		})...))
	}
	archived := func() {
		t.Helper()
		name := testpostgres.Exec(t, pg.URL(), "select pg_walfile_name(pg_switch_wal())")[0][0]
		wait.Nil(t, "the segment is in the archive", func() error {
			_, err := os.Stat(filepath.Join(archive, name+".gz"))
			return err
		})
	}
	// lose destroys the server, and restores another one from the backup.
	var backup string
	lose := func(rescue bool, args ...string) {
		t.Helper()
		begun := time.Now()
		pg.Kill(t)
		if rescue {
			must[string](t)(do("sh", "-c", lines(guide(t, recovery, "cp -Rp ", "/var/lib/postgresql/15/main", data, "/srv/rescued", place("rescued")))))
		}
		remove(t, data)
		restore := guide(t, recovery, "postgres-restore.sh /srv/", "postgres-restore.sh ", strings.Join(append([]string{place("scripts", "postgres-restore.sh")}, args...), " ")+" ",
			"/srv/backups/postgres/base-20270131T032300Z", backup, "/srv/wal", archive, "/var/lib/postgresql/15/main", data, "/srv/rescued", place("rescued"))
		if !rescue {
			restore = restore[:1]
		}
		must[string](t)(do("sh", "-c", lines(restore)))
		pg.Restart(t)
		wait.Nil(t, "the database has been replayed", func() error {
			replaying, err := testpostgres.Try(url, "select pg_is_in_recovery()")
			if err == nil && replaying[0][0] != "f" {
				err = errors.New("it still replays")
			}
			return err
		})
		t.Logf("recovered after %v", time.Since(begun))
	}

	c := openCatalog(t, url)
	request := known(t, c)
	apply(t, c, people())
	node := follow(t, url, often, "STINT_SERVER_RECORD_ENABLED=false") // or one decision in a hundred is a row more
	enforces(t, request, 0, node)
	write(t, filepath.Join(archive, "000000010000000000000000.gz"), "")
	testpostgres.Exec(t, pg.URL(), guide(t, backups, "CREATE ROLE backup ")[0])
	account = "backup"
	backup = must[string](t)(do("postgres-backup.sh"))
	account = "postgres"
	must[string](t)(do("sh", "-c", lines(guide(t, backups, "psql -c "))))
	gone(t, place("backups", "base-20200101T000000Z"))
	gone(t, filepath.Join(archive, "000000010000000000000000.gz"))

	// The server is lost. Some of what was written since the backup is archived, and some
	// is on the disk that is left.
	apply(t, c, generation(1))
	archived()
	apply(t, c, generation(2))
	enforces(t, request, 2, node)
	want := rows()
	lose(true)
	if got := rows(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	node.ready(t, allWell)
	enforces(t, request, 2, node)

	// A change that should not have been made.
	revision := node.metric(t, "stint_catalog_revision")
	before := testpostgres.Exec(t, url, `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`)[0][0]
	if _, err := c.Apply(t.Context(), generation(3), catalog.ApplyOptions{Actor: "someone", Prune: true}); err != nil {
		t.Fatal(err)
	}
	enforces(t, request, 3, node)
	if rows() == want {
		t.Fatal("nothing was changed")
	}
	archived()
	lose(false, "--time", before)
	if got := rows(); got != want {
		t.Errorf("as of %s: got\n%s\nwant\n%s", before, got, want)
	}
	node.ready(t, `"status": "degraded"`, "it was set back")
	enforces(t, request, 3, node) // until it is told
	if err := node.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	enforces(t, request, 2, node)
	node.measures(t, "stint_catalog_current 1", fmt.Sprint("stint_catalog_revision ", revision))

	// It is a catalog like any other, and so is one that starts with it.
	apply(t, c, generation(4))
	enforces(t, request, 4, node, follow(t, url))
	node.measures(t, fmt.Sprint("stint_catalog_revision ", revision+1))

	// The old database beside the one in use.
	port := strings.TrimPrefix(freeAddress(t), "127.0.0.1:")
	apart := guide(t, recovery, "postgres-restore.sh --apart ", "postgres-restore.sh", place("scripts", "postgres-restore.sh"), "2027-01-31T09:29:59Z", before,
		"/srv/backups/postgres/base-20270131T032300Z", backup, "/srv/wal", archive, "/srv/then", place("then"), "then.toml", filepath.Join(t.TempDir(), "then.toml"),
		"postgres://stint@then/stint", replace(t, url, fmt.Sprint(":", pg.Port), ":"+port), "stint ", program.path+" ")
	must[string](t)(do("sh", "-c", apart[0]))
	if mode := must[string](t)(do("postgres", "-D", place("then"), "-C", "archive_mode")); mode != "off" {
		t.Errorf("archive_mode of a server apart is %s", mode)
	}
	then := run(t, testpostgres.Command(t, "postgres", "-D", place("then"), "-p", port, "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=400"))
	then.wait(t, func() error {
		replaying, err := testpostgres.Try(replace(t, url, fmt.Sprint(":", pg.Port), ":"+port), "select pg_is_in_recovery()")
		if err == nil && replaying[0][0] != "f" {
			err = errors.New("it still replays")
		}
		return err
	})
	changes := must[string](t)(script(exec.CommandContext(t.Context(), "sh", "-c", lines(apart[1:])), "STINT_SERVER_DATABASE="+url))
	has(t, changes, "would be: 0 created")
	if _, err := do("postgres-restore.sh", backup, archive, data); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("restored over what is there: %v", err)
	}
	write(t, filepath.Join(backup, "PG_VERSION"), "51\n")
	if _, err := do("postgres-restore.sh", backup, archive, place("another")); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("a damaged backup: %v", err)
	}
	gone(t, place("another"))
}

// people are in a catalog, with lists, beside the rules of a generation.
func people() *catalog.Document {
	d := &catalog.Document{
		Tenants:    []catalog.Tenant{{ID: "acme", Tier: "gold"}},
		Exemptions: []catalog.Entry{{IP: "192.0.2.0/24", Reason: "ours"}},
		Bans:       []catalog.Entry{{User: "mallory"}},
	}
	for n := range 500 {
		d.Users = append(d.Users, catalog.User{ID: fmt.Sprintf("user%03d", n), Tenant: "acme"})
	}
	return d
}

// TestRecoverySmall copies catalogs that are small: with pg_dump, and one in a file.
func TestRecoverySmall(t *testing.T) {
	t.Parallel()
	export := func(c *catalog.Catalog) string {
		var text strings.Builder
		if err := c.ExportTOML(t.Context(), &text, catalog.ExportOptions{Users: true}); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	fill := func(c *catalog.Catalog) (want string) {
		apply(t, c, generation(1))
		apply(t, c, people())
		return export(c)
	}
	check := func(url, want string) {
		t.Helper()
		c := openCatalog(t, url)
		if got := export(c); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", url, got, want)
		}
		apply(t, c, &catalog.Document{File: rule.File{Tiers: []rule.Tier{{Name: "silver"}}}})
	}

	c, url := newCatalog(t)
	want := fill(c)
	undo(t, c, url)
	if got := export(c); got != want {
		t.Errorf("after a change was undone: got\n%s\nwant\n%s", got, want)
	}
	other := testpostgres.Shared(t).Database(t)
	dump := guide(t, backups, "pg_dump ", "stint.dump", filepath.Join(testpostgres.Shared(t).Dir, "stint.dump"))
	must[string](t)(script(testpostgres.Command(t, "sh", "-c", lines(dump)), "DATABASE_URL="+url, "NEW_DATABASE_URL="+other))
	check(other, want)

	dir := t.TempDir()
	file := filepath.Join(dir, "stint.db")
	c = openCatalog(t, "sqlite:"+file)
	want = fill(c)
	past := must[*record.Store](t)(record.NewStore(c.Database(), record.StoreOptions{}))
	if err := past.Write(t.Context(), []record.Event{{At: time.Now(), User: "alice", Weight: 7}}); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("sqlite3"); err != nil {
		t.Fatal("sqlite3 is not installed: apt-get install sqlite3")
	}
	backup := must[string](t)(script(exec.CommandContext(t.Context(), filepath.Join(scripts, "sqlite-backup.sh"), file), "BACKUP_DIR="+dir))
	apply(t, c, generation(2))
	restored := t.TempDir()
	must[string](t)(script(exec.CommandContext(t.Context(), "sh", "-c", lines(guide(t, recovery, "cd /srv/backups/sqlite",
		"/srv/backups/sqlite", dir, "sqlite-20270131T091700Z", strings.TrimSuffix(filepath.Base(backup), ".db"), "/var/lib/stint", restored)))))
	check("sqlite:"+filepath.Join(restored, "stint.db"), want)
	past = must[*record.Store](t)(record.NewStore(openCatalog(t, "sqlite:"+filepath.Join(restored, "stint.db")).Database(), record.StoreOptions{}))
	events, _, err := past.Find(t.Context(), record.EventQuery{})
	if err != nil || len(events) != 1 || events[0].Weight != 7 {
		t.Errorf("the record has %v, %v", events, err)
	}
}

// undo makes a change that should not have been made, and undoes it by the log of changes.
func undo(t testing.TB, c *catalog.Catalog, url string) {
	t.Helper()
	buildProgram(t)
	wrong := must[*catalog.Document](t)(c.Export(t.Context(), catalog.ExportOptions{Users: true}))
	wrong.Users = []catalog.User{{ID: "user000", Tier: "gold"}} // It was of another tier, and there were others.
	diff := must[catalog.Diff](t)(c.Apply(t.Context(), wrong, catalog.ApplyOptions{Actor: "someone", Prune: true}))
	if n := diff.Count(catalog.Updated) + diff.Count(catalog.Deleted); n != len(people().Users) || n != len(diff.Items) {
		t.Fatalf("%d of %d changes are of users", n, len(diff.Items))
	}
	dir := t.TempDir()
	sh := func(commands []string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "export PATH='"+filepath.Dir(program.path)+"':'"+filepath.Dir(testpostgres.Command(t, "psql").Path)+"':\"$PATH\"\n"+lines(commands))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url, "STINT_SERVER_DATABASE="+url)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v, %s", commands, err, out)
		}
		return string(out)
	}
	has(t, sh(guide(t, recovery, "psql \"$DATABASE_URL\" -c ")), "someone")
	sh(guide(t, recovery, "psql \"$DATABASE_URL\" -At ", "revision = 12", fmt.Sprint("revision = ", diff.Revision)))
	sh([]string{"stint export -f rules.toml"})
	has(t, sh(guide(t, recovery, "stint apply -f rules.toml --prune ", "--prune\n", "--prune --yes\n")), "nothing to change")
}

// TestBackupScripts has scripts refuse what cannot be right, and say what would be.
func TestBackupScripts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		write(t, path, text)
		return path
	}
	wal, other := file("wal", "a"), file("other", "b")
	names, err := filepath.Glob(filepath.Join(scripts, "*.sh"))
	if err != nil || len(names) != 6 {
		t.Fatalf("%q, %v", names, err)
	}
	for _, name := range names {
		out, err := exec.CommandContext(t.Context(), name, "--help").Output()
		if err != nil || !strings.HasPrefix(string(out), filepath.Base(name)) {
			t.Errorf("%s --help: %s, %v", name, out, err)
		}
	}
	for _, c := range []struct{ line, environ, want string }{
		{"redis-backup.sh all", "", "all: there are no arguments"},
		{"redis-backup.sh", "", "BACKUP_DIR is not set"},
		{"redis-backup.sh", "BACKUP_DIR=/nosuch", "BACKUP_DIR=/nosuch is not a directory"},
		{"redis-backup.sh", "BACKUP_DIR=. BACKUP_KEEP=-1", "BACKUP_KEEP=-1 is not a number"},
		{"redis-backup.sh", "BACKUP_DIR=. BACKUP_TIMEOUT=1m", "BACKUP_TIMEOUT=1m is not a number of seconds"},
		{"redis-backup.sh", "BACKUP_DIR=. REDIS_URL=redis://:secret@host", "set REDIS_USER and REDISCLI_AUTH"},
		{"redis-backup.sh", "BACKUP_DIR=. REDIS_URL=host:6379", "want redis://HOST:PORT"},
		{"redis-backup.sh", "BACKUP_DIR=. REDIS_URL=redis://" + freeAddress(t), "does not answer PING"},
		{"redis-restore.sh " + wal, "", "want [--aof] BACKUP DIR, got 1 arguments"},
		{"redis-restore.sh --all a b", "", "--all: unknown"},
		{"redis-restore.sh /nosuch .", "", "/nosuch: no such backup"},
		{"redis-restore.sh " + wal + " .", "", "wal.sha256 is missing"},
		{"postgres-backup.sh", "", "BACKUP_DIR is not set"},
		{"postgres-backup.sh", "BACKUP_DIR=. WAL_ARCHIVE=/nosuch", "WAL_ARCHIVE=/nosuch is not a directory"},
		{"postgres-archive-wal.sh a b", "", "want PATH NAME ARCHIVE, got 2 arguments"},
		{"postgres-archive-wal.sh /nosuch 01 .", "", "PATH=/nosuch cannot be read"},
		{"postgres-archive-wal.sh " + wal + " ../01 .", "", "NAME=../01 is not the name of a file"},
		{"postgres-archive-wal.sh " + wal + " 01 /nosuch", "", "ARCHIVE=/nosuch is not a directory"},
		{"postgres-archive-wal.sh " + wal + " 01 " + dir, "", ""},
		{"postgres-archive-wal.sh " + wal + " 01 " + dir, "", ""}, // the same once more
		{"postgres-archive-wal.sh " + other + " 01 " + dir, "", "already exists with other contents"},
		{"postgres-restore.sh a b", "", "BACKUP ARCHIVE DATA, got 2 arguments"},
		{"postgres-restore.sh --time", "", "--time (missing)"},
		{"postgres-restore.sh --time yesterday a b c", "", "--time yesterday: want a time such as 2027-01-31T09:30:00Z"},
		{"postgres-restore.sh --time 2027-01-31T09:30:00 a b c", "", "want a time with its zone"},
		{"postgres-restore.sh --time 2027-01-31T09:30:00';-00:00 a b c", "", "want a time such as"},
		{"postgres-restore.sh --timeline newest a b c", "", "--timeline newest: want latest, current or a number"},
		{"sqlite-backup.sh", "", "want DATABASE, got 0 arguments"},
		{"sqlite-backup.sh /nosuch", "", "DATABASE=/nosuch: no such file"},
		{"sqlite-backup.sh " + wal, "", "BACKUP_DIR is not set"},
		{"sqlite-backup.sh " + wal, "BACKUP_DIR=it's", "BACKUP_DIR=it's is not a directory"},
		{"sqlite-backup.sh " + wal, "BACKUP_DIR=" + dir, "is not a database of Stint"},
	} {
		words := strings.Fields(c.line)
		cmd := exec.CommandContext(t.Context(), must[string](t)(filepath.Abs(filepath.Join(scripts, words[0]))), words[1:]...)
		bin := filepath.Dir(testpostgres.Command(t, "pg_basebackup").Path)
		_, err := script(cmd, append(strings.Fields(c.environ), "PATH="+os.Getenv("PATH")+":"+bin)...)
		if (c.want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %s: got %v, want %s", c.environ, c.line, err, c.want)
		}
	}
	if text, err := exec.CommandContext(t.Context(), "gzip", "-d", "-c", filepath.Join(dir, "01.gz")).Output(); err != nil || string(text) != "a" {
		t.Errorf("the archive has %s, %v", text, err)
	}
	drafts, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(drafts) != 0 {
		t.Errorf("%q are left, %v", drafts, err)
	}
}
