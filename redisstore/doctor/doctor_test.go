package doctor_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/redisstore/doctor"
)

// This file is long: it has a case for each finding.

func TestMain(m *testing.M) {
	defer testredis.StopShared()
	m.Run()
}

// symptom is an expected finding.
type symptom struct {
	check    string
	severity doctor.Severity
	says     string // in Found or Advice
	server   string // "": whichever
}

func (w symptom) in(findings []doctor.Finding) bool {
	return slices.ContainsFunc(findings, func(f doctor.Finding) bool {
		return f.Check == w.check && f.Severity == w.severity && (w.server == "" || f.Server == w.server) &&
			strings.Contains(f.Found+"\n"+f.Advice, w.says)
	})
}

// examine returns the findings, and checks what all of them have in common.
func examine(t testing.TB, url string) []doctor.Finding {
	t.Helper()
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	url += sep + "prefix=doc"
	if !strings.Contains(url, "timeout=") {
		url += "&timeout=1s&dial_timeout=1s" // for which the store asks a server that refuses, each time
	}
	s, err := redisstore.Open(url, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	findings, err := doctor.Examine(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	sorted := slices.IsSortedFunc(findings, func(a, b doctor.Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Server, b.Server), cmp.Compare(a.Check, b.Check))
	})
	if !sorted {
		t.Error("the findings are not sorted")
	}
	checks := map[string][]string{}
	for _, f := range findings {
		if f.Found == "" || f.Severity >= doctor.Warning && f.Advice == "" {
			t.Errorf("nothing found or no advice: %+v", f)
		}
		checks[f.Server] = append(checks[f.Server], f.Check)
	}
	for _, f := range findings {
		if f.Check != "reach" || f.Severity != doctor.OK {
			continue
		}
		for _, c := range []string{"acl", "clock", "cluster", "eviction", "latency", "memory", "persistence", "replication", "role", "version"} {
			if !slices.Contains(checks[f.Server], c) {
				t.Errorf("%s: nothing about its %s", f.Server, c)
			}
		}
	}
	return findings
}

// expect examines the servers until the symptoms appear.
func expect(t testing.TB, url string, want ...symptom) {
	t.Helper()
	expectOnly(t, url, func(doctor.Finding) bool { return true }, want...)
}

// healthy allows findings that are no worse than that, and those about latency, which depends on this machine.
func healthy(worst doctor.Severity) func(doctor.Finding) bool {
	return func(f doctor.Finding) bool { return f.Severity <= worst || f.Check == "latency" }
}

// expectOnly examines the servers until the symptoms appear, and all findings are allowed.
func expectOnly(t testing.TB, url string, allowed func(doctor.Finding) bool, want ...symptom) {
	t.Helper()
	wait.Nil(t, "the findings", func() error {
		findings := examine(t, url)
		if i := slices.IndexFunc(want, func(w symptom) bool { return !w.in(findings) }); i >= 0 {
			return fmt.Errorf("no %+v in\n%s", want[i], report(findings))
		}
		if i := slices.IndexFunc(findings, func(f doctor.Finding) bool { return !allowed(f) }); i >= 0 {
			return fmt.Errorf("%+v", findings[i])
		}
		return nil
	})
}

func report(findings []doctor.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%-8s %-16s %-12s %s\n\t%s\n", f.Severity, f.Server, f.Check, f.Found, f.Advice)
	}
	return b.String()
}

// detour returns the address of a proxy that changes the replies of a server.
func detour(t testing.TB, to string, change func([]byte) []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	carry := func(c net.Conn) {
		defer c.Close()
		server, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(server, c)
			server.Close()
		}()
		b := make([]byte, 1<<16)
		for {
			n, err := server.Read(b)
			if err == nil {
				_, err = c.Write(change(b[:n]))
			}
			if err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go carry(c)
		}
	}()
	return l.Addr().String()
}

// late delays every reply.
func late(d time.Duration) func([]byte) []byte {
	return func(b []byte) []byte { <-time.After(d); return b }
}

