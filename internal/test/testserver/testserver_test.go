package testserver_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

func TestMain(m *testing.M) {
	defer testserver.StopShared()
	m.Run()
}

// tree is a server that serves nothing: a shell with a child in a session of its own, like
// those of PostgreSQL, and a grandchild.
type tree struct {
	*testserver.Process
	starts int
}

func startTree(t testing.TB) *tree {
	t.Helper()
	return testserver.Own(t, newTree)
}

var sharedTree = testserver.Share(newTree)

func newTree(g *testserver.Group) (*tree, error) {
	s := new(tree)
	return s, g.Start("tree", func(p *testserver.Process) error {
		s.Process = p
		return nil
	}, func() error {
		s.starts++
		cmd := exec.Command("sh", "-c", `setsid sh -c 'sleep 1000 & echo $$ $! >pids; wait' & wait`)
		return s.Run(cmd, func() error {
			_, err := s.pids()
			return err
		})
	})
}

// pids returns the server and its descendants.
func (s *tree) pids() ([]int, error) {
	text, err := os.ReadFile(filepath.Join(s.Dir, "pids"))
	if err != nil {
		return nil, err
	}
	out := []int{s.Pid()}
	for word := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		out = append(out, pid)
	}
	if len(out) != 3 {
		return nil, fmt.Errorf("%d processes, want 3", len(out))
	}
	return out, nil
}

// states returns a letter for each process, as in "SST", and "-" for none.
func states(pids []int) string {
	out := ""
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, rest, ok := strings.Cut(string(stat), ") "); err == nil && ok {
			out += rest[:1]
		} else {
			out += "-"
		}
	}
	return out
}

func TestProcess(t *testing.T) {
	t.Parallel()
	s := startTree(t)
	if s.Addr() != fmt.Sprintf("127.0.0.1:%d", s.Port) || s.String() != "tree "+s.Addr() {
		t.Errorf("%s is at %s, port %d", s, s.Addr(), s.Port)
	}
	pids, err := s.pids()
	if err != nil {
		t.Fatal(err)
	}
	s.Pause(t)
	if got := states(pids); got != "TTT" {
		t.Errorf("paused: %s", got)
	}
	s.Resume(t)
	if got := states(pids); strings.Contains(got, "T") {
		t.Errorf("resumed: %s", got)
	}
	s.Pause(t)
	s.Kill(t)
	s.Kill(t)
	if got := states(pids); got != "---" {
		t.Errorf("killed: %s", got)
	}
	if err := os.Remove(filepath.Join(s.Dir, "pids")); err != nil {
		t.Fatal(err)
	}
	s.Restart(t)
	if again, err := s.pids(); err != nil || s.starts != 2 || again[0] == pids[0] {
		t.Errorf("restarted: %v, %d times, %v", again, s.starts, err)
	}
}

func TestShared(t *testing.T) {
	t.Parallel()
	if s := sharedTree(t); s != sharedTree(t) || s.starts != 1 {
		t.Error("not the same server")
	}
}

func TestFreeAddr(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 50 {
		a := testserver.FreeAddr(t)
		l, err := net.Listen("tcp", a)
		if err != nil || seen[a] {
			t.Fatalf("%s is taken: %v", a, err)
		}
		l.Close()
		seen[a] = true
	}
}

// TestDiesWithProcess kills a test process with a paused server, of which the kernel kills
// only the first process. The test process is this test again.
func TestDiesWithProcess(t *testing.T) {
	const variable = "TESTSERVER_TO_BE_KILLED"
	if os.Getenv(variable) != "" {
		s := startTree(t)
		pids, err := s.pids()
		if err != nil {
			t.Fatal(err)
		}
		s.Pause(t)
		fmt.Println("paused", filepath.Dir(s.Dir), pids[0], pids[1], pids[2])
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestDiesWithProcess$")
	cmd.Env = append(os.Environ(), variable+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	startTree(t) // The test process adopts orphans from now on.
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	pids := make([]int, 3)
	for lines := bufio.NewScanner(stdout); dir == "" && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "paused %s %d %d %d", &dir, &pids[0], &pids[1], &pids[2]) // Other lines are the framework's.
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // Says that it was killed.
	if dir == "" {
		t.Fatal("the other process has started no server")
	}
	wait.Nil(t, "all have ended", func() error {
		for _, pid := range pids {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // Until it is ours, and dead.
		}
		_, err := os.Stat(dir)
		if got := states(pids); got != "---" || !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("processes %s, directory %s: %w", got, dir, err)
		}
		return nil
	})
	// The keeper is left, which is a child of the killed process as well.
	wait.Nil(t, "the keeper ends", func() error {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid == 0 {
			return errors.Join(errors.New("the keeper has not ended"), err)
		}
		return nil
	})
}

// count counts the bytes that are written to it.
type count struct{ atomic.Int64 }

func (c *count) Write(p []byte) (int, error) {
	c.Add(int64(len(p)))
	return len(p), nil
}

func TestProxy(t *testing.T) {
	t.Parallel()
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	var heard count
	t.Cleanup(func() { echo.Close(); work.Wait() })
	work.Go(func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				_, _ = io.Copy(io.MultiWriter(c, &heard), c) // until the proxy closes it
			})
		}
	})
	p := testserver.StartProxy(t, echo.Addr().String())
	dial := func() net.Conn {
		c, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	say := func(c net.Conn, limit time.Duration) error {
		if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "hello"); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 5))
		return err
	}
	const soon, late = 100 * time.Millisecond, time.Minute

	for _, f := range []testserver.Fault{{}, {Latency: time.Millisecond}, {Trickle: time.Millisecond}} {
		p.Set(t, f)
		if err := say(dial(), late); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}

	c := dial()
	p.Set(t, testserver.Fault{Reset: 1})
	if err := say(c, late); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset: %v", err)
	}

	p.Set(t, testserver.Fault{})
	c = dial()
	if err := say(c, late); err != nil {
		t.Fatal(err)
	}
	p.Set(t, testserver.Fault{Swallow: true})
	if err := say(c, soon); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("swallowed: %v", err)
	}
	p.Set(t, testserver.Fault{})
	if err := say(c, soon); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after bytes were lost: %v", err)
	}

	for _, f := range []testserver.Fault{{Mute: true}, {Deaf: true}} {
		c = dial()
		if err := say(c, late); err != nil {
			t.Fatal(err)
		}
		p.Set(t, f)
		heard.Store(0)
		if err := say(c, soon); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%+v: %v", f, err)
		}
		if n := heard.Load(); (n > 0) != f.Deaf {
			t.Errorf("%+v: the server has heard %d bytes", f, n)
		}
		p.Set(t, testserver.Fault{})
	}

	c = dial()
	if err := say(c, late); err != nil {
		t.Fatal(err)
	}
	p.Forget()
	if err := say(c, soon); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("forgotten: %v", err)
	}
	c = dial()
	if err := say(c, late); err != nil {
		t.Errorf("a new one after Forget: %v", err)
	}

	p.Set(t, testserver.Fault{Refuse: true})
	if err := say(c, late); err == nil {
		t.Error("a refusing proxy has answered")
	}
	if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refused: %v", err)
	}
	wait.For(t, "no connections", func() bool { return p.Links() == 0 })
	p.Set(t, testserver.Fault{})
	if err := say(dial(), late); err != nil {
		t.Errorf("good again: %v", err)
	}
}
