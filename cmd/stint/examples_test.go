package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	stint "github.com/stintdev/stint/cmd/stint"
)

// startDemo starts a server without any configuration, and returns what it prints, which
// names its addresses and its token.
func startDemo(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c := exec.CommandContext(t.Context(), os.Args[0], "serve", "--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	c.Env, c.Stdout = append(os.Environ(), asStint+"=1"), out
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGINT) }
	c.WaitDelay = 20 * time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _ = c.Wait(); c.ProcessState.ExitCode() != 0 { // and not that it was told to end
			t.Error(c.ProcessState)
		}
	})
	for end := time.Now().Add(20 * time.Second); ; {
		text, err := os.ReadFile(out.Name())
		if strings.Contains(string(text), "Ctrl-C") {
			return string(text)
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("the demo prints %s, %v", text, err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestDemoPrints runs what the demo prints, as it is.
func TestDemoPrints(t *testing.T) {
	t.Parallel()
	text := startDemo(t)
	var script []string
	for line := range strings.Lines(text[strings.Index(text, "\nTry\n"):]) {
		if command, ok := strings.CutPrefix(line, "  "); ok && !strings.HasPrefix(command, "#") {
			script = append(script, strings.TrimSpace(command))
		}
	}
	c := exec.CommandContext(t.Context(), "sh", "-e", "-c", strings.Join(script, "\n"))
	c.Env = append(os.Environ(), asStint+"=1")
	out, err := c.CombinedOutput()
	for _, want := range []string{"200 200 200 200 200 429 429", "HTTP/1.1 429", "200 200 200 429 429 429 429", `"allowed":true`, "allowed by", "per-client", "ip 127.0.0.1"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if err != nil || len(script) < 8 || t.Failed() {
		t.Errorf("%v:\n%s\n%s", err, strings.Join(script, "\n"), out)
	}
}

// notRun are examples that need more than the demo.
var notRun = map[string]string{
	`redis|REDIS`:                      "a Redis",
	`postgres:|DATABASE_URL`:           "a PostgreSQL",
	`s3:`:                              "a bucket",
	`archive (verify|restore) 2026-01`: "a month in an archive",
	`\| jq`:                            "jq; the command itself is in another example",
}

// goesOn are examples that run until they are interrupted.
var goesOn = regexp.MustCompile(`serve|top( --server.*)?$|follow`)

// TestExamples runs the examples of all help texts against the demo. Those of each command
// begin with the catalog and the files as they are at the start.
func TestExamples(t *testing.T) {
	t.Parallel()
	printed := startDemo(t)
	find := func(pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(printed)
		if m == nil {
			t.Fatalf("the demo does not print %s:\n%s", pattern, printed)
		}
		return m[1]
	}
	api, admin := find(`decision API +(http://\S+)`), find(`dashboard +(http://\S+)`)
	environ := []string{"STINT_SERVER=" + admin, "STINT_TOKEN=" + find(`STINT_TOKEN=(\S+)`), "EDITOR=true", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}
	must := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := stint.Run(t.Context(), args, environ, &out, &errs); code != 0 {
			t.Fatalf("stint %v: exit code %d, %s%s", args, code, out.String(), errs.String())
		}
		return out.String()
	}
	made := func(args ...string) string {
		t.Helper()
		var v struct{ ID string }
		if err := json.Unmarshal([]byte(must(append(args, "-o", "json")...)), &v); err != nil {
			t.Fatal(err)
		}
		return v.ID
	}
	files := newFiles(t)
	start := filepath.Join(t.TempDir(), "start.toml")
	must("export", "-f", start)

	ran := 0
	for _, command := range documented {
		help := must(append(strings.Fields(command), "--help")...)
		_, examples, _ := strings.Cut(help, "\nExamples:\n")
		examples, _, _ = strings.Cut(examples, "\n\n")
		if examples == "" {
			t.Errorf("stint %s --help has no example", command)
		}
		must("apply", "-f", start, "--prune", "--yes")
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(files)); err != nil {
			t.Fatal(err)
		}
	lines:
		for line := range strings.Lines(examples) {
			line = strings.TrimSpace(line)
			for pattern := range notRun {
				if regexp.MustCompile(pattern).MatchString(line) {
					continue lines
				}
			}
			given, call, _ := strings.Cut(line, "stint ")
			call, _, _ = strings.Cut(call, " > ")
			if strings.HasPrefix(call, "check ") && !strings.Contains(call, "--http") && !strings.Contains(call, "--config") {
				call += " --http " + api
			}
			if strings.HasPrefix(call, "serve") {
				call += " --http 127.0.0.1:0 --admin 127.0.0.1:0 --gateway 127.0.0.1:0"
			}
			if (strings.Contains(help, "--yes") && strings.HasPrefix(call, command) || strings.HasPrefix(call, "changes revert")) && !strings.Contains(call, "--yes") {
				call += " --yes" // there is no one to ask
			}
			if strings.HasPrefix(call, "changes ") && strings.Contains(call, " 42") {
				must("rules", "set", "search", "group=some")
				n := regexp.MustCompile(`"revision": (\d+)`).FindStringSubmatch(must("changes", "list", "--limit", "1", "-o", "json"))
				call = strings.ReplaceAll(call, " 42", " "+n[1])
			}
			if strings.Contains(call, "keys revoke") {
				call = strings.ReplaceAll(call, "k3jq8w2n", made("keys", "create", "user=alice"))
			}
			if strings.Contains(call, "tokens revoke") {
				call = strings.ReplaceAll(call, "4mqyx7bn2kcd6wvr", made("tokens", "create", "someone"))
			}
			call = strings.NewReplacer("http://localhost:8080", api, "http://127.0.0.1:9090", admin, "$PWD", dir).Replace(call)
			args := words(call)
			for i, a := range args { // files are where they would be
				args[i] = regexp.MustCompile(`^(sqlite:)?([a-z]+\.(toml|db|csv|parquet)|ratelimit/config)$`).ReplaceAllString(a, "${1}"+dir+"/$2")
				args[i] = strings.Replace(args[i], "envoy.config=", "envoy.config="+dir+"/", 1)
			}
			ran++
			stop := func() {}
			if strings.HasPrefix(call, "events follow") {
				stop = traffic(t, api)
			}
			runExample(t, line, append(environ, strings.Fields(strings.ReplaceAll(given, "'code --wait'", "true"))...), args)
			stop()
		}
	}
	if ran < 100 {
		t.Errorf("only %d examples were run", ran)
	}
}

// traffic asks for decisions until it is stopped, more than a limit of the demo allows.
func traffic(t *testing.T, api string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			stint.Run(ctx, []string{"check", "/search/x", "--ip", "192.0.2.1", "--take", "--http", api}, nil, io.Discard, io.Discard)
		}
	})
	return func() {
		cancel()
		work.Wait()
	}
}

