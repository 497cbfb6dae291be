package catalog_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/rule"
)

// TestWritersKnow has two write to one database, each of which remembers the rules and
// tiers that there were: none may go by what the other has changed since.
func TestWritersKnow(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, other, ctx := furnished(t, url), connect(t, url), t.Context()
			try := func(what string, c *catalog.Catalog, tier, limit string, ok bool) {
				t.Helper()
				set := func(tier string, limits map[string]catalog.Override) error {
					_, err := c.Users.Modify(ctx, writer, "ann", func(u *catalog.User) error {
						u.Tier, u.Limits = tier, limits
						return nil
					})
					return err
				}
				var limits map[string]catalog.Override
				if limit != "" {
					limits = map[string]catalog.Override{limit: {Limit: "7/1m"}}
				}
				if err := set(tier, limits); (err == nil) != ok {
					t.Errorf("%s: %v, want it taken: %v", what, err, ok)
				}
				if err := set("gold", nil); err != nil { // what there is may stay
					t.Fatal(err)
				}
			}
			did := func(_ int64, err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			silver := catalog.Tier{Name: "silver"}
			more := catalog.Rule{Name: "more", CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: "more", Limit: "9/1h"}}}
			for _, c := range []*catalog.Catalog{one, other} {
				try("no tier", c, "silver", "", false)
				try("no limit", c, "gold", "more", false)
			}
			did(other.Tiers.Create(ctx, writer, silver))
			did(other.Rules.Create(ctx, writer, more))
			for _, c := range []*catalog.Catalog{one, other} {
				try("a tier", c, "silver", "", true)
				try("a limit", c, "gold", "more", true)
			}
			if problems, err := one.CheckRule(ctx, more, ""); err != nil || len(problems) != 1 {
				t.Errorf("a rule that there is: %v, %v", problems, err)
			}
			gone, err := one.Rules.Get(ctx, "more")
			did(0, err)
			did(0, one.Rules.Delete(ctx, writer, "more", gone.Version))
			left, err := one.Tiers.Get(ctx, "silver")
			did(0, err)
			did(0, one.Tiers.Delete(ctx, writer, "silver", left.Version))
			for _, c := range []*catalog.Catalog{one, other} {
				try("a tier that is gone", c, "silver", "", false)
				try("a limit that is gone", c, "gold", "more", false)
			}
			if problems, err := other.CheckRule(ctx, more, ""); err != nil || len(problems) != 0 {
				t.Errorf("a rule that is gone: %v, %v", problems, err)
			}
			// What cannot be stored cannot be looked for either.
			if _, err := one.Apply(ctx, &catalog.Document{File: rule.File{Rules: []rule.Rule{{Name: "a\x00b"}}}}, catalog.ApplyOptions{Actor: writer}); !errors.As(err, new(strict.Problems)) {
				t.Errorf("a name that no database takes: %v", err)
			}
			// Nothing of a trial stays.
			did(one.Trial().Tiers.Create(ctx, writer, silver))
			try("a tier that was tried", one, "silver", "", false)
			// A database that was set back has another history.
			execute(t, one, `UPDATE stint_changes SET stamp = 'other'`, `UPDATE stint_catalog SET stamp = 'other'`,
				`INSERT INTO stint_tiers (id, body, version, created_at, updated_at, updated_by) SELECT 'silver', '{"name": "silver"}', version, created_at, updated_at, updated_by FROM stint_tiers WHERE id = 'gold'`)
			for _, c := range []*catalog.Catalog{one, other} {
				try("a tier of another history", c, "silver", "", true)
			}
		})
	}
}

// BenchmarkWrite writes users, and rules, where there are ten thousand rules.
func BenchmarkWrite(b *testing.B) {
	url := testpostgres.Start(b).Database(b)
	c := open(b, url)
	testpostgres.Exec(b, url, `insert into stint_rules select 'rule' || n, jsonb_build_object('name', 'rule' || n, 'match', jsonb_build_object('paths', jsonb_build_array('/area' || n % 100 || '/thing' || n)),
		'count_by', jsonb_build_array('user'), 'limits', jsonb_build_array(jsonb_build_object('name', 'limit', 'limit', '100/1h'))), 1, now(), now(), 'test' from generate_series(1, 10000) n`)
	if _, err := c.Tiers.Create(b.Context(), writer, catalog.Tier{Name: "gold"}); err != nil {
		b.Fatal(err)
	}
	users, rules := 0, 0
	b.Run("user", func(b *testing.B) {
		for b.Loop() {
			users++
			if _, err := c.Users.Create(b.Context(), writer, catalog.User{ID: fmt.Sprintf("user%d", users), Tier: "gold"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("rule", func(b *testing.B) {
		for b.Loop() {
			rules++
			_, err := c.Rules.Modify(b.Context(), writer, "rule1", func(r *catalog.Rule) error {
				r.Limits[0].Limit = fmt.Sprintf("%d/1h", rules+1000)
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
