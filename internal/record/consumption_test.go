package record_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

const tokens = "llm.total_tokens"

// entry is what a user of a tenant has used under the rule "tokens", and in all.
func entry(at time.Time, tenant, user, model string, used int64) (out []record.Entry) {
	for _, rule := range []string{"", "tokens"} {
		out = append(out, record.Entry{
			Account: record.Account{Start: at.Truncate(time.Hour), Rule: rule, Meter: tokens, Tenant: tenant, User: user, Model: model},
			Units:   record.Units{Requests: 1, Reserved: 100, Used: used, GivenBack: max(100-used, 0), Overshoot: max(used-100, 0)},
		})
	}
	return out
}

func addUsed(tb testing.TB, s *record.Store, id string, entries ...record.Entry) {
	tb.Helper()
	if err := s.AddConsumption(tb.Context(), id, entries); err != nil {
		tb.Fatal(err)
	}
}

// consumed returns the answer to a query, a line for each row.
func consumed(tb testing.TB, s *record.Store, q record.ConsumptionQuery) string {
	tb.Helper()
	rows, more, err := s.Consumption(tb.Context(), q)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, r := range rows {
		words := strings.Fields(strings.Join([]string{r.Period, r.Rule, strings.TrimPrefix(r.Meter, "llm."), r.Tenant, r.User, r.Key, r.Model}, " "))
		lines = append(lines, fmt.Sprintf("%s %d/%d of %d -%d +%d ~%d", strings.Join(words, " "), r.Requests, r.Used, r.Reserved, r.GivenBack, r.Overshoot, r.Estimated))
	}
	if more {
		lines = append(lines, "and more")
	}
	return strings.Join(lines, "\n")
}

// TestConsumption asks for what was used, by whatever it is recorded by.
func TestConsumption(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 2, 10, 30, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *record.Store, _ *database.DB) {
		t.Helper()
		october, november := now.AddDate(0, 0, -3), now
		addUsed(t, s, "1", append(entry(october, "acme", "alice", "gpt", 70), entry(november, "acme", "alice", "gpt", 150)...)...)
		for range 2 { // the second changes nothing
			addUsed(t, s, "2", append(entry(november, "acme", "bob", "claude", 40), entry(november, "zebra", "carol", "gpt", 30)...)...)
		}
		addUsed(t, s, "3", entry(november, "acme", "alice", "gpt", 50)...)
		addUsed(t, s, "4", record.Entry{Account: record.Account{Start: november.Truncate(time.Hour), Meter: "response_bytes", Tenant: "acme"}, Units: record.Units{Requests: 1, Used: 7, Estimated: 7}},
			record.Entry{Account: record.Account{Start: november.Truncate(time.Hour), Rule: "trial", Meter: tokens, Shadow: true, Tenant: "acme"}, Units: record.Units{Used: 9000}})
		week := query.Range{From: now.AddDate(0, 0, -7), To: now}
		for name, c := range map[string]struct {
			q    record.ConsumptionQuery
			want string
		}{
			"all":             {record.ConsumptionQuery{Range: week}, "total_tokens 5/340 of 500 -210 +50 ~0\nresponse_bytes 1/7 of 0 -0 +0 ~7"},
			"the last day":    {record.ConsumptionQuery{}, "total_tokens 4/270 of 400 -180 +50 ~0\nresponse_bytes 1/7 of 0 -0 +0 ~7"},
			"by month":        {record.ConsumptionQuery{Range: week, By: []string{"month", "tenant"}, Meter: tokens}, "2026-11 total_tokens acme 3/240 of 300 -110 +50 ~0\n2026-10 total_tokens acme 1/70 of 100 -30 +0 ~0\n2026-11 total_tokens zebra 1/30 of 100 -70 +0 ~0"},
			"by day":          {record.ConsumptionQuery{Range: week, By: []string{"day"}, Tenant: "acme", Meter: tokens}, "2026-11-02 total_tokens 3/240 of 300 -110 +50 ~0\n2026-10-30 total_tokens 1/70 of 100 -30 +0 ~0"},
			"by hour":         {record.ConsumptionQuery{By: []string{"hour"}, User: "bob"}, "2026-11-02T10:00Z total_tokens 1/40 of 100 -60 +0 ~0"},
			"by user":         {record.ConsumptionQuery{Range: week, By: []string{"user", "key"}, Model: "gpt"}, "total_tokens alice 3/270 of 300 -80 +50 ~0\ntotal_tokens carol 1/30 of 100 -70 +0 ~0"},
			"by rule":         {record.ConsumptionQuery{Range: week, By: []string{"rule", "meter"}}, "tokens total_tokens 5/340 of 500 -210 +50 ~0"},
			"of a rule":       {record.ConsumptionQuery{Range: week, By: []string{"model"}, Rule: "tokens"}, "total_tokens gpt 4/300 of 400 -150 +50 ~0\ntotal_tokens claude 1/40 of 100 -60 +0 ~0"},
			"of trials":       {record.ConsumptionQuery{By: []string{"rule"}, Shadow: true}, "trial total_tokens 0/9000 of 0 -0 +0 ~0"},
			"the first":       {record.ConsumptionQuery{By: []string{"tenant"}, Limit: 1}, "total_tokens acme 3/240 of 300 -110 +50 ~0\nand more"},
			"the next":        {record.ConsumptionQuery{By: []string{"tenant"}, Limit: 2, Skip: 1}, "total_tokens zebra 1/30 of 100 -70 +0 ~0\nresponse_bytes acme 1/7 of 0 -0 +0 ~7"},
			"no one":          {record.ConsumptionQuery{Key: "k"}, ""},
			"no such group":   {record.ConsumptionQuery{By: []string{"usr"}}, `by: "usr": want one of user, tenant, key, model, rule, meter, hour, day, month; did you mean "user"?`},
			"twice":           {record.ConsumptionQuery{By: []string{"user", "user"}}, `by: "user,user": want each only once, and only one of hour, day and month`},
			"two periods":     {record.ConsumptionQuery{By: []string{"day", "month"}}, `by: "day,month": want each only once, and only one of hour, day and month`},
			"too many":        {record.ConsumptionQuery{Limit: 100_001}, `limit: "100001": want a number from 1 to 100000`},
			"negative":        {record.ConsumptionQuery{Skip: -1}, `after: "-1": want the next of a page before, at most 1000000`},
			"the wrong order": {record.ConsumptionQuery{Range: query.Range{From: now, To: now}}, `from: "2026-11-02T10:30:00Z": want a time before to, which is 2026-11-02T10:30:00Z`},
		} {
			if got := consumed(t, s, c.q); got != c.want {
				t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
			}
		}
	})
}

