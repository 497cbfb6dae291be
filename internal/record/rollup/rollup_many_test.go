package rollup_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

// crowd returns denials of many in some hours: of those who come most often, or of all as
// often as of any other.
func crowd(n, users int, skewed bool, until time.Time, over time.Duration) (out []record.Event) {
	random := rand.New(rand.NewPCG(uint64(n), uint64(users)))
	zipf := rand.NewZipf(random, 1.2, 3, uint64(users-1))
	for i := range n {
		user := i % users
		if skewed {
			user = int(zipf.Uint64())
		}
		e := recordtest.Denial(i, until.Add(-time.Duration(random.Int64N(int64(over)))).Truncate(time.Microsecond))
		e.User, e.IP, e.Key, e.Tenant = fmt.Sprintf("user-%d", user), fmt.Sprintf("192.0.2.%d", user%256), "", ""
		e.Rule = fmt.Sprintf("r%d", random.IntN(4))
		if random.IntN(10) == 0 {
			e.Outcome = engine.Blocked
		}
		out = append(out, e)
	}
	return out
}

// TestTopOfMany asks for the first among more than the heads of lists have room for: they
// are easy to tell from the others, or not at all.
func TestTopOfMany(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 30, 0, 0, time.UTC)
	for name, events := range map[string][]record.Event{
		"skewed": crowd(1200, 400, true, now, 2*time.Hour),
		"few more than have room, some never denied": crowd(400, 100, true, now, 3*time.Hour),
		"flat": crowd(700, 300, false, now, 2*time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, now, func(t *testing.T, s *rollup.Store, db *database.DB) {
				t.Helper()
				recordtest.Write(t, s, events...)
				rollUp(t, s)
				if recordtest.Count(t, db, "SELECT count(*) FROM stint_rollup_lists WHERE level = 1 AND at_most > 0") == 0 {
					t.Fatal("the heads of hours have room for all")
				}
				for _, r := range []query.Range{{}, {From: now.Add(-90 * time.Minute)}, {From: now.AddDate(0, 0, -1), To: now.Add(-time.Hour)}} {
					to := r.To
					if to.IsZero() {
						to = now
					}
					var some []record.Event
					for _, e := range events {
						if (r.From.IsZero() || !e.At.Before(r.From.Truncate(time.Hour))) && e.At.Before(to.Add(time.Hour-1).Truncate(time.Hour)) {
							some = append(some, e)
						}
					}
					for _, rule := range []string{"", "r1"} {
						top, violations := topOf(some, counted["user"], rule), violationsOf(some, rule)
						for _, limit := range []int{1, 10, 40, 1000} {
							got, err := s.Top(t.Context(), rollup.TopQuery{Range: r, Rule: rule, Limit: limit})
							if want := top[:min(limit, len(top))]; err != nil || !slices.Equal(got, want) {
								t.Fatalf("top %d by %q in %v: %v, %v; want %v", limit, rule, r, got, err, want)
							}
							found, err := s.Violations(t.Context(), rollup.ViolationQuery{Range: r, Rule: rule, Limit: limit})
							if want := violations[:min(limit, len(violations))]; err != nil || !slices.Equal(found, want) {
								t.Fatalf("%d violations by %q in %v: %v, %v; want %v", limit, rule, r, found, err, want)
							}
						}
						n, exact, err := s.Distinct(t.Context(), rollup.DistinctQuery{Range: r, Rule: rule})
						if denied := deniedOf(top); err != nil || !exact || n != int64(len(denied)) {
							t.Errorf("%d users by %q in %v, %v; want %d", n, rule, r, err, len(denied))
						}
					}
				}
			})
		})
	}
}

