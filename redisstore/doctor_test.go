package redisstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/testredis"
	"github.com/stintdev/stint/redisstore"
)

// finding is what a test expects the doctor to say, of any server.
type finding struct {
	severity redisstore.Severity
	check    string
	says     string
}

// examine opens a store, has it examined, and returns a function that looks for a
// finding.
func examine(t *testing.T, url string) (all []redisstore.Finding, expect func(...finding)) {
	t.Helper()
	s, err := redisstore.Open(url, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	all, err = s.Doctor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all, func(want ...finding) {
		t.Helper()
		for _, w := range want {
			found := false
			for _, f := range all {
				found = found || (f.Severity == w.severity && f.Check == w.check && strings.Contains(f.Found+f.Advice, w.says))
			}
			if !found {
				t.Errorf("nothing of severity %v about %s that says %q in\n%s", w.severity, w.check, w.says, show(all))
			}
		}
	}
}

func show(all []redisstore.Finding) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "  %-8v %-12s %-16s %s | %s\n", f.Severity, f.Check, f.Server, f.Found, f.Advice)
	}
	return b.String()
}

// worst fails if there is anything worse.
func worst(t *testing.T, all []redisstore.Finding, most redisstore.Severity) {
	t.Helper()
	for i, f := range all {
		if f.Severity > most || f.Check == "" || f.Found == "" || (f.Severity > redisstore.Info && f.Advice == "") {
			t.Errorf("%v", f)
		}
		if i > 0 && all[i-1].Severity < f.Severity {
			t.Errorf("%v comes after %v; want the worst first", f, all[i-1])
		}
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	const ok, info, warning, problem = redisstore.OK, redisstore.Info, redisstore.Warning, redisstore.Problem

	t.Run("single", func(t *testing.T) {
		t.Parallel()
		server := testredis.Start(t)
		server.Do(t, "SET", "rl:{alice}:api:sw", "x")
		server.Do(t, "SET", "other:{alice}:api:sw", "x")
		server.Do(t, "SET", "rl:{bob}:api:sw", "x", "PX", "100000")
		before := server.Do(t, "INFO", "commandstats").(string)
		all, expect := examine(t, server.URL())
		worst(t, all, warning)
		expect(
			finding{ok, "version", "Redis 7"}, finding{ok, "role", "master"}, finding{ok, "eviction", "nothing is evicted"},
			finding{ok, "memory", "no limit"}, finding{info, "persistence", "limits start anew"}, finding{ok, "replication", "0 replicas"},
			finding{ok, "cluster", "not of a cluster"}, finding{ok, "clock", "this machine's"}, finding{ok, "latency", "round trip"},
			finding{warning, "ttl", "of 2 counters looked at, 1 have no time to live, as [\"rl:{alice}:api:sw\"]"},
			finding{ok, "acl", "user default may run all"}, finding{ok, "script", "runs"}, finding{ok, "reach", "answers"},
		)
		// It has changed nothing.
		if n := server.Do(t, "DBSIZE"); n != int64(3) {
			t.Errorf("%v keys, want 3", n)
		}
		if after := server.Do(t, "INFO", "commandstats").(string); strings.Contains(after, "config|set") && !strings.Contains(before, "config|set") {
			t.Error("it set something")
		}
	})

	t.Run("eviction", func(t *testing.T) {
		t.Parallel()
		server := testredis.Start(t, "--maxmemory", "100mb")
		for policy, want := range map[string]finding{
			"allkeys-lru":  {problem, "eviction", "CONFIG SET maxmemory-policy noeviction"},
			"volatile-lru": {warning, "eviction", "volatile-ttl"},
			"volatile-ttl": {warning, "eviction", "least harm"},
			"noeviction":   {info, "eviction", "OOM"},
		} {
			server.Do(t, "CONFIG", "SET", "maxmemory-policy", policy)
			_, expect := examine(t, server.URL())
			expect(want)
		}
		server.Do(t, "CONFIG", "SET", "maxmemory", "1100000")
		_, expect := examine(t, server.URL())
		expect(finding{warning, "memory", "CONFIG SET maxmemory"})
	})

	t.Run("persistence", func(t *testing.T) {
		t.Parallel()
		server := testredis.Start(t)
		server.Do(t, "CONFIG", "SET", "appendonly", "yes")
		server.Do(t, "CONFIG", "SET", "appendfsync", "always")
		_, expect := examine(t, server.URL())
		expect(finding{warning, "persistence", "appendfsync everysec"})
		server.Do(t, "CONFIG", "SET", "appendfsync", "everysec")
		_, expect = examine(t, server.URL())
		expect(finding{ok, "persistence", "appendonly true"})
	})

	t.Run("replica", func(t *testing.T) {
		t.Parallel()
		s := testredis.SharedSentinels(t)
		primary := s.Primary(t)
		for _, server := range s.Servers() {
			if server == primary {
				continue
			}
			_, expect := examine(t, server.URL())
			expect(finding{problem, "role", "a replica of " + primary.Addr()}, finding{problem, "script", "does not run"})
		}
		server := testredis.Start(t, "--min-replicas-to-write", "1")
		_, expect := examine(t, server.URL())
		expect(finding{problem, "replication", "min-replicas-to-write"})
	})

	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := testredis.SharedSentinels(t)
		all, expect := examine(t, s.URL())
		worst(t, all, info)
		expect(finding{ok, "sentinel", "names " + s.Primary(t).Addr() + " the primary, with 2 replicas"},
			finding{ok, "replication", "2 replicas"}, finding{ok, "replication", "in step"}, finding{ok, "clock", "clocks agree"})
		_, expect = examine(t, strings.Replace(s.URL(), "/primary", "/nobody", 1))
		expect(finding{problem, "sentinel", "no sentinel names a primary called nobody"})
	})

	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := testredis.StartCluster(t)
		all, expect := examine(t, c.URL())
		worst(t, all, info)
		expect(finding{ok, "cluster", "16384 of 16384 slots"}, finding{ok, "clock", "clocks agree"})
		_, expect = examine(t, c.Nodes()[0].URL())
		expect(finding{problem, "cluster", "use redis+cluster://" + c.Nodes()[0].Addr()})
		server := testredis.Start(t)
		_, expect = examine(t, "redis+cluster://"+server.Addr())
		expect(finding{problem, "cluster", "not in cluster mode"})
		// Without a primary and its replica some slots have no one.
		c.Nodes()[3].Kill(t)
		c.Nodes()[0].Kill(t)
		eventually(t, 15*time.Second, func() error {
			v, err := c.Nodes()[1].Try("CLUSTER", "INFO")
			if text, _ := v.(string); err != nil || !strings.Contains(text, "cluster_state:fail") {
				return errors.New("the cluster does not know yet")
			}
			return nil
		})
		_, expect = examine(t, c.URL())
		expect(finding{problem, "cluster", "cluster_state fail"}, finding{warning, "reach", "cannot be reached"})
	})

	t.Run("acl", func(t *testing.T) {
		t.Parallel()
		server := testredis.Start(t)
		allow(t, "stint", server)
		url := "redis://stint:PASSWORD@" + server.Addr()
		all, expect := examine(t, url)
		worst(t, all, info)
		expect(finding{ok, "acl", "user stint may run all"}, finding{info, "version", "ACL SETUSER stint +info"},
			finding{info, "persistence", "not allowed to look"}, finding{ok, "script", "runs"})
		server.Do(t, "ACL", "SETUSER", "stint", "-psetex", "resetkeys", "~other:*")
		_, expect = examine(t, url)
		expect(finding{problem, "acl", "+psetex"}, finding{problem, "acl", "~rl:*"}, finding{problem, "script", "does not run"})
		_, expect = examine(t, "redis://stint:wrong@"+server.Addr())
		expect(finding{problem, "reach", "refuses the connection: WRONGPASS"})
	})

	t.Run("away", func(t *testing.T) {
		t.Parallel()
		server := testredis.Start(t)
		server.Kill(t)
		_, expect := examine(t, server.URL())
		expect(finding{problem, "reach", "cannot be reached"}, finding{problem, "script", "does not run"})
	})

	t.Run("no answer", func(t *testing.T) {
		t.Parallel()
		s, err := redisstore.Open(testredis.Shared(t).URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Doctor(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		s.Close()
		if _, err := s.Doctor(t.Context()); !errors.Is(err, stint.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

func TestSeverity(t *testing.T) {
	t.Parallel()
	for v := redisstore.OK; v <= redisstore.Problem; v++ {
		text, err := json.Marshal(redisstore.Finding{Severity: v})
		var back redisstore.Finding
		if err != nil || json.Unmarshal(text, &back) != nil || back.Severity != v {
			t.Errorf("%v: %s, %v", v, text, err)
		}
	}
	if err := new(redisstore.Severity).UnmarshalText([]byte("bad")); err == nil {
		t.Error("bad: no error")
	}
}
