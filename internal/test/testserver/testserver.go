// Package testserver starts real servers and other programs for tests. Packages
// like testredis are built on it: they configure and query one kind of server, and
// this package starts, pauses, kills and cleans up processes.
//
//	func Start(t testing.TB) *Server {
//		return testserver.Own(t, func(g *testserver.Group) (*Server, error) {
//			s := new(Server)
//			return s, g.Start("thing-server", s.prepare, s.launch)
//		})
//	}
//
// If the program of a server is missing, a test fails; it is never skipped. Shared
// servers cannot be killed or paused. The package is for tests on Linux.
//
// Invariants:
//
//   - A server keeps its port until its group ends, even while it is dead: no other
//     process that uses this package can get it.
//   - Processes that a server forks are killed and paused with it, even in a session
//     of their own.
//   - Servers and their files are removed when their group ends: with its test, or in
//     [StopShared]. If the test process dies, in whatever way, they are removed, too,
//     even if they are paused; then init has to reap them.
//   - One goroutine keeps running, in the function testserver.spawner. A check for
//     leaked goroutines has to ignore it.
//   - Kill, Restart, Pause and Resume of one server must not be called concurrently.
//     Everything else is safe for concurrent use.
package testserver

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/wait"
)

const (
	// Host is the address that all servers listen on.
	Host = "127.0.0.1"

	// ReadyLimit is how long a server may take to start, or to fail over, on a machine that is very busy.
	ReadyLimit = 2 * time.Minute
)

// Own builds servers that are killed when t ends.
func Own[T any](t testing.TB, build func(*Group) (T, error)) T {
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

// Share returns a function that builds servers on its first call, and always returns
// the same ones. They run until [StopShared].
func Share[T any](build func(*Group) (T, error)) func(testing.TB) T {
	var g *Group
	open := sync.OnceValues(func() (v T, err error) {
		if g, err = NewShared(); err != nil {
			return v, err
		}
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

// sharedGroups are the groups for StopShared.
var sharedGroups struct {
	sync.Mutex
	list []*Group
}

// NewShared returns a group that ends with [StopShared].
func NewShared() (*Group, error) {
	g, err := newGroup()
	if err != nil {
		return nil, err
	}
	g.shared = true
	sharedGroups.Lock()
	defer sharedGroups.Unlock()
	sharedGroups.list = append(sharedGroups.list, g)
	return g, nil
}

// StopShared stops all shared servers, of all kinds, at the end of TestMain. They must
// not be used afterwards.
func StopShared() {
	sharedGroups.Lock()
	defer sharedGroups.Unlock()
	for _, g := range sharedGroups.list {
		_ = g.close() // the process is ending, and there is no test to fail
	}
	sharedGroups.list = nil
}

// Await calls get every few milliseconds until it succeeds, or the run is about to end.
func Await[T any](t testing.TB, get func() (T, error)) (value T) {
	t.Helper()
	wait.Nil(t, "a value", func() (err error) {
		value, err = get()
		return err
	})
	return value
}

// Poll calls check every few milliseconds until it returns nil. After limit it
// returns the last error.
func Poll(limit time.Duration, check func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(limit)
	defer end.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-end.C:
			return fmt.Errorf("still after %s: %w", limit, err)
		}
	}
}
