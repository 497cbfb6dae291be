package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
)

func newStatus(t *terminal) *cobra.Command {
	return queryCommand(t, &cobra.Command{
		Use:   "status",
		Short: "Show the status of a server",
		Long: `Show the status of a server: its version, where its rules, counters and recorded decisions
are stored, which revision of the rules it uses, where it listens, and the health of its parts.
The exit code is 1 if it is not ready.`,
		Example: `  stint status
  stint status --server http://127.0.0.1:9090 -o json`,
	}, func(c *cobra.Command, a *client, _ []string) error {
		var s admin.Status
		if err := a.do(c.Context(), call{path: "/status", into: &s}); err != nil {
			return err
		}
		return answer(t.print(s, nil, func() error { return printStatus(t, &s) }), s.Health.Status != "not_ready")
	})
}

func printStatus(t *terminal, s *admin.Status) error {
	rules := fmt.Sprintf("%d, in %s", s.Rules, s.File)
	if s.Mode == "database" {
		rules = fmt.Sprintf("%d, in the database (%s), at revision %d", s.Rules, s.Database, s.Revision)
	}
	w := t.table("STATUS", s.Health.Status)
	w.row("version", s.Version)
	w.row("node", s.Node)
	w.row("rules", rules)
	w.row("counters", s.Counters)
	w.row("record", s.Record)
	for _, d := range []struct{ name, url string }{{"http", s.Doors.HTTP}, {"gateway", s.Doors.Gateway}, {"grpc", s.Doors.GRPC}, {"admin", s.Doors.Admin}} {
		if d.url != "" {
			w.row(d.name, d.url)
		}
	}
	if err := w.Flush(); err != nil || len(s.Health.Checks) == 0 {
		return err
	}
	fmt.Fprintln(t.out)
	w = t.table("PART", "STATUS", "DETAIL")
	for _, c := range s.Health.Checks {
		w.row(c.Name, c.Status, c.Detail)
	}
	return w.Flush()
}

func newNodes(t *terminal) *cobra.Command {
	return queryCommand(t, &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes that share the database",
		Long: `List the nodes that share the database of a server: their status and traffic, and whether
they use the latest rules. Nodes that were last seen more than a day ago are not listed. The
exit code is 1 if a node cannot use the latest rules, or does not use them yet.`,
		Example: `  stint nodes
  stint nodes -o json`,
	}, func(c *cobra.Command, a *client, _ []string) error {
		all, err := items[admin.Node](c.Context(), a, "/nodes", nil)
		if err != nil {
			return err
		}
		current := true
		for _, n := range all {
			current = current && !n.Behind && n.Problem == ""
		}
		head := []string{"NAME", "STATUS", "REVISION", "VERSION", "REQUESTS/S", "DENIED/S", "P99", "SEEN", "PROBLEM"}
		return answer(printList(t, all, "there are none: only nodes that share a database are listed", head, func(n *admin.Node) []any {
			name, revision := n.Name, strconv.FormatInt(n.Revision, 10)
			if n.Self {
				name += " (this)"
			}
			if n.Behind {
				revision += " (behind)"
			}
			var status, requests, denied, p99 any
			if s := n.State; s != nil {
				status, requests, denied, p99 = s.Status, rate(s.Requests), rate(s.Refused), micros(s.P99)
			}
			return []any{name, status, revision, n.Version, requests, denied, p99, n.Seen, n.Problem}
		}), current)
	})
}
