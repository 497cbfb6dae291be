package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
)

func newConsumption(t *terminal) *cobra.Command {
	var f recordFlags
	var q record.ConsumptionQuery
	var month, by string
	c := f.command(t, &cobra.Command{
		Use:   "consumption",
		Short: "Show what requests have used, for billing",
		Long: `Show what requests have used under rules with a meter, most first: tokens, bytes, seconds or
money, by tenant or whatever else --by says. Units of different meters are never added up. If
several rules have the same meter, a request counts once, unless it is shown by rule.

It is recorded in whole hours of UTC, and in whole days after 90 days, when requests are
settled. Those of the last seconds may be missing.`,
		Example: `  stint consumption --month 2026-10
  stint consumption --month 2026-10 --by tenant,model -o csv > october.csv
  stint consumption --since 7d --by day,user --tenant acme --meter llm.total_tokens`,
	}, func(c *cobra.Command, s recordSource, r query.Range) error {
		if month != "" {
			if f.from != "" || f.to != "" || f.since != "" {
				return usageError(c, "--month is a range: want it without --from, --to and --since")
			}
			start, err := time.Parse("2006-01", month)
			if err != nil {
				return usageError(c, "--month %s: want a month such as 2026-10", strict.Quote(month))
			}
			r = query.Range{From: start, To: start.AddDate(0, 1, 0)}
		}
		q.Range, q.By = r, nil
		if by != "" {
			q.By = strings.Split(by, ",")
		}
		if q.Limit < 1 || q.Limit > record.MaxConsumption {
			return advice{fmt.Errorf("--limit %d: want a number from 1 to %d", q.Limit, record.MaxConsumption), "--limit 1000"}
		}
		all, err := s.consumption(c, q)
		if err != nil {
			return err
		}
		if t.format == asCSV {
			for i := range all {
				all[i] = all[i].Harmless()
			}
		}
		return printConsumption(t, q.By, all)
	})
	c.Flags().StringVar(&month, "month", "", "the `month` of UTC, such as 2026-10, instead of --from and --to")
	c.Flags().StringVar(&by, "by", "tenant", "the `kinds` to show apart, with commas: user, tenant, key, model, rule, meter, and one of hour, day, month")
	c.Flags().IntVar(&q.Limit, "limit", 1000, "show at most this `number` of rows, from 1 to 100,000")
	c.Flags().BoolVar(&q.Shadow, "shadow", false, "only what log_only rules have counted, which is otherwise left out")
	addFilters(c,
		filter{&q.Tenant, "tenant", "only of this `tenant`"}, filter{&q.User, "user", "only of this `user`"}, filter{&q.Key, "key", "only of the API key with this `id`"},
		filter{&q.Model, "model", "only of this `model`"}, filter{&q.Rule, "rule", "only by this `rule`"}, filter{&q.Meter, "meter", "only of this `meter`"})
	return c
}

// consumption returns what was used, up to the limit of the query.
func (r recordSource) consumption(c *cobra.Command, q record.ConsumptionQuery) ([]admin.Consumption, error) {
	all := []admin.Consumption{}
	if r.server != nil {
		parameters := rangeParameters(q.Range, min(q.Limit, 1000), "by", strings.Join(q.By, ","), "tenant", q.Tenant, "user", q.User, "key", q.Key, "model", q.Model, "rule", q.Rule, "meter", q.Meter)
		if q.Shadow {
			parameters.Set("shadow", strconv.FormatBool(q.Shadow))
		}
		for row, err := range pages[admin.Consumption](c.Context(), r.server, "/consumption", "after", parameters) {
			if err != nil {
				return nil, err
			}
			if all = append(all, row); len(all) == q.Limit {
				break
			}
		}
		return all, nil
	}
	rows, _, err := r.store.Consumption(c.Context(), q)
	for i := range rows {
		all = append(all, admin.NewConsumption(&rows[i]))
	}
	return all, err
}

// printConsumption prints a column for each of what it is grouped by, and the meter.
func printConsumption(t *terminal, by []string, all []admin.Consumption) error {
	fields := map[string]func(*admin.Consumption) string{
		"user": func(c *admin.Consumption) string { return c.User }, "tenant": func(c *admin.Consumption) string { return c.Tenant },
		"key": func(c *admin.Consumption) string { return c.Key }, "model": func(c *admin.Consumption) string { return c.Model },
		"rule": func(c *admin.Consumption) string { return c.Rule },
		"hour": func(c *admin.Consumption) string { return c.Period }, "day": func(c *admin.Consumption) string { return c.Period },
		"month": func(c *admin.Consumption) string { return c.Period },
	}
	var head []string
	var shown []func(*admin.Consumption) string
	for _, kind := range by {
		if field := fields[kind]; field != nil {
			head, shown = append(head, strings.ToUpper(kind)), append(shown, field)
		}
	}
	head = append(head, "METER", "USED", "RESERVED", "OVERSHOOT", "ESTIMATED", "REQUESTS")
	return printList(t, all, noneRecorded, head, func(c *admin.Consumption) (row []any) {
		for _, field := range shown {
			row = append(row, field(c))
		}
		return append(row, c.Meter, c.Used, c.Reserved, c.Overshoot, c.Estimated, c.Requests)
	})
}
