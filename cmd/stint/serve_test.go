package main_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
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

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/test/wait"
)

// server is a process that runs "stint serve".
type server struct {
	*exec.Cmd
	lines *bufio.Scanner // of the log
	out   bytes.Buffer
	state string // its state directory
}

// serve starts a server that listens on free ports.
func serve(t *testing.T, args ...string) *server {
	t.Helper()
	return serveIn(t, nil, args...)
}

// serveIn starts a server with additional environment variables.
func serveIn(t *testing.T, environ []string, args ...string) *server {
	t.Helper()
	args = append([]string{"serve", "--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)
	s := &server{Cmd: exec.CommandContext(t.Context(), os.Args[0], args...), state: t.TempDir()}
	s.Env = append(append(os.Environ(), asStint+"=1", "STATE_DIRECTORY="+s.state), environ...)
	s.Stdout = &s.out
	log, err := s.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.lines = bufio.NewScanner(log)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// logs waits for a line of the log, and returns the first group of the pattern.
func (s *server) logs(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for s.lines.Scan() {
		if m := re.FindStringSubmatch(s.lines.Text()); m != nil {
			return m[len(m)-1]
		}
	}
	t.Fatalf("it ended without logging %s", pattern)
	return ""
}

func (s *server) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := s.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// ends waits for the end, and returns the exit code.
func (s *server) ends() int {
	for s.lines.Scan() {
	}
	_ = s.Wait()
	return s.ProcessState.ExitCode()
}

// TestSignals reloads a server and stops it, as people and systemd do.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, last := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		path := filepath.Join(t.TempDir(), "stint.toml")
		write := func(text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		const settings = "[server]\nreload_interval = \"0\"\ndrain_delay = \"0\"\nlog_format = \"text\"\n"
		write(settings)
		s := serve(t, "--config", path)
		s.logs(t, `msg=listening address=127\.0\.0\.1:\d+ reachable_from="this machine" listener=admin`)
		write(settings + "[[rules]]\nname = \"one\"\naction = \"block\"\n")
		s.signal(t, syscall.SIGHUP)
		s.logs(t, `msg="configuration in use".* added=\[one\]`)
		write("nonsense")
		s.signal(t, syscall.SIGHUP)
		s.logs(t, `msg="configuration rejected`)
		s.signal(t, last)
		s.logs(t, "msg=stopping")
		s.logs(t, "msg=stopped")
		if code := s.ends(); code != 0 || !strings.Contains(s.out.String(), s.state+"/admin-token-") || keyText.MatchString(s.out.String()) {
			t.Errorf("exit code %d, %s", code, s.out.String())
		}
	}
}

// TestTokenFound checks that commands find the token of a server on the same machine, and
// send it to no other, and that "check" sends the token of the decision API.
func TestTokenFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stint.toml")
	if err := os.WriteFile(path, []byte("[server]\ndrain_delay = \"0\"\nlog_format = \"text\"\nhttp = { tokens = [\"a-token-for-decisions\"] }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "--config", path)
	api, admin := s.logs(t, "listener=http url=(.*)"), s.logs(t, "listener=admin url=(.*)")
	s.logs(t, "msg=ready")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token-for-decisions\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	local := strings.Replace(admin, "127.0.0.1", "localhost", 1)
	for _, c := range []struct {
		args, environ string
		code          int
		says          string
	}{
		{"status --server " + admin, "STATE_DIRECTORY=" + s.state, 0, "ok"},
		{"status --server " + local, "STATE_DIRECTORY=" + s.state, 0, "ok"},
		{"status --server " + admin, "HOME=" + s.state, 2, "--token-file"},
		{"status --server " + admin, "", 2, "--token-file"},
		{"check / --ip 192.0.2.1 --http " + api, "", 2, "--http-token-file"},
		{"check / --ip 192.0.2.1 --http " + api, "STINT_HTTP_TOKEN=another-token-than-that", 2, "401 Unauthorized: want a token of server.http.tokens"},
		{"check / --ip 192.0.2.1 --http " + api, "STINT_HTTP_TOKEN=a-token-for-decisions", 0, "allowed"},
		{"check / --ip 192.0.2.1 --http-token-file " + token + " --http " + api, "", 0, "allowed"},
		{"check / --ip 192.0.2.1 --http-token-file " + path + " --http " + api, "", 2, "want a token and nothing else"},
	} {
		var out bytes.Buffer
		if code := stint.Run(t.Context(), strings.Fields(c.args), []string{c.environ}, &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s %s: %d, %s", c.environ, c.args, code, out.String())
		}
	}
	s.signal(t, syscall.SIGTERM)
	if code := s.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestDemo starts a server without any configuration, and runs commands against it.
func TestDemo(t *testing.T) {
	t.Parallel()
	s := serve(t)
	url := s.logs(t, "listener=http url=(.*)")
	s.logs(t, "listener=admin")
	cases := []struct {
		args string
		code int
		says string
	}{
		{"check /search/cats --ip 192.0.2.1", 0, "allowed by "},
		{"check /internal/x --ip 192.0.2.1", 1, "blocked by internal"},
		{"check /login -X POST --ip 192.0.2.1 --take --cost 3 -o json", 0, `"rule": "login"`},
		{"check /login -X POST --ip 192.0.2.1", 1, "Too many attempts to log in."},
		{"check login", 2, ""},
	}
	// Logins are counted per minute, and all of those of a client must be in the same one.
	client := 0
	wait.Nil(t, "the answers of one minute", func() (wrong error) {
		client++
		begin := time.Now().Truncate(time.Minute)
		for _, c := range cases {
			var out, errs bytes.Buffer
			args := strings.Replace(c.args, "192.0.2.1", fmt.Sprint("192.0.2.", client), 1)
			code := stint.Run(t.Context(), append(strings.Fields(args), "--http", url), nil, &out, &errs)
			if code != c.code || !strings.Contains(out.String(), c.says) {
				wrong = fmt.Errorf("%s: exit code %d, %s%s", args, code, out.String(), errs.String())
			}
		}
		if wrong != nil && begin.Equal(time.Now().Truncate(time.Minute)) {
			t.Fatal(wrong)
		}
		return wrong
	})
	s.signal(t, syscall.SIGINT)
	if code := s.ends(); code != 0 || !strings.Contains(s.out.String(), url+"/v1/check") {
		t.Errorf("exit code %d, %s", code, s.out.String())
	}
}

// TestTwiceIdle sends a second signal while there are connections, and no requests.
func TestTwiceIdle(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stint.toml")
	if err := os.WriteFile(path, []byte("[server]\ndrain_delay = \"10m\"\nlog_format = \"text\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "--config", path)
	url := s.logs(t, "listener=http url=(.*)")
	s.logs(t, "listener=admin")
	silent, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	answer, err := http.Get(url + "/healthz") // connections are accepted in order
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	s.signal(t, syscall.SIGTERM)
	s.logs(t, "msg=stopping")
	s.signal(t, syscall.SIGTERM)
	if code := s.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestTwice sends a second signal while a request does not end.
func TestTwice(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	}))
	defer upstream.Close()
	path := filepath.Join(t.TempDir(), "stint.toml")
	text := fmt.Sprintf("[server]\ndrain_delay = \"0\"\nlog_format = \"text\"\n[[upstreams]]\ntargets = [%q]\n", upstream.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "--config", path)
	url := s.logs(t, "listener=gateway url=(.*)")
	s.logs(t, "listener=admin")
	cut := make(chan error, 1)
	go func() {
		answer, err := http.Get(url)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		cut <- err
	}()
	<-begun
	s.signal(t, syscall.SIGTERM)
	s.logs(t, "msg=stopping")
	s.signal(t, syscall.SIGTERM)
	s.logs(t, "^stint: gateway: requests were cut off")
	s.logs(t, "^try: ")
	if code := s.ends(); code != 2 {
		t.Errorf("exit code %d", code)
	}
	<-cut
}

// TestEnvoyEnv starts a server with the environment of envoyproxy/ratelimit, and sends
// requests as for envoyproxy/ratelimit.
func TestEnvoyEnv(t *testing.T) {
	t.Parallel()
	s := serveIn(t, []string{
		"RUNTIME_ROOT=testdata", "RUNTIME_APPDIRECTORY=envoy", "LOG_FORMAT=text", "LOG_LEVEL=info", "EXPIRATION_JITTER_MAX_SECONDS=5", "DEBUG_PORT=0",
		"REDIS_URL=redis:6379", "REDIS_AUTH=hunter2", "STINT_SERVER_DRAIN_DELAY=0",
	}, "--envoy-env", "--counters", "memory:")
	s.logs(t, `level=WARN msg=note text="EXPIRATION_JITTER_MAX_SECONDS: counters expire`)
	s.logs(t, `level=WARN msg=note text="REDIS_URL, REDIS_AUTH: --counters sets where counters are stored"`)
	url := s.logs(t, "listener=http url=(.*)")
	s.logs(t, "listener=debug")
	s.logs(t, "listener=grpc")
	const ask = `{"domain": "mail", "descriptors": [{"entries": [{"key": "sender", "value": "%s"}]}]}`
	for sender, want := range map[string]int{"bob": http.StatusOK, "banned": http.StatusTooManyRequests} {
		answer, err := http.Post(url+"/json", "application/json", strings.NewReader(fmt.Sprintf(ask, sender)))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %s", sender, answer.Status)
		}
	}
	s.signal(t, syscall.SIGTERM)
	if code := s.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
