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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/test/wait"
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
	c.Env, c.Stdout = append(os.Environ(), asStint+"=1", "STATE_DIRECTORY="+filepath.Join(dir, "state of it")), out
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGINT) }
	c.WaitDelay = 5 * time.Minute
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _ = c.Wait(); c.ProcessState.ExitCode() != 0 { // whatever Wait says about the interrupt
			t.Error(c.ProcessState)
		}
	})
	var text string
	wait.Nil(t, "the demo says how to end it", func() error {
		if text = read(t, out.Name()); !strings.Contains(text, "Ctrl-C") {
			return errors.New(text)
		}
		return nil
	})
	return text
}

// TestDemoCommands runs the commands that the demo prints.
func TestDemoCommands(t *testing.T) {
	t.Parallel()
	text := startDemo(t)
	var script []string
	_, try, _ := strings.Cut(text, "\nTry\n")
	for line := range strings.Lines(try) {
		if command, ok := strings.CutPrefix(line, "  "); ok && !strings.HasPrefix(command, "#") {
			script = append(script, strings.TrimSpace(command))
		}
	}
	c := exec.CommandContext(t.Context(), "sh", "-e", "-c", strings.Join(script, "\n"))
	c.Env = append(os.Environ(), asStint+"=1")
	out, err := c.CombinedOutput()
	for _, want := range []string{"200 200 200 200 200 429 429", "HTTP/1.1 429", "200 200 200 429 429 429 429", `"allowed":true`, "allowed by", "per-client", "ip 127.0.0.1"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output does not contain %q", want)
		}
	}
	if err != nil || len(script) < 8 || t.Failed() {
		t.Errorf("%v:\n%s\n%s", err, strings.Join(script, "\n"), out)
	}
}

// notRun are examples that need more than the demo.
var notRun = map[string]string{
	`archive (run|list)( +[a-z]+)*$|migrate up$`: "a configuration that names an archive or a database",
	`redis|REDIS`:                      "a Redis",
	`postgres:|DATABASE_URL`:           "a PostgreSQL",
	`s3:`:                              "a bucket",
	`archive (verify|restore) 2026-01`: "a month in an archive",
	`envoy compare `:                   "an envoyproxy/ratelimit; internal/e2e runs the command",
	`\| jq`:                            "jq; the command itself is in another example",
}

// endless are examples that run until they are interrupted.
var endless = regexp.MustCompile(`serve|top( --(server|node).*)?$|follow`)

// demo is a server without any configuration.
type demo struct {
	gateway, api, admin string
	environ             []string
	me                  string                   // a token for the user alice
	files               string                   // the files that commands name, as they are at the start
	catalog             string                   // a file that has the catalog as it is at the start
	substitute          func(line string) string // replaces what a document names by what there is
}

func newDemo(t *testing.T) *demo {
	t.Helper()
	printed := startDemo(t)
	find := func(pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(printed)
		if m == nil {
			t.Fatalf("the demo does not print %s:\n%s", pattern, printed)
		}
		return m[1]
	}
	d := &demo{gateway: find(`gateway +(http://\S+)`), api: find(`decision API +(http://\S+)`), admin: find(`dashboard +(http://\S+)`), files: newFiles(t)}
	d.environ = []string{"STINT_SERVER=" + d.admin, "STINT_TOKEN=" + strings.TrimSpace(read(t, find(`STINT_TOKEN_FILE='(.+)'`))), "EDITOR=true", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}
	d.catalog = filepath.Join(t.TempDir(), "start.toml")
	d.must(t, "export", "-f", d.catalog)
	return d
}

// begin restores the initial catalog, and returns a directory with the files.
func (d *demo) begin(t *testing.T) (dir string) {
	t.Helper()
	var keys []struct{ ID string }
	if err := json.Unmarshal([]byte(d.must(t, "keys", "list", "-o", "json")), &keys); err != nil {
		t.Fatal(err)
	}
	for _, k := range keys { // a file does not prune them
		d.must(t, "keys", "delete", k.ID, "--yes")
	}
	d.must(t, "apply", "-f", d.catalog, "--prune", "--yes")
	d.must(t, "reset", "ip:127.0.0.1", "--yes")
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(d.files)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stint.db", "stint-record.db"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o600); err != nil { // or a server says that it was wider
			t.Fatal(err)
		}
	}
	return dir
}

// must runs a command that must succeed, and returns its output.
func (d *demo) must(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := stint.Run(t.Context(), args, d.environ, &out, &errs); code != 0 {
		t.Fatalf("stint %v: exit code %d, %s%s", args, code, out.String(), errs.String())
	}
	return out.String()
}

// made returns the id of the object that a command creates.
func (d *demo) made(t *testing.T, args ...string) string {
	t.Helper()
	var v struct{ ID string }
	if err := json.Unmarshal([]byte(d.must(t, append(args, "-o", "json")...)), &v); err != nil {
		t.Fatal(err)
	}
	return v.ID
}

