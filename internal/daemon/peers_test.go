package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// counts reports whether the daemon knows of so many nodes.
func (p *process) counts(t testing.TB, nodes int) bool {
	t.Helper()
	_, text := p.get(t, "admin", "/metrics")
	return strings.Contains(text, fmt.Sprintf("\nstint_replicas %d\n", nodes))
}

// TestPeers counts nodes that have only Redis in common, while it goes away, comes back empty, and is away
// when a node starts.
func TestPeers(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	settings := func(dir string) string {
		return fmt.Sprintf("[server]\ncounters = %q\n[server.catalog]\npoll = \"300ms\"\nlast_good = %q\n", redis.URL(), dir) + few
	}
	dir := t.TempDir()
	a, b := start(t, settings(dir)), start(t, settings(t.TempDir()))
	for _, p := range []*process{a, b} {
		wait.For(t, "two nodes", func() bool { return p.counts(t, 2) })
	}
	redis.Kill(t)
	a.becomes(t, "nodes", "degraded", "and 2 are assumed")
	redis.Restart(t)
	wait.For(t, "both have reported again", func() bool { return redis.Do(t, "ZCARD", "rl:present/nodes") == int64(2) })
	a.becomes(t, "nodes", "ok", "")

	redis.Kill(t)
	late := start(t, settings(dir))
	if !late.counts(t, 2) {
		t.Error("a node that starts without Redis does not know how many there were")
	}
	redis.Restart(t)
	for _, p := range []*process{a, b, late} {
		wait.For(t, "three nodes", func() bool { return p.counts(t, 3) })
	}
	if err := late.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys := redis.Do(t, "KEYS", "rl:left/*").([]any); len(keys) != 1 {
		t.Errorf("%v; want a mark that one has left", keys)
	}
	wait.For(t, "two nodes", func() bool { return a.counts(t, 2) && b.counts(t, 2) })
}

// TestPeersACL counts nodes as the user of docs/redis.md, and says so if a user may not.
func TestPeersACL(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	text := few + "[server.catalog]\npoll = \"300ms\"\n"
	for user, counted := range map[string]bool{"stint": true, "limiter": false} {
		blocks := testdoc.In(t, "docs/redis.md", "text")
		i := slices.IndexFunc(blocks, func(b testdoc.Block) bool { return strings.HasPrefix(b.Text, "ACL SETUSER "+user+" ") })
		if i < 0 {
			t.Fatalf("docs/redis.md has no user %s", user)
		}
		redis.Do(t, strings.Fields(strings.ReplaceAll(blocks[i].Text, "\\\n", " "))...)
		url := set("server.counters", "redis://"+user+":PASSWORD@"+redis.Addr())
		a, b := start(t, text, url), start(t, text, url)
		if counted {
			wait.For(t, "two nodes", func() bool { return a.counts(t, 2) && b.counts(t, 2) })
			a.becomes(t, "nodes", "ok", "")
			continue
		}
		a.becomes(t, "nodes", "degraded", "cannot be counted")
		if answer := check(t, a); !strings.Contains(answer, `"basis":"counted"`) && !strings.Contains(answer, `"allowed":true`) {
			t.Errorf("decisions need no more than that: %s", answer)
		}
		wait.For(t, "some more reports", func() bool { return a.counts(t, 1) })
		if n := strings.Count(a.log.String(), "cannot be counted"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, a.log.String())
		}
	}
}