// TestTopOfLastDay asks for the last 24 hours, which have lists of their own while all of
// their hours are made.
func TestTopOfLastDay(t *testing.T) {
	t.Parallel()
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		now := time.Date(2026, 3, 4, 5, 30, 0, 0, time.UTC)
		s := recordtest.Store(t, db, func() time.Time { return now })
		const ofLast = "SELECT count(*) FROM stint_rollup_lists WHERE level = 4"
		events := crowd(2000, 1000, true, now, 30*time.Hour)
		check := func(what string, rows int64) {
			t.Helper()
			if n := recordtest.Count(t, db, ofLast); n != rows {
				t.Errorf("%s: there are %d lists, want %d", what, n, rows)
			}
			var some []record.Event
			for _, e := range events {
				if !e.At.Before(now.Add(-24*time.Hour).Truncate(time.Hour)) && e.At.Before(now.Truncate(time.Minute)) {
					some = append(some, e)
				}
			}
			all := topOf(some, counted["user"], "")
			for _, limit := range []int{10, 100, 1000} {
				got, err := s.Top(t.Context(), rollup.TopQuery{Limit: limit})
				if err != nil || !slices.Equal(got, all[:min(limit, len(all))]) {
					t.Errorf("%s: the top is %.300v, %v; want %.300v", what, got, err, all)
				}
			}
		}
		recordtest.Write(t, s, events...)
		rollUp(t, s)
		check("at first", 2) // of users and addresses
		if n := rollUp(t, s); n != 0 {
			t.Errorf("there are still %d to roll up", n)
		}

		// One who comes late, and often, to an hour that was made.
		var late []record.Event
		for i := range 500 {
			e := recordtest.Denial(10_000+i, now.Add(-3*time.Hour).Truncate(time.Hour))
			e.User, e.Key, e.Tenant = "latecomer", "", ""
			late = append(late, e)
		}
		recordtest.Write(t, s, late...)
		check("before they are counted", 2)
		events = append(events, late...)
		rollUp(t, s)
		check("after that", 2)

		now = now.Add(time.Hour)
		check("an hour later", 2) // they are of another time
		rollUp(t, s)
		check("when these hours are made", 2)

		// Nothing else is read: without hours it is told what the day was. Minutes are of
		// the hour that has just begun, if they are of any.
		if _, err := db.Write.ExecContext(t.Context(), "DELETE FROM stint_rollup_lists WHERE level IN (1, 2)"); err != nil {
			t.Fatal(err)
		}
		check("without hours", 2)

		// An hour that is to be made anew is what its minutes say, of which one is gone.
		came := db.Time(late[0].At.Truncate(time.Minute))
		for _, statement := range []string{"INSERT INTO stint_rollup_todo (level, start, token) VALUES (1, $1, 0)", "DELETE FROM stint_rollup_lists WHERE level = 0 AND start = $1"} {
			if _, err := db.Write.ExecContext(t.Context(), statement, came); err != nil {
				t.Fatal(err)
			}
		}
		top, err := s.Top(t.Context(), rollup.TopQuery{Limit: 1000})
		if err != nil || slices.ContainsFunc(top, func(n rollup.Refusals) bool { return n.Name == "latecomer" }) {
			t.Errorf("what is to be made anew is believed: %v, %v", top, err)
		}

		now = now.AddDate(1, 0, 0)
		rollUp(t, s)
		if n := recordtest.Count(t, db, ofLast); n != 0 {
			t.Errorf("of a day without events there are %d lists", n)
		}
	})
}

// TestLongNames has names that are so long, and so many in one minute, that they are
// counted in slices and merged in several steps.
func TestLongNames(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 0, 0, 0, time.UTC)
	const n = 3000
	s := recordtest.Store(t, recordtest.Open(t, testdatabase.Postgres(t)), recordtest.At(now))
	var events []record.Event
	for i := range n {
		e := recordtest.Denial(i, now.Add(-time.Minute+time.Duration(i)*10*time.Millisecond))
		e.User = fmt.Sprintf("%d-%s", i-i%5*2, strings.Repeat("x", 500))
		events = append(events, e)
	}
	recordtest.Write(t, s, events...)
	rollUp(t, s)
	want := topOf(events, counted["user"], "")
	got, exact, err := s.Distinct(t.Context(), rollup.DistinctQuery{})
	if off := float64(got)/float64(len(want)) - 1; err != nil || exact || math.Abs(off) > 0.05 {
		t.Errorf("%d users, exactly: %v, %v; want about %d", got, exact, err, len(want))
	}
	got, exact, err = s.Distinct(t.Context(), rollup.DistinctQuery{Rule: "r1"})
	some := topOf(events, counted["user"], "r1")
	if err != nil || !exact || got != int64(len(some)) || len(some) == 0 || len(some) == len(want) {
		t.Errorf("%d users by a rule, exactly: %v, %v; want %d", got, exact, err, len(some))
	}
	top, err := s.Top(t.Context(), rollup.TopQuery{Limit: 1000})
	if err != nil || !slices.Equal(top, want[:1000]) {
		t.Errorf("the top is %.200v, %v; want %.200v", top, err, want)
	}
	for _, user := range []string{want[0].Name, want[len(want)-1].Name} {
		all, err := s.Violations(t.Context(), rollup.ViolationQuery{User: user})
		mine := slices.DeleteFunc(violationsOf(events, ""), func(v rollup.Violation) bool { return v.User != user })
		if err != nil || !slices.Equal(all, mine) {
			t.Errorf("violations: %v, %v; want %v", all, err, mine)
		}
	}
}