// runExample runs a command, which may answer no, or goes on until it is interrupted.
func runExample(t *testing.T, line string, environ, args []string) {
	t.Helper()
	ctx, interrupt := context.WithTimeout(t.Context(), 20*time.Second)
	defer interrupt()
	var out said
	if goesOn.MatchString(line) {
		out.heard = interrupt
	}
	code := stint.Run(ctx, args, environ, &out, &out)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("%s: still runs after 20 s, %s", line, out.text)
	}
	if code != 0 && (code != 1 || !regexp.MustCompile(`^stint (check|explain|doctor|nodes)`).MatchString(line)) {
		t.Errorf("%s: exit code %d, %s", line, code, out.text)
	}
}

// said is what a command writes. At the first of it, heard is called.
type said struct {
	mu    sync.Mutex
	text  []byte
	heard func()
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heard != nil {
		s.heard()
	}
	s.text = append(s.text, p...)
	return len(p), nil
}

// newFiles returns a directory with the files that examples name.
func newFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"stint.toml":   "[server]\nlog_format = \"text\"\n[[rules]]\nname = \"search\"\ncount_by = [\"user\"]\nlimits = [ { name = \"search\", limit = \"5/1m\" } ]\n",
		"rules.toml":   "[[rules]]\nname = \"search\"\ncount_by = [\"user\"]\nlimits = [ { name = \"search\", limit = \"5/1m\" } ]\n",
		"search.toml":  "name = \"search\"\ncount_by = [\"user\"]\nlimits = [ { name = \"search\", limit = \"5/1m\" } ]\n",
		"reports.toml": "count_by = [\"user\"]\nlimits = [ { name = \"reports\", limit = \"5/1m\" } ]\n",
		"gold.toml":    "price = \"49 EUR a month\"\n",
		"carol.toml":   "tier = \"premium\"\n",
		"globex.toml":  "tier = \"premium\"\n",
		"key.toml":     "user = \"alice\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "ratelimit/config"), os.DirFS("testdata/envoy")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, line := range []string{"migrate up --database sqlite:" + dir + "/stint.db", "apply -f " + dir + "/rules.toml --database sqlite:" + dir + "/stint.db"} {
		if code := stint.Run(t.Context(), strings.Fields(line), nil, &out, &out); code != 0 {
			t.Fatal(fmt.Sprint(line, ": ", out.String()))
		}
	}
	return dir
}
