package catalog_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// TestRevisions lists what was changed together, by object, date and author.
func TestRevisions(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
			now := start
			c, err := catalog.Open(url, catalog.Options{Now: func() time.Time { return now }})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Up(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			d := &catalog.Document{}
			for i := range 20 {
				d.Users = append(d.Users, catalog.User{ID: fmt.Sprintf("user%02d", i)})
			}
			d.Bans = []catalog.Entry{{User: "mallory"}}
			_, err = c.Apply(t.Context(), d, catalog.ApplyOptions{Actor: "deploy"}) // revision 1
			must(err)
			now = start.Add(24 * time.Hour)
			must(c.LogReset(t.Context(), "ann", "user:user07", "search")) // 2
			now = start.Add(48 * time.Hour)
			_, err = c.Bans.Create(t.Context(), "ann", catalog.Entry{IP: "192.0.2.1"}) // 3
			must(err)
			_, err = c.Users.Modify(t.Context(), "bob", "user07", func(u *catalog.User) error { u.Tenant = "acme"; return nil }) // 4
			must(err)
			_, err = c.Apply(t.Context(), &catalog.Document{Users: []catalog.User{{ID: "new"}}}, catalog.ApplyOptions{Actor: "deploy", DryRun: true})
			must(err)
			_, err = c.Trial().Users.Create(t.Context(), "deploy", catalog.User{ID: "new"})
			must(err)

			list := func(q catalog.ChangeQuery) string {
				t.Helper()
				var out []string
				for {
					all, next, err := c.Revisions(t.Context(), q)
					if err != nil {
						t.Fatal(err)
					}
					for _, r := range all {
						var parts []string
						for _, ch := range r.Changes {
							parts = append(parts, ch.Kind+" "+ch.ID)
							if ch.Revision != r.Revision || ch.Actor != r.Actor {
								t.Errorf("%+v", ch)
							}
						}
						out = append(out, fmt.Sprintf("%d %s %d: %s", r.Revision, r.Actor, r.Total, strings.Join(parts, ", ")))
					}
					if q.Before = next; next == "" {
						return strings.Join(out, "; ")
					}
				}
			}
			const first = "1 deploy 21: "
			apply := first + "user user00, user user01, user user02, user user03, user user04"
			for i, want := range []struct {
				catalog.ChangeQuery
				want string
			}{
				{catalog.ChangeQuery{}, "4 bob 1: user user07; 3 ann 1: ban ip:192.0.2.1; 2 ann 1: counters user:user07; " + apply},
				{catalog.ChangeQuery{Limit: 1}, "4 bob 1: user user07; 3 ann 1: ban ip:192.0.2.1; 2 ann 1: counters user:user07; " + apply},
				{catalog.ChangeQuery{Actor: "ann"}, "3 ann 1: ban ip:192.0.2.1; 2 ann 1: counters user:user07"},
				{catalog.ChangeQuery{Kind: "user", Limit: 1}, "4 bob 1: user user07; " + apply},
				{catalog.ChangeQuery{Kind: "user", ID: "user07"}, "4 bob 1: user user07; " + first + "user user07"},
				{catalog.ChangeQuery{Kind: "user", ID: "user07", Actor: "deploy"}, first + "user user07"},
				{catalog.ChangeQuery{Kind: "ban"}, "3 ann 1: ban ip:192.0.2.1; " + first + "ban user:mallory"},
				{catalog.ChangeQuery{Kind: "counters", ID: "user:user07"}, "2 ann 1: counters user:user07"},
				{catalog.ChangeQuery{From: start.Add(time.Hour), To: start.Add(48 * time.Hour)}, "2 ann 1: counters user:user07"},
				{catalog.ChangeQuery{From: start.Add(48 * time.Hour), Kind: "user"}, "4 bob 1: user user07"},
				{catalog.ChangeQuery{To: start.Add(time.Second)}, apply},
				{catalog.ChangeQuery{To: start}, ""},
				{catalog.ChangeQuery{Actor: "nobody"}, ""},
			} {
				if got := list(want.ChangeQuery); got != want.want {
					t.Errorf("%d: %q, want %q", i, got, want.want)
				}
			}
			parts, next, err := c.Changes(t.Context(), catalog.ChangeQuery{Revision: 1, Limit: 15})
			if err != nil || len(parts) != 15 || next != "1.6" {
				t.Errorf("%d parts, %q, %v", len(parts), next, err)
			}
			if parts, next, err = c.Changes(t.Context(), catalog.ChangeQuery{Revision: 1, Before: next}); err != nil || len(parts) != 6 || next != "" {
				t.Errorf("%d more parts, %q, %v", len(parts), next, err)
			}
			if some, _, err := c.Changes(t.Context(), catalog.ChangeQuery{Actor: "ann", From: start.Add(36 * time.Hour)}); err != nil || len(some) != 1 || some[0].Kind != "ban" {
				t.Errorf("%+v, %v", some, err)
			}
			for _, bad := range []catalog.ChangeQuery{{Limit: 201}, {Limit: -1}, {Kind: "rul"}, {ID: "x"}, {From: start, To: start}, {Revision: -1}, {Actor: "\x00"}, {Before: "x"}} {
				if _, _, err := c.Revisions(t.Context(), bad); catalog.Status(err) != 422 {
					t.Errorf("%+v: %v", bad, err)
				}
			}
		})
	}
}