// TestRollUpsExpire deletes what is old, and answers from what is left.
func TestRollUpsExpire(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		now := begin
		s := recordtest.Store(t, db, func() time.Time { return now })
		events := recordtest.Events(400, begin, 30*time.Hour)
		recordtest.Write(t, s, events...)
		rows := func(level int) int64 {
			return recordtest.Count(t, db, fmt.Sprintf("SELECT (SELECT count(*) FROM stint_rollup_counts WHERE level = %d) + (SELECT count(*) FROM stint_rollup_lists WHERE level = %d)", level, level))
		}
		const minutes, hours, days, fives = 0, 1, 2, 3
		at := func(after time.Duration) {
			t.Helper()
			now = begin.Add(after)
			for range 5 { // each deletes so much
				rollUp(t, s)
			}
		}
		const day = 24 * time.Hour
		r := query.Range{From: begin.Add(-36 * time.Hour), To: begin.Add(time.Minute)}
		total := func(step time.Duration) (n int64) {
			t.Helper()
			all, err := s.Series(t.Context(), rollup.SeriesQuery{Range: r, Step: step})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range all[0].Points {
				n += p.Total
			}
			return n
		}
		refused := func(step time.Duration) {
			t.Helper()
			if _, err := s.Series(t.Context(), rollup.SeriesQuery{Range: r, Step: step}); err == nil || !strings.Contains(err.Error(), "have been deleted") {
				t.Errorf("with a step of %v: %v", step, err)
			}
		}
		at(3 * time.Hour)
		all := total(time.Hour)
		if total(5*time.Minute) != all || total(0) != all || rows(minutes) == 0 || rows(fives) == 0 || rows(hours) == 0 || rows(days) == 0 {
			t.Fatalf("at first there are %d, %d, %d and %d", rows(minutes), rows(fives), rows(hours), rows(days))
		}
		before, err := s.Top(t.Context(), rollup.TopQuery{Range: r})
		if err != nil {
			t.Fatal(err)
		}

		at(9 * day)
		if rows(minutes) != 0 || rows(fives) != 0 || rows(hours) == 0 {
			t.Errorf("after 9 days there are %d, %d and %d", rows(minutes), rows(fives), rows(hours))
		}
		refused(5 * time.Minute)
		if total(time.Hour) != all || total(0) != all {
			t.Errorf("after 9 days there are %d and %d, want %d", total(time.Hour), total(0), all)
		}
		// One that comes late is counted with those of its hour.
		late := recordtest.Denial(1, events[0].At.Add(time.Second))
		recordtest.Write(t, s, late)
		rollUp(t, s)
		if all++; total(time.Hour) != all || total(day) != all {
			t.Errorf("with one that came late there are %d and %d, want %d", total(time.Hour), total(day), all)
		}
		if at(9 * day); rows(minutes) != 0 {
			t.Errorf("%d minutes are back", rows(minutes))
		}
		top, err := s.Top(t.Context(), rollup.TopQuery{Range: r})
		want := topOf(append(slices.Clone(events), late), counted["user"], "")
		if err != nil || len(top) != len(before) || !slices.Equal(top, want) {
			t.Errorf("the top is %v, %v; want %v", top, err, want)
		}

		at(100 * day)
		if rows(hours) != 0 || rows(days) == 0 {
			t.Errorf("after 100 days there are %d and %d", rows(hours), rows(days))
		}
		refused(time.Hour)
		if total(day) != all || total(0) != all {
			t.Errorf("after 100 days there are %d and %d, want %d", total(day), total(0), all)
		}
		r = query.Range{From: events[0].At, To: events[0].At.Add(time.Minute)} // which is that day
		top, err = s.Top(t.Context(), rollup.TopQuery{Range: r})
		want = topOf(slices.DeleteFunc(append(slices.Clone(events), late), func(e record.Event) bool { return e.At.YearDay() != events[0].At.YearDay() }), counted["user"], "")
		if err != nil || !slices.Equal(top, want) {
			t.Errorf("the top of a day is %v, %v; want %v", top, err, want)
		}
		// It is too late for this one.
		recordtest.Write(t, s, recordtest.Denial(2, events[0].At.Add(2*time.Second)))
		if again, err := s.Top(t.Context(), rollup.TopQuery{Range: r}); rollUp(t, s) == 0 || err != nil || !slices.Equal(again, want) {
			t.Errorf("what came much too late made it %v, %v", again, err)
		}

		if at(8 * 365 * day); rows(days) != 0 {
			t.Errorf("after 8 years there are %d days", rows(days))
		}
	})
}

