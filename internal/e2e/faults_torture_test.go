//go:build torture

package e2e_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
)

// TestStalledNode stops a node again and again, for longer than its budget, as a CPU quota or a busy host
// does. Redis is well: its breaker stays closed, and nearly all decisions are counted. The budget is five
// times the default, since Redis also has to wait for a processor on a busy machine.
func TestStalledNode(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	config := fmt.Sprintf("[server]\ncounters = %q\nstore_budget = \"250ms\"\n[[rules]]\nname = \"all\"\ncount_by = [\"ip\"]\nlimits = [{ name = \"all\", limit = \"1000000/1h\" }]\n", redis.URL())
	s := serve(t, config, "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0")
	s.decides(t, "192.0.2.1", "counted")
	var quits []func()
	for i := range 4 {
		quits = append(quits, s.keepAsking(t, fmt.Sprint("192.0.2.", i)))
	}
	before := s.scrape(t)
	signal := func(what syscall.Signal) {
		t.Helper()
		if err := s.Process.Signal(what); err != nil {
			t.Fatal(err)
		}
	}
	const stalls = 10
	for i := range stalls {
		signal(syscall.SIGSTOP)
		<-time.After(300*time.Millisecond + time.Duration(i%4)*30*time.Millisecond)
		signal(syscall.SIGCONT)
		<-time.After(300 * time.Millisecond)
	}
	for _, quit := range quits {
		quit()
	}
	after := s.scrape(t)
	counted, alone := 0.0, 0.0
	for series, n := range after {
		if !strings.HasPrefix(series, "stint_store_seconds_count{") || !strings.Contains(series, `layer="failmode"`) || !strings.Contains(series, `call="take"`) {
			continue
		}
		if n -= before[series]; slices.ContainsFunc([]string{"local", "open", "closed"}, func(b string) bool { return strings.Contains(series, `basis="`+b+`"`) }) {
			alone += n
		} else {
			counted += n
		}
	}
	t.Logf("%d stalls: %v decisions counted, %v by this node alone", stalls, counted, alone)
	torture.AtMost(t, "times that the breaker opened", strings.Count(s.output(), `"state":"open"`), 1) // if Redis had to wait for that long
	torture.AtMost(t, "decisions by this node alone", alone, counted/10)
}

// The other ways in which Redis fails.
func init() {
	maps.Copy(outages, map[string]func(*testing.T) outage{
		"stopped":       onServer("counters.reach", func(t *testing.T, s *testredis.Server) { t.Helper(); s.Pause(t) }, func(t *testing.T, s *testredis.Server) { t.Helper(); s.Resume(t) }),
		"out of memory": onServer("counters.script", commands("CONFIG", "SET", "maxmemory", "1"), commands("CONFIG", "SET", "maxmemory", "0")),
		"read-only":     onServer("counters.script", commands("REPLICAOF", "127.0.0.1", "1"), commands("REPLICAOF", "NO", "ONE")),
		"slow":          onNetwork("counters.budget", testredis.Fault{Latency: 100 * time.Millisecond}),
		"black hole":    onNetwork("counters.script", testredis.Fault{Swallow: true}),
		"dead shard":    deadShard,
		"dead in ring":  deadInRing,
	})
}

// commands returns a function that sends a command.
func commands(args ...string) func(*testing.T, *testredis.Server) {
	return func(t *testing.T, s *testredis.Server) { t.Helper(); s.Do(t, args...) }
}

// onNetwork returns a fault between Stint and Redis.
func onNetwork(doctor string, f testredis.Fault) func(*testing.T) outage {
	return func(t *testing.T) outage {
		t.Helper()
		p := testredis.StartProxy(t, testredis.Start(t))
		return outage{
			url: p.URL(), server: p.Addr(), client: "192.0.2.1", doctor: doctor,
			begin: func(t *testing.T) { t.Helper(); p.Set(t, f) }, end: func(t *testing.T) { t.Helper(); p.Set(t, testredis.Fault{}) },
		}
	}
}

// deadShard kills one of three shards, with its replica.
func deadShard(t *testing.T) outage {
	t.Helper()
	c := testredis.StartCluster(t)
	for _, n := range c.Nodes() {
		n.Do(t, "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	c.Nodes()[3].Kill(t)
	dead := c.Nodes()[0]
	s, err := redisstore.Open(c.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	o := outage{
		url: c.URL(), server: dead.Addr(), doctor: "counters.script",
		begin: func(t *testing.T) { t.Helper(); dead.Kill(t) },
		end: func(t *testing.T) {
			t.Helper()
			dead.Restart(t)
			wait.Nil(t, "the shard answers again", func() error { _, err := dead.Try("GET", hashed(dead, s)); return err })
		},
	}
	o.findClients(t, s, dead, c.Nodes()[1:3])
	return o
}

// deadInRing kills one of the three servers of a ring.
func deadInRing(t *testing.T) outage {
	t.Helper()
	r := testredis.StartRing(t, 3)
	s, err := redisstore.Open(r.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dead := r.Nodes()[0]
	o := outage{
		url: r.URL(), server: dead.Addr(), doctor: "counters.reach",
		begin: func(t *testing.T) { t.Helper(); dead.Kill(t) }, end: func(t *testing.T) { t.Helper(); dead.Restart(t) },
	}
	o.findClients(t, s, dead, r.Nodes()[1:])
	return o
}

// findClients finds an address whose counter is on a server, and one whose counter is on others.
func (o *outage) findClients(t *testing.T, s *redisstore.Store, dead *testredis.Server, others []*testredis.Server) {
	t.Helper()
	wait.Nil(t, "addresses on both servers", func() error {
		for i := 1; i < 100 && (o.client == "" || o.other == ""); i++ {
			ip := fmt.Sprint("192.0.2.", i)
			a := stint.Ask{Key: stint.Key{Subject: "ip:" + ip, Name: "all/all"}, Limit: stint.PerHour(1)}
			switch s.Server(&a) {
			case dead.Addr():
				o.client = ip
			case others[0].Addr(), others[1].Addr():
				o.other = ip
			}
		}
		if o.client == "" || o.other == "" {
			return errors.New("the servers are not known yet")
		}
		return nil
	})
}

// hashed returns a key of a server.
func hashed(dead *testredis.Server, s *redisstore.Store) string {
	for i := 0; ; i++ {
		a := stint.Ask{Key: stint.Key{Subject: fmt.Sprint("k", i)}, Limit: stint.PerHour(1)}
		if s.Server(&a) == dead.Addr() {
			return fmt.Sprintf("{k%d}", i)
		}
	}
}
