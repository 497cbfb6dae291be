package audit_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/strict"
)

// manyEvents returns events of the days before a time, in the order of time and id.
func manyEvents(n int, until time.Time, over time.Duration) (out []audit.Event) {
	random := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		// They share minutes, of which there are at most a hundred.
		back := over/100*time.Duration(random.IntN(100)) + time.Duration(1+random.Int64N(20e6))*time.Microsecond
		e := refusal(random.IntN(1000), until.Add(-back))
		copy(e.ID[10:], fmt.Sprintf("%06d", i))
		e.Outcome = engine.Outcome(random.IntN(8))
		e.Shadow, e.Cached = e.Outcome == engine.Allowed && i%2 == 0, i%5 == 0
		e.Latency = time.Duration(random.ExpFloat64()*3000) * time.Microsecond
		if e.Outcome == engine.Allowed {
			e.Weight = 100
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b audit.Event) int { return cmp.Or(a.At.Compare(b.At), slices.Compare(a.ID[:], b.ID[:])) })
	return out
}

// TestFind pages through events by all filters.
func TestFind(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	events := manyEvents(1200, now, 4*24*time.Hour) // from February on
	yes := true
	each(t, now, func(t *testing.T, s *audit.Store, _ *database.DB) {
		t.Helper()
		write(t, s, events...)
		long := audit.Range{From: now.AddDate(0, 0, -5)}
		for name, c := range map[string]struct {
			q    audit.EventQuery
			want func(e *audit.Event) bool
		}{
			"all":      {audit.EventQuery{Range: long, Limit: 1000}, func(*audit.Event) bool { return true }},
			"a day":    {audit.EventQuery{Limit: 7}, func(e *audit.Event) bool { return e.At.After(now.AddDate(0, 0, -1)) }},
			"user":     {audit.EventQuery{Range: long, User: "u3"}, func(e *audit.Event) bool { return e.User == "u3" }},
			"rest":     {audit.EventQuery{Range: long, Tenant: "acme", Key: "k1", Rule: "r1", Endpoint: "/v1/1", Method: "GET", Region: "eu", Node: "n1"}, func(e *audit.Event) bool { return e.Key == "k1" && e.Rule == "r1" && e.Endpoint == "/v1/1" }},
			"ip":       {audit.EventQuery{Range: long, IP: "192.0.2.7", Limit: 1}, func(e *audit.Event) bool { return e.IP == "192.0.2.7" }},
			"denied":   {audit.EventQuery{Range: long, Outcome: "denied"}, func(e *audit.Event) bool { return e.Outcome == engine.Denied }},
			"shadow":   {audit.EventQuery{Range: long, Shadow: &yes}, func(e *audit.Event) bool { return e.Shadow }},
			"none":     {audit.EventQuery{Range: long, User: "x' OR '1'='1"}, func(*audit.Event) bool { return false }},
			"no month": {audit.EventQuery{Range: audit.Range{From: now.AddDate(-1, 0, 0), To: now.AddDate(0, -2, 0)}}, func(*audit.Event) bool { return false }},
			"to": {
				audit.EventQuery{Range: audit.Range{From: events[100].At, To: events[200].At}, Limit: 33},
				func(e *audit.Event) bool { return !e.At.Before(events[100].At) && e.At.Before(events[200].At) },
			},
		} {
			var want, got []audit.Event
			for i := range events {
				if e := &events[len(events)-1-i]; c.want(e) {
					want = append(want, *e)
				}
			}
			for q := c.q; ; {
				some, next, err := s.Find(t.Context(), q)
				if err != nil || len(some) > max(100, q.Limit) {
					t.Fatalf("%s: %d events, %v", name, len(some), err)
				}
				if got = append(got, some...); next == (audit.Cursor{}) {
					break
				}
				if q.After, err = audit.ParseCursor(next.String()); err != nil || q.After != next {
					t.Fatalf("%s: the cursor %v became %v: %v", name, next, q.After, err)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %d events, want %d", name, len(got), len(want))
			}
		}
	})
}

// TestAnswers compares what is said of roll-ups with what events say.
func TestAnswers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 34, 56, 0, time.UTC)
	events := manyEvents(1200, now, 5*24*time.Hour)
	each(t, now, func(t *testing.T, s *audit.Store, _ *database.DB) {
		t.Helper()
		write(t, s, events...)
		rollUp(t, s)
		done := now.Truncate(time.Minute) // what is later is not rolled up
		for _, r := range []audit.Range{
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
			for by, of := range map[string]func(*audit.Event) string{
				"user": func(e *audit.Event) string { return e.User }, "tenant": func(e *audit.Event) string { return e.Tenant },
				"key": func(e *audit.Event) string { return e.Key }, "ip": func(e *audit.Event) string { return e.IP },
				"rule": func(e *audit.Event) string { return e.Rule }, "endpoint": func(e *audit.Event) string { return e.Endpoint },
			} {
				for _, rule := range []string{"", "r1"} {
					sums, denied := map[string]*audit.Refusals{}, map[string]bool{}
					violations := map[[2]string]int64{}
					for i := range events {
						e := &events[i]
						if e.Outcome.Passed() || e.At.Before(from) || !e.At.Before(to) || !e.At.Before(done) || rule != "" && e.Rule != rule {
							continue
						}
						if sums[of(e)] == nil {
							sums[of(e)] = &audit.Refusals{Name: of(e)}
						}
						sums[of(e)].Refused += e.Weight
						if e.Outcome == engine.Denied {
							sums[of(e)].Denied += e.Weight
							denied[of(e)] = true
							violations[[2]string{e.User, e.Rule}]++
						}
					}
					var want []audit.Refusals
					for _, n := range sums {
						want = append(want, *n)
					}
					slices.SortFunc(want, func(a, b audit.Refusals) int {
						return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.Refused, a.Refused), strings.Compare(a.Name, b.Name))
					})
					got, err := s.Top(t.Context(), audit.TopQuery{Range: r, By: by, Rule: rule, Limit: 5})
					if err != nil || !slices.Equal(got, want[:min(5, len(want))]) {
						t.Errorf("top %s from %v to %v: %v, %v; want %v", by, from, to, got, err, want[:min(5, len(want))])
					}
					if by == "rule" || by == "endpoint" {
						continue
					}
					n, exact, err := s.Distinct(t.Context(), audit.DistinctQuery{Range: r, By: by, Rule: rule})
					if err != nil || !exact || n != int64(len(denied)) {
						t.Errorf("distinct %s from %v to %v: %d, %v; want %d", by, from, to, n, err, len(denied))
					}
					all, err := s.Violations(t.Context(), audit.ViolationQuery{Range: r, Rule: rule, Limit: 1000})
					got2 := map[[2]string]int64{}
					for _, v := range all {
						got2[[2]string{v.User, v.Rule}] = v.Denied
					}
					if err != nil || !maps.Equal(got2, violations) {
						t.Errorf("violations from %v to %v: %v, %v; want %v", from, to, got2, err, violations)
					}
				}
			}
		}
		one, err := s.Violations(t.Context(), audit.ViolationQuery{User: "u1"})
		if err != nil || len(one) == 0 || slices.ContainsFunc(one, func(v audit.Violation) bool { return v.User != "u1" }) {
			t.Errorf("violations of a user: %v, %v", one, err)
		}
	})
}

