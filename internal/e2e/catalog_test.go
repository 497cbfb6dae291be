package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

// This file is long: two servers on one database, from the first change to the last failure.

// newCatalog returns an empty catalog in PostgreSQL, and its URL.
func newCatalog(t testing.TB) (*catalog.Catalog, string) {
	t.Helper()
	url := testpostgres.Shared(t).Database(t)
	return openCatalog(t, url), url
}

// openCatalog opens a catalog for a test to write to, and migrates it.
func openCatalog(t testing.TB, url string) *catalog.Catalog {
	t.Helper()
	c, err := catalog.Open(url, catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.Up(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return c
}

// follow starts a stint that uses a catalog. Variables override the settings.
func follow(t testing.TB, url string, environ ...string) *server {
	t.Helper()
	return serve(t, noSettings, following(t, url, environ...)...)
}

// noSettings is for a stint with all settings in its environment.
const noSettings = "# all is in the environment\n"

func following(t testing.TB, url string, environ ...string) []string {
	t.Helper()
	return append([]string{
		"STINT_SERVER_DATABASE=" + url, "STINT_SERVER_CATALOG_LAST_GOOD=" + t.TempDir(), "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0",
	}, environ...)
}

// apply applies a document to a catalog. The database may just have come back, or a node just
// have accepted it.
func apply(t testing.TB, c *catalog.Catalog, d *catalog.Document) {
	t.Helper()
	wait.Nil(t, "the catalog takes a document", func() error {
		_, err := c.Apply(t.Context(), d, catalog.ApplyOptions{Actor: "test"})
		if err != nil && !errors.Is(err, catalog.ErrUnavailable) && !errors.As(err, new(*catalog.RefusingNodeError)) {
			t.Fatal(err)
		}
		return err
	})
}

// get returns what is at a URL.
func get(t testing.TB, url string) (status int, body string) {
	t.Helper()
	w, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, string(text)
}

// ready waits until /readyz returns 200 and contains all of these texts.
func (s *server) ready(t testing.TB, want ...string) {
	t.Helper()
	wait.Nil(t, "/readyz", func() error { return says(t, s.api+"/readyz", want...) })
}

// measures waits until /metrics contains all of these lines.
func (s *server) measures(t testing.TB, want ...string) {
	t.Helper()
	s.wait(t, func() error {
		if s.url("admin") == "" {
			return errors.New("stint does not listen for operators")
		}
		return nil
	})
	url := s.url("admin") + "/metrics"
	for i := range want {
		want[i] = "\n" + want[i] + "\n"
	}
	wait.Nil(t, "/metrics", func() error { return says(t, url, want...) })
}

// allWell is the start of /readyz if all checks are ok.
const allWell = "{\n  \"status\": \"ok\""

func says(t testing.TB, url string, want ...string) error {
	t.Helper()
	status, text := get(t, url)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", url, status, text)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			return fmt.Errorf("%s says\n%s\nwant %s in it", url, text, w)
		}
	}
	return nil
}