// run runs a line that begins with variables or stint, as if it were in the directory, and
// returns its output. Ids that servers make are replaced by some that there are, addresses by
// those of the demo.
func (d *demo) run(t *testing.T, dir, line string) string {
	t.Helper()
	given, call, _ := strings.Cut(line, "stint ")
	call, _, _ = strings.Cut(call, " > ")
	environ := slices.Clip(d.environ)
	switch {
	case strings.HasPrefix(call, "check ") && !strings.Contains(call, "--http") && !strings.Contains(call, "--config"):
		call += " --http " + d.api
	case strings.HasPrefix(call, "serve"):
		call += " --http 127.0.0.1:0 --admin 127.0.0.1:0 --gateway 127.0.0.1:0 --set server.drain_delay=0s"
	case strings.HasPrefix(call, "health"):
		call += " --set server.admin.address=" + strings.TrimPrefix(d.admin, "http://")
	case strings.HasPrefix(call, "changes ") && strings.Contains(call, " 42"):
		d.must(t, "rules", "set", "search", "group=some")
		n := regexp.MustCompile(`"revision": (\d+)`).FindStringSubmatch(d.must(t, "changes", "list", "--limit", "1", "-o", "json"))
		call = strings.ReplaceAll(call, " 42", " "+n[1])
	case strings.HasPrefix(call, "rules rollout"):
		d.must(t, "rules", "set", "search", `rollout={"steps":["1%","50%","100%"],"every":"1h"}`)
	case strings.HasPrefix(call, "rules promote"):
		d.must(t, "rules", "set", "search", "limits[0].candidate=7/1m")
	case strings.HasPrefix(call, "explain "+shownDecision):
		call = strings.Replace(call, shownDecision, d.denial(t), 1)
	case strings.HasPrefix(call, "man "):
		call = "man " + dir + "/man1"
	case strings.HasPrefix(call, "me "):
		if d.me == "" {
			d.me = strings.TrimSpace(d.must(t, "tokens", "create", "alice-laptop", "--user", "alice"))
		}
		call = strings.ReplaceAll(call, "k3jq8w2n", d.made(t, "keys", "create", "user=alice"))
		environ = append([]string{"STINT_TOKEN=" + d.me}, environ...)
	case strings.HasPrefix(call, "keys revoke"), strings.HasPrefix(call, "keys rotate"):
		call = strings.ReplaceAll(call, "k3jq8w2n", d.made(t, "keys", "create", "user=alice"))
	case strings.HasPrefix(call, "tokens revoke"):
		call = strings.ReplaceAll(call, "4mqyx7bn2kcd6wvr", d.made(t, "tokens", "create", "someone"))
	}
	if asks.MatchString(call) && !strings.Contains(call, "--yes") {
		call += " --yes" // there is no terminal
	}
	call = strings.NewReplacer("http://localhost:8080", d.api, "http://127.0.0.1:9090", d.admin, "$PWD", dir).Replace(call)
	args := words(call)
	for i, a := range args { // files are in the directory
		args[i] = regexp.MustCompile(`^(sqlite:)?([a-z-]+\.(toml|ruletest|xml|db|csv|parquet|txt|conf|yaml|log)|ratelimit/config)$`).ReplaceAllString(a, "${1}"+dir+"/$2")
		args[i] = strings.Replace(args[i], "envoy.config=", "envoy.config="+dir+"/", 1)
	}
	stop := func() {}
	if strings.HasPrefix(call, "events follow") {
		stop = traffic(t, d.api)
	}
	out := runExample(t, line, append(environ, strings.Fields(strings.ReplaceAll(given, "'code --wait'", "true"))...), args)
	stop()
	return strings.ReplaceAll(out, dir+"/", "")
}

// shownDecision is the id of a decision in documents.
const shownDecision = "0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00"

// denial returns the id of a request that the demo has denied, and recorded.
func (d *demo) denial(t *testing.T) string {
	t.Helper()
	var v struct {
		Allowed bool
		ID      string `json:"decision_id"`
	}
	for v.Allowed = true; v.Allowed; {
		var out bytes.Buffer
		stint.Run(t.Context(), []string{"check", "/search/cats", "--ip", "192.0.2.44", "--take", "--http", d.api, "-o", "json"}, d.environ, &out, &out)
		if err := json.Unmarshal(out.Bytes(), &v); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
	}
	wait.For(t, "the denial is recorded", func() bool {
		var out bytes.Buffer
		stint.Run(t.Context(), []string{"explain", v.ID}, d.environ, &out, &out)
		return strings.Contains(out.String(), "For the customer:")
	})
	return v.ID
}

// asks are commands that ask for confirmation.
var asks = regexp.MustCompile(`^(\w+ (delete|revoke|revert|expire|down\b)|reset|apply .*--prune$)`)

