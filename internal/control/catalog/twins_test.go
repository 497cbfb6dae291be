package catalog_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/rule"
)

// twin is one of two databases that are told the same.
type twin struct {
	*catalog.Catalog
	t *testing.T
}

// outcome is what became of a write.
type outcome struct {
	version int64
	status  int
	text    string
}

func of(version int64, err error) outcome {
	o := outcome{version: version, status: catalog.Status(err)}
	if err != nil {
		o.version, o.text = 0, err.Error()
	}
	return o
}

// write does one of the writes to a table.
func write[T any](t *testing.T, table *catalog.Table[T], how int, id string, value T, seen int64) outcome {
	t.Helper()
	ctx := t.Context()
	switch how {
	case 0:
		return of(table.Create(ctx, "ann", value))
	case 1:
		return of(table.Update(ctx, "bob", value, seen))
	case 2:
		return of(0, table.Delete(ctx, "cid", id, seen))
	default:
		return of(table.Modify(ctx, "dee", id, func(v *T) error { *v = value; return nil }))
	}
}

// TestTwinsAgree writes the same, at random, to both databases and to a model of users and
// bans: results, errors and lists have to be the same.
func TestTwinsAgree(t *testing.T) {
	t.Parallel()
	small, large := twin{open(t, testdatabase.SQLite(t)), t}, twin{open(t, testdatabase.Postgres(t)), t}
	type record struct {
		version int64
		value   catalog.User
	}
	model := map[string]record{} // of users; what it is built on carries over from one run to the next
	rapid.Check(t, func(r *rapid.T) {
		names := rapid.SampledFrom([]string{"a", "b", "é", "a%", "'", "a\x00", "\xff", ""})
		tiers := rapid.SampledFrom([]string{"", "", "gold", "free", "gone"})
		limits := rapid.SampledFrom([]map[string]catalog.Override{nil, {"x": {Limit: "1/1s"}}, {"y": {Limit: "unlimited"}}, {"x": {Limit: "no"}}})
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			how, name, tier := rapid.IntRange(0, 3).Draw(r, "how"), names.Draw(r, "name"), tiers.Draw(r, "tier")
			// Mostly what was seen is what there is.
			pick := rapid.IntRange(0, 4).Draw(r, "stale")
			seen := func(found int64, err error) int64 {
				if err != nil || pick == 0 {
					return int64(pick + 1)
				}
				return found
			}
			kind := rapid.IntRange(0, 4).Draw(r, "kind")
			values := limits.Draw(r, "limits")
			blocked := rapid.Bool().Draw(r, "blocked")
			do := func(c twin) outcome {
				switch kind {
				case 0, 1:
					found, err := c.Users.Get(t.Context(), name)
					u := catalog.User{ID: name, Tier: tier, Limits: values}
					if blocked {
						u.Blocked = &catalog.Blocked{Reason: name}
					}
					return write(t, c.Users, how, name, u, seen(found.Version, err))
				case 2:
					found, err := c.Tiers.Get(t.Context(), tier)
					v := catalog.Tier{Name: tier}
					if values != nil {
						v.Limits = map[string]string{slices.Collect(maps.Keys(values))[0]: "7/1s"}
					}
					return write(t, c.Tiers, how, tier, v, seen(found.Version, err))
				case 3:
					id := map[bool]string{true: "x", false: "y"}[blocked]
					found, err := c.Rules.Get(t.Context(), id)
					v := catalog.Rule{Name: id, Match: rule.Match{Paths: []string{"/" + id}}, Limits: []rule.Limit{{Name: id, Limit: fmt.Sprint(pick, "/1m")}}}
					if tier != "" {
						v.Match.Tiers = []string{tier}
					}
					return write(t, c.Rules, how, id, v, seen(found.Version, err))
				default:
					id := "keykeykey" + strings.ToUpper(tier)
					found, err := c.APIKeys.Get(t.Context(), id)
					v := catalog.APIKey{ID: id, User: name, Hash: "sha256:" + strings.Repeat(strconv.Itoa(pick), 64)}
					return write(t, c.APIKeys, how, id, v, seen(found.Version, err))
				}
			}
			a, b := do(small), do(large)
			if a != b {
				r.Fatalf("SQLite says %+v, PostgreSQL says %+v", a, b)
			}
			if a.status == 500 || a.status == 503 {
				r.Fatalf("it failed: %+v", a)
			}
			if kind < 2 {
				was, there := model[name]
				switch {
				case a.status != 200 && how == 0 && there && a.status != 409, a.status == 200 && how == 0 && there, a.status == 200 && how > 0 && !there:
					r.Fatalf("there was %+v, %v, and the write %d got %+v", was, there, how, a)
				case a.status != 200:
				case how == 2:
					delete(model, name)
				default:
					u, err := small.Users.Get(t.Context(), name)
					if err != nil || u.Version != a.version || u.Value.Tier != tier || a.version < was.version {
						r.Fatalf("wrote %+v after %+v: got %+v, %v", a, was, u, err)
					}
					model[name] = record{a.version, u.Value}
				}
			}
		}
		agree(t, r, small.Users, large.Users, "tier")
		agree(t, r, small.Tiers, large.Tiers, "")
		agree(t, r, small.Rules, large.Rules, "")
		agree(t, r, small.APIKeys, large.APIKeys, "user_id")
		list, err := small.Users.List(t.Context(), catalog.Query{})
		if err != nil || len(list) != len(model) {
			r.Fatalf("there are %d users, %v, want %d", len(list), err, len(model))
		}
		for _, u := range list {
			if m := model[u.Value.ID]; m.version != u.Version || !reflect.DeepEqual(m.value, u.Value) {
				r.Fatalf("got %+v, want %+v", u, m)
			}
		}
	})
}

// agree compares tables, by several queries.
func agree[T any](t *testing.T, r *rapid.T, a, b *catalog.Table[T], filter string) {
	t.Helper()
	queries := []catalog.Query{{}, {Prefix: "a", Limit: 2}}
	if filter != "" {
		queries = append(queries, catalog.Query{Filters: map[string]string{filter: "gold"}})
	}
	for _, q := range queries {
		text := func(table *catalog.Table[T]) string {
			list, err := table.List(t.Context(), q)
			var out []any
			for i := range list {
				out = append(out, list[i].Value, list[i].Version, list[i].By)
			}
			body, jsonErr := json.Marshal(out)
			if jsonErr != nil {
				r.Fatal(jsonErr)
			}
			return fmt.Sprint(string(body), err)
		}
		if x, y := text(a), text(b); x != y {
			r.Fatalf("%+v: SQLite has %s, PostgreSQL has %s", q, x, y)
		}
	}
}
