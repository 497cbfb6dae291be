package daemon_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestClusterLive has three nodes that meet in PostgreSQL, in a file, in Redis, or in a Redis whose nodes the settings count.
// Any of them shows all, and streams the decisions of all.
func TestClusterLive(t *testing.T) {
	t.Parallel()
	const poll = "[server.catalog]\npoll = \"300ms\"\nlast_good = \"none\"\n"
	for _, name := range []string{"postgres", "sqlite", "redis", "replicas"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text string
			switch name {
			case "postgres":
				text = fmt.Sprintf("[server]\ndatabase = %q\n", fillAt(t, testdatabase.Postgres(t), few)) + poll
			case "sqlite":
				text = strings.ReplaceAll(inDatabase, "%", fill(t, few))
			case "redis":
				text = fmt.Sprintf("[server]\ncounters = %q\n", testredis.Start(t).URL()) + poll + few
			case "replicas":
				text = fmt.Sprintf("[server]\nreplicas = 3\ncounters = %q\n", testredis.Start(t).URL()) + poll + few
			}
			var nodes []*process
			for i := range 3 {
				nodes = append(nodes, start(t, text, set("server.catalog.node", fmt.Sprint("n", i))))
			}
			for _, p := range nodes {
				wait.For(t, "three nodes", func() bool { return p.live(t, "").Alive == 3 })
			}
			asked, followed := nodes[0], follow(t, nodes[2])
			for i, p := range nodes {
				for range 10 * (i + 1) {
					check(t, p)
				}
			}
			heard := func(query string, nodes int, want int64) func() bool { // as soon as the others have posted it
				return func() bool {
					s := asked.live(t, query)
					got := s.Talkers.Addresses.ByRequests
					return len(s.Nodes) == nodes && s.Alive == 3 && s.Problem == "" && len(got) == 1 && got[0].Requests == want
				}
			}
			wait.For(t, "requests of all nodes", heard("", 3, 60))
			wait.For(t, "requests of a node", heard("?node=n1", 1, 20))
			seen := map[string]bool{}
			wait.For(t, "decisions of all nodes", func() bool {
				for _, p := range nodes { // again, since they show none that were made before they were asked
					check(t, p)
				}
				for len(followed) > 0 {
					seen[<-followed] = true
				}
				return len(seen) == 3
			})
			if err := nodes[1].Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			wait.For(t, "two nodes", func() bool { return len(nodes[0].live(t, "").Nodes) == 2 })
		})
	}
}

// TestClusterLiveAway has the database go away: a node shows itself, and says that it cannot see the others.
func TestClusterLiveAway(t *testing.T) {
	t.Parallel()
	server := testpostgres.Start(t)
	text := fmt.Sprintf("[server]\ndatabase = %q\n[server.catalog]\npoll = \"300ms\"\nlast_good = %q\n", fillAt(t, server.Database(t), few), t.TempDir())
	a, _ := start(t, text, set("server.catalog.node", "a")), start(t, text, set("server.catalog.node", "b"))
	wait.For(t, "both", func() bool { return len(a.live(t, "").Nodes) == 2 })
	server.Kill(t)
	wait.For(t, "a node alone", func() bool {
		s := a.live(t, "")
		return len(s.Nodes) == 1 && s.Node == "a" && s.Alive == 2 && strings.HasPrefix(s.Problem, "the other nodes cannot be read: ")
	})
	server.Restart(t)
	wait.For(t, "both again", func() bool { s := a.live(t, ""); return len(s.Nodes) == 2 && s.Problem == "" })
}

// follow sends the nodes of the decisions that a daemon streams.
func follow(t *testing.T, p *process) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL("admin")+"/admin/v1/events/follow", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+adminToken)
	answer, err := p.client.Do(r) //nolint:bodyclose // the goroutine below closes it
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer, err)
	}
	nodes, done := make(chan string, 1000), make(chan struct{})
	go func() {
		defer close(done)
		defer answer.Body.Close()
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e struct{ Node string }
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(text), &e) == nil && e.Node != "" {
				select {
				case nodes <- e.Node:
				case <-ctx.Done():
				}
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return nodes
}
