package testredis_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// This file is long: a test for each thing that a test server can be made to do.

func TestMain(m *testing.M) {
	defer testredis.StopShared()
	m.Run()
}

func TestReplies(t *testing.T) {
	t.Parallel()
	s := testredis.Shared(t)
	for _, c := range []struct {
		args []string
		want any
	}{
		{[]string{"PING"}, "PONG"},
		{[]string{"ECHO", "two\r\nlines"}, "two\r\nlines"},
		{[]string{"ECHO", ""}, ""},
		{[]string{"GET", "replies:none"}, nil},
		{[]string{"SETRANGE", "replies:range", "3", "x"}, int64(4)},
		{[]string{"GET", "replies:range"}, "\x00\x00\x00x"},
		{[]string{"EVAL", "return -7", "0"}, int64(-7)},
		{[]string{"EVAL", "return {}", "0"}, []any{}},
		{[]string{"EVAL", "return {1, 'a', {false, 2}}", "0"}, []any{int64(1), "a", []any{nil, int64(2)}}},
		{[]string{"EVAL", "return {redis.error_reply('ERR no')}", "0"}, []any{testredis.Error("ERR no")}},
	} {
		if got := s.Do(t, c.args...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: got %#v, want %#v", c.args, got, c.want)
		}
	}
	_, err := s.Try("INCR", "replies:range")
	var reply testredis.Error
	if !errors.As(err, &reply) || !strings.HasPrefix(string(reply), "ERR value is not an integer") {
		t.Errorf("INCR of a text: got %v, want an error reply", err)
	}
	if again := testredis.Shared(t); again != s {
		t.Error("Shared returned another server")
	}
}

func TestStart(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t, "--maxmemory", "123mb", "--appendonly", "yes")
	for name, want := range map[string]string{"maxmemory": "128974848", "appendonly": "yes", "save": ""} {
		if got := s.Do(t, "CONFIG", "GET", name); !reflect.DeepEqual(got, []any{name, want}) {
			t.Errorf("CONFIG GET: got %v, want %s %q", got, name, want)
		}
	}
	if s.URL() != "redis://"+s.Addr() || !strings.HasPrefix(s.Addr(), "127.0.0.1:") {
		t.Errorf("URL %s, Addr %s", s.URL(), s.Addr())
	}
	if other := testredis.Start(t); other.Addr() == s.Addr() || other.Do(t, "DBSIZE") != int64(0) {
		t.Error("a second server is not one of its own, and empty")
	}
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for name, die := range map[string]func(){
		"killed":    func() { s.Kill(t) },
		"killed 2x": func() { s.Kill(t); s.Kill(t) },
		"shut down": func() { _, _ = s.Try("SHUTDOWN") },
		"running":   func() {},
	} {
		addr, before := s.Addr(), pid(t, s)
		s.Do(t, "SET", "k", "v")
		die()
		if reply, err := s.Try("PING"); err == nil && name != "running" {
			t.Errorf("%s: a dead server answers %v", name, reply)
		}
		s.Restart(t)
		if s.Addr() != addr || pid(t, s) == before || s.Do(t, "DBSIZE") != int64(0) {
			t.Errorf("%s: want a new and empty server at %s, got one at %s", name, addr, s.Addr())
		}
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	s.Pause(t)
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	read := func(limit time.Duration) (string, error) {
		if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 16)
		n, err := conn.Read(b)
		return string(b[:n]), err
	}
	if got, err := read(100 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a paused server: got %q, %v", got, err)
	}
	s.Resume(t)
	if got, err := read(time.Minute); got != "+PONG\r\n" {
		t.Fatalf("a resumed server: got %q, %v", got, err)
	}
	s.Pause(t) // It must be possible to kill it so, at the end.
}

func TestSentinels(t *testing.T) {
	t.Parallel()
	s := testredis.StartSentinels(t)
	var addrs []string
	for _, n := range s.Nodes() {
		addrs = append(addrs, n.Addr())
	}
	if want := "redis+sentinel://" + strings.Join(addrs, ",") + "/primary"; s.URL() != want {
		t.Errorf("URL: got %s, want %s", s.URL(), want)
	}

	first := s.Primary(t)
	if first != s.Servers()[0] {
		t.Errorf("primary: got %s, want the first server", first.Addr())
	}
	first.Do(t, "SET", "k", "v")
	for _, replica := range s.Servers()[1:] {
		wait.For(t, "a copy", func() bool { return replica.Do(t, "GET", "k") == "v" })
	}
	first.Kill(t)
	start := time.Now()
	second := s.Primary(t)
	t.Logf("failover took %v", time.Since(start))
	if second == first || second.Do(t, "GET", "k") != "v" {
		t.Errorf("%s took over from %s, with k = %v", second.Addr(), first.Addr(), second.Do(t, "GET", "k"))
	}

	start = time.Now()
	first.Restart(t)
	wait.For(t, "the first primary as a replica", func() bool {
		got, _ := first.Try("GET", "k") // Sentinels close its connections.
		return got == "v"
	})
	t.Logf("rejoining took %v", time.Since(start))
	if now := s.Primary(t); now != second {
		t.Errorf("primary after a restart: got %s, want %s", now.Addr(), second.Addr())
	}
}

