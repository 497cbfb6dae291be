package redisstore_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// TestServers compares what a store says about its servers with what the servers say.
func TestServers(t *testing.T) {
	t.Parallel()
	one := testredis.Shared(t)
	s := open(t, one.URL(), redisstore.Options{})
	if got := s.Servers(); !slices.Equal(got, []string{one.Addr()}) || s.Server(&ask("alice", 1)[0]) != one.Addr() {
		t.Errorf("one server: %v", got)
	}
	if got := s.Shares(); !maps.Equal(got, map[string]float64{one.Addr(): 1}) {
		t.Errorf("one server: %v", got)
	}
	group := open(t, testredis.SharedSentinels(t).URL(), redisstore.Options{})
	if got := group.Servers(); len(got) != 1 || strings.Contains(got[0], ":") {
		t.Errorf("sentinel: %v; want the name of the primary", got)
	}
	cluster := testredis.SharedCluster(t)
	c := open(t, cluster.URL(), redisstore.Options{})
	var want []string
	for _, n := range cluster.Nodes()[:3] {
		want = append(want, n.Addr())
	}
	slices.Sort(want)
	wait.Nil(t, "the servers of the cluster", func() error {
		if got := c.Servers(); !slices.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
	for name, share := range c.Shares() {
		if math.Abs(3*share-1) > 0.01 || !slices.Contains(want, name) {
			t.Errorf("the share of %s is %v", name, share)
		}
	}
	for _, subject := range []string{"alice", "user:1", "user:2", "{", "}{", "ü", strings.Repeat("x", 200), ""} {
		a := ask(subject, 10)
		wait.Nil(t, "a take", func() error { _, err := storetest.Take(t.Context(), c, a); return err })
		key := string(a[0].Limit.AppendKind([]byte(c.Access().Prefix + ":" + a[0].Key.String() + ":")))
		at := ""
		for _, n := range cluster.Nodes()[:3] {
			if found, err := n.Try("EXISTS", key); err == nil && found == int64(1) { // others answer MOVED
				at = n.Addr()
			}
		}
		if got := c.Server(&a[0]); at == "" || got != at {
			t.Errorf("%q is said to be on %q, and is on %q", subject, got, at)
		}
	}
	if err := c.PingServer(t.Context(), "192.0.2.1:1"); err != nil {
		t.Errorf("a server that has no counters: %v", err)
	}
}

// TestPingDecides pings servers that answer, but decide nothing.
func TestPingDecides(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := open(t, server.URL()+"?timeout=1s&dial_timeout=30s", redisstore.Options{}) // for which it tries again
	wait.Nil(t, "a ping", func() error { return s.Ping(t.Context()) })
	for name, c := range map[string]struct{ begin, end []string }{
		"out of memory": {[]string{"CONFIG", "SET", "maxmemory", "1"}, []string{"CONFIG", "SET", "maxmemory", "0"}},
		"read-only":     {[]string{"REPLICAOF", "127.0.0.1", "1"}, []string{"REPLICAOF", "NO", "ONE"}},
		"no replica":    {[]string{"CONFIG", "SET", "min-replicas-to-write", "1"}, []string{"CONFIG", "SET", "min-replicas-to-write", "0"}},
	} {
		server.Do(t, c.begin...)
		if err := s.Ping(t.Context()); !errors.Is(err, stint.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		server.Do(t, c.end...)
		wait.Nil(t, "a ping", func() error { return s.Ping(t.Context()) })
	}
	// What pings leave behind expires.
	wait.Nil(t, "no keys", func() error {
		if n := server.Do(t, "DBSIZE"); n != int64(0) {
			return fmt.Errorf("%v keys are left", n)
		}
		return nil
	})
}
