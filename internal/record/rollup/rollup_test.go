package rollup_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

// about is what is asked: a time of whole minutes, a rule or all, and the step of series.
type about struct {
	query.Range
	rule string
	step time.Duration
}

// ask returns all that a store says of roll-ups.
func ask(t rapid.TB, s *rollup.Store, q about) map[string]string {
	t.Helper()
	ctx, out := context.Background(), map[string]string{}
	put := func(key string, answer any, err error) {
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		out[key] = fmt.Sprint(answer)
	}
	r, rule, step := q.Range, q.rule, q.step
	for by := range counted {
		for _, limit := range []int{1, 1000} {
			top, err := s.Top(ctx, rollup.TopQuery{Range: r, By: by, Rule: rule, Limit: limit})
			put(fmt.Sprintf("top %d %s", limit, by), top, err)
		}
		if by != "rule" && by != "endpoint" {
			n, _, err := s.Distinct(ctx, rollup.DistinctQuery{Range: r, By: by, Rule: rule})
			put("distinct "+by, n, err)
		}
	}
	for _, user := range []string{"", "ann"} {
		violations, err := s.Violations(ctx, rollup.ViolationQuery{Range: r, User: user, Rule: rule})
		put("violations of "+user, violations, err)
	}
	for by := range seriesBy {
		all, err := s.Series(ctx, rollup.SeriesQuery{Range: r, By: by, Rule: rule, Step: step, Limit: 50})
		if err != nil {
			t.Fatal(err)
		}
		for _, series := range all {
			for _, p := range series.Points {
				if p.Total != 0 {
					put(fmt.Sprintf("series by %s: %q at %s", by, series.Name, p.Start.Format(time.RFC3339)), p, nil)
				}
			}
		}
	}
	return out
}

// seriesBy is what there may be a series for each of.
var seriesBy = map[string]func(*record.Event) string{
	"": func(*record.Event) string { return "" }, "outcome": func(e *record.Event) string { return e.Outcome.String() },
	"rule": func(e *record.Event) string { return e.Rule }, "tier": func(e *record.Event) string { return e.Tier },
	"endpoint": func(e *record.Event) string { return e.Endpoint }, "region": func(e *record.Event) string { return e.Region },
}

// counted is what refusals are counted by.
var counted = map[string]func(*record.Event) string{
	"user": func(e *record.Event) string { return e.User }, "tenant": func(e *record.Event) string { return e.Tenant },
	"key": func(e *record.Event) string { return e.Key }, "ip": func(e *record.Event) string { return e.IP },
	"rule": func(e *record.Event) string { return e.Rule }, "endpoint": func(e *record.Event) string { return e.Endpoint },
}

// topOf counts refusals one by one.
func topOf(events []record.Event, of func(*record.Event) string, rule string) (out []rollup.Refusals) {
	sums := map[string]*rollup.Refusals{}
	for i := range events {
		e := &events[i]
		name := of(e)
		if e.Outcome.Passed() || name == "" || rule != "" && e.Rule != rule {
			continue
		}
		if sums[name] == nil {
			sums[name] = &rollup.Refusals{Name: name}
		}
		sums[name].Refused += e.Weight
		if e.Outcome == engine.Denied {
			sums[name].Denied += e.Weight
		}
	}
	for _, n := range sums {
		out = append(out, *n)
	}
	slices.SortFunc(out, func(a, b rollup.Refusals) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.Refused, a.Refused), strings.Compare(a.Name, b.Name))
	})
	return out
}

// violationsOf counts denials of users one by one.
func violationsOf(events []record.Event, rule string) (out []rollup.Violation) {
	sums := map[[2]string]int64{}
	for _, e := range events {
		if e.Outcome == engine.Denied && e.User != "" && (rule == "" || e.Rule == rule) {
			sums[[2]string{e.User, e.Rule}] += e.Weight
		}
	}
	for key, n := range sums {
		out = append(out, rollup.Violation{User: key[0], Rule: key[1], Denied: n})
	}
	slices.SortFunc(out, func(a, b rollup.Violation) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), strings.Compare(a.User, b.User), strings.Compare(a.Rule, b.Rule))
	})
	return out
}