// TestSeries compares series with what events say, at each step.
func TestSeries(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 34, 56, 0, time.UTC)
	events := manyEvents(1200, now, 5*24*time.Hour)
	for i := range events {
		events[i].Tier, events[i].Region = []string{"free", "pro", ""}[i%3], []string{"eu", "us"}[i/3%2]
	}
	hours := func(n int) time.Time { return now.Add(-time.Duration(n) * time.Hour) }
	type question struct {
		q    audit.SeriesQuery
		step time.Duration
	}
	each(t, now, func(t *testing.T, s *audit.Store, _ *database.DB) {
		t.Helper()
		write(t, s, events...)
		rollUp(t, s)
		questions := map[string]question{
			"a day":         {audit.SeriesQuery{}, 5 * time.Minute},
			"an hour":       {audit.SeriesQuery{Range: audit.Range{From: hours(1)}}, time.Minute},
			"days":          {audit.SeriesQuery{Range: audit.Range{From: hours(110)}}, 15 * time.Minute},
			"a year":        {audit.SeriesQuery{Range: audit.Range{From: hours(366 * 24)}}, 24 * time.Hour},
			"hours":         {audit.SeriesQuery{Range: audit.Range{From: hours(100), To: hours(3)}, Step: 6 * time.Hour}, 6 * time.Hour},
			"weeks":         {audit.SeriesQuery{Range: audit.Range{From: hours(100)}, Step: 7 * 24 * time.Hour}, 7 * 24 * time.Hour},
			"by rule":       {audit.SeriesQuery{Range: audit.Range{From: hours(100)}, Step: 24 * time.Hour, By: "rule", Outcome: "denied"}, 24 * time.Hour},
			"by outcome":    {audit.SeriesQuery{Range: audit.Range{From: hours(100)}, Step: 24 * time.Hour, By: "outcome", Limit: 3}, 24 * time.Hour},
			"some":          {audit.SeriesQuery{Range: audit.Range{From: hours(30)}, By: "endpoint", Rule: "r1", Tier: "free", Region: "eu", Shadow: new(bool)}, 5 * time.Minute},
			"none":          {audit.SeriesQuery{Range: audit.Range{From: hours(30)}, Rule: "r9"}, 5 * time.Minute},
			"of one":        {audit.SeriesQuery{Range: audit.Range{From: hours(30)}, Endpoint: "/v1/1", By: "tier"}, 5 * time.Minute},
			"by its region": {audit.SeriesQuery{Range: audit.Range{From: hours(30)}, By: "region"}, 5 * time.Minute},
			"of two":        {audit.SeriesQuery{Range: audit.Range{From: hours(30)}, Endpoint: "/v1/1", Rule: "r2", By: "outcome"}, 5 * time.Minute},
		}
		for _, by := range []string{"", "outcome", "rule", "tier", "endpoint", "region"} {
			for of, with := range map[string]audit.SeriesQuery{"rule": {Rule: "r1"}, "tier": {Tier: "pro"}, "endpoint": {Endpoint: "/v1/0"}, "region": {Region: "us"}} {
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
			want, latencies := map[key]audit.Point{}, map[key][]time.Duration{}
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
	db, _ := databaseOf(t, "sqlite memory")
	s := storeAt(t, db, now)
	ten := audit.Range{From: now.AddDate(-6, 0, 0)}
	find := func(q audit.EventQuery) error { _, _, err := s.Find(t.Context(), q); return err }
	top := func(q audit.TopQuery) error { _, err := s.Top(t.Context(), q); return err }
	series := func(q audit.SeriesQuery) error { _, err := s.Series(t.Context(), q); return err }
	violations := func(q audit.ViolationQuery) error { _, err := s.Violations(t.Context(), q); return err }
	distinct := func(q audit.DistinctQuery) error { _, _, err := s.Distinct(t.Context(), q); return err }
	_, cursor := audit.ParseCursor("12.x")
	_, other := audit.ParseCursor("99999999999999999.00000000-0000-0000-0000-000000000000")
	for i, c := range []struct {
		err  error
		want string
	}{
		{find(audit.EventQuery{Range: ten}), `from: "2020-03-04T12:00:00Z": want at most 366 days before to, which is 2026-03-04T12:00:00Z`},
		{find(audit.EventQuery{Range: audit.Range{From: now.Add(time.Hour)}}), `from: "2026-03-04T13:00:00Z": want a time before to, which is 2026-03-04T12:00:00Z`},
		{find(audit.EventQuery{Range: audit.Range{From: time.Unix(0, 0), To: now}}), `from: "1970-01-01T00:00:00Z": want a time from the year 2020 to 2099`},
		{find(audit.EventQuery{Range: audit.Range{To: time.Date(2101, 1, 1, 0, 0, 0, 0, time.UTC)}}), `from: "2100-12-31T00:00:00Z": want a time from the year 2020 to 2099`},
		{find(audit.EventQuery{Limit: 1001, Outcome: "denyed"}), `limit: "1001": want a number from 1 to 1000` + "\n" + `outcome: "denyed": want one of allowed, throttled, exempt, denied, banned, blocked, unauthorized, unavailable; did you mean "denied"?`},
		{find(audit.EventQuery{Limit: -1}), `limit: "-1": want a number from 1 to 1000`},
		{cursor, `after: "12.x": want what the answer before has said`},
		{other, `after: "99999999999999999.00000000-0000-0000-0000-000000000000": want what the answer before has said`},
		{top(audit.TopQuery{By: "usr"}), `by: "usr": want one of user, tenant, key, ip, rule, endpoint; did you mean "user"?`},
		{top(audit.TopQuery{Range: ten, Limit: 5000}), `from: "2020-03-04T12:00:00Z": want at most 366 days before to, which is 2026-03-04T12:00:00Z` + "\n" + `limit: "5000": want a number from 1 to 1000`},
		{distinct(audit.DistinctQuery{By: "rule"}), `by: "rule": want one of user, tenant, key, ip`},
		{violations(audit.ViolationQuery{Limit: -5}), `limit: "-5": want a number from 1 to 1000`},
		{series(audit.SeriesQuery{By: "user"}), `by: "user": want one of outcome, rule, tier, endpoint, region`},
		{series(audit.SeriesQuery{Step: time.Second}), `step: "1s": want whole minutes, whole hours from 1h on, whole days from 24h on`},
		{series(audit.SeriesQuery{Step: 90 * time.Minute}), `step: "1h30m0s": want whole minutes, whole hours from 1h on, whole days from 24h on`},
		{series(audit.SeriesQuery{Step: -time.Minute}), `step: "-1m0s": want whole minutes, whole hours from 1h on, whole days from 24h on`},
		{series(audit.SeriesQuery{Step: time.Minute}), `step: "1m0s": want one that makes at most 500 points of the time from 2026-03-03T12:00:00Z to 2026-03-04T12:00:00Z`},
		{series(audit.SeriesQuery{Range: ten}), `from: "2020-03-04T12:00:00Z": want at most 366 days before to, which is 2026-03-04T12:00:00Z`},
	} {
		if !errors.As(c.err, new(strict.Problems)) || c.err.Error() != c.want {
			t.Errorf("%d:\n%v, want\n%v", i, c.err, c.want)
		}
	}
	for _, id := range []string{"", "7", strings.Repeat("a", 36), strings.Repeat("a", 1000), "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaaa"} {
		if c, err := audit.ParseCursor("1763000000000000." + id); err == nil {
			t.Errorf("%q: %v, want an error", id, c)
		}
	}
	if c, err := audit.ParseCursor(""); err != nil || c != (audit.Cursor{}) || c.String() != "" {
		t.Errorf("no cursor is %v, %v", c, err)
	}
}
