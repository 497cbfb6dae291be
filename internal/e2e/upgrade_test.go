//go:build upgrade

package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
)

// upgradeRules are rules that both versions know.
const upgradeRules = `
[[tiers]]
name   = "gold"
limits = { requests = "%d/1d" }

[[users]]
id   = "alice"
tier = "gold"

[[rules]]
name     = "per-user"
match    = { paths = ["/api/**"] }
count_by = ["user"]
limits   = [{ name = "requests", limit = "10/1d" }]

[[rules]]
name     = "login"
match    = { paths = ["/login"] }
count_by = ["ip"]
limits   = [{ name = "attempts", limit = "3/1d" }]
penalty  = { threshold = 3, within = "1h", cooldown = "1h" }

[[rules]]
name     = "metered"
match    = { paths = ["/metered"] }
count_by = ["user"]
limits   = [{ name = "units", limit = "1000/1d" }]
cost     = { meter = "llm.total_tokens", reserve = 600 }
`

// versions is nodes of two versions, with one Redis and one PostgreSQL.
type versions struct {
	t        *testing.T
	old, new string // the programs
	environ  []string
	config   string
}

func (v *versions) node(program, name string) *server {
	v.t.Helper()
	s := serveFrom(v.t, program, noSettings, append(following(v.t, "", v.environ...), "STINT_SERVER_CATALOG_NODE="+name)...)
	s.ready(v.t)
	return s
}

// apply writes rules by a program, in which a tier has so many requests.
func (v *versions) apply(program string, gold int) {
	v.t.Helper()
	file := filepath.Join(v.t.TempDir(), "rules.toml")
	write(v.t, file, fmt.Sprintf(upgradeRules, gold))
	cmd := exec.CommandContext(v.t.Context(), program, "apply", "-f", file, "--config", v.config)
	cmd.Env = v.environ
	if out, err := cmd.CombinedOutput(); err != nil {
		v.t.Fatalf("%s: %v: %s", program, err, out)
	}
}

// becomes waits until a node has a limit for users of the tier.
func (v *versions) becomes(s *server, gold int) {
	v.t.Helper()
	s.wait(v.t, func() error {
		_, text, err := postCheck(v.t, s.api, `{"path": "/api/x", "user": "alice", "peek": true}`)
		if err != nil || !strings.Contains(text, fmt.Sprintf(`"limit":%d,`, gold)) {
			return fmt.Errorf("%s, %w; want %d", text, err, gold)
		}
		return nil
	})
}

func (v *versions) post(s *server, path, body string) map[string]any {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), http.MethodPost, s.api+path, strings.NewReader(body))
	if err != nil {
		v.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	status, text, _ := answerOf(v.t, http.DefaultClient, r)
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil || status != http.StatusOK {
		v.t.Fatalf("%s: %d: %s", path, status, text)
	}
	return out
}

// TestUpgrade has nodes of the version in STINT_OLD and of this one serve together, while the schema of the database is changed under the
// old ones, and goes back. make test-upgrade builds the old one.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	old := os.Getenv("STINT_OLD")
	if old == "" {
		t.Fatal("STINT_OLD names no program: make test-upgrade FROM=v0.1.0 builds one")
	}
	buildProgram(t)
	for name, programs := range map[string][2]string{"the old one has begun": {old, program.path}, "the new one has begun": {program.path, old}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := testpostgres.Shared(t).Database(t)
			v := &versions{t: t, old: old, new: program.path, config: filepath.Join(t.TempDir(), "stint.toml"), environ: []string{
				"STINT_SERVER_COUNTERS=" + patiently(testredis.Start(t).URL()), "STINT_SERVER_DATABASE=" + database, "STINT_SERVER_STORE_BUDGET=30s",
				"STINT_SERVER_RECORD_SAMPLE_EVERY=1", "STINT_SERVER_RECORD_SPOOL=none", "HOME=" + t.TempDir(),
			}}
			write(t, v.config, noSettings)
			first := v.node(programs[0], "first")
			v.apply(programs[0], 50)
			v.becomes(first, 50)
			for range 20 {
				v.post(first, "/v1/check", `{"path": "/api/x", "user": "alice"}`)
			}
			second := v.node(programs[1], "second")
			v.becomes(second, 50)

			// One counter, exactly, and no decision by a node alone.
			passed := 20
			for i := range 60 {
				a := v.post([]*server{first, second}[i%2], "/v1/check", `{"path": "/api/x", "user": "alice"}`)
				if a["allowed"] == true {
					passed++
				}
				if basis, ok := a["basis"]; ok && basis == "local" {
					t.Fatalf("%v", a)
				}
			}
			if passed != 50 {
				t.Errorf("%d requests passed, want 50", passed)
			}
			// A ban by one is a ban by the other.
			for range 6 {
				v.post(first, "/v1/check", `{"path": "/login", "ip": "192.0.2.1"}`)
			}
			if a := v.post(second, "/v1/check", `{"path": "/login", "ip": "192.0.2.1"}`); a["outcome"] != "banned" {
				t.Errorf("%v, want a ban", a)
			}
			// What one has reserved, the other settles, once.
			for i, pair := range [][2]*server{{first, second}, {second, first}} {
				user := fmt.Sprintf("user-%d", i)
				ticket := v.post(pair[0], "/v1/reserve", `{"path": "/metered", "user": "`+user+`"}`)["ticket"]
				commit := fmt.Sprintf(`{"ticket": %q, "usage": {"llm.total_tokens": 100}}`, ticket)
				v.post(pair[1], "/v1/commit", commit)
				v.post(pair[0], "/v1/commit", commit)
				if a := v.post(pair[0], "/v1/check", `{"path": "/metered", "user": "`+user+`", "peek": true}`); a["remaining"] != 900.0 {
					t.Errorf("%v remain, want 900: %v", a["remaining"], a)
				}
			}
			// A change that either writes reaches both.
			for i, program := range []string{v.new, v.old} {
				v.apply(program, 60+i)
				v.becomes(first, 60+i)
				v.becomes(second, 60+i)
			}
			// A step back: a node of the version before starts with what is there now.
			first.stop(t)
			second.stop(t)
			third := v.node(programs[0], "third")
			v.becomes(third, 61)
			if a := v.post(third, "/v1/check", `{"path": "/login", "ip": "192.0.2.1"}`); a["outcome"] != "banned" {
				t.Errorf("%v, want the ban to have lasted", a)
			}
			// What both have decided is recorded: alice at both, a user's reservation at each, and the address that was banned.
			third.stop(t)
			if got := testpostgres.Exec(t, database, "select distinct coalesce(nullif(user_id, ''), ip) who from stint_events order by who"); fmt.Sprint(got) != "[[192.0.2.1] [alice] [user-0] [user-1]]" {
				t.Errorf("%v have events", got)
			}
		})
	}
}