var seconds = regexp.MustCompile(`\$10\r\n(\d{10})\r\n`)

// ahead sets a server's clock five seconds ahead.
func ahead(b []byte) []byte {
	return seconds.ReplaceAllFunc(b, func(m []byte) []byte {
		n, _ := strconv.Atoi(string(m[5:15]))
		return fmt.Appendf(nil, "$10\r\n%d\r\n", n+5)
	})
}

var version = regexp.MustCompile(`redis_version:\d+\.\d+`)

// old makes a server report a version that is too old.
func old(b []byte) []byte {
	return version.ReplaceAllFunc(b, func(m []byte) []byte { // of the same length
		return fmt.Appendf(nil, "redis_version:%0*d.1", len(m)-len("redis_version:.1"), 6)
	})
}

// dir returns the server's directory.
func dir(t testing.TB, s *testredis.Server) string {
	t.Helper()
	reply, _ := s.Do(t, "CONFIG", "GET", "dir").([]any)
	return fmt.Sprint(reply[1])
}

// least is the set of ACL rules that the store needs, as in docs/redis.md.
const least = "resetkeys ~doc:* -@all +eval +evalsha +time +mget +exists +pttl +strlen +getrange +setrange +pexpire +psetex +del"

// as creates a user with these rules, and returns its URL.
func as(t testing.TB, s *testredis.Server, rules string) string {
	t.Helper()
	s.Do(t, append([]string{"ACL", "SETUSER", "limiter", "reset", "on", ">pw"}, strings.Fields(rules)...)...)
	return "redis://limiter:pw@" + s.Addr()
}

