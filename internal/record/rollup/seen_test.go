//go:build !scale

package rollup_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

// TestSeen finds the clients of events, by the start of their names.
func TestSeen(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	each(t, now, func(t *testing.T, s *rollup.Store, db *database.DB) {
		t.Helper()
		event := func(n int, ago time.Duration, user, ip string) record.Event {
			e := recordtest.Denial(n, now.Add(-ago))
			e.User, e.Tenant, e.Key, e.IP = user, "", "", ip
			return e
		}
		recordtest.Write(t, s,
			event(1, 2*24*time.Hour, "Alan", "192.0.2.1"), event(2, time.Hour, "Alan", "192.0.2.10"), event(3, time.Hour, "alice", "198.51.100.7"),
			event(4, time.Hour, "al%", "192.0.2.1"), event(5, time.Hour, "bob", "192.0.2.1"), event(6, time.Hour, "älan", ""))
		rollUp(t, s)
		names := func(q rollup.SeenQuery) string {
			t.Helper()
			all, err := s.Seen(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			var out []string
			for _, one := range all {
				out = append(out, one.Name)
				if one.Last.Before(now.Add(-25*time.Hour)) || one.Last.After(now) {
					t.Errorf("%s was last seen at %v", one.Name, one.Last)
				}
			}
			return strings.Join(out, " ")
		}
		for _, c := range []struct {
			rollup.SeenQuery
			want string
		}{
			{rollup.SeenQuery{Kind: "user", Prefix: "al"}, "al% Alan alice"},
			{rollup.SeenQuery{Kind: "user", Prefix: "AL", After: "al%"}, "Alan alice"},
			{rollup.SeenQuery{Kind: "user", Prefix: "al", After: "Alan"}, "alice"},
			{rollup.SeenQuery{Kind: "user", Prefix: "al", Limit: 1}, "al%"},
			{rollup.SeenQuery{Kind: "user", Prefix: "al%"}, "al%"},
			{rollup.SeenQuery{Kind: "user", Prefix: "ä"}, "älan"},
			{rollup.SeenQuery{Kind: "user", Prefix: "lan"}, ""},
			{rollup.SeenQuery{Kind: "ip", Prefix: "192.0."}, "192.0.2.1 192.0.2.10"},
			{rollup.SeenQuery{Kind: "tenant", Prefix: ""}, ""},
		} {
			if got := names(c.SeenQuery); got != c.want {
				t.Errorf("%+v: %q, want %q", c.SeenQuery, got, c.want)
			}
		}
		if _, err := s.Seen(t.Context(), rollup.SeenQuery{Kind: "country"}); err == nil {
			t.Error("a kind that does not exist")
		}

		// After 90 days they are forgotten.
		later := recordtest.Store(t, db, recordtest.At(now.Add(100*24*time.Hour)))
		recordtest.Write(t, later, event(7, -100*24*time.Hour+time.Hour, "carol", ""))
		rollUp(t, later)
		if got := names(rollup.SeenQuery{Kind: "ip"}); got != "" {
			t.Errorf("after 100 days: %q", got)
		}
	})
}

// TestSeenBounds has more names than are written of a minute, remembered, or kept.
func TestSeenBounds(t *testing.T) {
	t.Cleanup(rollup.SetSeen(10, 15, 20))
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	testdatabase.Each(t, func(t *testing.T, url string) {
		t.Helper()
		db := recordtest.Open(t, url)
		s := recordtest.Store(t, db, recordtest.At(now))
		for minute := range 6 {
			var events []record.Event
			for n := range 30 {
				e := recordtest.Denial(n, now.Add(-time.Hour+time.Duration(minute)*time.Minute))
				e.User, e.Tenant, e.Key, e.IP = fmt.Sprintf("user%02d", n), "", "", ""
				events = append(events, e)
			}
			recordtest.Write(t, s, events...)
			rollUp(t, s)
			if n := recordtest.Count(t, db.Record, "SELECT count(*) FROM stint_seen"); n > int64(10*(minute+1)) {
				t.Errorf("%d names after %d minutes", n, minute+1)
			}
		}
		next := recordtest.Store(t, db, recordtest.At(now.Add(24*time.Hour)))
		rollUp(t, next)
		all, err := next.Seen(t.Context(), rollup.SeenQuery{Kind: "user"})
		if err != nil || len(all) > 20 || len(all) == 0 {
			t.Errorf("%d are kept: %v, %v", len(all), all, err)
		}
		if !slices.IsSortedFunc(all, func(a, b rollup.Seen) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("%v", all)
		}
	})
}
