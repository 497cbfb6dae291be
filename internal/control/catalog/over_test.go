package catalog_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testdatabase"
)

const overOther = `
[[rules]]
name = "search"
count_by = ["user"]
limits = [ { name = "searches", limit = "10/1m" } ]
[[rules]]
name = "upload"
count_by = ["user"]
limits = [ { name = "uploads", limit = "5/1m" } ]
[[tiers]]
name = "gold"
limits = { searches = "100/1m", uploads = "50/1m" }
[[users]]
id = "alice"
tier = "gold"
[[bans]]
user = "mallory"
`

// TestOver lays documents over another one, as a part and as a whole.
func TestOver(t *testing.T) {
	t.Parallel()
	const changed = "[[rules]]\nname = \"search\"\ncount_by = [\"ip\"]\nlimits = [ { name = \"lookups\", limit = \"20/1m\" } ]\n"
	for _, c := range []struct {
		name, text         string
		whole              bool
		rules, tiers, bans []string
		searches, lookups  bool // values that gold has
	}{
		{"a part", changed, false, []string{"upload", "search"}, []string{"gold"}, []string{"user:mallory"}, false, true},
		{"the whole", changed, true, []string{"search"}, []string{"gold"}, []string{"user:mallory"}, false, false},
		{"nothing", "", false, []string{"search", "upload"}, []string{"gold"}, []string{"user:mallory"}, true, true},
		{"no rules", "", true, nil, []string{"gold"}, []string{"user:mallory"}, false, false},
		{"others", "[[tiers]]\nname = \"free\"\n[[bans]]\nuser = \"eve\"\n", false, []string{"search", "upload"}, []string{"gold", "free"}, []string{"user:mallory", "user:eve"}, true, true},
		{"whole others", changed + "[[tiers]]\nname = \"free\"\n[[bans]]\nuser = \"eve\"\n", true, []string{"search"}, []string{"free"}, []string{"user:eve"}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			other := parse(t, overOther)
			o := parse(t, c.text).Over(other, c.whole)
			var rules, tiers, bans []string
			for _, r := range o.Rules {
				rules = append(rules, r.Name)
			}
			for _, r := range o.Tiers {
				tiers = append(tiers, r.Name)
			}
			for _, b := range o.Bans {
				bans = append(bans, b.ID())
			}
			if !slices.Equal(rules, c.rules) || !slices.Equal(tiers, c.tiers) || !slices.Equal(bans, c.bans) || len(o.Users) != 1 {
				t.Errorf("%v %v %v %v", rules, tiers, bans, o.Users)
			}
			if tiers[0] == "gold" {
				if _, has := o.Tiers[0].Limits["searches"]; has != c.searches {
					t.Error(o.Tiers[0])
				}
				if _, has := o.Tiers[0].Limits["uploads"]; has != c.lookups {
					t.Error(o.Tiers[0])
				}
			}
			if own, caused := o.Check(); len(own)+len(caused) > 0 {
				t.Error(own, caused)
			}
			if !reflect.DeepEqual(other, parse(t, overOther)) {
				t.Error("the other document has changed")
			}
		})
	}
}

// TestOverProblems has the problems of a document at its own places, and those that it causes by the names of others.
func TestOverProblems(t *testing.T) {
	t.Parallel()
	d := parse(t, `
[[rules]]
name = "upload"
count_by = ["nobody"]
limits = [ { name = "uploads", limit = "lots" } ]
[[tiers]]
name = "gold"
limits = { nothing = "1/1m" }
[[bans]]
reason = "who?"
`)
	own, caused := d.Over(parse(t, overOther), false).Check()
	paths := map[string]bool{}
	for _, p := range own {
		paths[p.Path] = true
	}
	want := []string{"bans[0]", "rules[0].count_by[0]", "rules[0].limits[0].limit", "tiers[0].limits.nothing"}
	if got := slices.Sorted(maps.Keys(paths)); !slices.Equal(got, want) || len(caused) > 0 {
		t.Errorf("%v, want %v; %v", got, want, caused)
	}
	// What is whole in itself may still not go together with the rules that stay.
	own, caused = parse(t, "[[rules]]\nname = \"none\"\naction = \"block\"\n").Over(parse(t, overOther), false).Check()
	if len(own) > 0 || len(caused) != 2 || caused[0].Path != `rule "search"` {
		t.Errorf("%v, %v", own, caused)
	}
	own, caused = parse(t, "[[rules]]\nname = \"other\"\nreplaces = \"nobody\"\ncount_by = [\"user\"]\nlimits = [ { name = \"searches\", limit = \"1/1m\" } ]\n").Over(parse(t, overOther), false).Check()
	if len(own) != 1 || own[0].Path != "rules[0].replaces" || len(caused) > 0 {
		t.Errorf("%v, %v", own, caused)
	}
}

// TestPeople reads those of many people that are asked for, the owners of keys, and the tenants of all.
func TestPeople(t *testing.T) {
	t.Parallel()
	c := opened(t, testdatabase.SQLite(t))
	const n = 1200
	d := catalog.Document{Tenants: []catalog.Tenant{{ID: "acme", Name: "Acme"}, {ID: "other", Name: "Other"}}}
	users := map[string]bool{"unknown": true, "\x00": true, "": true}
	for i := range n {
		d.Users = append(d.Users, catalog.User{ID: fmt.Sprint("user-", i), Tenant: "acme"})
		if i < n-100 {
			users[fmt.Sprint("user-", i)] = true
		}
	}
	d.APIKeys = []catalog.APIKey{{ID: "abcdefgh12345678", Hash: "sha256:" + strings.Repeat("ab", 32), User: "user-1199"}}
	if _, err := c.Apply(t.Context(), &d, catalog.ApplyOptions{Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	var got catalog.Document
	if err := c.People(t.Context(), &got, users, map[string]bool{"abcdefgh12345678": true, "": true}, map[string]bool{"": true}); err != nil {
		t.Fatal(err)
	}
	if len(got.Users) != n-100+1 || len(got.APIKeys) != 1 || len(got.Tenants) != 1 || got.Tenants[0].ID != "acme" {
		t.Errorf("%d users, %v, %v", len(got.Users), got.APIKeys, got.Tenants)
	}
	if shared, err := c.Shared(t.Context()); err != nil || len(shared.Users)+len(shared.Tenants) > 0 {
		t.Errorf("%+v %v", shared, err)
	}
}
