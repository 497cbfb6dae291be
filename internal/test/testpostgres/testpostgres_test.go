package testpostgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/wait"
)

func TestMain(m *testing.M) {
	defer testpostgres.StopShared()
	m.Run()
}

func TestExec(t *testing.T) {
	t.Parallel()
	url := testpostgres.Shared(t).URL()
	for sql, want := range map[string][][]string{
		"select 1, null, 'a'":              {{"1", "", "a"}},
		"select 1; select 2":               {{"2"}},
		"select * from (values (1),(2)) v": {{"1"}, {"2"}},
		"select 1 where false":             nil,
		"":                                 nil,
	} {
		if got := testpostgres.Exec(t, url, sql); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %q, want %q", sql, got, want)
		}
	}
	_, err := testpostgres.Try(url, "select 1; select nosuch")
	var reply *pgconn.PgError
	if !errors.As(err, &reply) || reply.Code != "42703" || !strings.Contains(err.Error(), "select 1; select nosuch") {
		t.Errorf("a bad statement: got %v, want an error of the server with the statement", err)
	}
}

func TestDatabase(t *testing.T) {
	t.Parallel()
	own, shared := testpostgres.Start(t), testpostgres.Shared(t)
	for name, s := range map[string]*testpostgres.Server{"shared": shared, "own": own} {
		var urls []string
		t.Run(name, func(t *testing.T) {
			for range 2 {
				url := s.Database(t)
				urls = append(urls, url)
				testpostgres.Exec(t, url, "create table t ()") // An error if it is there.
			}
			if urls[0] == urls[1] || !strings.HasPrefix(urls[0], "postgres://postgres@"+s.Addr()+"/test") {
				t.Errorf("got %q", urls)
			}
			if !strings.HasPrefix(s.Addr(), "127.0.0.1:") {
				t.Errorf("the server is at %s", s.Addr())
			}
		})
		for _, url := range urls {
			if _, err := testpostgres.Try(url, "select 1"); (err == nil) != (s == own) {
				t.Errorf("%s: after its test: %v", url, err)
			}
		}
	}
	if own.Addr() == shared.Addr() || testpostgres.Shared(t) != shared {
		t.Error("a server of one's own is shared, or the shared one is not")
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	s := testpostgres.Start(t)
	cmd := testpostgres.Command(t, "sh", "-c", "psql -At -c 'show data_directory' \"$1\" >\"$2/said\"", "sh", s.URL(), s.Dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	said, err := os.ReadFile(filepath.Join(s.Dir, "said"))
	if want := filepath.Join(s.Dir, "data") + "\n"; err != nil || string(said) != want {
		t.Errorf("got %q, %v, want %q", said, err, want)
	}
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	s := testpostgres.Start(t)
	url := s.Database(t)
	testpostgres.Exec(t, url, "create table t (n serial, at timestamptz default pg_postmaster_start_time())")
	for i, die := range []func(){
		func() { s.Kill(t) },
		func() { s.Kill(t); s.Kill(t) },
		func() { s.Pause(t); s.Kill(t) },
		func() { /* It still runs. */ },
	} {
		addr := s.Addr()
		testpostgres.Exec(t, url, "insert into t default values")
		// What is busy does not see by itself that the server is gone.
		busy := query(t, url, "do $$ begin loop end loop; end $$")()
		becomes(t, s.URL(), "select count(*) from pg_stat_activity where query like 'do %' and state = 'active'", "1")
		die()
		s.Restart(t)
		if err := <-busy; err == nil {
			t.Error("an endless loop has ended")
		}
		want := [][]string{{strconv.Itoa(i + 1), "0"}}
		got := testpostgres.Exec(t, url, "select count(*), count(*) filter (where at = pg_postmaster_start_time()) from t")
		if s.Addr() != addr || !reflect.DeepEqual(got, want) {
			t.Errorf("restart %d: got %q, want %q in a new server", i, got, want)
		}
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	s := testpostgres.Start(t)
	start := query(t, s.URL(), "select 1")
	s.Pause(t)
	ended := start()
	select {
	case err := <-ended:
		t.Fatalf("a paused server has answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	s.Resume(t)
	if err := <-ended; err != nil {
		t.Fatalf("a resumed server: %v", err)
	}
	testpostgres.Exec(t, s.URL(), "select 1")
	s.Pause(t) // It must be possible to kill it so, at the end.
}

func TestStandby(t *testing.T) {
	t.Parallel()
	s := testpostgres.Start(t)
	testpostgres.Exec(t, s.URL(), "create table t (n int); insert into t values (1)")
	standby := s.Standby(t)
	// From here on a commit is one when the standby has it.
	testpostgres.Exec(t, s.URL(), "alter system set synchronous_standby_names = '*'")
	testpostgres.Exec(t, s.URL(), "select pg_reload_conf()")
	becomes(t, s.URL(), "select sync_state from pg_stat_replication", "sync")
	testpostgres.Exec(t, s.URL(), "insert into t values (2)")
	if _, err := testpostgres.Try(standby.URL(), "insert into t values (3)"); err == nil {
		t.Error("a standby was written to")
	}
	s.Kill(t)
	standby.Restart(t) // It must not need the other one.
	standby.Promote(t)
	testpostgres.Exec(t, standby.URL(), "insert into t values (3)")
	for range 2 {
		got := testpostgres.Exec(t, standby.URL(), "select n from t order by n")
		if want := [][]string{{"1"}, {"2"}, {"3"}}; !reflect.DeepEqual(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		standby.Restart(t) // It stays what it has become.
	}
}

// TestLeavesNothing does not run in parallel: it checks all goroutines.
func TestLeavesNothing(t *testing.T) {
	var dirs []string
	var memory []string
	t.Run("servers", func(t *testing.T) {
		dead := testpostgres.Start(t)
		standby := dead.Standby(t)
		for _, s := range []*testpostgres.Server{dead, standby} {
			dirs = append(dirs, filepath.Dir(s.Dir))
			memory = append(memory, sharedMemory(t, s))
			testpostgres.Exec(t, s.URL(), "select count(*) from pg_class")
		}
		dead.Kill(t)
		standby.Pause(t)
	})
	for _, dir := range dirs {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("directory %s is there after its test: %v", dir, err)
		}
		workers, err := filepath.Glob("/proc/[0-9]*/cwd")
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range workers {
			// Not all may be read, and some are gone by now.
			if cwd, err := os.Readlink(w); err == nil && strings.HasPrefix(cwd, dir) {
				t.Errorf("%s is %s", w, cwd)
			}
		}
	}
	left, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(left)) {
		for _, id := range memory {
			if f := strings.Fields(line); f[1] == id {
				t.Errorf("shared memory is left: %s", line)
			}
		}
	}
	if pid, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid > 0 {
		t.Errorf("nobody has waited for process %d", pid)
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "internal/test/testpostgres.") || strings.Contains(stack, "/pgx/") {
			t.Errorf("a goroutine is left:\n%s", stack)
		}
	}
}

func TestBinaries(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"9.6", "15", "100", "old"} {
		bin := filepath.Join(dir, version, "bin")
		if err := os.MkdirAll(bin, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, "postgres"), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(dir, "15", "bin"))
	for pattern, want := range map[string]string{"*/bin": "100/bin", "nosuch/*/bin": "15/bin"} {
		got, err := testpostgres.Binaries(filepath.Join(dir, pattern))
		if err != nil || got != filepath.Join(dir, want) {
			t.Errorf("%s: got %s, %v, want %s", pattern, got, err, want)
		}
	}
	t.Setenv("PATH", dir)
	if got, err := testpostgres.Binaries("/nosuch/*"); err == nil || !strings.Contains(err.Error(), "make deps") {
		t.Errorf("not installed: got %s, %v, want an error that says what installs it", got, err)
	}
}

// becomes waits until the result of a query is want.
func becomes(t *testing.T, url, sql, want string) {
	t.Helper()
	wait.Nil(t, sql, func() error {
		if got := testpostgres.Exec(t, url, sql); !reflect.DeepEqual(got, [][]string{{want}}) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
}

// sharedMemory returns the id of the System V shared memory of a server.
func sharedMemory(t *testing.T, s *testpostgres.Server) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.Dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(strings.Split(string(text), "\n")[6])[1]
}

// query starts a statement on an existing connection, and sends its error.
func query(t *testing.T, url, sql string) (start func() <-chan error) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return func() <-chan error {
		ended := make(chan error, 1)
		go func() {
			// The test's context has ended when its cleanups run.
			_, err := conn.Exec(context.WithoutCancel(t.Context()), sql).ReadAll()
			conn.Close(context.WithoutCancel(t.Context()))
			ended <- err
		}()
		return ended
	}
}