func TestDoctorSingle(t *testing.T) {
	t.Parallel()
	const ok, info, warning, problem = doctor.OK, doctor.Info, doctor.Warning, doctor.Problem
	for name, c := range map[string]struct {
		args []string
		do   func(t testing.TB, s *testredis.Server) (url string) // nil: the server's
		want []symptom
	}{
		"no persistence": {want: []symptom{{check: "persistence", severity: info, says: "start from zero"}}},
		"append-only file": {
			args: []string{"--appendonly", "yes"},
			want: []symptom{{check: "persistence", severity: ok, says: "appendonly true"}},
		},
		"append-only file, always": {
			args: []string{"--appendonly", "yes", "--appendfsync", "always"},
			want: []symptom{{check: "persistence", severity: warning, says: "appendfsync everysec"}},
		},
		"snapshot failed": {
			args: []string{"--save", "3600 1"},
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				failSave(t, s)
				return s.URL()
			},
			want: []symptom{{check: "persistence", severity: problem, says: "rejects writes"}},
		},
		"snapshot failed, and writes go on": {
			args: []string{"--save", "3600 1", "--stop-writes-on-bgsave-error", "no"},
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				failSave(t, s)
				return s.URL()
			},
			want: []symptom{{check: "persistence", severity: warning, says: "then run BGSAVE"}},
		},
		"append-only file failed": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				appendix := filepath.Join(dir(t, s), "appendonlydir")
				if err := errors.Join(os.Mkdir(appendix, 0o700), os.Symlink("/dev/full", filepath.Join(appendix, "temp-appendonly.aof.incr"))); err != nil {
					t.Fatal(err)
				}
				s.Do(t, "CONFIG", "SET", "appendonly", "yes")
				s.Do(t, "SET", "some", "thing", "EX", "100")
				return s.URL()
			},
			want: []symptom{{check: "persistence", severity: problem, says: "aof_last_write_status"}},
		},
		"allkeys-lru": {
			args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"},
			want: []symptom{{check: "eviction", severity: problem, says: "allkeys-lru"}, {check: "memory", severity: ok}},
		},
		"allkeys-lru without a limit": {
			args: []string{"--maxmemory-policy", "allkeys-lru"},
			want: []symptom{{check: "eviction", severity: ok}, {check: "memory", severity: ok}},
		},
		"volatile-lru": {
			args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"},
			want: []symptom{{check: "eviction", severity: warning, says: "CONFIG SET maxmemory-policy volatile-ttl"}},
		},
		"volatile-ttl": {
			args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"},
			want: []symptom{{check: "eviction", severity: warning, says: "least harm"}},
		},
		"noeviction": {
			args: []string{"--maxmemory", "100mb"},
			want: []symptom{{check: "eviction", severity: info, says: "OOM"}},
		},
		"memory full": {
			args: []string{"--maxmemory", "1mb"},
			want: []symptom{{check: "memory", severity: warning, says: "CONFIG SET maxmemory 2097152"}},
		},
		"too few replicas": {
			args: []string{"--min-replicas-to-write", "1"},
			want: []symptom{{check: "replication", severity: problem, says: "min-replicas-to-write"}},
		},
		"no time to live": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				s.Do(t, "SET", "other:{carol}:api:sw", "x")
				s.Do(t, "SET", "doc:{bob}:api:sw", "x", "EX", "100")
				for i := range 5 {
					s.Do(t, "SET", fmt.Sprintf("doc:{alice%d}:api:sw", i), "x")
				}
				return s.URL()
			},
			want: []symptom{{check: "ttl", severity: warning, says: `5 of 6 counters checked have no time to live, such as ["doc:{alice`}},
		},
		"others' keys without a time to live": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				for _, prefix := range []string{"other", "docs", "doc:other"} {
					s.Do(t, "SET", prefix+":{carol}:api:sw", "x")
				}
				return s.URL()
			},
			want: []symptom{{check: "ttl", severity: ok, says: "0 of 0 counters"}},
		},
		"many keys": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				s.Do(t, "EVAL", "for i = 1, 30000 do redis.call('SET', 'doc:{' .. i .. '}:api:sw', '', 'EX', 100) end", "0")
				return s.URL()
			},
			want: []symptom{{check: "ttl", severity: ok, says: "not all keys were checked"}},
		},
		"a replica": {
			args: []string{"--replicaof", "127.0.0.1 1"},
			want: []symptom{{check: "role", severity: problem, says: "a replica of 127.0.0.1:1"}, {check: "replication", severity: warning, says: "link"}, {check: "script", severity: problem, says: "does not run"}},
		},
		"a node of a cluster": {
			do: func(t testing.TB, _ *testredis.Server) string {
				t.Helper()
				return testredis.SharedCluster(t).Nodes()[0].URL()
			},
			want: []symptom{{check: "cluster", severity: problem, says: "redis+cluster://"}},
		},
		"no cluster": {
			do:   func(_ testing.TB, s *testredis.Server) string { return "redis+cluster://" + s.Addr() },
			want: []symptom{{check: "cluster", severity: problem, says: "use redis://"}},
		},
		"no cluster of several": {
			do:   func(_ testing.TB, s *testredis.Server) string { return "redis+cluster://" + s.Addr() + ",127.0.0.1:1" },
			want: []symptom{{check: "cluster", severity: problem, says: "use redis://"}, {check: "reach", severity: problem, server: "127.0.0.1:1"}},
		},
		"an old version": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				return "redis://" + detour(t, s.Addr(), old)
			},
			want: []symptom{{check: "version", severity: problem, says: "6.2"}},
		},
		"another time": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				return "redis://" + detour(t, s.Addr(), ahead)
			},
			want: []symptom{{check: "clock", severity: info, says: "ahead of this machine's clock"}},
		},
		"far away": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				return "redis://" + detour(t, s.Addr(), late(8*time.Millisecond))
			},
			want: []symptom{{check: "latency", severity: warning, says: "closer"}},
		},
		"too far away": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				return "redis://" + detour(t, s.Addr(), late(8*time.Millisecond)) + "?timeout=4ms&dial_timeout=30s"
			},
			want: []symptom{{check: "latency", severity: problem, says: "timeout is 4ms"}, {check: "script", severity: problem}},
		},
		"a user with no more than is needed": {
			do: func(t testing.TB, s *testredis.Server) string { t.Helper(); return as(t, s, least) },
			want: []symptom{
				{check: "version", severity: info, says: "ACL SETUSER limiter +info"},
				{check: "persistence", severity: info, says: "+config|get"},
				{check: "cluster", severity: info, says: "+cluster|info"},
				{check: "ttl", severity: info, says: "+scan"},
				{check: "clock", severity: ok},
				{check: "acl", severity: ok, says: "limiter"},
				{check: "script", severity: ok},
			},
		},
		"a user that may not see the configuration": {
			do: func(t testing.TB, s *testredis.Server) string { t.Helper(); return as(t, s, least+" +info") },
			want: []symptom{
				{check: "version", severity: ok},
				{check: "persistence", severity: info, says: "+config|get"},
				{check: "replication", severity: info, says: "+config|get"},
			},
		},
		"a user with less than is needed": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				return as(t, s, least+" -psetex -time -del")
			},
			want: []symptom{
				{check: "acl", severity: problem, says: "ACL SETUSER limiter +del +psetex +time; docs/redis.md"},
				{check: "script", severity: problem},
			},
		},
		"a user that cannot count nodes": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				return as(t, s, least)
			},
			want: []symptom{
				{check: "acl", severity: ok},
				{check: "acl", severity: warning, says: "lacks +get +pexpireat +publish +set +zadd +zrange +zrem +zremrangebyscore: "},
				{check: "script", severity: ok},
			},
		},
		"a user of other channels": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				return as(t, s, "~doc:* resetchannels +@all")
			},
			want: []symptom{{check: "acl", severity: warning, says: "ACL SETUSER limiter &doc:side/*; docs"}},
		},
		"a user of other keys": {
			do:   func(t testing.TB, s *testredis.Server) string { t.Helper(); return as(t, s, "~other:* +@all") },
			want: []symptom{{check: "acl", severity: problem, says: "ACL SETUSER limiter ~doc:*"}},
		},
		"a wrong password": {
			do:   func(_ testing.TB, s *testredis.Server) string { return "redis://limiter:wrong@" + s.Addr() },
			want: []symptom{{check: "reach", severity: problem, says: "WRONGPASS"}},
		},
		"dead": {
			do:   func(t testing.TB, s *testredis.Server) string { t.Helper(); s.Kill(t); return s.URL() },
			want: []symptom{{check: "reach", severity: problem, says: "connection refused"}, {check: "script", severity: problem}},
		},
		"silent": {
			do: func(t testing.TB, s *testredis.Server) string {
				t.Helper()
				s.Pause(t)
				return s.URL() + "?timeout=100ms&dial_timeout=100ms"
			},
			want: []symptom{{check: "reach", severity: problem, says: "cannot be reached"}, {check: "script", severity: problem}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testredis.Start(t, c.args...)
			url := s.URL()
			if c.do != nil {
				url = c.do(t, s)
			}
			expect(t, url, c.want...)
		})
	}
}

