package rollup_test

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

// TestAnswers compares what is said of times that are not whole hours with what events say.
func TestAnswers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 34, 56, 0, time.UTC)
	events := recordtest.Events(600, now, 5*24*time.Hour)
	each(t, now, func(t *testing.T, s *rollup.Store, _ *database.DB) {
		t.Helper()
		recordtest.Write(t, s, events...)
		rollUp(t, s)
		done := now.Truncate(time.Minute) // what is later is not rolled up
		for _, r := range []query.Range{
			{},
			{From: now.Add(-90 * time.Minute)},
			{From: now.AddDate(0, 0, -6)},
			{From: now.AddDate(0, 0, -4), To: now.AddDate(0, 0, -1)},
			{From: now.AddDate(0, 0, -3).Truncate(24 * time.Hour), To: now.Truncate(24 * time.Hour)},
			{From: now.AddDate(0, 0, -20), To: now.AddDate(0, 0, -10)},
		} {
			from, to := r.From, r.To
			if to.IsZero() {
				to = now
			}
			if from.IsZero() {
				from = to.AddDate(0, 0, -1)
			}
			from, to = from.Truncate(time.Hour), to.Add(time.Hour-1).Truncate(time.Hour)
			some := slices.DeleteFunc(slices.Clone(events), func(e record.Event) bool {
				return e.At.Before(from) || !e.At.Before(to) || !e.At.Before(done)
			})
			for _, rule := range []string{"", "r1"} {
				for by, of := range counted {
					want := topOf(some, of, rule)
					got, err := s.Top(t.Context(), rollup.TopQuery{Range: r, By: by, Rule: rule, Limit: 5})
					if err != nil || !slices.Equal(got, want[:min(5, len(want))]) {
						t.Errorf("top %s from %v to %v: %v, %v; want %v", by, from, to, got, err, want[:min(5, len(want))])
					}
					if by == "rule" || by == "endpoint" {
						continue
					}
					n, exact, err := s.Distinct(t.Context(), rollup.DistinctQuery{Range: r, By: by, Rule: rule})
					if err != nil || !exact || n != int64(len(deniedOf(want))) {
						t.Errorf("distinct %s from %v to %v: %d, %v; want %d", by, from, to, n, err, len(deniedOf(want)))
					}
				}
				want := violationsOf(some, rule)
				if got, err := s.Violations(t.Context(), rollup.ViolationQuery{Range: r, Rule: rule, Limit: 1000}); err != nil || !slices.Equal(got, want) {
					t.Errorf("violations from %v to %v: %v, %v; want %v", from, to, got, err, want)
				}
			}
		}
		one, err := s.Violations(t.Context(), rollup.ViolationQuery{User: "u1"})
		if err != nil || len(one) == 0 || slices.ContainsFunc(one, func(v rollup.Violation) bool { return v.User != "u1" }) {
			t.Errorf("violations of a user: %v, %v", one, err)
		}
	})
}