func TestSharedSentinels(t *testing.T) {
	t.Parallel()
	s := testredis.SharedSentinels(t)
	if s.Primary(t).Do(t, "PING") != "PONG" || s != testredis.SharedSentinels(t) {
		t.Error("not shared, or not well")
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := testredis.StartCluster(t)
	var addrs []string
	for _, n := range c.Nodes() {
		addrs = append(addrs, n.Addr())
	}
	if want := "redis+cluster://" + strings.Join(addrs, ","); c.URL() != want {
		t.Errorf("URL: got %s, want %s", c.URL(), want)
	}

	for key, want := range map[string]int{"b": 0, "c": 1, "foo": 2} {
		node := c.Primary(t, key)
		if got := slices.Index(c.Nodes(), node); got != want {
			t.Errorf("%s: at node %d, want %d", key, got, want)
		}
		node.Do(t, "SET", key, "v")
	}
	first := c.Primary(t, "foo")
	wait.For(t, "a copy", func() bool { return c.Nodes()[5].Do(t, "DBSIZE") == int64(1) })
	first.Kill(t)
	start := time.Now()
	second := c.Primary(t, "foo")
	t.Logf("failover took %v", time.Since(start))
	c.Patience(time.Hour)
	if second != c.Nodes()[5] || second.Do(t, "GET", "foo") != "v" {
		t.Errorf("%s took over, with foo = %v; want the third replica", second.Addr(), second.Do(t, "GET", "foo"))
	}

	start = time.Now()
	first.Restart(t)
	wait.For(t, "the first primary as a replica", func() bool {
		return strings.Contains(fmt.Sprint(first.Do(t, "INFO", "replication")), "master_link_status:up")
	})
	t.Logf("rejoining took %v", time.Since(start))
	if now := c.Primary(t, "foo"); now != second {
		t.Errorf("primary after a restart: got %s, want %s", now.Addr(), second.Addr())
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	c := testredis.SharedCluster(t)
	from := c.Primary(t, "{migrate}")
	to := c.Nodes()[0]
	if to == from {
		to = c.Nodes()[1]
	}
	slot, _ := from.Do(t, "CLUSTER", "KEYSLOT", "{migrate}").(int64)
	const keys = 35 // more than go in one step
	for i := range keys {
		from.Do(t, "SET", fmt.Sprintf("{migrate}:%d", i), strconv.Itoa(i))
	}
	// There and back, with nothing left behind.
	for range 2 {
		c.Migrate(t, int(slot), from, to)
		if now := c.Primary(t, "{migrate}"); now != to {
			t.Errorf("the slot is at %s, want %s", now.Addr(), to.Addr())
		}
		for i := range keys {
			if got := to.Do(t, "GET", fmt.Sprintf("{migrate}:%d", i)); got != strconv.Itoa(i) {
				t.Errorf("key %d: got %v", i, got)
			}
		}
		if _, err := from.Try("GET", "{migrate}:0"); err == nil || !strings.Contains(err.Error(), "MOVED") {
			t.Errorf("the old owner: got %v, want MOVED", err)
		}
		if n := from.Do(t, "CLUSTER", "COUNTKEYSINSLOT", strconv.Itoa(int(slot))); n != int64(0) {
			t.Errorf("%v keys are left behind", n)
		}
		from, to = to, from
	}
}

// TestLeavesNothing does not run in parallel: it checks all goroutines.
func TestLeavesNothing(t *testing.T) {
	var pids []int
	var dirs []string
	t.Run("servers", func(t *testing.T) {
		servers := []*testredis.Server{testredis.Start(t), testredis.Start(t), testredis.StartTLS(t).Server}
		s := testredis.StartSentinels(t)
		servers = append(servers, s.Servers()...)
		servers = append(servers, s.Nodes()[1:]...)
		s.Nodes()[0].Kill(t)
		servers[0].Pause(t)
		servers[0].Resume(t)
		for i, s := range servers {
			pids = append(pids, pid(t, s))
			if i < 3 {
				dirs = append(dirs, dir(t, s))
			}
		}
		servers[0].Pause(t)
		servers[1].Kill(t)
	})
	for _, p := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", p)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("process %d is there after its test: %v", p, err)
		}
	}
	for _, d := range dirs {
		if _, err := os.Stat(d); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("directory %s is there after its test: %v", d, err)
		}
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		ours := strings.Contains(stack, "internal/test/testredis.") || strings.Contains(stack, "internal/test/testserver.")
		if ours && !strings.Contains(stack, "internal/test/testserver.spawner(") {
			t.Errorf("a goroutine is left:\n%s", stack)
		}
	}
}