// failSave makes a snapshot fail, with a directory in the place of its file.
func failSave(t testing.TB, s *testredis.Server) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir(t, s), "dump.rdb"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.Do(t, "BGSAVE")
}

// TestDoctorChangesNothing also checks that a healthy server is reported as such. The doctor asks for a
// decision; the counter of that expires.
func TestDoctorChangesNothing(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t, "--save", "3600 1")
	for range 3 {
		s.Do(t, "INCR", "doc:{alice}:api:sw")
	}
	s.Do(t, "EXPIRE", "doc:{alice}:api:sw", "1000")
	state := func() string { return fmt.Sprint(s.Do(t, "DBSIZE"), s.Do(t, "CONFIG", "GET", "*")) }
	changes := func() (n int) {
		_, rest, _ := strings.Cut(fmt.Sprint(s.Do(t, "INFO", "persistence")), "rdb_changes_since_last_save:")
		_, _ = fmt.Sscan(rest, &n)
		return n
	}
	before, changed := state(), changes()
	for _, f := range examine(t, s.URL()+"?timeout=30s&dial_timeout=30s") {
		if !healthy(doctor.OK)(f) {
			t.Errorf("%+v", f)
		}
	}
	if n := changes() - changed; n > 2 { // its counter, and the end of that
		t.Errorf("%d changes", n)
	}
	testserver.Await(t, func() (string, error) {
		if after := state(); after != before {
			return "", fmt.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		return "", nil
	})
	stats := fmt.Sprint(s.Do(t, "INFO", "commandstats"))
	for _, never := range []string{"cmdstat_keys", "cmdstat_config|set", "cmdstat_multi", "cmdstat_flush"} {
		if strings.Contains(stats, never) {
			t.Errorf("%s in\n%s", never, stats)
		}
	}
}