// recount returns what ask has to, of events that were rolled up at a time.
func recount(all []record.Event, now time.Time, q about) map[string]string {
	out := map[string]string{}
	within := func(from, to time.Time) (some []record.Event) {
		for _, e := range all {
			if !e.At.Before(from) && e.At.Before(to) && !e.At.Truncate(time.Minute).Add(time.Minute).After(now) {
				some = append(some, e)
			}
		}
		return some
	}
	hours := within(q.From.Truncate(time.Hour), q.To.Add(time.Hour-1).Truncate(time.Hour))
	minutes := within(q.From, q.To)
	for by, of := range counted {
		top := topOf(hours, of, q.rule)
		for _, limit := range []int{1, 1000} {
			out[fmt.Sprintf("top %d %s", limit, by)] = fmt.Sprint(top[:min(limit, len(top))])
		}
		if by != "rule" && by != "endpoint" {
			out["distinct "+by] = strconv.Itoa(len(deniedOf(top)))
		}
	}
	violations := violationsOf(hours, q.rule)
	out["violations of "] = fmt.Sprint(violations)
	violations = slices.DeleteFunc(violations, func(v rollup.Violation) bool { return v.User != "ann" })
	out["violations of ann"] = fmt.Sprint(violations)
	for by, of := range seriesBy {
		points, latencies := map[string]*rollup.Point{}, map[string]*record.Sketch{}
		for i := range minutes {
			e := &minutes[i]
			if q.rule != "" && e.Rule != q.rule {
				continue
			}
			key := fmt.Sprintf("series by %s: %q at %s", by, of(e), e.At.Truncate(q.step).Format(time.RFC3339))
			p := points[key]
			if p == nil {
				p, latencies[key] = &rollup.Point{Start: e.At.Truncate(q.step)}, new(record.Sketch)
				points[key] = p
			}
			p.Total += e.Weight
			p.Events++
			if e.Cached {
				p.Cached += e.Weight
			}
			latencies[key].Add(e.Latency, e.Weight)
		}
		for key, p := range points {
			l := latencies[key]
			p.P50, p.P95, p.P99 = l.Quantile(0.5), l.Quantile(0.95), l.Quantile(0.99)
			out[key] = fmt.Sprint(*p)
		}
	}
	return out
}

// deniedOf leaves those out who were refused and never denied.
func deniedOf(top []rollup.Refusals) []rollup.Refusals {
	return slices.DeleteFunc(slices.Clone(top), func(n rollup.Refusals) bool { return n.Denied == 0 })
}

func compare(t rapid.TB, got, want map[string]string) {
	t.Helper()
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			wrong = append(wrong, fmt.Sprintf("%s: %q, want %q", key, got[key], want[key]))
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			wrong = append(wrong, key+": want none")
		}
	}
	if len(wrong) > 0 {
		t.Fatalf("%d answers are wrong:\n%s", len(wrong), strings.Join(wrong[:min(10, len(wrong))], "\n"))
	}
}

// anyOf draws events of some days around the end of a month, which meet in groups.
func anyOf(t *rapid.T, n int, base time.Time) []record.Event {
	pick := func(name string, words ...string) string { return rapid.SampledFrom(words).Draw(t, name) }
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) record.Event {
		back := rapid.OneOf(rapid.Int64Range(0, 180e6), rapid.Int64Range(0, 2*3600e6), rapid.Int64Range(0, 50*3600e6)).Draw(t, "back")
		at := base.Add(-time.Duration(back) * time.Microsecond)
		e := record.Event{
			ID: engine.NewID(at), At: at, Outcome: engine.Outcome(rapid.Uint8Max(7).Draw(t, "outcome")), Shadow: rapid.Bool().Draw(t, "shadow"), Cached: rapid.Bool().Draw(t, "cached"),
			Latency: time.Duration(rapid.OneOf(rapid.Int64Range(-5, 200), rapid.Int64Range(0, 1<<45)).Draw(t, "latency")) * time.Microsecond,
			Weight:  rapid.SampledFrom([]int64{1, 100}).Draw(t, "weight"),
		}
		e.User, e.Tenant, e.Key, e.IP = pick("user", "", "ann", "bob"), pick("tenant", "", "acme"), pick("key", "", "k1"), pick("ip", "192.0.2.1", "192.0.2.2")
		e.Rule, e.Tier, e.Endpoint, e.Region = pick("rule", "", "a", "b"), pick("tier", "free", "pro"), pick("endpoint", "/a", "/b"), pick("region", "eu", "us")
		return e
	}), 0, n).Draw(t, "events")
}

