package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var here = target{"linux", runtime.GOARCH}

// tree returns the source of this tree, with or without changes that are not committed.
func tree(t *testing.T) *source {
	t.Helper()
	s, err := read(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.checkDashboard(); err != nil {
		t.Fatal(err)
	}
	return s
}

var builtHere = sync.OnceValues(func() (*built, error) {
	s, err := read(context.Background(), "../..")
	if err != nil {
		return nil, err
	}
	return s.build(context.Background(), []target{here}, os.Stderr)
})

// forHere returns what is built for this machine, built once for all tests.
func forHere(t *testing.T) *built {
	t.Helper()
	b, err := builtHere()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// needsRoot fails a test that installs packages or changes the root directory.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("this test changes the root directory of processes: make test-release runs it as root")
	}
}

// command runs a command, and returns what it writes.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// jail is a process whose root is a directory, with a network of its own, in which all of its
// ports are free.
type jail struct {
	root    string
	user    string
	environ []string
	cmd     *exec.Cmd
	out     *output
	ended   chan error
}

// output is what a process has written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// enter starts a network, and makes the root read-only if it is to be, with $STATE on top.
const enter = `set -e
ip link set lo up
if [ -n "$STATE" ]; then
	mount --bind "$ROOT" "$ROOT"
	mount -o remount,bind,ro "$ROOT"
	mount -t tmpfs -o "mode=750,uid=${AS%:*},gid=${AS#*:}" state "$ROOT$STATE"
fi
exec env -i "$@"`

// startJail starts a program in a root directory, as a user and with an environment of its own.
// With a state directory, everything else is read-only.
func startJail(t *testing.T, root, state, user string, environ []string, args ...string) *jail {
	t.Helper()
	j := &jail{root: root, user: user, environ: environ, out: new(output), ended: make(chan error, 1)}
	j.cmd = exec.CommandContext(t.Context(), "unshare", append([]string{"--net", "--mount", "sh", "-c", enter, "sh"}, j.chroot(args)...)...)
	j.cmd.Env = append(os.Environ(), "ROOT="+root, "STATE="+state, "AS="+user)
	j.cmd.Stdout, j.cmd.Stderr = j.out, j.out
	j.cmd.Cancel = func() error { return j.cmd.Process.Signal(syscall.SIGKILL) }
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { j.ended <- j.cmd.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s wrote:\n%s", args[0], j.out)
		}
	})
	return j
}

// chroot returns the arguments for env that run a program in the jail's root.
func (j *jail) chroot(args []string) []string {
	out := append([]string{}, j.environ...)
	chroot, err := exec.LookPath("chroot")
	if err != nil {
		chroot = "/usr/sbin/chroot"
	}
	return append(append(out, chroot, "--userspec="+j.user, "--groups=", j.root), args...)
}

// run runs a program in the jail beside the first, and returns its exit code and what it writes.
func (j *jail) run(t *testing.T, args ...string) (int, string) {
	t.Helper()
	return j.beside(t, append([]string{"env", "-i"}, j.chroot(args)...)...)
}

// curl asks something in the network of the jail, and returns the status and the body.
func (j *jail) curl(t *testing.T, args ...string) (status, body string) {
	t.Helper()
	_, out := j.beside(t, append([]string{"curl", "-s", "-m", "10", "-w", "\n%{http_code}"}, args...)...)
	at := strings.LastIndexByte(out, '\n')
	return out[at+1:], out[:max(at, 0)]
}

// beside runs a program of this machine in the network of the jail.
func (j *jail) beside(t *testing.T, args ...string) (int, string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + fmt.Sprintf("/proc/%d/ns/net", j.cmd.Process.Pid)}, args...)...)
	out, _ := c.CombinedOutput() // the code says it
	return c.ProcessState.ExitCode(), string(out)
}

// ready waits until the jail has written a text.
func (j *jail) ready(t *testing.T, text string) {
	t.Helper()
	until(t, text+" in the log", func() bool {
		select {
		case err := <-j.ended:
			t.Fatalf("it has ended: %v", err)
		default:
		}
		return strings.Contains(j.out.String(), text)
	})
}

// stop stops the first process, which must end well.
func (j *jail) stop(t *testing.T) {
	t.Helper()
	if err := j.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-j.ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// until waits for something for a minute.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline, tick := time.After(time.Minute), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-deadline:
			t.Fatal("there is no " + what)
		case <-tick.C:
		}
	}
}

func readFile(t *testing.T, elements ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