func TestDoctorSentinel(t *testing.T) {
	t.Parallel()
	set := testredis.SharedSentinels(t)
	primary := set.Primary(t)
	want := []symptom{{check: "role", severity: doctor.OK, says: "master", server: primary.Addr()}}
	for _, s := range set.Servers() {
		want = append(want, symptom{check: "reach", severity: doctor.OK, server: s.Addr()})
		if s != primary {
			want = append(want, symptom{check: "replication", severity: doctor.OK, says: "in sync", server: s.Addr()})
		}
	}
	for _, s := range set.Nodes() {
		want = append(want, symptom{check: "sentinel", severity: doctor.OK, says: primary.Addr(), server: s.Addr()})
	}
	want = append(want, symptom{check: "clock", severity: doctor.OK, says: "agree"})
	expectOnly(t, set.URL(), healthy(doctor.Info), want...) // they have no persistence

	one := "redis+sentinel://127.0.0.1:1," + set.Nodes()[0].Addr()
	expect(t, one+"/primary", symptom{check: "reach", severity: doctor.Warning, server: "127.0.0.1:1"})
	expect(t, one+"/nobody",
		symptom{check: "sentinel", severity: doctor.Problem, says: "knows no primary called nobody", server: set.Nodes()[0].Addr()},
		symptom{check: "sentinel", severity: doctor.Problem, says: "no sentinel names"})
	expect(t, strings.Replace(one, "//", "//user:pw@", 1)+"/primary?sentinel_user=nobody&sentinel_password=wrong",
		symptom{check: "reach", severity: doctor.Warning, says: "WRONGPASS", server: set.Nodes()[0].Addr()})
}

func TestDoctorCluster(t *testing.T) {
	t.Parallel()
	c := testredis.StartCluster(t)
	n := c.Nodes()
	c.Patience(time.Hour)
	var want []symptom
	for i, s := range n {
		role := "master"
		if i > 2 {
			role = "slave"
		}
		want = append(want,
			symptom{check: "role", severity: doctor.OK, says: role, server: s.Addr()},
			symptom{check: "cluster", severity: doctor.OK, says: "16384 of 16384", server: s.Addr()})
	}
	for _, s := range n { // each of them tells of the others in an order of its own
		expectOnly(t, "redis+cluster://"+s.Addr(), healthy(doctor.Info), want...)
	}
	url := "redis+cluster://" + n[0].Addr()

	expect(t, url+",127.0.0.1:1", symptom{check: "reach", severity: doctor.Warning, server: "127.0.0.1:1"})

	_, port, _ := net.SplitHostPort(detour(t, n[0].Addr(), ahead))
	n[0].Do(t, "CONFIG", "SET", "cluster-announce-port", port)
	expect(t, url, symptom{check: "clock", severity: doctor.Warning, says: "the clock of 127.0.0.1:" + port})

	n[5].Kill(t)
	expect(t, url,
		symptom{check: "reach", severity: doctor.Warning, server: n[5].Addr()},
		symptom{check: "replication", severity: doctor.Warning, says: "add-node", server: n[2].Addr()})

	n[4].Kill(t)
	n[1].Kill(t)
	c.Patience(time.Second)
	expect(t, c.URL(),
		symptom{check: "reach", severity: doctor.Problem, server: n[1].Addr()},
		symptom{check: "cluster", severity: doctor.Problem, says: "cluster_state fail", server: n[2].Addr()})
}