// wipe empties what a store has.
func wipe(t rapid.TB, db *database.DB, months ...record.Month) {
	t.Helper()
	statements := []string{"DELETE FROM stint_rollup_todo", "DELETE FROM stint_rollup_counts", "DELETE FROM stint_rollup_lists", "DELETE FROM stint_rollup_since"}
	for _, m := range months {
		statements = append(statements, fmt.Sprintf("DELETE FROM stint_events_%04d_%02d", m.Year, m.Month))
	}
	for _, s := range statements {
		if _, err := db.Write.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRollUp compares roll-ups with a straight recomputation, of events that come in any
// order, late and more than once, while time goes on.
func TestRollUp(t *testing.T) {
	t.Parallel()
	base := time.Date(2026, 3, 1, 6, 30, 20, 0, time.UTC)
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		ctx, months := t.Context(), []record.Month{recordtest.Month("2026-02"), recordtest.Month("2026-03")}
		now := base
		s := recordtest.Store(t, db, func() time.Time { return now })
		for _, m := range months {
			recordtest.Write(t, s, recordtest.Denial(1, m.Start()))
		}
		rapid.Check(t, func(t *rapid.T) {
			wipe(t, db, months...)
			now = base
			var events []record.Event
			for range rapid.IntRange(1, 4).Draw(t, "rounds") {
				more := anyOf(t, 40, base)
				events = append(events, more...)
				if len(events) > 0 && rapid.Bool().Draw(t, "replay") {
					more = append(more, events[rapid.IntRange(0, len(events)-1).Draw(t, "from"):]...)
				}
				if err := s.Write(ctx, more); err != nil {
					t.Fatal(err)
				}
				now = now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "wait")) * time.Second)
				if rapid.Bool().Draw(t, "roll up") {
					if _, err := s.Run(ctx); err != nil {
						t.Fatal(err)
					}
				}
			}
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 600, 7200, 90_000}).Draw(t, "end")) * time.Second)
			for range 2 {
				if _, err := s.Run(ctx); err != nil {
					t.Fatal(err)
				}
			}
			until := now.Truncate(time.Minute).Add(time.Minute)
			q := about{rule: rapid.SampledFrom([]string{"", "a"}).Draw(t, "rule")}
			q.Range = rapid.SampledFrom([]query.Range{
				{From: until.Add(-80 * time.Hour), To: until},
				{From: until.Add(-24 * time.Hour), To: until},
				{From: until.Add(-7 * time.Hour), To: until.Add(-10 * time.Minute)},
				{From: base.Truncate(24 * time.Hour), To: base.Truncate(24*time.Hour).AddDate(0, 0, 1)},
			}).Draw(t, "range")
			steps := []time.Duration{time.Minute, 5 * time.Minute, 20 * time.Minute, time.Hour, 24 * time.Hour}
			q.step = rapid.SampledFrom(slices.DeleteFunc(steps, func(step time.Duration) bool { return q.To.Sub(q.From) >= 498*step })).Draw(t, "step")
			compare(t, ask(t, s, q), recount(events, now, q))
		})
	})
}

// TestRollUpOnce has several nodes roll up at once. Each minute is done by one of them.
func TestRollUpOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		s := recordtest.Store(t, db, recordtest.At(now))
		var events []record.Event
		for i := range 400 {
			events = append(events, recordtest.Denial(i, now.Add(-time.Duration(i+1)*10*time.Second)))
		}
		q := about{Range: query.Range{From: now.AddDate(0, 0, -1), To: now}, step: 5 * time.Minute}
		var writing, rolling sync.WaitGroup
		var mu sync.Mutex
		const nodes = 4
		done, over, turns := 0, make(chan struct{}), make(chan struct{}, len(events))
		writing.Go(func() {
			for batch := range slices.Chunk(events, 20) {
				if err := s.Write(t.Context(), batch); err != nil {
					t.Error(err)
				}
				for range nodes { // those who have nothing to do would keep others from writing
					turns <- struct{}{}
				}
			}
		})
		for range nodes {
			s := recordtest.Store(t, recordtest.Open(t, url), recordtest.At(now))
			rolling.Go(func() {
				for last := false; ; {
					n, err := s.Run(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					done += n
					mu.Unlock()
					if last && n == 0 {
						return
					}
					select {
					case <-over:
						last = true
					case <-turns:
					}
				}
			})
		}
		writing.Wait()
		close(over)
		rolling.Wait()
		rollUp(t, s) // those who found it taken went home
		if left := recordtest.Count(t, db, "SELECT count(*) FROM stint_rollup_todo WHERE level < 2"); left != 0 {
			t.Errorf("%d are left to do", left) // but for the day
		}
		compare(t, ask(t, s, q), recount(events, now, q))

		// Without new events there is nothing to do, and with all at once each is done once.
		if n := rollUp(t, s); n != 0 {
			t.Errorf("%d were done again", n)
		}
		recordtest.Write(t, s, events...)
		done = 0
		for range 4 {
			s := recordtest.Store(t, recordtest.Open(t, url), recordtest.At(now))
			rolling.Go(func() {
				n, err := s.Run(t.Context())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				done += n
				mu.Unlock()
			})
		}
		rolling.Wait()
		first, want := events[len(events)-1].At, 0
		for _, length := range []time.Duration{time.Minute, time.Hour} {
			for at := first.Truncate(length); at.Before(now); at = at.Add(length) {
				want++
			}
		}
		if done != want {
			t.Errorf("%d minutes and hours were done, want %d", done, want)
		}
		compare(t, ask(t, s, q), recount(events, now, q))
	})
}
