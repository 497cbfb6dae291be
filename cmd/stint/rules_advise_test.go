package main_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/fitting"
	"github.com/stintdev/stint/internal/record"
)

// advisedServer starts a server with three rules that has recorded half an hour of requests: of 40 users, one of whom asks far more often
// than the others. It returns the environment of commands.
func advisedServer(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	database := "sqlite:" + filepath.Join(dir, "stint.db")
	begin := time.Now().UTC().Truncate(time.Minute).Add(-40 * time.Minute)
	var events []record.Event
	add := func(at time.Duration, user, path, rule string) {
		e := record.Event{At: begin.Add(at), Outcome: engine.Allowed, User: user, IP: "192.0.2.1", Method: "GET", Path: path, Rule: rule, Endpoint: path, Cost: 1, Max: 60, Weight: 1, Node: "one"}
		if rule == "" {
			e.Endpoint = ""
		}
		binary.BigEndian.PutUint64(e.ID[:], uint64(len(events))+1)
		events = append(events, e)
	}
	for minute := range 30 {
		at := time.Duration(minute) * time.Minute
		for u := range 40 {
			user, own := fmt.Sprintf("user-%02d", u), time.Duration(u)*time.Second
			for n := range 1 + u%4 {
				add(at+own+time.Duration(n)*4*time.Second, user, "/search", "search")
			}
			add(at+own, user, "/account", "account")
			if u < 12 {
				add(at+own, user, "/export", "")
			}
		}
		for n := range 50 {
			add(at+time.Duration(n)*time.Second, "scraper", "/search", "search")
		}
	}
	if err := recordIn(t, database, time.Now).Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	config, rules := filepath.Join(dir, "stint.toml"), filepath.Join(dir, "rules.toml")
	for file, text := range map[string]string{
		config: fmt.Sprintf("[server]\ndatabase = %q\nlog_format = \"text\"\ndrain_delay = \"0\"\n[server.catalog]\nlast_good = \"none\"\n[server.record]\nspool = \"none\"\nsample_every = 1\n", database),
		rules: "[[rules]]\nname = \"search\"\nmatch = { paths = [\"/search\"] }\ncount_by = [\"user\"]\nlimits = [{ name = \"search\", limit = \"60/1m\" }]\n" +
			"[[rules]]\nname = \"account\"\nmatch = { paths = [\"/account\"] }\ncount_by = [\"user\"]\nlimits = [{ name = \"account\", limit = \"10/1h\" }]\n" +
			"[[rules]]\nname = \"per-address\"\ncount_by = [\"ip\"]\nmatch = { paths = [\"/login\"] }\nlimits = [{ name = \"login\", limit = \"1000/1m\" }]\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := serveAdmin(t, config)
	var out bytes.Buffer
	if code := stint.Run(t.Context(), []string{"apply", "-f", rules}, h.environ, &out, &out); code != 0 {
		t.Fatal(out.String())
	}
	return h.environ
}

func TestRulesAdvise(t *testing.T) {
	t.Parallel()
	environ := advisedServer(t)
	run := func(code int, args ...string) (string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		if got := stint.Run(t.Context(), append([]string{"rules", "advise"}, args...), environ, &out, &errs); got != code {
			t.Errorf("%v: exit code %d, want %d: %s%s", args, got, code, out.String(), errs.String())
		}
		return out.String(), errs.String()
	}
	text, _ := run(0, "search", "--clients", "20", "-o", "json")
	var x fitting.Advice
	if err := json.Unmarshal([]byte(text), &x); err != nil || x.Verdict != fitting.Fits || x.Clients != 41 || x.Suggestion == nil || x.Suggestion.Clients != 1 || x.Suggestion.Top[0].Subject != "user:scraper" {
		t.Errorf("%v %+v", err, x)
	}
	for _, args := range [][]string{{"search", "--clients", "20"}, {"--endpoint", "/export"}, {"account", "--from", "7d"}} {
		toml, _ := run(0, append(args, "-o", "toml")...)
		file := filepath.Join(t.TempDir(), "rule.toml")
		if err := os.WriteFile(file, []byte(toml), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if code := stint.Run(t.Context(), []string{"rules", "check", file}, nil, &out, &out); code != 0 || !strings.Contains(out.String(), "rules: 1") {
			t.Errorf("%v: %s\n%s", args, out.String(), toml)
		}
	}
	if text, _ = run(0, "--all", "-o", "csv"); !strings.Contains(text, "binds_everyone") || strings.Count(text, "\n") != 5 {
		t.Error(text)
	}
	if text, _ = run(0, "--all", "-o", "yaml"); !strings.Contains(text, "endpoint: /export") {
		t.Error(text)
	}
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{2, `there is no rule "serch"; did you mean "search"?`, []string{"serch"}},
		{1, "no limits are suggested: Too little traffic to tell", []string{"per-address", "-o", "toml"}},
		{2, "from: ", []string{"search", "--from", "2026-02-01T00:00:00Z", "--to", "2026-01-01T00:00:00Z"}},
		{2, "--clients 0: want 2 or more", []string{"search", "--clients", "0"}},
		{2, "want a time such as", []string{"search", "--from", "soon"}},
		{2, `did you mean "user"?`, []string{"--endpoint", "/export", "--by", "usr"}},
		{2, "path: ", []string{"--endpoint", "export"}},
		{2, "--by is for --endpoint", []string{"search", "--by", "ip"}},
		{2, "needs one of the NAME of a rule, --endpoint PATTERN and --all", nil},
		{2, "needs one of the NAME of a rule, --endpoint PATTERN and --all", []string{"search", "--all"}},
		{2, "-o toml is for one rule or endpoint", []string{"--all", "-o", "toml"}},
	} {
		if _, errs := run(c.code, c.args...); !strings.Contains(errs, c.says) {
			t.Errorf("%v: %q does not say %q", c.args, errs, c.says)
		}
	}
}