// known is a request with a key and a user in the catalog, whose tier is gold.
func known(t testing.TB, c *catalog.Catalog) (request string) {
	t.Helper()
	apply(t, c, generation(0))
	if _, err := c.Users.Create(t.Context(), "test", catalog.User{ID: "alice", Tier: "gold"}); err != nil {
		t.Fatal(err)
	}
	text, _, _, err := c.CreateKey(t.Context(), "test", catalog.APIKey{User: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"path": "/", "headers": {"X-API-Key": "%s"}}`, text)
}

// enforces waits until nodes enforce a generation.
func enforces(t testing.TB, request string, n int64, nodes ...*server) {
	t.Helper()
	begun := time.Now()
	for _, s := range nodes {
		wait.Nil(t, "the generation is enforced", func() error {
			v := s.check(t, request)
			got, err := generationOf(&v)
			if err == nil && got != n {
				err = fmt.Errorf("generation %d, want %d", got, n)
			}
			return err
		})
	}
	t.Logf("generation %d is enforced after %v", n, time.Since(begun))
}

// TestCatalogOutage kills the database of running nodes. They go on with what they know, and then with the standby.
func TestCatalogOutage(t *testing.T) {
	t.Parallel()
	first := testpostgres.Start(t)
	testpostgres.Exec(t, first.URL(), "alter system set wal_retrieve_retry_interval = '100ms'") // of the standby
	url := first.Database(t)
	second := first.Standby(t)
	ofSecond := strings.Replace(url, first.Addr(), second.Addr(), 1)
	url = strings.Replace(url, first.Addr(), first.Addr()+","+second.Addr(), 1)
	c := openCatalog(t, url)
	request := known(t, c)
	nodes := []*server{follow(t, url), follow(t, url)}
	enforces(t, request, 0, nodes...) // and know the key
	l := startLoad(t, nodes, []string{request, `{"path": "/", "user": "alice"}`}, func(_ int, v *verdict) error {
		_, err := generationOf(v)
		return err
	})
	each := func(do func(*server)) {
		l.moves(t)
		for _, s := range nodes {
			do(s)
		}
		l.moves(t)
	}

	apply(t, c, generation(1))
	enforces(t, request, 1, nodes...)
	wait.Nil(t, "the standby has the last change", func() error {
		const revision = "select revision from stint_catalog"
		there := testpostgres.Exec(t, strings.Replace(url, ","+second.Addr(), "", 1), revision)
		rows, err := testpostgres.Try(ofSecond, revision)
		if err == nil && rows[0][0] != there[0][0] {
			err = fmt.Errorf("the standby is at revision %s, want %s", rows[0][0], there[0][0])
		}
		return err
	})
	first.Kill(t)
	each(func(s *server) {
		s.ready(t, `"status": "degraded"`, "the database cannot be reached since ", "stays in use")
		s.measures(t, "stint_database_up 0", "stint_catalog_current 1")
	})
	second.Promote(t)
	apply(t, c, generation(2))
	enforces(t, request, 2, nodes...)
	each(func(s *server) {
		s.ready(t, allWell)
		s.measures(t, "stint_database_up 1")
	})
	t.Log(l.stop())
}

// metric returns the value of a metric without labels.
func (s *server) metric(t testing.TB, name string) int64 {
	t.Helper()
	s.measures(t) // waits for the listener
	_, text := get(t, s.url("admin")+"/metrics")
	_, rest, _ := strings.Cut(text, "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseFloat(value, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return int64(n)
}

// TestCatalogKeys changes users and their keys while they send requests.
func TestCatalogKeys(t *testing.T) {
	t.Parallel()
	c, url := newCatalog(t)
	apply(t, c, &catalog.Document{
		File: rule.File{
			Rules: []rule.Rule{{Name: "all", CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: "all", Limit: "100000/1h"}}}},
			Tiers: []rule.Tier{{Name: "gold", Limits: map[string]string{"all": "200000/1h"}}},
		},
		Users: []catalog.User{{ID: "alice"}},
	})
	dir := t.TempDir()
	config := fmt.Sprintf("[[upstreams]]\ntargets = [\"http://%s\"]\n", newApp(t).address)
	var nodes []*server
	for range 2 {
		nodes = append(nodes, serve(t, config, following(t, url, "STINT_SERVER_CATALOG_LAST_GOOD="+dir, "STINT_SERVER_LOG_LEVEL=debug", "STINT_SERVER_CATALOG_POLL=1m")...))
	}
	text, key, _, err := c.CreateKey(t.Context(), "test", catalog.APIKey{User: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	var counted int64
	send := func(s *server) answer {
		a := newClient(t, "127.0.0.1", s.gateway).do(t, http.MethodGet, "/", "", "X-API-Key", text)
		if a.status != http.StatusUnauthorized {
			counted++
		}
		return a
	}
	for _, s := range nodes {
		if a := send(s); a.status != http.StatusOK || a.header.Get("X-Ratelimit-Limit") != "100000" {
			t.Fatalf("a new key: %+v", a)
		}
	}
	change := func(what string, status int, limit string, do func() error) {
		t.Helper()
		begun := time.Now()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		for _, s := range nodes {
			wait.Nil(t, what, func() error {
				if a := send(s); a.status != status || a.header.Get("X-Ratelimit-Limit") != limit {
					return fmt.Errorf("%s: %d, limit %s", what, a.status, a.header.Get("X-Ratelimit-Limit"))
				}
				return nil
			})
		}
		t.Logf("%s: on both nodes after %v", what, time.Since(begun))
	}
	user := func(with func(*catalog.User)) func() error {
		return func() error {
			_, err := c.Users.Modify(t.Context(), "test", "alice", func(u *catalog.User) error { with(u); return nil })
			return err
		}
	}
	change("another tier", http.StatusOK, "200000", user(func(u *catalog.User) { u.Tier = "gold" }))
	change("blocked", http.StatusForbidden, "", user(func(u *catalog.User) { u.Blocked = &catalog.Blocked{Reason: "spam"} }))
	change("not blocked", http.StatusOK, "200000", user(func(u *catalog.User) { u.Blocked = nil }))
	change("an override", http.StatusOK, "300000", user(func(u *catalog.User) {
		u.Limits = map[string]catalog.Override{"all": {Limit: "300000/1h"}}
	}))
	change("revoked", http.StatusUnauthorized, "", func() error {
		_, err := c.APIKeys.Modify(t.Context(), "test", key.ID, func(k *catalog.APIKey) error {
			k.Revoked = catalog.Time{Time: time.Now()}
			return nil
		})
		return err
	})

	for _, s := range nodes {
		s.stop(t) // and writes what it has counted
	}
	ofUser, err := c.UserStatus(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	ofKey, err := c.KeyStatus(t.Context(), key.ID)
	if err != nil {
		t.Fatal(err)
	}
	if ofUser.Total != counted || ofKey.Total != counted {
		t.Errorf("%d requests of the user and %d of the key are counted, want %d", ofUser.Total, ofKey.Total, counted)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no rules were kept in %s, %v", dir, err)
	}
	for _, path := range append(files, nodes[0].log, nodes[1].log) {
		kept, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(kept), text) {
			t.Errorf("%s has the key in it:\n%s", path, kept)
		}
	}
}

// TestCatalogFile has a node use a SQLite file that another process writes to.
func TestCatalogFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url := "sqlite:" + filepath.Join(dir, "stint.db")
	s := follow(t, url)
	for n := range 3 {
		file := filepath.Join(dir, "rules.toml")
		text := fmt.Sprintf("[[rules]]\nname = \"all\"\nlimits = [{ name = \"all\", limit = \"%d/1h\" }]\n", generations+n)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program.path, "apply", "-f", file)
		cmd.Env = []string{"STINT_SERVER_DATABASE=" + url}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		begun := time.Now()
		wait.Nil(t, "the file is enforced", func() error {
			v := s.check(t, `{"path": "/"}`)
			if len(v.Limits) != 1 || v.Limits[0].Max != int64(generations+n) {
				return fmt.Errorf("%+v, want generation %d", v, n)
			}
			return nil
		})
		t.Logf("enforced after %v", time.Since(begun))
	}
}