// TestExamples runs the examples of all help texts against the demo. Those of each command
// begin with the initial catalog and files.
func TestExamples(t *testing.T) {
	t.Parallel()
	d := newDemo(t)
	ran := 0
	for _, command := range documented {
		_, examples, _ := strings.Cut(d.must(t, append(strings.Fields(command), "--help")...), "\nExamples:\n")
		examples, _, _ = strings.Cut(examples, "\n\n")
		if examples == "" {
			t.Errorf("stint %s --help has no example", command)
		}
		dir := d.begin(t)
		for line := range strings.Lines(examples) {
			if line = strings.TrimSpace(line); needs(line) == "" {
				ran++
				d.run(t, dir, line)
			}
		}
	}
	if ran < 100 {
		t.Errorf("only %d examples were run", ran)
	}
}

// needs returns what a line needs that the demo does not have, or an empty text.
func needs(line string) string {
	for pattern, what := range notRun {
		if regexp.MustCompile(pattern).MatchString(line) {
			return what
		}
	}
	return ""
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

// runExample runs a command, which may answer no, or goes on until it is interrupted, and
// returns its output.
func runExample(t *testing.T, line string, environ, args []string) string {
	t.Helper()
	deadline, limited := t.Deadline()
	if !limited {
		deadline = time.Now().Add(time.Hour)
	}
	ctx, interrupt := context.WithDeadline(t.Context(), deadline.Add(-10*time.Second))
	defer interrupt()
	var out said
	if endless.MatchString(line) {
		out.heard = interrupt
	}
	code := stint.Run(ctx, args, environ, &out, &out)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("%s: still runs, %s", line, out.text)
	}
	if code != 0 && (code != 1 || !regexp.MustCompile(`^stint (check|explain|doctor|nodes|regions|rules check|rules test broken|import nginx shop)`).MatchString(line)) {
		t.Errorf("%s: exit code %d, %s", line, code, out.text)
	}
	return string(out.text)
}

// said is the output of a command. heard is called at the first write.
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

// accessLog returns an hour of an access log: 30 clients who ask now and then, one who asks four times a second for five minutes, and a
// line that is cut off.
func accessLog() string {
	var log strings.Builder
	line := func(second, client, n int) {
		path := []string{"/", "/search?q=tea", fmt.Sprintf("/orders/%d", 100_000+n)}[n%3]
		fmt.Fprintf(&log, "192.0.2.%d - - [31/Jan/2026:12:%02d:%02d +0000] \"GET %s HTTP/1.1\" 200 512 \"-\" \"curl/8.5.0\"\n", client, second/60, second%60, path)
	}
	for second := range 3600 {
		line(second, 1+second*7%30, second/30)
		for n := range 4 {
			if 1200 <= second && second < 1500 {
				line(second, 99, second+n)
			}
		}
	}
	log.WriteString("192.0.2.7 - - [31/Jan/2026:13:00:00 +0000] \"GET /se")
	return log.String()
}

// newFiles returns a directory with the files that examples name.
func newFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"stint.toml":         "[server]\nlog_format = \"text\"\n[[rules]]\nname = \"search\"\ncount_by = [\"user\"]\nlimits = [ { name = \"search\", limit = \"5/1m\" } ]\n",
		"search.ruletest":    "test five a minute\nat 0s GET /search user=alice x6 -> allow 5 deny 1\n",
		"demo.ruletest":      read(t, "../../internal/daemon/testdata/demo.ruletest"),
		"node.toml":          "[server]\ndatabase = \"sqlite::memory:\"\nlog_level = \"error\"\n",
		"rules.toml":         "[[rules]]\nname = \"search\"\ncount_by = [\"user\"]\nlimits = [ { name = \"search\", limit = \"5/1m\" } ]\n",
		"candidate.toml":     "[[rules]]\nname = \"per-client\"\ncount_by = [\"ip\"]\nlimits = [ { name = \"minute\", limit = \"20/1m\" } ]\n",
		"access.log":         accessLog(),
		"search.toml":        "name = \"search\"\ncount_by = [\"user\"]\nlimits = [ { name = \"search\", limit = \"5/1m\" } ]\n",
		"reports.toml":       "count_by = [\"user\"]\nlimits = [ { name = \"reports\", limit = \"5/1m\" } ]\n",
		"gold.toml":          "price = \"49 EUR a month\"\n",
		"carol.toml":         "tier = \"premium\"\n",
		"globex.toml":        "tier = \"premium\"\n",
		"key.toml":           "user = \"alice\"\n",
		"denials.toml":       "kind = \"rule\"\npercent = 20\n",
		"search-denies.toml": "kind = \"rule\"\npercent = 20\n",
		"chat.toml":          "url = \"http://127.0.0.1:1\"\n",
		"oncall.toml":        "url = \"http://127.0.0.1:1\"\n",
		"secret.txt":         "whsec_0123456789\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, file := range map[string]string{
		"nginx.conf": "nginx/login.conf", "ingresses.yaml": "ingress-nginx/rps.yaml", "kong.yaml": "kong/minute.yaml",
		"traefik.yaml": "traefik/basic.yaml", "envoy.yaml": "envoy/local.yaml",
	} {
		text, err := os.ReadFile(corpus + file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
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
