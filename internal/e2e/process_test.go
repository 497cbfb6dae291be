package e2e_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// patience is the deadline of a connection or a request on which a test would hang. No test is about it.
const patience = 5 * time.Minute

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		panic(err)
	}
	program.path = filepath.Join(dir, "stint")
	code := m.Run()
	testserver.StopShared()
	_ = os.RemoveAll(dir) // what is left there is no test's business
	os.Exit(code)
}

// program is the stint that the tests start, without the race detector, which the tests of
// packages use.
var program struct {
	path  string
	build sync.Once
	err   error
}

// buildProgram builds stint, once.
func buildProgram(t testing.TB) {
	t.Helper()
	program.build.Do(func() {
		// As the Makefile builds what is shipped: without grpcnotrace it has half as much code again.
		build := exec.Command("go", "build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", program.path, "github.com/stintdev/stint/cmd/stint")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		if err != nil {
			program.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
}

// packages are the Debian packages of commands.
var packages = map[string]string{
	"prlimit": "util-linux", "nginx": "nginx-light", "caddy": "caddy", "curl": "curl", "h2load": "nghttp2-client", "promtool": "prometheus", "python3": "python3",
}

// tool returns the path of a command. Servers may be in a directory that only root has in
// PATH.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	if err != nil {
		t.Fatalf("%s is not installed: make deps installs it, or apt-get install %s", name, packages[name])
	}
	return path
}

// process is a program that a test has started.
type process struct {
	*exec.Cmd
	log   string        // what it writes
	ended chan struct{} // closed when it is gone
	err   error         // how it ended
}

// run starts a program, and kills it at the end of the test if it still runs.
func run(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: cmd, log: filepath.Join(t.TempDir(), "log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := testserver.Spawn(cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.err = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-p.ended
		if t.Failed() {
			t.Logf("%s wrote:\n%s", filepath.Base(cmd.Path), p.output())
		}
	})
	return p
}

// output returns the end of the output of the process.
func (p *process) output() string {
	const most = 8 << 10
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// wait waits until check returns nil, while the process runs.
func (p *process) wait(t testing.TB, check func() error) {
	t.Helper()
	wait.Nil(t, filepath.Base(p.Path), func() error {
		t.Helper()
		err := check()
		if err != nil && isClosed(p.ended) {
			t.Fatalf("%s ended: %v; %v", p.Path, p.err, err)
		}
		return err
	})
}

// server is a stint.
type server struct {
	*process
	gateway, api string // where they are: http://127.0.0.1:12345
	told         sync.Once
	killed       bool
}

// serve starts a stint with a configuration. Variables override it.
func serve(t testing.TB, config string, environ ...string) *server {
	t.Helper()
	buildProgram(t)
	return serveFrom(t, program.path, config, environ...)
}

// serveFrom is serve with a stint of another version.
func serveFrom(t testing.TB, path, config string, environ ...string) *server {
	t.Helper()
	s := launchFrom(t, path, config, environ...)
	admin := slices.ContainsFunc(environ, func(e string) bool { return strings.HasPrefix(e, "STINT_SERVER_ADMIN_ADDRESS=127") })
	s.wait(t, func() error {
		s.gateway, s.api = s.url("gateway"), s.url("http")
		if s.api == "" || (s.gateway == "" && strings.Contains(config, "[[upstreams]]")) || (admin && s.url("admin") == "") {
			return errors.New("stint does not listen")
		}
		return nil
	})
	return s
}

// patiently adds what makes a client of Redis wait for 30 seconds to a URL, so that a slow machine does not
// make a node decide on its own.
func patiently(url string) string {
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return url + separator + "timeout=30s&dial_timeout=30s"
}

// apart adds a prefix to the URL of a shared Redis, which no other test has, nor the same one in another turn.
func apart(url string) string { return url + "?prefix=" + rand.Text() }

// counting returns the variables for counters in Redis, with as much patience.
func counting(url string) []string {
	return []string{"STINT_SERVER_COUNTERS=" + patiently(url), "STINT_SERVER_STORE_BUDGET=30s"}
}

// launchFrom is serveFrom without waiting.
func launchFrom(t testing.TB, path, config string, environ ...string) *server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stint.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "serve", "--config", file)
	cmd.Env = append([]string{
		"STINT_SERVER_GATEWAY_ADDRESS=127.0.0.1:0", "STINT_SERVER_HTTP_ADDRESS=127.0.0.1:0", "STINT_SERVER_ADMIN_ADDRESS=",
		"STINT_SERVER_DRAIN_DELAY=0s",
	}, environ...)
	s := &server{process: run(t, cmd)}
	t.Cleanup(func() { s.stop(t) })
	return s
}

// url returns the URL of a listener, from the log.
func (s *server) url(listener string) string {
	for line := range strings.Lines(s.output()) {
		var entry struct{ Msg, Listener, URL string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" && entry.Listener == listener {
			return entry.URL
		}
	}
	return ""
}

// terminate sends SIGTERM. A second signal would skip the drain.
func (s *server) terminate() {
	s.told.Do(func() { _ = s.Process.Signal(syscall.SIGTERM) }) // it may have ended
}

// kill kills the process.
func (s *server) kill(t testing.TB) {
	t.Helper()
	if err := s.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.ended
	s.killed = true
}

// stop terminates the process, and waits until it has ended.
func (s *server) stop(t testing.TB) {
	t.Helper()
	s.terminate()
	wait.For(t, "stint has stopped", func() bool { return isClosed(s.ended) })
	if s.err != nil && !s.killed {
		t.Errorf("stint: %v", s.err)
	}
	if log := s.output(); strings.Contains(log, "panic") {
		t.Errorf("stint panicked:\n%s", log)
	}
}

// freeAddress returns an address for a program that cannot choose one itself.
func freeAddress(t testing.TB) string {
	t.Helper()
	return testserver.FreeAddr(t)
}