func TestDoctorRing(t *testing.T) {
	t.Parallel()
	r := testredis.StartRing(t, 3)
	n := r.Nodes()
	var want []symptom
	for _, s := range n {
		want = append(want,
			symptom{check: "ring", severity: doctor.OK, says: " % of all subjects", server: s.Addr()},
			symptom{check: "script", severity: doctor.OK, server: s.Addr()},
			symptom{check: "cluster", severity: doctor.OK, says: "not part of a cluster", server: s.Addr()})
	}
	expectOnly(t, r.URL(), healthy(doctor.Info), append(want, symptom{check: "clock", severity: doctor.OK, says: "agree"})...)

	two := "redis+ring://" + n[0].Addr() + "," + n[1].Addr()
	moving := two + "?was=" + n[0].Addr() + "," + n[2].Addr()
	expect(t, moving,
		symptom{check: "ring", severity: doctor.Info, says: "% of all subjects are being moved: their takes need two servers"},
		symptom{check: "ring", severity: doctor.OK, says: "has 0.0 % of all subjects, and had ", server: n[2].Addr()},
		symptom{check: "script", severity: doctor.OK, server: n[2].Addr() + "->" + n[1].Addr()})

	twice := strings.Replace(two, "127.0.0.1", "localhost", 1) + "," + n[0].Addr()
	expect(t, twice, symptom{check: "ring", severity: doctor.Problem, says: "the same server as "})

	member := testredis.SharedCluster(t).Nodes()[0].Addr()
	expect(t, two+","+member, symptom{check: "cluster", severity: doctor.Problem, says: "redis+cluster://", server: member})

	n[1].Kill(t)
	expectOnly(t, r.URL(), func(f doctor.Finding) bool { return f.Server == n[1].Addr() || healthy(doctor.Info)(f) },
		symptom{check: "reach", severity: doctor.Problem, server: n[1].Addr()},
		symptom{check: "ring", severity: doctor.OK, says: "% of all subjects", server: n[1].Addr()},
		symptom{check: "script", severity: doctor.Problem, server: n[1].Addr()},
		symptom{check: "script", severity: doctor.OK, server: n[0].Addr()})
}

func TestDoctorErrors(t *testing.T) {
	t.Parallel()
	s, err := redisstore.Open(testredis.Shared(t).URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f, err := doctor.Examine(ctx, s); !errors.Is(err, context.Canceled) || f != nil {
		t.Errorf("canceled: %v, %v", f, err)
	}
	s.Close()
	if f, err := doctor.Examine(t.Context(), s); !errors.Is(err, stint.ErrClosed) || f != nil {
		t.Errorf("closed: %v, %v", f, err)
	}
}

func TestSeverity(t *testing.T) {
	t.Parallel()
	for v, name := range []string{"ok", "info", "warning", "problem"} {
		f := doctor.Finding{Severity: doctor.Severity(v), Check: "clock", Found: "x"}
		text, err := json.Marshal(f)
		if want := `{"severity":"` + name + `","check":"clock","found":"x"}`; err != nil || string(text) != want {
			t.Errorf("%s, %v, want %s", text, err, want)
		}
		var back doctor.Finding
		if err := json.Unmarshal(text, &back); err != nil || back != f {
			t.Errorf("%s reads as %+v, %v", text, back, err)
		}
	}
	if text, err := json.Marshal(doctor.Severity(9)); err == nil {
		t.Errorf("9 is written as %s", text)
	}
	if err := new(doctor.Severity).UnmarshalText([]byte("bad")); err == nil {
		t.Error("bad is read")
	}
}
