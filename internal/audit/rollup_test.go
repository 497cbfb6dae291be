package audit_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/audit"
	"github.com/stintdev/stint/internal/database"
)

// rolled is the content of the roll-ups: of each row all but its numbers, and these.
func rolled(t rapid.TB, db *database.DB) map[string]string {
	t.Helper()
	out := map[string]string{}
	rows, err := db.Read.Query("SELECT level, start, rule, tier, endpoint, region, outcome, shadow, total, events, cached, latency FROM stint_rollups")
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var level, outcome int
		var start database.Stamp
		var rule, tier, endpoint, region string
		var shadow bool
		var total, events, cached int64
		var latency []byte
		var s audit.Sketch
		if err := cmp.Or(rows.Scan(&level, &start, &rule, &tier, &endpoint, &region, &outcome, &shadow, &total, &events, &cached, &latency), s.UnmarshalBinary(latency)); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("%d %s %s|%s|%s|%s|%v|%v", level, start.Format(time.RFC3339), rule, tier, endpoint, region, engine.Outcome(outcome), shadow)
		out[key] = fmt.Sprintf("%d %d %d %x", total, events, cached, latency)
	}
	if err := cmp.Or(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	rows, err = db.Read.Query("SELECT level, kind, start, subject, rule, denied, refused FROM stint_subject_rollups")
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var level, kind int
		var start database.Stamp
		var subject, rule string
		var denied, refused int64
		if err := rows.Scan(&level, &kind, &start, &subject, &rule, &denied, &refused); err != nil {
			t.Fatal(err)
		}
		out[fmt.Sprintf("subject %d %d %s %s|%s", level, kind, start.Format(time.RFC3339), subject, rule)] = fmt.Sprintf("%d %d", denied, refused)
	}
	if err := cmp.Or(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	return out
}

// recomputed is what the roll-ups of events have to be at a time.
func recomputed(events []audit.Event, now time.Time) map[string]string {
	type sum struct {
		total, events, cached int64
		latency               audit.Sketch
	}
	sums, subjects := map[string]*sum{}, map[string]*[2]int64{}
	lengths := []time.Duration{time.Minute, time.Hour, 24 * time.Hour}
	for _, e := range events {
		if e.At.Truncate(time.Minute).Add(time.Minute).After(now) {
			continue // its minute is not over
		}
		for level, length := range lengths {
			key := fmt.Sprintf("%d %s %s|%s|%s|%s|%v|%v", level, e.At.Truncate(length).Format(time.RFC3339), e.Rule, e.Tier, e.Endpoint, e.Region, e.Outcome, e.Shadow)
			if sums[key] == nil {
				sums[key] = new(sum)
			}
			s := sums[key]
			s.total += e.Weight
			s.events++
			if e.Cached {
				s.cached += e.Weight
			}
			s.latency.Add(e.Latency, e.Weight)
			over := !e.At.Truncate(time.Hour).Add(time.Hour).After(now)
			if e.Outcome.Passed() || over != (level > 0) {
				continue
			}
			for kind, subject := range []string{e.User, e.Tenant, e.Key, e.IP} {
				if subject == "" {
					continue
				}
				key := fmt.Sprintf("subject %d %d %s %s|%s", level, kind, e.At.Truncate(length).Format(time.RFC3339), subject, e.Rule)
				if subjects[key] == nil {
					subjects[key] = new([2]int64)
				}
				subjects[key][1] += e.Weight
				if e.Outcome == engine.Denied {
					subjects[key][0] += e.Weight
				}
			}
		}
	}
	out := map[string]string{}
	for key, s := range sums {
		latency, _ := s.latency.AppendBinary(nil)
		out[key] = fmt.Sprintf("%d %d %d %x", s.total, s.events, s.cached, latency)
	}
	for key, n := range subjects {
		out[key] = fmt.Sprintf("%d %d", n[0], n[1])
	}
	return out
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
		t.Fatalf("%d roll-ups are wrong:\n%s", len(wrong), strings.Join(wrong[:min(10, len(wrong))], "\n"))
	}
}

// anyOf draws events of some days around the end of a month, which meet in groups.
func anyOf(t *rapid.T, n int, base time.Time) []audit.Event {
	pick := func(name string, words ...string) string { return rapid.SampledFrom(words).Draw(t, name) }
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) audit.Event {
		back := rapid.OneOf(rapid.Int64Range(0, 180e6), rapid.Int64Range(0, 2*3600e6), rapid.Int64Range(0, 50*3600e6)).Draw(t, "back")
		at := base.Add(-time.Duration(back) * time.Microsecond)
		e := audit.Event{
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
func wipe(t rapid.TB, db *database.DB, months ...audit.Month) {
	t.Helper()
	statements := []string{"DELETE FROM stint_rollup_todo", "DELETE FROM stint_rollups", "DELETE FROM stint_subject_rollups"}
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
	for _, kind := range []string{"postgres", "sqlite memory"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, _ := databaseOf(t, kind)
			ctx, months := t.Context(), []audit.Month{month("2026-02"), month("2026-03")}
			now := base
			s, err := audit.NewStore(db, audit.StoreOptions{Now: func() time.Time { return now }})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range months {
				write(t, s, refusal(1, m.Start()))
			}
			rapid.Check(t, func(t *rapid.T) {
				wipe(t, db, months...)
				now = base
				var events []audit.Event
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
						if _, err := s.RollUp(ctx); err != nil {
							t.Fatal(err)
						}
					}
				}
				now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 600, 7200, 90_000}).Draw(t, "end")) * time.Second)
				for range 2 {
					if _, err := s.RollUp(ctx); err != nil {
						t.Fatal(err)
					}
				}
				compare(t, rolled(t, db), recomputed(events, now))
			})
		})
	}
}

// TestRollUpOnce has several nodes roll up at once. Each minute is done by one of them.
func TestRollUpOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, url := databaseOf(t, kind)
			s := storeAt(t, db, now)
			var events []audit.Event
			for i := range 400 {
				events = append(events, refusal(i, now.Add(-time.Duration(i+1)*10*time.Second)))
			}
			var writing, rolling sync.WaitGroup
			var mu sync.Mutex
			done, over := 0, make(chan struct{})
			writing.Go(func() {
				for batch := range slices.Chunk(events, 20) {
					if err := s.Write(t.Context(), batch); err != nil {
						t.Error(err)
					}
				}
			})
			for range 4 {
				s := storeAt(t, openDatabase(t, url), now)
				rolling.Go(func() {
					for last := false; ; {
						n, err := s.RollUp(t.Context())
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
						default:
						}
					}
				})
			}
			writing.Wait()
			close(over)
			rolling.Wait()
			rollUp(t, s) // those who found it taken went home
			if left := number64(t, db, "SELECT count(*) FROM stint_rollup_todo"); left != 0 {
				t.Errorf("%d are left to do", left)
			}
			compare(t, rolled(t, db), recomputed(events, now))

			// Without new events there is nothing to do, and with all at once each is done once.
			if n := rollUp(t, s); n != 0 {
				t.Errorf("%d were done again", n)
			}
			write(t, s, events...)
			done = 0
			for range 4 {
				s := storeAt(t, openDatabase(t, url), now)
				rolling.Go(func() {
					n, err := s.RollUp(t.Context())
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
			compare(t, rolled(t, db), recomputed(events, now))
		})
	}
}
