package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
)

// serverCommand makes a command that asks a server.
func serverCommand(t *terminal, c *cobra.Command, ask func(c *cobra.Command, a *client, args []string) error) *cobra.Command {
	var f serverFlags
	f.add(c)
	if c.Args == nil {
		c.Args = nothing
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		a, err := f.open(t)
		if err != nil {
			return err
		}
		defer a.close()
		return ask(c, a, args)
	}
	return c
}

func newStatus(t *terminal) *cobra.Command {
	var as string
	c := serverCommand(t, &cobra.Command{
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
		if err := t.say(as, s, nil, func() error { return showStatus(t, &s) }); err != nil {
			return err
		}
		if s.Health.Status == "not_ready" {
			return errNo
		}
		return nil
	})
	addOutput(c, &as)
	return c
}

func showStatus(t *terminal, s *admin.Status) error {
	w := t.grid("STATUS", s.Health.Status)
	w.row("version", s.Version)
	w.row("node", s.Node)
	rules := fmt.Sprintf("%d, in %s", s.Rules, s.File)
	if s.Mode == "database" {
		rules = fmt.Sprintf("%d, in the database (%s), at revision %d", s.Rules, s.Database, s.Revision)
	}
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
	w = t.grid("PART", "STATUS", "DETAIL")
	for _, c := range s.Health.Checks {
		w.row(c.Name, c.Status, c.Detail)
	}
	return w.Flush()
}

func newNodes(t *terminal) *cobra.Command {
	var as string
	c := serverCommand(t, &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes that share the database",
		Long: `List the nodes that share the database of a server: how each is, what it serves, and
whether it uses the latest rules. Nodes that were not seen for a day are not listed. The
exit code is 1 if any that serves is not ready, or is behind.`,
		Example: `  stint nodes
  stint nodes -o json`,
	}, func(c *cobra.Command, a *client, _ []string) error {
		all, err := a.nodes(c.Context())
		if err != nil {
			return err
		}
		if err := t.say(as, all, nil, func() error { return showNodes(t, all) }); err != nil {
			return err
		}
		for _, n := range all {
			if n.Behind || n.Problem != "" {
				return errNo
			}
		}
		return nil
	})
	addOutput(c, &as)
	return c
}

func (a *client) nodes(ctx context.Context) ([]admin.Node, error) {
	var list struct {
		Items []admin.Node `json:"items"`
	}
	err := a.do(ctx, call{path: "/nodes", into: &list})
	return append([]admin.Node{}, list.Items...), err
}

func showNodes(t *terminal, all []admin.Node) error {
	if len(all) == 0 {
		t.notes("there are none: nodes are listed if they share a database")
		return nil
	}
	w := t.grid("NAME", "STATUS", "REVISION", "VERSION", "REQUESTS/S", "REFUSED/S", "P99", "SEEN", "PROBLEM")
	for _, n := range all {
		name, status := n.Name, any(nil)
		if n.Self {
			name += " (this)"
		}
		var requests, refused, p99 any
		if s := n.State; s != nil {
			status, requests, refused, p99 = s.Status, rate(s.Requests), rate(s.Refused), micros(s.P99)
		}
		revision := strconv.FormatInt(n.Revision, 10)
		if n.Behind {
			revision += " (behind)"
		}
		w.row(name, status, revision, n.Version, requests, refused, p99, n.Seen, n.Problem)
	}
	return w.Flush()
}

// house has the doctor ask a server.
func (d *doctor) house(ctx context.Context) {
	const long = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	a, err := d.open(d.terminal)
	if err != nil {
		d.refuse("api", err)
		return
	}
	defer a.close()
	var me admin.Session
	if err := a.do(ctx, call{path: "/session", into: &me}); err != nil {
		d.refuse("api", err)
		return
	}
	d.note("api", findOK, fmt.Sprintf("%s answers, and the token is that of %s, with the role %s", a.base, me.Name, me.Role), "")
	const soon = 24 * time.Hour
	if left := me.Token.Sub(now()); !me.Token.IsZero() && left < soon {
		d.note("api.token", findWarn, fmt.Sprintf("the token expires at %s", cell(me.Token)), "stint tokens create, which makes one that is good for longer")
	}
	var s admin.Status
	before := now()
	if err := a.do(ctx, call{path: "/status", into: &s}); err != nil {
		d.refuse("api", err)
		return
	}
	about := s.Now.Sub(before).Abs()
	d.apart("api.clock", "the clocks of the server and of this machine", about-now().Sub(before), about)
	if mine := versionOf().Version; s.Version != mine {
		d.note("api.version", findWarn, fmt.Sprintf("the server is of version %s, and this program of %s", s.Version, mine), "the same version on both sides")
	} else {
		d.note("api.version", findOK, "the server is of version "+s.Version+", as this program is", "")
	}
	for _, c := range s.Health.Checks {
		status := findOK
		switch c.Status {
		case "degraded":
			status = findWarn
		case "not_ready":
			status = findFail
		}
		if status != findOK {
			d.note("health."+c.Name, status, c.Detail, "the log of the server")
		}
	}
	if s.Health.Status == findOK {
		d.note("health", findOK, "all parts of the server are well", "")
	}
	if !d.named {
		return
	}
	nodes, err := a.nodes(ctx)
	if err != nil {
		d.refuse("nodes", err)
		return
	}
	for _, n := range nodes {
		status := findOK
		if n.State != nil && n.State.Status != findOK {
			status = n.State.Status
		}
		switch {
		case n.Problem != "":
			d.note("nodes", findFail, fmt.Sprintf("%s cannot use the latest rules: %s", n.Name, n.Problem), "its log; and stint changes list, for what was changed")
		case n.Behind:
			d.note("nodes", findWarn, fmt.Sprintf("%s uses revision %d, which is not the latest", n.Name, n.Revision), "to look again; if it stays so, its log")
		case status != findOK:
			d.note("nodes", findWarn, fmt.Sprintf("%s is %s", n.Name, status), "stint status with --server of that node")
		default:
			d.note("nodes", findOK, fmt.Sprintf("%s is well, and uses revision %d", n.Name, n.Revision), "")
		}
	}
}

// refuse adds that the server did not answer, or not as wanted.
func (d *doctor) refuse(check string, err error) {
	try := advice{}
	errors.As(err, &try)
	status := findFail
	if r := new(refused); errors.As(err, &r) && !d.named && (r.Status == http.StatusUnauthorized || r.Status == http.StatusForbidden) {
		status = findWarn // it is there, and was not asked for
	}
	d.note(check, status, err.Error(), try.try)
}