// TestSeries compares series with what events say, at each step.
func TestSeries(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 34, 56, 0, time.UTC)
	events := recordtest.Events(500, now, 5*24*time.Hour)
	for i := range events {
		events[i].Tier, events[i].Region = []string{"free", "pro", ""}[i%3], []string{"eu", "us"}[i/3%2]
	}
	hours := func(n int) time.Time { return now.Add(-time.Duration(n) * time.Hour) }
	type question struct {
		q    rollup.SeriesQuery
		step time.Duration
	}
	each(t, now, func(t *testing.T, s *rollup.Store, _ *database.DB) {
		t.Helper()
		recordtest.Write(t, s, events...)
		rollUp(t, s)
		questions := map[string]question{
			"a day":         {rollup.SeriesQuery{}, 5 * time.Minute},
			"an hour":       {rollup.SeriesQuery{Range: query.Range{From: hours(1)}}, time.Minute},
			"days":          {rollup.SeriesQuery{Range: query.Range{From: hours(110)}}, 15 * time.Minute},
			"a year":        {rollup.SeriesQuery{Range: query.Range{From: hours(366 * 24)}}, 24 * time.Hour},
			"hours":         {rollup.SeriesQuery{Range: query.Range{From: hours(100), To: hours(3)}, Step: 6 * time.Hour}, 6 * time.Hour},
			"weeks":         {rollup.SeriesQuery{Range: query.Range{From: hours(100)}, Step: 7 * 24 * time.Hour}, 7 * 24 * time.Hour},
			"by rule":       {rollup.SeriesQuery{Range: query.Range{From: hours(100)}, Step: 24 * time.Hour, By: "rule", Outcome: "denied"}, 24 * time.Hour},
			"by outcome":    {rollup.SeriesQuery{Range: query.Range{From: hours(100)}, Step: 24 * time.Hour, By: "outcome", Limit: 3}, 24 * time.Hour},
			"some":          {rollup.SeriesQuery{Range: query.Range{From: hours(30)}, By: "endpoint", Rule: "r1", Tier: "free", Region: "eu", Shadow: new(bool)}, 5 * time.Minute},
			"none":          {rollup.SeriesQuery{Range: query.Range{From: hours(30)}, Rule: "r9"}, 5 * time.Minute},
			"of one":        {rollup.SeriesQuery{Range: query.Range{From: hours(30)}, Endpoint: "/v1/1", By: "tier"}, 5 * time.Minute},
			"by its region": {rollup.SeriesQuery{Range: query.Range{From: hours(30)}, By: "region"}, 5 * time.Minute},
			"of two":        {rollup.SeriesQuery{Range: query.Range{From: hours(30)}, Endpoint: "/v1/1", Rule: "r2", By: "outcome"}, 5 * time.Minute},
		}
		for _, by := range []string{"", "outcome", "rule", "tier", "endpoint", "region"} {
			for of, with := range map[string]rollup.SeriesQuery{"rule": {Rule: "r1"}, "tier": {Tier: "pro"}, "endpoint": {Endpoint: "/v1/0"}, "region": {Region: "us"}} {
				with.By, with.From = by, hours(30)
				questions["of "+of+" by "+by] = question{with, 5 * time.Minute}
			}
		}
		for name, c := range questions {
			got, err := s.Series(t.Context(), c.q)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			from, to := c.q.From, c.q.To
			if to.IsZero() {
				to = now
			}
			if from.IsZero() {
				from = to.AddDate(0, 0, -1)
			}
			from, to = from.Truncate(time.Minute), to.Add(time.Minute-1).Truncate(time.Minute)
			if done := now.Truncate(time.Minute); to.After(done) {
				to = done
			}
			type key struct {
				name  string
				start time.Time
			}
			want, latencies := map[key]rollup.Point{}, map[key][]time.Duration{}
			totals := map[string]int64{}
			in := func(i int) (name string, ok bool) {
				e, q := &events[i], &c.q
				ok = !e.At.Before(from) && e.At.Before(to) && (q.Rule == "" || q.Rule == e.Rule) && (q.Endpoint == "" || q.Endpoint == e.Endpoint) &&
					(q.Tier == "" || q.Tier == e.Tier) && (q.Region == "" || q.Region == e.Region) &&
					(q.Outcome == "" || q.Outcome == e.Outcome.String()) && (q.Shadow == nil || *q.Shadow == e.Shadow)
				return map[string]string{"": "", "outcome": e.Outcome.String(), "rule": e.Rule, "tier": e.Tier, "endpoint": e.Endpoint, "region": e.Region}[q.By], ok
			}
			for i := range events {
				if name, ok := in(i); ok {
					totals[name] += events[i].Weight
				}
			}
			names := slices.SortedFunc(maps.Keys(totals), func(a, b string) int { return cmp.Or(cmp.Compare(totals[b], totals[a]), strings.Compare(a, b)) })
			most := min(len(names), cmp.Or(c.q.Limit, 20))
			for i := range events {
				name, ok := in(i)
				if !ok {
					continue
				}
				if !slices.Contains(names[:most], name) {
					name = "the rest"
				}
				k := key{name, events[i].At.Truncate(c.step)}
				p := want[k]
				p.Total += events[i].Weight
				p.Events++
				if events[i].Cached {
					p.Cached += events[i].Weight
				}
				want[k] = p
				for range events[i].Weight {
					latencies[k] = append(latencies[k], events[i].Latency)
				}
			}
			for i, series := range got {
				if series.Rest {
					series.Name = "the rest"
				} else if series.Name != names[i] {
					t.Errorf("%s: series %d is of %q, want %q", name, i, series.Name, names[i])
				}
				if len(series.Points) > 500 || !series.Points[0].Start.Equal(from.Truncate(c.step)) {
					t.Errorf("%s: %d points from %v on", name, len(series.Points), series.Points[0].Start)
				}
				for j, p := range series.Points {
					if j > 0 && p.Start.Sub(series.Points[j-1].Start) != c.step {
						t.Fatalf("%s: from %v to %v is no step", name, series.Points[j-1].Start, p.Start)
					}
					k := key{series.Name, p.Start}
					w, all := want[k], latencies[k]
					if p.Total != w.Total || p.Events != w.Events || p.Cached != w.Cached {
						t.Errorf("%s: %v: %+v, want %+v", name, k, p, w)
					}
					delete(want, k)
					slices.Sort(all)
					for q, quantile := range map[float64]time.Duration{0.5: p.P50, 0.95: p.P95, 0.99: p.P99} {
						if len(all) == 0 {
							continue
						}
						exact := all[max(0, int(q*float64(len(all))+0.999999)-1)]
						if off := (quantile - exact).Abs(); off > exact/20+time.Microsecond {
							t.Errorf("%s: %v: quantile %v is %v, want %v", name, k, q, quantile, exact)
						}
					}
				}
			}
			if len(want) > 0 || len(names) > most && !got[len(got)-1].Rest {
				t.Errorf("%s: %d points are missing, such as %v", name, len(want), want)
			}
		}
	})
}

