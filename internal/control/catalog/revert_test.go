package catalog_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/rule"
)

// TestRevertHistory applies documents at random, to both databases, and then reverts what
// they have changed, the newest first: each time, everything is as it was.
func TestRevertHistory(t *testing.T) {
	t.Parallel()
	all := []*catalog.Catalog{open(t, testdatabase.SQLite(t)), open(t, testdatabase.Postgres(t))}
	rapid.Check(t, func(r *rapid.T) {
		export := func(c *catalog.Catalog) string {
			d, err := c.Export(t.Context(), catalog.ExportOptions{Users: true})
			if err != nil {
				r.Fatal(err)
			}
			text, err := json.Marshal(d)
			if err != nil {
				r.Fatal(err)
			}
			return string(text)
		}
		type moment struct {
			revision int64
			before   string
		}
		var history []moment
		for range rapid.IntRange(1, 5).Draw(r, "writes") {
			d := drawHouse(r)
			prune, before := rapid.Bool().Draw(r, "prune") && !d.Empty(), export(all[0])
			var diffs []string
			for _, c := range all {
				diff, err := c.Apply(t.Context(), d, catalog.ApplyOptions{Actor: "ann", Prune: prune})
				if status := catalog.Status(err); status != 200 && status != 422 {
					r.Fatal(err)
				}
				diffs = append(diffs, fmt.Sprint(diff, err))
				if c == all[0] && len(diff.Items) > 0 {
					history = append(history, moment{diff.Revision, before})
				}
			}
			if diffs[0] != diffs[1] {
				r.Fatalf("SQLite says %s, PostgreSQL %s", diffs[0], diffs[1])
			}
		}
		for i := len(history) - 1; i >= 0; i-- {
			for _, c := range all {
				diff, err := c.Revert(t.Context(), catalog.RevertOptions{Actor: "bob", Revision: history[i].revision})
				if err != nil || len(diff.Items) == 0 {
					r.Fatalf("revision %d: %+v, %v", history[i].revision, diff, err)
				}
				if now := export(c); now != history[i].before {
					r.Fatalf("revision %d: reverted is\n%s\nwant\n%s", history[i].revision, now, history[i].before)
				}
			}
		}
		for _, actor := range []string{"", "bob"} {
			var logs []string
			for _, c := range all {
				items, next, err := c.Changes(t.Context(), catalog.ChangeQuery{Actor: actor, Limit: 30})
				for i := range items {
					items[i].At = items[i].At.Truncate(1e15) // each has its own
				}
				text, jsonErr := json.Marshal(items)
				if err != nil || jsonErr != nil {
					r.Fatal(err, jsonErr)
				}
				logs = append(logs, string(text)+next)
			}
			if logs[0] != logs[1] {
				r.Fatalf("SQLite has logged\n%s\nPostgreSQL\n%s", logs[0], logs[1])
			}
		}
	})
}

// drawHouse returns one whose things refer to each other, mostly to what there is.
func drawHouse(r *rapid.T) *catalog.Document {
	d := &catalog.Document{}
	some := func(what string) bool { return rapid.IntRange(0, 2).Draw(r, what) > 0 }
	n := rapid.IntRange(1, 9)
	for _, name := range []string{"a", "b"} {
		if some("tier") {
			d.Tiers = append(d.Tiers, rule.Tier{Name: name, Price: strconv.Itoa(n.Draw(r, "price"))})
		}
		if some("rule") {
			d.Rules = append(d.Rules, rule.Rule{
				Name: name, Match: rule.Match{Paths: []string{"/" + name}}, CountBy: []rule.Dimension{"user"},
				Limits: []rule.Limit{{Name: name, Limit: fmt.Sprint(n.Draw(r, "limit"), "/1s")}},
			})
		}
	}
	names := rapid.SampledFrom([]string{"a", "b"})
	tier := func() string {
		if len(d.Tiers) == 0 || !some("has a tier") {
			return ""
		}
		return rapid.SampledFrom(d.Tiers).Draw(r, "tier").Name
	}
	for _, name := range []string{"u", "v"} {
		if some("tenant") {
			d.Tenants = append(d.Tenants, catalog.Tenant{ID: name, Tier: tier()})
		}
		if some("user") {
			u := catalog.User{ID: name, Tier: tier()}
			if some("override") {
				u.Limits = map[string]catalog.Override{names.Draw(r, "override of"): {Limit: fmt.Sprint(n.Draw(r, "override"), "/1m")}}
			}
			d.Users = append(d.Users, u)
		}
		if some("key") && len(d.Users) > 0 {
			owner := rapid.SampledFrom(d.Users).Draw(r, "owner").ID
			hash := "sha256:" + strings.Repeat(map[string]string{"u": "a", "v": "b"}[name], 63) + strconv.Itoa(n.Draw(r, "hash"))
			d.APIKeys = append(d.APIKeys, catalog.APIKey{ID: "keykeykey" + name, User: owner, Tier: tier(), Hash: hash})
		}
		if some("ban") {
			d.Bans = append(d.Bans, catalog.Entry{User: name, Reason: strconv.Itoa(n.Draw(r, "reason"))})
		}
	}
	return d
}
