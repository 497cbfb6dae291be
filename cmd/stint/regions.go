package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
)

func newRegions(t *terminal) *cobra.Command {
	return queryCommand(t, &cobra.Command{
		Use:   "regions",
		Short: "Show how a server stands with other regions",
		Long: `Show how a server stands with other regions: all regions with their weights and the rules
that they use; its links to them, with delay, difference of clocks, and what they have not
been told yet; and the gossiped limits, with what all regions may admit beyond a limit and
the most that was measured. With -o csv it writes the links. The exit code is 1 if a region
cannot be reached, or more was measured than may be admitted.`,
		Example: `  stint regions
  stint regions -o json`,
	}, func(c *cobra.Command, a *client, _ []string) error {
		var r admin.Regions
		if err := a.do(c.Context(), call{path: "/regions", into: &r}); err != nil {
			return err
		}
		return answer(t.print(r, r.Links, func() error { return showRegions(t, &r) }), regionsWork(&r))
	})
}

// regionsWork reports whether regions work together as they should.
func regionsWork(r *admin.Regions) bool {
	works := !r.Alone && (r.Central == nil || r.Central.Up) && r.Weights != "stale"
	for _, l := range r.Links {
		works = works && l.Up && !l.Cut && !l.Alone
	}
	for _, l := range r.Limits {
		works = works && l.Beyond <= l.Bound
	}
	return works
}

func showRegions(t *terminal, r *admin.Regions) error {
	if r.Region == "" {
		t.notes("there are no other regions: [region] in the configuration names them")
		return nil
	}
	err := printTable(t, r.Items, "", []string{"REGION", "WEIGHT", "CENTRAL", "NODES", "REVISION"}, func(i *admin.RegionInfo) []any {
		name, revision := i.Name, "-"
		if i.Self {
			name += " (this)"
		}
		if i.Nodes > 0 {
			revision = strconv.FormatInt(i.Revision, 10)
		}
		if i.Behind {
			revision += " (behind)"
		}
		return []any{name, i.Weight, centralCell(r.Central, i.Name), i.Nodes, revision}
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(t.out)
	head := []string{"LINK", "STATUS", "SINCE", "PEER", "ROUND TRIP", "SKEW", "LAG", "BACKLOG", "UNACKNOWLEDGED", "SENT", "RECEIVED", "PROBLEM"}
	if err := printTable(t, r.Links, "", head, linkCells); err != nil {
		return err
	}
	if len(r.Limits) > 0 {
		fmt.Fprintln(t.out)
		head := []string{"LIMIT", "BOUND", "MOST BEYOND", "ADMITTED", "RECEIVED", "SHORT", "BY SHARE"}
		err = printTable(t, r.Limits, "", head, func(l *admin.RegionLimit) []any {
			name := l.Limit
			if name == "" {
				name = "(others)"
			}
			beyond := any(l.Beyond)
			if !l.Measured {
				beyond = nil
			}
			return []any{name, l.Bound, beyond, l.Admitted, l.Received, l.Short, l.Shares}
		})
	}
	t.notes(regionNotes(r)...)
	return err
}

// centralCell says whether a region has the central counters, and decides.
func centralCell(c *admin.CentralRegion, region string) any {
	switch {
	case c == nil || c.Region != region:
		return nil
	case c.Up:
		return "decides"
	}
	return "away since " + cell(c.Since)
}

func linkCells(l *admin.RegionLink) []any {
	var status any = "up"
	switch {
	case l.Cut:
		status = "cut off"
	case !l.Up:
		status = "down"
	case l.Alone:
		status = "alone" // it is cut off from another, or from its store
	}
	var delay, skew any
	if l.Pings > 0 {
		delay, skew = micros(l.Delay), micros(l.Skew)
	}
	return []any{l.Region, status, l.Since, l.Peer, delay, skew, micros(l.Lag), l.Backlog, l.Unacked, l.Sent, l.Received, l.Why}
}

// regionNotes says what no table has.
func regionNotes(r *admin.Regions) (out []string) {
	if c := r.Central; c != nil && !c.Up {
		out = append(out, fmt.Sprintf("the central region %s does not decide, and this node applies its share of central limits: %s", printable(c.Region), clean(c.Reason)))
	}
	if r.Alone {
		out = append(out, "this region is cut off from another, and applies its share of gossiped limits, or from its store, and decides them alone")
	}
	if r.Weights == "stale" {
		out = append(out, "the weights of quotas that follow demand cannot be read from the database, and this node applies the lowest part")
	}
	refused := uint64(0)
	for _, n := range r.Refused {
		refused += n
	}
	if refused > 0 {
		out = append(out, fmt.Sprintf("this node has refused %d streams of other regions: stint regions -o json says why", refused))
	}
	return out
}