// TestBadQueries refuses what makes no sense, and says what would.
func TestBadQueries(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	db := recordtest.Open(t, testdatabase.SQLite(t))
	s := recordtest.Store(t, db, recordtest.At(now))
	ten := query.Range{From: now.AddDate(-6, 0, 0)}
	find := func(q record.EventQuery) error { _, _, err := s.Find(t.Context(), q); return err }
	top := func(q rollup.TopQuery) error { _, err := s.Top(t.Context(), q); return err }
	series := func(q rollup.SeriesQuery) error { _, err := s.Series(t.Context(), q); return err }
	violations := func(q rollup.ViolationQuery) error { _, err := s.Violations(t.Context(), q); return err }
	distinct := func(q rollup.DistinctQuery) error { _, _, err := s.Distinct(t.Context(), q); return err }
	_, cursor := record.ParseCursor("12.x")
	_, other := record.ParseCursor("99999999999999999.00000000-0000-0000-0000-000000000000")
	for i, c := range []struct {
		err  error
		want string
	}{
		{find(record.EventQuery{Range: ten}), `from: "2020-03-04T12:00:00Z": want at most 366 days before to, which is 2026-03-04T12:00:00Z`},
		{find(record.EventQuery{Range: query.Range{From: now.Add(time.Hour)}}), `from: "2026-03-04T13:00:00Z": want a time before to, which is 2026-03-04T12:00:00Z`},
		{find(record.EventQuery{Range: query.Range{From: time.Unix(0, 0), To: now}}), `from: "1970-01-01T00:00:00Z": want a time from the year 2020 to 2099`},
		{find(record.EventQuery{Range: query.Range{To: time.Date(2101, 1, 1, 0, 0, 0, 0, time.UTC)}}), `from: "2100-12-31T00:00:00Z": want a time from the year 2020 to 2099`},
		{find(record.EventQuery{Limit: 1001, Outcome: "denyed"}), `limit: "1001": want a number from 1 to 1000` + "\n" + `outcome: "denyed": want one of allowed, throttled, exempt, denied, banned, blocked, unauthorized, unavailable; did you mean "denied"?`},
		{find(record.EventQuery{Limit: -1}), `limit: "-1": want a number from 1 to 1000`},
		{cursor, `after: "12.x": want the cursor that the last page returned`},
		{other, `after: "99999999999999999.00000000-0000-0000-0000-000000000000": want the cursor that the last page returned`},
		{top(rollup.TopQuery{By: "usr"}), `by: "usr": want one of user, tenant, key, ip, path, rule, endpoint; did you mean "user"?`},
		{top(rollup.TopQuery{Range: ten, Limit: 5000}), `from: "2020-03-04T12:00:00Z": want at most 366 days before to, which is 2026-03-04T12:00:00Z` + "\n" + `limit: "5000": want a number from 1 to 1000`},
		{distinct(rollup.DistinctQuery{By: "rule"}), `by: "rule": want one of user, tenant, key, ip`},
		{violations(rollup.ViolationQuery{Limit: -5}), `limit: "-5": want a number from 1 to 1000`},
		{series(rollup.SeriesQuery{By: "user"}), `by: "user": want one of outcome, rule, tier, endpoint, region`},
		{series(rollup.SeriesQuery{Step: time.Second}), `step: "1s": want whole minutes, whole hours from 1h on, whole days from 24h on`},
		{series(rollup.SeriesQuery{Step: 90 * time.Minute}), `step: "1h30m0s": want whole minutes, whole hours from 1h on, whole days from 24h on`},
		{series(rollup.SeriesQuery{Step: -time.Minute}), `step: "-1m0s": want whole minutes, whole hours from 1h on, whole days from 24h on`},
		{series(rollup.SeriesQuery{Step: time.Minute}), `step: "1m0s": want a step with at most 500 points from 2026-03-03T12:00:00Z to 2026-03-04T12:00:00Z`},
		{series(rollup.SeriesQuery{Range: ten}), `from: "2020-03-04T12:00:00Z": want at most 366 days before to, which is 2026-03-04T12:00:00Z`},
	} {
		if !errors.As(c.err, new(strict.Problems)) || c.err.Error() != c.want {
			t.Errorf("%d:\n%v, want\n%v", i, c.err, c.want)
		}
	}
	for _, id := range []string{"", "7", strings.Repeat("a", 36), strings.Repeat("a", 1000), "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaaa"} {
		if c, err := record.ParseCursor("1763000000000000." + id); err == nil {
			t.Errorf("%q: %v, want an error", id, c)
		}
	}
	if c, err := record.ParseCursor(""); err != nil || c != (record.Cursor{}) || c.String() != "" {
		t.Errorf("no cursor is %v, %v", c, err)
	}
}
