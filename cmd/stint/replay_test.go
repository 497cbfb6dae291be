package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/test/wait"
)

// inDir runs a command, with files in a directory, and returns its code and output.
func inDir(t *testing.T, files map[string]string, args ...string) (code int, out, errs string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, a := range args {
		if strings.Contains(a, ".") && !strings.HasPrefix(a, "-") {
			args[i] = filepath.Join(dir, a)
		}
	}
	var o, e bytes.Buffer
	code = stint.Run(t.Context(), args, nil, &o, &e)
	return code, o.String(), strings.ReplaceAll(e.String(), dir+"/", "")
}

// TestTry tries limits on a log in all formats: the rules can be used.
func TestTry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, rules := filepath.Join(dir, "access.log"), filepath.Join(dir, "rules.toml")
	if err := os.WriteFile(log, []byte(accessLog()+"\n<script>alert(1)</script>\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := stint.Run(t.Context(), args, nil, &out, &errs); code != 0 {
			t.Fatalf("%v: %d %s", args, code, errs.String())
		}
		return out.String(), errs.String()
	}
	text, errs := run("try", log, "--one-in", "20")
	for _, want := range []string{"4800 requests of 31 clients to 3 endpoints", "ip:192.0.2.99", "/orders/{id}", "[[rules]]", `name = "all"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if !strings.Contains(errs, "2 lines of 4802 could not be read") || !strings.Contains(errs, "access.log:4801: the request has no end") {
		t.Error(errs)
	}
	toml, _ := run("try", log, "--one-in", "20", "-o", "toml")
	if err := os.WriteFile(rules, []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	run("rules", "check", rules)
	var x struct {
		Tried []struct {
			Rule                   string
			Clients, DeniedClients int64 `json:"-"`
			Denied                 int64
		}
		Replay struct{ Requests int64 }
	}
	text, _ = run("try", log, "--one-in", "20", "-o", "json")
	if err := json.Unmarshal([]byte(text), &x); err != nil || x.Tried[0].Denied == 0 || x.Replay.Requests != 4800 {
		t.Errorf("%+v %v", x, err)
	}
	// What is proposed denies the same in a replay of its own.
	text, _ = run("replay", "--log", log, "--config", rules, "-o", "csv")
	if !strings.Contains(text, "rule,all,4800,") {
		t.Error(text)
	}
}

// TestReplayLog replays logs that are in no order, that cannot be read, and that are not there.
func TestReplayLog(t *testing.T) {
	t.Parallel()
	const rules = "[[rules]]\nname = \"per-client\"\ncount_by = [\"ip\"]\nlimits = [ { name = \"minute\", limit = \"1/1m fixed_window\" } ]\n"
	line := func(minute string) string {
		return `192.0.2.1 - - [31/Jan/2026:12:` + minute + `:00 +0000] "GET / HTTP/1.1" 200 1` + "\n"
	}
	files := map[string]string{"rules.toml": rules, "a.log": line("05") + line("05"), "b.log": line("01") + "x\n", "none.log": "x\ny\n"}
	code, out, errs := inDir(t, files, "replay", "--log", "a.log", "--log", "b.log", "--config", "rules.toml", "-o", "json")
	var x struct {
		From        string
		NewlyDenied int64 `json:"newly_denied"`
		Log         struct{ Malformed, Late int64 }
	}
	if err := json.Unmarshal([]byte(out), &x); err != nil || code != 0 || x.From != "2026-01-31T12:01:00Z" || x.NewlyDenied != 1 || x.Log.Malformed != 1 || x.Log.Late != 0 {
		t.Errorf("%d %+v %v %s", code, x, err, errs)
	}
	for want, args := range map[string][]string{
		"none of the 2 lines can be read; none.log:1: no time in brackets": {"replay", "--log", "none.log"},
		"no such file":              {"try", "missing.log"},
		"--one-in 0":                {"try", "a.log", "--one-in", "0"},
		"none of the others can be": {"replay", "--log", "a.log", "--archive", "file:///x"},
	} {
		if code, _, errs := inDir(t, files, args...); code != 2 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d %s", args, code, errs)
		}
	}
}

// TestReplayServer replays what a server has recorded: the live rules are those of the server.
func TestReplayServer(t *testing.T) {
	t.Parallel()
	d := newDemo(t)
	d.must(t, "rules", "create", "name=signin", "--limit", "2/1h", "--count-by", "user", "--path", "/signin")
	for range 6 {
		var out bytes.Buffer
		stint.Run(t.Context(), []string{"check", "/signin", "--user", "alice", "--take", "--http", d.api}, d.environ, &out, &out)
	}
	candidate := filepath.Join(t.TempDir(), "candidate.toml")
	if err := os.WriteFile(candidate, []byte("[[rules]]\nname = \"signin\"\nmatch = { paths = [\"/signin\"] }\ncount_by = [\"user\"]\nlimits = [ { name = \"requests\", limit = \"3/1h\" } ]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type report struct {
		Requests   int64
		DeniedThen int64 `json:"denied_then"`
	}
	wait.Nil(t, "the events are written", func() error {
		var x report
		err := json.Unmarshal([]byte(d.must(t, "replay", "--from", "1h", "--config", candidate, "-o", "json")), &x)
		if err == nil && (x.DeniedThen != 4 || x.Requests < 4) {
			err = fmt.Errorf("%+v", x)
		}
		return err
	})
}