// TestConsumptionOfNodes has several books write to one database at once: what they have counted adds up, also where
// one number is as large as it can be.
func TestConsumptionOfNodes(t *testing.T) {
	t.Parallel()
	each(t, settledAt, func(t *testing.T, s *record.Store, db *database.DB) {
		t.Helper()
		const nodes, rounds, users = 4, 5, 30
		var wait sync.WaitGroup
		for range nodes {
			b := newBook(t, record.BookOptions{Add: storeAt(t, db, settledAt).AddConsumption, Now: func() time.Time { return settledAt }})
			wait.Go(func() {
				for range rounds {
					for u := range users {
						r := receiptOf("gpt", settled("tokens", tokens, 1, 3))
						r.Payer.User = fmt.Sprint("user", u)
						b.Settled(r, false)
					}
					if err := b.Flush(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
		q := record.ConsumptionQuery{Range: query.Range{From: settledAt, To: settledAt.Add(time.Hour)}}
		if got, want := consumed(t, s, q), "total_tokens 600/1800 of 600 -0 +1200 ~0"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		for i := range 3 {
			addUsed(t, s, fmt.Sprint("large", i), record.Entry{Account: record.Account{Start: settledAt.Truncate(time.Hour), Meter: tokens}, Units: record.Units{Used: 1<<53 - 2}})
		}
		if got, want := consumed(t, s, q), "total_tokens 600/9007199254740991 of 600 -0 +1200 ~0"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// TestFoldConsumption adds up old hours, and deletes very old days. What arrives late is added, too.
func TestFoldConsumption(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 2, 10, 30, 0, 0, time.UTC)
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		s := storeAt(t, db, now)
		old := now.AddDate(0, 0, -100)
		fold := func(s *record.Store, want string) {
			t.Helper()
			if err := s.FoldConsumption(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%d hours, %d days, %d batches", recordtest.Count(t, db, "SELECT count(*) FROM stint_consumption WHERE level = 1"),
				recordtest.Count(t, db, "SELECT count(*) FROM stint_consumption WHERE level = 2"), recordtest.Count(t, db, "SELECT count(*) FROM stint_consumption_batches"))
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		for i := range 30 { // hours, of two days
			addUsed(t, s, fmt.Sprint("hour", i), entry(old.Add(time.Duration(i)*time.Hour), "acme", "alice", "gpt", 10)...)
		}
		addUsed(t, s, "bob", entry(old, "acme", "bob", "gpt", 1)...)
		addUsed(t, s, "now", entry(now, "acme", "alice", "gpt", 10)...)
		q := record.ConsumptionQuery{Range: query.Range{From: now.AddDate(0, 0, -120), To: now}, By: []string{"day"}}
		before := consumed(t, s, q)
		fold(s, "2 hours, 6 days, 32 batches")
		if got := consumed(t, s, q); got != before || !strings.HasPrefix(got, "2026-07-26 total_tokens 16/160 of 1600") {
			t.Errorf("%s\nand it was\n%s", got, before)
		}
		addUsed(t, s, "late", entry(old, "acme", "alice", "gpt", 5)...)
		fold(s, "2 hours, 6 days, 33 batches")
		q.To = now.AddDate(0, 0, -1)
		q.By = nil
		if got, want := consumed(t, s, q), "total_tokens 32/306 of 3200 -2894 +0 ~0"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		fold(storeAt(t, db, now.AddDate(7, 0, -30)), "0 hours, 2 days, 0 batches")
	})
}

// TestConsumptionPayer has a book record whom an engine has charged.
func TestConsumptionPayer(t *testing.T) {
	t.Parallel()
	each(t, settledAt, func(t *testing.T, s *record.Store, _ *database.DB) {
		t.Helper()
		b := newBook(t, record.BookOptions{Add: s.AddConsumption, Now: func() time.Time { return settledAt }})
		r := receiptOf("gpt", settled("tokens", tokens, 1, 3))
		r.Payer = engine.Payer{User: "u\x00", Tenant: "t\xff", Key: "k"}
		b.Settled(r, false)
		flush(t, b)
		q := record.ConsumptionQuery{Range: query.Range{From: settledAt, To: settledAt.Add(time.Hour)}, By: []string{"user", "tenant", "key", "model"}}
		if got, want := consumed(t, s, q), "total_tokens t\uFFFD u\uFFFD k gpt 1/3 of 1 -0 +2 ~0"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}
