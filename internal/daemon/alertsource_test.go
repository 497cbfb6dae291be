package daemon_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/rule"
)

// TestHealthFindings finds what is wrong with nodes.
func TestHealthFindings(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	node := func(name string, ago time.Duration, checks ...string) admin.Node {
		n := admin.Node{ID: name, Name: name, Seen: now.Add(-ago), State: &admin.NodeState{}}
		for _, c := range checks {
			check := admin.Check{Name: c, Status: "degraded", Detail: "it is " + c}
			n.State.Checks = append(n.State.Checks, admin.Check{Name: "config", Status: "ok"}, check)
		}
		return n
	}
	east := node("e", 0, "counters")
	east.State.Region = "east"
	passed := node("p", 0)
	passed.State.Passed = []admin.Passed{{Limit: "search:hourly", Units: 120, Bound: 100}, {Limit: "search:daily", Units: 7, Bound: 5}}
	old := node("old", 0)
	old.State = nil
	for _, c := range []struct {
		name  string
		when  []string
		nodes []admin.Node
		want  string // the subjects, and a part of the first text
		text  string
	}{
		{"well", nil, []admin.Node{node("a", time.Second), old}, "", ""},
		{"silent for a moment", nil, []admin.Node{node("a", 10*time.Second)}, "", ""},
		{"missing", nil, []admin.Node{node("a", 0), node("b", time.Minute)}, "node_missing b", "the node b has not reported since 2026-01-31T11:59:00Z"},
		{"started again", nil, []admin.Node{node("b", time.Minute), node("b", 0)}, "", ""},
		{"this one cannot be missing", nil, []admin.Node{{Name: "a", Self: true, Seen: now.Add(-time.Hour)}}, "", ""},
		{"the store", nil, []admin.Node{node("a", 0, "counters"), node("b", 0, "counters"), node("c", 0)}, "store_away", "2 of 3 nodes get too few decisions from Redis (a, b): it is counters"},
		{"the store of a region", nil, []admin.Node{east, node("a", 0)}, "store_away east", "1 of 1 nodes of region east"},
		{"unhealthy", nil, []admin.Node{node("a", 0, "record", "daemon")}, "unhealthy a record", "the node a is not healthy: record: it is record"},
		{"bounds", nil, []admin.Node{passed, passed}, "bound_passed search:hourly, bound_passed search:daily", "than its credit of regions allows: 120, and the bound is 100"},
		{"others are not asked for", []string{"node_missing"}, []admin.Node{node("a", 0, "counters", "record"), passed, node("b", time.Minute)}, "node_missing b", ""},
	} {
		var got []string
		text := ""
		for _, f := range daemon.HealthFindings(&alert.Alert{Kind: "health", When: c.when}, c.nodes, now, 16*time.Second) {
			got = append(got, f.Subject)
			text += f.Text + "\n"
		}
		if strings.Join(got, ", ") != c.want || !strings.Contains(text, c.text) {
			t.Errorf("%s: %q, %s", c.name, got, text)
		}
	}
}

// TestGivenUp has a node that is missing be forgotten: its cause ends, and does not say that the node is back.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	a := &alert.Alert{Name: "nodes", Kind: alert.KindHealth, For: rule.Duration(time.Second)}
	look := func(nodes ...admin.Node) alert.Seen {
		return alert.Seen{Known: true, Findings: daemon.HealthFindings(a, nodes, now, 16*time.Second), Over: daemon.GivenUp(nodes)}
	}
	here, seen := admin.Node{Name: "a", Self: true, Seen: now}, now.Add(-time.Minute)
	const missing = "the node b has not reported since 2026-01-31T11:59:00Z, and did not say that it leaves"
	for _, c := range []struct {
		name  string
		after []admin.Node
		want  string
	}{
		{"forgotten", []admin.Node{here}, missing + "; it has not come back for a day, and is given up"},
		{"back", []admin.Node{here, {Name: "b", Seen: now.Add(time.Minute)}}, missing},
	} {
		causes, _ := alert.Step(now, a, look(here, admin.Node{Name: "b", Seen: seen}), nil, nil, nil)
		causes, messages := alert.Step(now.Add(time.Minute), a, look(here, admin.Node{Name: "b", Seen: seen}), causes, nil, nil)
		if len(messages) != 1 || messages[0].Text != missing {
			t.Fatalf("%s: %+v", c.name, messages)
		}
		_, messages = alert.Step(now.Add(24*time.Hour), a, look(c.after...), causes, nil, nil)
		if len(messages) != 1 || messages[0].Type != alert.TypeResolved || messages[0].Text != c.want {
			t.Errorf("%s: %+v", c.name, messages)
		}
	}
}
