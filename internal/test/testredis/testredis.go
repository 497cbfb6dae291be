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
//   - A server listens on 127.0.0.1 alone.
//   - Package testserver's: about ports, about what is left behind, and about
//     what is safe for concurrent use.
package testredis

import (
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testserver"
)

// Start starts a server of the test's own: empty, without persistence, killed
// when t ends. The args go to redis-server, after those of this package, and so
// win over them.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return testserver.Own(t, func(g *testserver.Group) (*Server, error) { return start(g, spec{args: args}) })
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
func StopShared() { testserver.StopShared() }

var (
	sharedServer    = testserver.Share(func(g *testserver.Group) (*Server, error) { return start(g, spec{}) })
	sharedSentinels = testserver.Share(newSentinels)
	sharedCluster   = testserver.Share(newCluster)
)

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

// addrs returns the addresses of servers as a URL lists them.
func addrs(servers []*Server) string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return strings.Join(list, ",")
}
