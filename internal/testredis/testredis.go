// Package testredis runs real Redis servers for tests: one server ([Start]), a
// primary with replicas and sentinels ([StartSentinels]), a cluster
// ([StartCluster]) and a server behind TLS ([StartTLS]). A test may kill,
// restart and pause what it started, and watch the others take over.
//
//	s := testredis.Start(t)
//	s.Do(t, "SET", "greeting", "hello")
//	s.Kill(t)
//
// Starting sentinels or a cluster takes a second or two. Tests that kill
// nothing use [Shared], [SharedSentinels] and [SharedCluster]: one of each for
// the test process, so each test needs keys of its own. A package that uses
// them stops them at its end:
//
//	func TestMain(m *testing.M) {
//		defer testredis.StopShared()
//		m.Run()
//	}
//
// The package refuses to skip: without redis-server a test fails. It refuses to
// kill what is shared. It is no Redis client: [Server.Do] sends each command on
// a connection of its own, so it follows no redirection, and what speaks of
// earlier commands of a connection, like WAIT, has no use. A test that needs a
// password makes a user with ACL SETUSER. The package is for test files only,
// and for Linux only.
//
// Invariants:
//
//   - A server listens on 127.0.0.1 alone. Its port is its own until its test
//     ends, also while it is dead: no other process that uses this package can
//     get it.
//   - A server and its files are gone when its test has ended. When the test
//     process itself dies, however it dies, the kernel kills the servers, and
//     the files go after them. Then init has to reap them; after StopShared
//     there is nothing to reap.
//   - One goroutine stays behind, in the function testredis.spawner, also after
//     StopShared. A check for leaked goroutines has to allow for it.
//   - Kill, Restart, Pause and Resume of one server are for one goroutine at a
//     time. All else is safe for concurrent use.
package testredis

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Start starts a server of the test's own: empty, without persistence, killed
// when t ends. The args go to redis-server, after those of this package, and so
// win over them.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return own(t, func(g *group) (*Server, error) { return g.start(spec{args: args}) })
}

// Shared returns the server that all tests of the process share.
func Shared(t testing.TB) *Server {
	t.Helper()
	return sharedServer(t)
}

// SharedSentinels returns the sentinels that all tests of the process share.
func SharedSentinels(t testing.TB) *Sentinels {
	t.Helper()
	return sharedSentinels(t)
}

// SharedCluster returns the cluster that all tests of the process share.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	return sharedCluster(t)
}

// StopShared stops what is shared, for the end of TestMain. Nothing shared may
// be used after it.
func StopShared() {
	sharedGroups.Lock()
	defer sharedGroups.Unlock()
	for _, g := range sharedGroups.list {
		_ = g.close() // The process is ending, and there is no test to tell.
	}
	sharedGroups.list = nil
}

var (
	sharedServer    = share(func(g *group) (*Server, error) { return g.start(spec{}) })
	sharedSentinels = share(newSentinels)
	sharedCluster   = share(newCluster)

	// sharedGroups is what StopShared has to stop.
	sharedGroups struct {
		sync.Mutex
		list []*group
	}
)

// own builds servers that live as long as t.
func own[T any](t testing.TB, build func(*group) (T, error)) T {
	t.Helper()
	g, err := newGroup()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.logIfFailed(t)
		if err := g.close(); err != nil {
			t.Error(err)
		}
	})
	v, err := build(g)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// share returns a function that builds servers on its first call and returns
// the same ones ever after.
func share[T any](build func(*group) (T, error)) func(testing.TB) T {
	var g *group
	open := sync.OnceValues(func() (v T, err error) {
		if g, err = newGroup(); err != nil {
			return v, err
		}
		g.shared = true
		sharedGroups.Lock()
		sharedGroups.list = append(sharedGroups.list, g)
		sharedGroups.Unlock()
		return build(g)
	})
	return func(t testing.TB) T {
		t.Helper()
		v, err := open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.logIfFailed(t) })
		return v
	}
}

// Addr returns the server's address, as in 127.0.0.1:12345.
func (s *Server) Addr() string { return net.JoinHostPort(host, s.portText()) }

// URL returns the server's address, as in redis://127.0.0.1:12345.
func (s *Server) URL() string { return "redis://" + s.Addr() }

// Do sends one command and returns the reply: a string, an int64, nil or a
// []any of these. An error reply, or none within five seconds, fails the test.
func (s *Server) Do(t testing.TB, args ...string) any {
	t.Helper()
	reply, err := s.Try(args...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// Try is Do for commands that may fail. The error of an error reply wraps an
// [Error].
func (s *Server) Try(args ...string) (any, error) { return s.ask(answerLimit, args...) }

// Kill kills the server with SIGKILL and returns when it is gone. A dead server
// stays dead.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.refuseShared(t, "Kill")
	if err := s.kill(); err != nil {
		t.Fatal(err)
	}
}

// Restart starts the server again with the same port, directory and arguments,
// after a Kill if it still runs, and returns when it answers. What it held is
// lost, unless its arguments made it persistent; a node of a cluster keeps its
// place.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill(t)
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
}

// Pause stops the server with SIGSTOP: connections stay open, and nothing
// answers. It returns when the server stands still.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	s.refuseShared(t, "Pause")
	s.signal(t, syscall.SIGSTOP)
	err := poll(answerLimit, func() error {
		if state := s.state(); state != stopped {
			return fmt.Errorf("redis-server %s is in state %c, not stopped", s.Addr(), state)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Resume lets a paused server go on.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGCONT)
}

func (s *Server) signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if s.cmd == nil {
		t.Fatalf("%s to redis-server %s, which was killed", sig, s.Addr())
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("%s to redis-server %s: %v", sig, s.Addr(), err)
	}
}

func (s *Server) refuseShared(t testing.TB, what string) {
	t.Helper()
	if s.group.shared {
		t.Fatalf("%s of redis-server %s, which other tests share", what, s.Addr())
	}
}

func (s *Server) portText() string { return strconv.Itoa(s.port) }

// logTail returns the end of what the server wrote.
func (s *Server) logTail() string {
	const most = 4096
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-most):]))
}

func (s *Server) logFile() string    { return filepath.Join(s.dir, "log") }
func (s *Server) configFile() string { return filepath.Join(s.dir, "redis.conf") }

// addrs returns the addresses of servers as a URL lists them.
func addrs(servers []*Server) string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return strings.Join(list, ",")
}