// TestLate has two nodes roll up, in turn, while a third writes what is late.
func TestLate(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 2, 28, 22, 0, 30, 0, time.UTC)
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		now := begin
		var nodes []*rollup.Store
		for range 3 {
			s := recordtest.Store(t, recordtest.Open(t, url), func() time.Time { return now })
			nodes = append(nodes, s)
		}
		var events []record.Event
		for i := range 40 {
			now = now.Add(4 * time.Minute) // into March
			for j, late := range []time.Duration{30 * time.Second, 3 * time.Minute, 61 * time.Minute, 2 * time.Hour}[:1+i%4] {
				e := recordtest.Denial(4*i+j, now.Add(-late))
				e.User, e.Rule = []string{"ann", "bob"}[i%2], []string{"a", "b"}[j%2]
				recordtest.Write(t, nodes[2], e)
				events = append(events, e)
			}
			rollUp(t, nodes[i%2])
			if i%10 == 9 {
				q := about{Range: query.Range{From: begin.Add(-3 * time.Hour).Truncate(time.Minute), To: now.Truncate(time.Minute)}, step: 5 * time.Minute}
				compare(t, ask(t, nodes[(i+1)%2], q), recount(events, now, q))
			}
		}
	})
}

// TestOldRollUps checks that roll-ups in the tables of version 5 are counted again from the
// events.
func TestOldRollUps(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	now := start.Add(14*24*time.Hour + 12*time.Hour)
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db, ctx := recordtest.Open(t, url), t.Context()
		exec := func(query string, args ...any) {
			t.Helper()
			if _, err := db.Write.ExecContext(ctx, query, args...); err != nil {
				t.Fatal(err)
			}
		}
		e := recordtest.Denial(1, start.Add(time.Second))
		e.User, e.Rule = "ann", "a"
		recordtest.Write(t, recordtest.Store(t, db, recordtest.At(now)), e)
		exec("DELETE FROM stint_rollup_todo")
		if _, err := db.Down(ctx, 5); err != nil {
			t.Fatal(err)
		}
		exec(`INSERT INTO stint_rollups (level, start, rule, tier, endpoint, region, outcome, shadow, total, events, cached, latency)
			VALUES (0, $1, 'a', 'free', '/', 'eu', 3, $2, 999, 999, 0, $3)`, db.Time(start), false, []byte{})
		if _, err := db.Up(ctx, 0); err != nil {
			t.Fatal(err)
		}
		s := recordtest.Store(t, db, recordtest.At(now))
		rollUp(t, s)
		top, err := s.Top(ctx, rollup.TopQuery{Range: query.Range{From: start, To: now}})
		if want := []rollup.Refusals{{Name: "ann", Denied: 1, Refused: 1}}; err != nil || !slices.Equal(top, want) {
			t.Errorf("got %v, %v, want %v", top, err, want)
		}
	})
}
