//go:build reference

package e2e_test

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testserver"
)

// TestReferenceSuite runs the integration tests of the reference, and its scripts, with Stint in its place. What
// fails must be in the table of docs/envoy.md, and nothing else may be.
func TestReferenceSuite(t *testing.T) {
	buildProgram(t)
	s := newSuite(t)
	s.startServers(t)
	listed := listedTests(t)
	results := s.run(t)
	maps.Copy(results, s.runScripts(t))
	for name, passed := range results {
		at := slices.IndexFunc(listed, func(l *listedTest) bool { return l.name.MatchString(name) })
		switch {
		case at < 0 && !passed:
			t.Errorf("%s fails, and docs/envoy.md does not list it", name)
		case at >= 0 && passed && !listed[at].sometimes:
			t.Errorf("%s passes, and docs/envoy.md lists it as one that does not", name)
		}
		if at >= 0 {
			listed[at].seen = true
		}
	}
	for _, l := range listed {
		if !l.seen {
			t.Errorf("docs/envoy.md lists %s, and there is no such test", l.name)
		}
	}
}

// listedTest is a row of the table of tests that fail, in docs/envoy.md.
type listedTest struct {
	name      *regexp.Regexp // also of the tests inside
	sometimes bool           // it may pass
	seen      bool
}

var listedRow = regexp.MustCompile("(?m)^\\| `(Test[^`]+|[a-z-]+[.]sh)` \\| (.*) \\|$")

func listedTests(t *testing.T) (all []*listedTest) {
	t.Helper()
	for _, m := range listedRow.FindAllStringSubmatch(testdoc.Documents(t)["docs/envoy.md"], -1) {
		name := strings.ReplaceAll(regexp.QuoteMeta(m[1]), `\*`, ".*")
		all = append(all, &listedTest{name: regexp.MustCompile("^" + name + "(/.*)?$"), sometimes: strings.HasPrefix(m[2], "Sometimes:")})
	}
	return all
}

// suite is a copy of the module of the reference.
type suite struct {
	dir     string
	environ []string
}

// fixedPorts are the ports that its tests expect, or use themselves.
var fixedPorts = []int{
	6361, 6380, 6381, 6382, 6383, 6384, 6385, 6386, 6387, 6388, 6389, 6390, 6391, 6392, 6393, 6397, 6398, 8082, 8083, 8084,
	16361, 16381, 16382, 16386, 16387, 16388, 16389, 16390, 16391, 18000, 26394, 26395, 26396, 26399, 26400, 26401,
}

// newSuite copies the module, with our runner in the place of its own.
func newSuite(t *testing.T) *suite {
	t.Helper()
	for _, port := range fixedPorts {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			t.Fatalf("the tests of the reference need port %d: %v", port, err)
		}
		l.Close()
	}
	out, err := exec.Command("go", "list", "-C", "../../bench/ratelimit", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/ratelimit").Output()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{dir: filepath.Join(t.TempDir(), "ratelimit")}
	if err := os.CopyFS(s.dir, os.DirFS(strings.TrimSpace(string(out)))); err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("../../bench/ratelimit/runner/runner.go")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "src/service_cmd/runner/runner.go"), code, 0o600); err != nil {
		t.Fatal(err)
	}
	cert := filepath.Join(s.dir, "cert.pem")
	testserver.WritePair(t, cert, filepath.Join(s.dir, "key.pem"), "localhost")
	s.environ = append(os.Environ(), "PROJECT_DIR="+s.dir, "TMPDIR="+t.TempDir(), "SSL_CERT_FILE="+cert,
		"SUITE_PROGRAM="+program.path,
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR="+freeAddress(t), "STINT_SERVER_ADMIN_ADDRESS="+freeAddress(t), "STINT_SERVER_DRAIN_DELAY=0s",
		"STINT_SERVER_STORE_BUDGET=30s") // a slow machine must not make a node decide on its own
	return s
}

