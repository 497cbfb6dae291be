// Package testredis runs real Redis servers for tests: one server ([Start]), a
// primary with replicas and sentinels ([StartSentinels]), a cluster
// ([StartCluster]), several servers that do not know each other ([StartRing])
// and a server behind TLS ([StartTLS]). A test may kill, restart and pause what
// it started, and watch the others take over.
//
//	s := testredis.Start(t)
//	s.Do(t, "SET", "greeting", "hello")
//	s.Kill(t)
//
// Starting sentinels or a cluster takes a second or two. Tests that kill nothing
// use [Shared], [SharedSentinels], [SharedCluster] and [SharedRing]: there is one
// of each for the test process, so each test needs keys of its own. A package that
// uses them stops them at the end:
//
//	func TestMain(m *testing.M) {
//		defer testredis.StopShared()
//		m.Run()
//	}
//
// Without redis-server a test fails; it is never skipped. Shared servers cannot
// be killed. The package is not a Redis client: [Server.Do] uses a new connection
// for each command, and follows no redirections. A test that needs a password
// creates a user with ACL SETUSER. Servers listen on 127.0.0.1 only. The package
// is for tests on Linux. The invariants of package testserver apply.
package testredis

import (
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
)

// Start starts an empty server without persistence for one test, and kills it when
// t ends. args are passed to redis-server, and override those of this package.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return testserver.Own(t, func(g *testserver.Group) (*Server, error) { return start(g, spec{args: args}) })
}

// Functions that return servers which all tests of the process share.
var (
	Shared          = testserver.Share(func(g *testserver.Group) (*Server, error) { return start(g, spec{}) })
	SharedSentinels = testserver.Share(func(g *testserver.Group) (*Sentinels, error) {
		s, err := newSentinels(g)
		if err != nil {
			return nil, err
		}
		s.Patience(never)
		return s, nil
	})
	SharedCluster = testserver.Share(func(g *testserver.Group) (*Cluster, error) {
		c, err := newCluster(g)
		if err != nil {
			return nil, err
		}
		c.Patience(never)
		return c, nil
	})
	SharedRing = testserver.Share(func(g *testserver.Group) (*Ring, error) { return newRing(g, 3) })
)

// never is the patience where no server is killed: on a busy machine one may be silent for long, and no other must take
// over.
const never = time.Hour

// tell sends a command to those of the servers that run.
func tell(servers []*Server, args ...string) {
	for _, s := range servers {
		_, _ = s.Try(args...)
	}
}

// StopShared stops all shared servers, at the end of TestMain. They must not be used
// afterwards.
func StopShared() { testserver.StopShared() }

// URL returns the server's address, as in redis://127.0.0.1:12345.
func (s *Server) URL() string { return "redis://" + s.Addr() }

// Do sends a command and returns the reply: a string, an int64, nil or a []any of
// these. An error, or no reply within a minute, fails the test.
func (s *Server) Do(t testing.TB, args ...string) any {
	t.Helper()
	reply, err := s.Try(args...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// Try is Do for commands that may fail. An error reply wraps an [Error].
func (s *Server) Try(args ...string) (any, error) { return s.ask(answerLimit, args...) }

// addrs returns the addresses of servers, separated by commas.
func addrs(servers []*Server) string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return strings.Join(list, ",")
}
