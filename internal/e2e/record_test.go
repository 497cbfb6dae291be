package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/kit/disk"
)

// TestRecordFullDisk floods a stint whose files are on a small disk. The record stops before the
// disk is full, and says so; an operator can still sign in, ban a client, and change rules. Where
// no small disk can be mounted, the record is to leave more free than any disk has.
func TestRecordFullDisk(t *testing.T) {
	t.Parallel()
	buildProgram(t)
	dir := t.TempDir()
	// In a namespace of its own, so that it needs no privileges.
	space := func(script string) *exec.Cmd {
		return exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", "mount -t tmpfs -o size=30m stint "+dir+"; "+script)
	}
	minFree := int64(28 << 20)
	out, err := space("true").CombinedOutput()
	small := err == nil
	if !small {
		t.Logf("a small disk cannot be mounted here: %v: %s", err, out)
		space = func(script string) *exec.Cmd { return exec.Command("sh", "-ec", script) }
		minFree = math.MaxInt64
	}
	config := filepath.Join(t.TempDir(), "stint.toml")
	write(t, config, fmt.Sprintf(`
[server]
database = "sqlite:%s/stint.db"
catalog = { last_good = "%[1]s" }
record = { max_rate = 0, min_free = %d, spool = "%[1]s/spool" }
`, dir, minFree))
	cmd := space("exec " + program.path + " serve --config " + config)
	cmd.Env = append(os.Environ(), "STINT_SERVER_HTTP_ADDRESS=127.0.0.1:0", "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0", "STINT_SERVER_ADMIN_TOKEN="+adminToken,
		"STINT_SERVER_DRAIN_DELAY=0s")
	s := &site{server: &server{process: run(t, cmd)}}
	t.Cleanup(func() { s.stop(t) })
	s.wait(t, func() error {
		if s.api, s.admin = s.url("http"), s.url("admin"); s.api == "" || s.admin == "" {
			return errors.New("stint does not listen")
		}
		return nil
	})
	rule := func(name string) map[string]any {
		return map[string]any{"name": name, "action": "block", "match": map[string]any{"paths": []string{"/" + name}}}
	}
	s.must(t, http.MethodPost, "/rules", rule("closed"))

	// Everyone is refused, until the record has no room any more.
	user := 0
	refuse := func() {
		var all []string
		for range 500 {
			user++
			all = append(all, fmt.Sprintf(`{"user": "u%d", "path": "/closed", "method": "GET"}`, user))
		}
		r, err := http.Post(s.api+"/v1/check/batch", "application/json", strings.NewReader(`{"requests": [`+strings.Join(all, ", ")+"]}"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body) // the record tells
		_ = r.Body.Close()
	}
	problem := ""
	s.wait(t, func() error {
		refuse()
		r, err := http.Get(s.admin + "/readyz")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		var health struct {
			Checks []struct{ Name, Status, Detail string }
		}
		if err := json.NewDecoder(r.Body).Decode(&health); err != nil {
			return err
		}
		for _, c := range health.Checks {
			if c.Status == "ok" {
				continue
			}
			if problem = c.Detail; c.Name != "record" {
				t.Fatalf("%s: %s", c.Name, c.Detail)
			}
		}
		if !strings.Contains(problem, "server.record.min_free") {
			return fmt.Errorf("the record has room, after %d refusals: %s", user, problem)
		}
		return nil
	})
	if free, ok := disk.Free(fmt.Sprintf("/proc/%d/root%s/stint.db", s.Process.Pid, dir)); small && (!ok || free < minFree/2 || free > minFree) {
		t.Errorf("%d bytes are free, want a little less than %d", free, minFree)
	}

	// The operator is not kept out.
	token, err := json.Marshal(map[string]string{"token": adminToken})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.Post(s.admin+"/admin/v1/session", "application/json", bytes.NewReader(token))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK && r.StatusCode != http.StatusCreated {
		text, _ := io.ReadAll(r.Body)
		t.Errorf("signing in: %s: %s", r.Status, text)
	}
	s.must(t, http.MethodPut, "/subjects/user/mallory/ban", map[string]any{"reason": "flood"})
	s.must(t, http.MethodPost, "/rules", rule("other"))
	refuse()
	s.must(t, http.MethodPost, "/rules", rule("third"))
}
