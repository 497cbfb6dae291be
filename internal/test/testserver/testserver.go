// Package testserver starts real servers for tests, and other programs that a
// test needs beside it. Packages like testredis are built on it: they know how
// one server is configured, filled and asked, and this one knows how processes
// are started, paused, killed and cleaned up after.
//
//	func Start(t testing.TB) *Server {
//		return testserver.Own(t, func(g *testserver.Group) (*Server, error) {
//			s := new(Server)
//			return s, g.Start("thing-server", s.prepare, s.launch)
//		})
//	}
//
// The package refuses to skip: without the server's program a test fails. It
// refuses to kill or pause what is shared. It knows no server's protocol. It is
// for test files, and for packages like testredis, and for Linux only.
//
// Invariants:
//
//   - A server's port is its own until its group ends, also while it is dead: no
//     other process that uses this package can get it.
//   - What a server forks shares its fate, also in a session of its own.
//   - Servers and their files are gone when their group has ended: with its test,
//     or in [StopShared]. When the test process itself dies, however it dies, they
//     are killed, also paused ones, and the files go after them. Then init has to
//     reap them; after StopShared there is nothing to reap.
//   - One goroutine stays behind, in the function testserver.spawner. A check for
//     leaked goroutines has to allow for it.
//   - Kill, Restart, Pause and Resume of one server are for one goroutine at a
//     time. All else is safe for concurrent use.
package testserver

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

const (
	// Host is where all servers listen, and nowhere else.
	Host = "127.0.0.1"

	// ReadyLimit is the time for a server to start, to find others, to take over.
	ReadyLimit = 15 * time.Second
)

// Own builds servers that live as long as t.
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

// Share returns a function that builds servers on its first call and returns
// the same ones ever after. They live until [StopShared].
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

// sharedGroups is what StopShared has to stop.
var sharedGroups struct {
	sync.Mutex
	list []*Group
}

// NewShared returns a group that lives until [StopShared].
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

// StopShared stops what is shared, of whatever kind, for the end of TestMain.
// Nothing shared may be used after it.
func StopShared() {
	sharedGroups.Lock()
	defer sharedGroups.Unlock()
	for _, g := range sharedGroups.list {
		_ = g.close() // The process is ending, and there is no test to tell.
	}
	sharedGroups.list = nil
}

// Poll calls check every few milliseconds until it returns nil. After limit it
// returns what check said last.
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
