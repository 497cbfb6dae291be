package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testserver"
)

// clientsDir has the clients for Python and JavaScript.
const clientsDir = "../../clients"

// TestPythonClient runs the tests of the client for Python, against the program.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(tool(t, "python3"), "-m", "unittest", "discover", "-s", "tests")
	cmd.Dir = filepath.Join(clientsDir, "python")
	out := clientTests(t, cmd)
	if !regexp.MustCompile(`Ran \d\d+ tests`).MatchString(out) || strings.Contains(out, "skipped") {
		t.Errorf("not all tests have run:\n%s", out)
	}
}

// TestJavaScriptClient runs the tests of the client for JavaScript, against the program.
func TestJavaScriptClient(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(tool(t, "node"), "--test", "test/")
	cmd.Dir = filepath.Join(clientsDir, "js")
	out := clientTests(t, cmd)
	if !regexp.MustCompile(`(?m)^(#|ℹ) pass \d\d+$`).MatchString(out) || !regexp.MustCompile(`(?m)^(#|ℹ) skipped 0$`).MatchString(out) {
		t.Errorf("not all tests have run:\n%s", out)
	}
}

// TestClientsDocument runs the programs of docs/clients.md and of the clients' own pages, and looks at what they have
// used.
func TestClientsDocument(t *testing.T) {
	t.Parallel()
	const file = "docs/clients.md"
	s := serve(t, testdoc.In(t, file, "toml")[0].Text)
	tokens := fmt.Sprintf("1000000 %d", 1000000-2*650)
	for language, c := range map[string]struct {
		page, more string
		run        func(program string) *exec.Cmd
	}{
		"python": {
			"clients/python/README.md", `
print([w(app) for w in [lambda app: b"".join(app({"REQUEST_METHOD": "GET", "PATH_INFO": "/search", "wsgi.url_scheme": "http"}, print))]])
sent = []
async def answer(message):
    sent.append(message)
asyncio.run(service({"type": "http", "method": "GET", "path": "/search", "headers": [], "client": None}, None, answer))
print(sent[1]["body"])
`,
			func(program string) *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), tool(t, "python3"), "-c", program)
				cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(clientsDir, "python/src"), "PYTHONDONTWRITEBYTECODE=1")
				return cmd
			},
		},
		"js": {
			"clients/js/README.md", `
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
console.log(await (await fetch('http://127.0.0.1:' + server.address().port + '/search')).text())
console.log(await (await served(new Request('http://app/search'), { remoteAddr: { hostname: '192.0.2.1' } })).text())
process.exit()
`,
			func(program string) *exec.Cmd {
				installed := filepath.Join(t.TempDir(), "node_modules", "stint-client")
				from, err := filepath.Abs(filepath.Join(clientsDir, "js"))
				if err == nil {
					err = errors.Join(os.MkdirAll(filepath.Dir(installed), 0o700), os.Symlink(from, installed))
				}
				file := filepath.Join(filepath.Dir(filepath.Dir(installed)), "program.mjs")
				if err = errors.Join(err, os.WriteFile(file, []byte(program), 0o600)); err != nil {
					t.Fatal(err)
				}
				return exec.CommandContext(t.Context(), tool(t, "node"), file)
			},
		},
	} {
		var program strings.Builder
		for _, b := range testdoc.In(t, file, language) {
			program.WriteString(b.Text + "\n")
		}
		for _, text := range []string{program.String() + c.more, testdoc.In(t, c.page, language)[0].Text} {
			// Such a machine as this may be slow for a moment.
			text = strings.NewReplacer(`"http://localhost:8080"`, fmt.Sprintf("%q, timeout=20", s.api), `'http://localhost:8080'`, fmt.Sprintf("'%s', timeout: 20000", s.api)).Replace(text)
			out, err := c.run(text).CombinedOutput()
			if err != nil || strings.Contains(string(out), "429") || !regexp.MustCompile(`allowed|rue \d+`).Match(out) {
				t.Errorf("%s: %v: %s\n%s", language, err, out, text)
			}
		}
	}
	var usage struct {
		Limits []struct{ Max, Remaining int64 }
	}
	answer, err := http.Get(s.api + "/v1/usage?user=alice")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&usage); err != nil || len(usage.Limits) != 2 {
		t.Fatal(usage, err)
	}
	if got := fmt.Sprint(usage.Limits); !strings.Contains(got, "{"+tokens+"}") || !strings.Contains(got, "{100 95}") {
		t.Errorf("the programs have left %s", got)
	}
}

// clientTests runs the tests of a client, which start and stop servers with a controller, and returns what they write.
func clientTests(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	dir := t.TempDir()
	testserver.WritePair(t, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), "localhost")
	c := &controller{t: t, jobs: make(chan func()), servers: map[string]*server{}, configs: map[string]string{}}
	s := httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(s.Close)
	cmd.Env = append(os.Environ(), "STINT_CONTROL="+s.URL, "STINT_TLS="+dir, "PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1")
	p := run(t, cmd)
	t.Cleanup(func() { close(c.jobs) }) // what is asked too late is not done
	for {
		select {
		case job := <-c.jobs:
			job()
		case <-p.ended:
			if p.err != nil {
				t.Errorf("%q: %v", cmd.Args, p.err)
			}
			return p.output()
		}
	}
}

// controller starts servers for tests in other languages, and does to them what the tests want. The servers are those of
// a test in Go, which ends them, and which does all of it: a test may only be ended from its own goroutine.
type controller struct {
	t       testing.TB
	jobs    chan func()
	servers map[string]*server // by address
	configs map[string]string
}

// serve does what a path says: /start with a configuration, which is answered with the address of the server; and /kill,
// /pause, /resume and /restart with an address.
func (c *controller) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	done := make(chan string, 1)
	defer func() {
		if recover() != nil { // the test has ended
			http.Error(w, "the test has ended", http.StatusGone)
		}
	}()
	c.jobs <- func() {
		defer close(done)
		done <- c.do(strings.TrimPrefix(r.URL.Path, "/"), string(body))
	}
	_ = json.NewEncoder(w).Encode(<-done)
}

func (c *controller) do(what, body string) string {
	address := body
	if what == "start" {
		address = freeAddress(c.t)
		c.configs[address] = body
	}
	switch s := c.servers[address]; what {
	case "start", "restart":
		s = serve(c.t, c.configs[address], "STINT_SERVER_HTTP_ADDRESS="+address)
		c.servers[address] = s
		c.t.Cleanup(func() { _ = s.Process.Signal(syscall.SIGCONT) }) // or it could not end
	case "kill":
		s.kill(c.t)
	case "pause":
		c.signal(s, syscall.SIGSTOP)
		if err := testserver.Poll(time.Minute, func() error { return stopped(s.Process.Pid) }); err != nil {
			c.t.Fatal(err)
		}
	case "resume":
		c.signal(s, syscall.SIGCONT)
	default:
		c.t.Fatalf("there is no %s", what)
	}
	return address
}

// stopped returns an error while a thread of a process still runs: on a busy machine, one may answer after the signal.
func stopped(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if i := bytes.LastIndex(stat, []byte(") ")); err == nil && !bytes.HasPrefix(stat[i+1:], []byte(" T")) {
			return fmt.Errorf("%s: %s", thread, stat)
		}
	}
	return err
}

func (c *controller) signal(s *server, what os.Signal) {
	c.t.Helper()
	if err := s.Process.Signal(what); err != nil {
		c.t.Fatal(err)
	}
}