// startServers starts the servers that its Makefile starts.
func (s *suite) startServers(t *testing.T) {
	t.Helper()
	const password = "password123"
	tls := []string{"--tls-cert-file", s.dir + "/cert.pem", "--tls-key-file", s.dir + "/key.pem", "--tls-ca-cert-file", s.dir + "/cert.pem", "--requirepass", password}
	for port, clients := range map[string]string{"16381": "no", "16382": "no", "16361": "yes"} {
		s.redis(t, append([]string{"--port", "0", "--tls-port", port, "--tls-auth-clients", clients}, tls...)...)
	}
	for primary, replica := range map[string]string{"6392": "6393", "6397": "6398"} {
		s.redis(t, "--port", primary, "--requirepass", password)
		s.redis(t, "--port", replica, "--requirepass", password, "--replicaof", "127.0.0.1 "+primary, "--masterauth", password)
	}
	for port, file := range map[string]string{
		"26394": "sentinel", "26395": "sentinel", "26396": "sentinel",
		"26399": "sentinel-pre-second", "26400": "sentinel-pre-second", "26401": "sentinel-pre-second",
	} {
		text, err := os.ReadFile(filepath.Join(s.dir, "test/integration/conf", file+".conf"))
		if err != nil {
			t.Fatal(err)
		}
		config := filepath.Join(t.TempDir(), "sentinel.conf") // which it changes
		if err := os.WriteFile(config, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s.redis(t, config, "--sentinel", "--port", port)
	}
	for _, ports := range [][]string{{"6386", "6387", "6388"}, {"6389", "6390", "6391"}} {
		create := []string{"-a", password, "--cluster-yes", "--cluster", "create", "--cluster-replicas", "0"}
		for _, port := range ports {
			s.redis(t, "--port", port, "--cluster-enabled", "yes", "--requirepass", password)
			create = append(create, "127.0.0.1:"+port)
		}
		if out, err := exec.Command("redis-cli", create...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// redis starts a redis-server, and waits until it listens.
func (s *suite) redis(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("redis-server", args...)
	cmd.Dir = t.TempDir()
	p := run(t, cmd)
	p.wait(t, func() error {
		if !strings.Contains(p.output(), "Ready to accept connections") && !strings.Contains(p.output(), "Sentinel ID is") {
			return fmt.Errorf("redis-server %s is not ready", strings.Join(args, " "))
		}
		return nil
	})
}

var (
	testResult = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`)
	testName   = regexp.MustCompile(`(?m)^Test\S+$`)
)

// run runs its tests, and returns which have passed: those that have no tests inside. Each
// runs in a process of its own, because some panic when they fail.
func (s *suite) run(t *testing.T) map[string]bool {
	t.Helper()
	binary := filepath.Join(s.dir, "integration.test")
	build := exec.Command("go", "test", "-C", s.dir, "-c", "-tags", "integration", "-o", binary, "./test/integration")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	list, err := exec.Command(binary, "-test.list", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	results := map[string]bool{}
	for _, name := range testName.FindAllString(string(list), -1) {
		begun := time.Now()
		cmd := exec.Command(binary, "-test.v", "-test.timeout", "3m", "-test.run", "^"+name+"$")
		cmd.Dir, cmd.Env = filepath.Join(s.dir, "test/integration"), s.environ
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := cmd.CombinedOutput()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the servers that a panic has left
		results[name] = err == nil
		for _, m := range testResult.FindAllStringSubmatch(string(out), -1) {
			results[m[2]] = m[1] == "PASS"
			if i := strings.LastIndexByte(m[2], '/'); i > 0 {
				delete(results, m[2][:i])
			}
		}
		t.Logf("%s: %v, %v", name, err, time.Since(begun).Round(time.Millisecond))
		if err != nil {
			t.Logf("%s", out[:min(len(out), 12<<10)])
		}
	}
	return results
}