// TestDiesWithProcess kills a test process that has servers. The process is this test
// again.
func TestDiesWithProcess(t *testing.T) {
	const variable = "TESTREDIS_TO_BE_KILLED"
	if os.Getenv(variable) != "" {
		fmt.Println("dir", dir(t, testredis.Start(t)))
		fmt.Println("dir", dir(t, testredis.Shared(t)))
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	// The orphans become children of this process, which can wait for them.
	// To init they would be nothing, or zombies where init does not reap.
	const prSetChildSubreaper = 36
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); e != 0 {
		t.Fatal(e)
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
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for lines := bufio.NewScanner(stdout); len(dirs) < 2 && lines.Scan(); {
		if d, ok := strings.CutPrefix(lines.Text(), "dir "); ok {
			dirs = append(dirs, d)
		}
	}
	orphans := children(t, cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // Says that it was killed.
	if len(dirs) != 2 || len(orphans) != 4 {
		t.Errorf("%d directories and %d processes, want 2, and 2 servers with a keeper each", len(dirs), len(orphans))
	}
	for _, p := range orphans {
		wait.For(t, fmt.Sprintf("the end of process %d", p), func() bool {
			got, err := syscall.Wait4(p, nil, syscall.WNOHANG, nil)
			return err == nil && got == p
		})
	}
	for _, d := range dirs {
		if _, err := os.Stat(d); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("directory %s is there after its process: %v", d, err)
		}
	}
}

// failing is a test that is meant to fail.
type failing struct {
	testing.TB
	text     strings.Builder
	failed   bool
	cleanups []func()
}

func (f *failing) Helper()                 { /* Its lines are nobody's. */ }
func (f *failing) Failed() bool            { return f.failed }
func (f *failing) Cleanup(c func())        { f.cleanups = append(f.cleanups, c) }
func (f *failing) Logf(s string, a ...any) { fmt.Fprintf(&f.text, s+"\n", a...) }

func (f *failing) Fatal(a ...any) {
	fmt.Fprintln(&f.text, a...)
	f.failed = true
	runtime.Goexit()
}

func (f *failing) Fatalf(s string, a ...any) { f.Fatal(fmt.Sprintf(s, a...)) }

// fails runs a test that must fail, and returns its output.
func fails(t *testing.T, test func(t *failing)) string {
	t.Helper()
	f := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(f)
	}()
	<-done
	for _, c := range slices.Backward(f.cleanups) {
		c()
	}
	if !f.failed {
		t.Error("the test did not fail")
	}
	return f.text.String()
}

// TestFails does not run in parallel, since it changes PATH.
func TestFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	shell := t.TempDir() // a path with what the keeper of the files needs, and no more
	for _, name := range []string{"sh", "rm"} {
		file, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(file, filepath.Join(shell, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		test func(t *failing)
		says []string
	}{
		"error reply": {
			func(t *failing) { testredis.Start(t).Do(t, "NOSUCH") },
			[]string{"ERR unknown command", "Ready to accept connections"}, // the server's log
		},
		"dead server": {
			func(t *failing) { s := testredis.Start(t); s.Kill(t); s.Do(t, "PING") },
			[]string{"connection refused"},
		},
		"pause of a dead server": {
			func(t *failing) { s := testredis.Start(t); s.Kill(t); s.Pause(t) },
			[]string{"which was killed"},
		},
		"bad argument": {
			func(t *failing) { testredis.Start(t, "--nosuch", "1") },
			[]string{"exited", "Bad directive"},
		},
		"taken port": {
			func(t *failing) { testredis.Start(t, "--port", port) },
			[]string{"exited", "Address already in use"},
		},
		"kill of a shared server": {
			func(t *failing) { testredis.Shared(t).Kill(t) },
			[]string{"other tests share"},
		},
		"not installed": {
			func(t *failing) { t.Setenv("PATH", shell); testredis.Start(t) },
			[]string{"make deps"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := fails(t, c.test)
			for _, want := range c.says {
				if !strings.Contains(text, want) {
					t.Errorf("want %q in what it wrote:\n%s", want, text)
				}
			}
		})
	}
}

// pid returns the process of the server.
func pid(t testing.TB, s *testredis.Server) int {
	t.Helper()
	_, rest, _ := strings.Cut(fmt.Sprint(s.Do(t, "INFO", "server")), "process_id:")
	text, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// dir returns the directory of the group of a server.
func dir(t testing.TB, s *testredis.Server) string {
	t.Helper()
	reply, _ := s.Do(t, "CONFIG", "GET", "dir").([]any)
	if len(reply) != 2 {
		t.Fatalf("CONFIG GET dir: %v", reply)
	}
	d := filepath.Dir(fmt.Sprint(reply[1]))
	if _, err := os.Stat(d); err != nil {
		t.Fatal(err)
	}
	return d
}

// children returns the children of a process.
func children(t testing.TB, parent int) []int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // a thread that has ended
		}
		for word := range strings.FieldsSeq(string(text)) {
			p, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, p)
		}
	}
	return out
}
