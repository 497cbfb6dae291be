package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/rule"
)

// rolled is what is to be known of numbers that are not counted on demand.
const rolled = `
Numbers are those of whole hours, up to the last minute that is over: a node that serves
adds events up as they come. They stay when events are archived.`

func newEventsTop(t *terminal) *cobra.Command {
	var f recordFlags
	var q rollup.TopQuery
	c := f.command(t, &cobra.Command{
		Use:   "top",
		Short: "Show who or what was denied most",
		Long: `Show which users, tenants, API keys, addresses, rules or endpoints were denied most: how
often by a limit, and how often for whatever reason.
` + rolled,
		Example: `  stint events top --by user --since 7d
  stint events top --by ip --rule search --limit 100 -o json`,
	}, func(c *cobra.Command, b book, r query.Range) error {
		q.Range = r
		all, err := b.top(c.Context(), q)
		if err != nil {
			return err
		}
		return t.say(f.as, all, nil, func() error {
			if len(all) == 0 {
				t.none()
				return nil
			}
			w := t.grid(strings.ToUpper(q.By), "DENIED", "REFUSED")
			for _, r := range all {
				w.row(r.Name, r.Denied, r.Refused)
			}
			return w.Flush()
		})
	})
	c.Flags().StringVar(&q.By, "by", "user", "of which `kind`: user, tenant, key, ip, rule or endpoint")
	c.Flags().StringVar(&q.Rule, "rule", "", "by this `rule` only")
	c.Flags().IntVar(&q.Limit, "limit", 10, "at most this `number` of them, from 1 to 1,000")
	addOutput(c, &f.as)
	return c
}

func newEventsSeries(t *terminal) *cobra.Command {
	var (
		f    recordFlags
		q    rollup.SeriesQuery
		step string
	)
	c := f.command(t, &cobra.Command{
		Use:   "series",
		Short: "Show the number and latency of decisions over time",
		Long: `Show how many decisions there were over time, by their outcome or by something else, and
how long half of them, 95 and 99 in a hundred took at most. Points lie at multiples of
the step; a table does not have those without any decision.

Numbers are those of whole minutes that are over, and also count decisions that passed
and of which the record has a sample only.`,
		Example: `  stint events series --since 1h
  stint events series --by rule --outcome denied --since 30d --step 1d
  stint events series --by endpoint -o json`,
	}, func(c *cobra.Command, b book, r query.Range) error {
		if step != "" {
			var d rule.Duration
			if err := d.UnmarshalText([]byte(step)); err != nil || d <= 0 {
				return advice{fmt.Errorf("--step %s: want a length such as 1m, 2h, 1d", strict.Quote(step)), c.CommandPath() + " --help"}
			}
			q.Step = time.Duration(d)
		}
		q.Range = r
		all, err := b.series(c.Context(), q)
		if err != nil {
			return err
		}
		rows := []seriesRow{}
		for _, s := range all {
			for _, p := range s.Points {
				rows = append(rows, seriesRow{s.Name, s.Rest, p})
			}
		}
		return t.say(f.as, all, rows, func() error { return t.showSeries(q.By, all) })
	})
	c.Flags().StringVar(&q.By, "by", "outcome", "one for each of which `kind`: outcome, rule, tier, endpoint or region")
	c.Flags().StringVar(&step, "step", "", "the `time` between points: whole minutes, hours or days (default: the shortest that makes at most 500)")
	c.Flags().StringVar(&q.Rule, "rule", "", "by this `rule` only")
	c.Flags().StringVar(&q.Tier, "tier", "", "of this `tier` only")
	c.Flags().StringVar(&q.Endpoint, "endpoint", "", "at this `endpoint` only")
	c.Flags().StringVar(&q.Region, "region", "", "in this `region` only")
	c.Flags().StringVar(&q.Outcome, "outcome", "", "with this `outcome` only")
	c.Flags().IntVar(&q.Limit, "limit", 20, "at most this `number` of series, from 1 to 50; the rest are one")
	addOutput(c, &f.as)
	return c
}

// seriesRow is a point of a series in CSV.
type seriesRow struct {
	Name string `json:"name"`
	Rest bool   `json:"rest"`
	admin.Point
}

func (t *terminal) showSeries(by string, all []admin.Series) error {
	if len(all) == 0 {
		t.none()
		return nil
	}
	w := t.grid("START", strings.ToUpper(by), "DECISIONS", "CACHED", "P50", "P95", "P99")
	micros := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	for i := range all[0].Points {
		for _, s := range all {
			if i >= len(s.Points) || s.Points[i].Total == 0 {
				continue
			}
			p, name := s.Points[i], s.Name
			if s.Rest {
				name = "(the rest)"
			}
			w.row(p.Start, name, p.Total, p.Cached, micros(p.P50), micros(p.P95), micros(p.P99))
		}
	}
	return w.Flush()
}

func newEventsViolations(t *terminal) *cobra.Command {
	var f recordFlags
	var q rollup.ViolationQuery
	c := f.command(t, &cobra.Command{
		Use:   "violations",
		Short: "Show which users were denied by which rules",
		Long: `Show how often each user was denied by each rule, the most frequent first.
` + rolled,
		Example: `  stint events violations --user alice --since 30d
  stint events violations --rule search -o json`,
	}, func(c *cobra.Command, b book, r query.Range) error {
		q.Range = r
		all, err := b.violations(c.Context(), q)
		if err != nil {
			return err
		}
		return t.say(f.as, all, nil, func() error {
			if len(all) == 0 {
				t.none()
				return nil
			}
			w := t.grid("USER", "RULE", "DENIED")
			for _, v := range all {
				w.row(v.User, v.Rule, v.Denied)
			}
			return w.Flush()
		})
	})
	c.Flags().StringVar(&q.User, "user", "", "of this `user` only")
	c.Flags().StringVar(&q.Rule, "rule", "", "by this `rule` only")
	c.Flags().IntVar(&q.Limit, "limit", 100, "at most this `number` of them, from 1 to 1,000")
	addOutput(c, &f.as)
	return c
}

func newEventsClients(t *terminal) *cobra.Command {
	var f recordFlags
	var q rollup.DistinctQuery
	c := f.command(t, &cobra.Command{
		Use:   "clients",
		Short: "Count the clients that were denied",
		Long: `Count how many different users, tenants, API keys or addresses were denied something by a
limit: exactly up to 16,384 of them, and of more about how many.
` + rolled,
		Example: `  stint events clients --by ip --since 24h
  stint events clients --rule search -o json`,
	}, func(c *cobra.Command, b book, r query.Range) error {
		q.Range = r
		n, err := b.clients(c.Context(), q)
		if err != nil {
			return err
		}
		return t.say(f.as, n, nil, func() error {
			about := ""
			if !n.Exact {
				about = "about "
			}
			fmt.Fprintf(t.out, "%s%d\n", about, n.Clients)
			return nil
		})
	})
	c.Flags().StringVar(&q.By, "by", "user", "of which `kind`: user, tenant, key or ip")
	c.Flags().StringVar(&q.Rule, "rule", "", "by this `rule` only")
	addOutput(c, &f.as)
	return c
}
