package catalog_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

// raise is a write of another program, that says what it has written.
func raise(kind, id string) []string {
	stamp := strconv.FormatUint(rand.Uint64(), 10)
	return []string{
		"UPDATE stint_catalog SET revision = revision + 1, stamp = '" + stamp + "'",
		`INSERT INTO stint_changes (revision, place, stamp, at, actor, kind, subject)
			SELECT c.revision, 0, c.stamp, (SELECT max(at) FROM stint_changes), 'another', '` + kind + "', '" + id + "' FROM stint_catalog c",
	}
}

// restored is what a backup does, of when the database was at a revision.
func restored(revision int64) []string {
	n := strconv.FormatInt(revision, 10)
	return []string{
		"DELETE FROM stint_changes WHERE revision > " + n,
		"UPDATE stint_catalog SET revision = " + n + ", stamp = (SELECT stamp FROM stint_changes WHERE revision = " + n + " LIMIT 1)",
	}
}

func TestSetBack(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := furnished(t, url) // revision 1
			grade(t, c, "ann", "gold")
			grade(t, c, "ben", "gold")
			f := follow(t, url, catalog.Options{}, catalog.NodeOptions{Poll: often})
			at := ban(t, c, "eve")
			f.serves(t, at)
			f.knows(t, "ann", "gold")
			refuses := func() {
				t.Helper()
				wait.Nil(t, "the refusal", func() error {
					if p := f.Status().Problem; !strings.Contains(p, "is at revision 2, and was at 4") {
						return fmt.Errorf("problem %q", p)
					}
					return nil
				})
				f.looksOn(t)
				if s := f.Status(); s.Revision != at || !banned(f.last(), "eve") {
					t.Errorf("it serves %d, want what it served before", s.Revision)
				}
			}

			// Back, and forth again: nothing was lost.
			execute(t, c, "UPDATE stint_catalog SET revision = 2")
			refuses()
			execute(t, c, "UPDATE stint_catalog SET revision = 4")
			f.serves(t, at)

			// Back for good.
			execute(t, c, append(restored(2), "DELETE FROM stint_bans", `UPDATE stint_users SET body = '{"id":"ann"}' WHERE id = 'ann'`)...)
			refuses()
			f.knows(t, "ann", "gold")
			if err := f.Look(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.serves(t, 2)
			if banned(f.last(), "eve") {
				t.Error("the ban of the other history is in use")
			}
			f.knows(t, "ann", "")
		})
	}
}

// TestHistoriesApart is a database that went back, and then on: its revision is above
// that which is served, but is of another history.
func TestHistoriesApart(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := testredis.Start(t)
			c := furnished(t, url)
			f := follow(t, url, catalog.Options{Side: side(t, redis)}, catalog.NodeOptions{Poll: often})
			ban(t, c, "eve")
			f.serves(t, grade(t, c, "ann", "gold"))
			f.knows(t, "ann", "gold")
			f.knows(t, "ben", "iron")
			execute(t, c, append(restored(1), "DELETE FROM stint_bans", `UPDATE stint_users SET body = '{"id":"ann","tier":"iron"}' WHERE id = 'ann'`)...)
			grade(t, c, "ben", "gold") // that is all that the log tells
			ban(t, c, "mallory")
			grade(t, c, "ben", "iron")
			grade(t, c, "ben", "gold")
			f.refuses(t, "it is at revision 5, which is not a later one of revision 3")
			f.looksOn(t)
			if s := f.last(); !banned(s, "eve") || banned(s, "mallory") {
				t.Error("rules are not those of the history that was served")
			}
			f.knows(t, "ann", "gold")
			f.serves(t, accept(t, c))
			if s := f.last(); banned(s, "eve") || !banned(s, "mallory") {
				t.Error("rules are not those of the new history")
			}
			f.knows(t, "ben", "gold")
			f.knows(t, "ann", "iron") // also not from the side

			// Someone has raised the revision, and not said why.
			execute(t, c, `UPDATE stint_users SET body = '{"id":"ann"}' WHERE id = 'ann'`, "UPDATE stint_catalog SET revision = revision + 1")
			f.knows(t, "ann", "")
		})
	}
}

func TestBrokenRule(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, body string
		want       []string
		readable   bool // so that users can be checked by it
	}{
		{"does not compile", `{"name":"base","count_by":["user"],"limits":[{"name":"requests","limit":"zz"}]}`, []string{`rule "base".limits[0].limit`, "zz"}, true},
		{"unknown condition", `{"name":"base","match":{"hours":["9-17"]},"limits":[{"name":"requests","limit":"1/1s"}]}`, []string{`rule "base"`, "hours"}, true},
		{"another shape", `{"name":"base","limits":5}`, []string{`rule "base"`, "limits"}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for name, url := range urls(t) {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					c := furnished(t, url)
					f := follow(t, url, catalog.Options{}, catalog.NodeOptions{Poll: often})
					f.knows(t, "ann", "iron")
					before := f.last()
					execute(t, c, append(raise("rule", "base"), "UPDATE stint_rules SET version = (SELECT revision FROM stint_catalog), body = '"+row.body+"'")...)
					wait.Nil(t, "the problem", func() error {
						for _, want := range row.want {
							if p := f.Status().Problem; !strings.Contains(p, want) {
								return fmt.Errorf("problem %q, want %s", p, want)
							}
						}
						return nil
					})
					loads := f.Status().Loads
					f.looksOn(t)
					if now := f.Status(); now.Loads != loads || now.Away != nil || f.last() != before {
						t.Errorf("after some looks %d loads, before %d; away %v", now.Loads, loads, now.Away)
					}
					if row.readable {
						grade(t, c, "ann", "gold")
					} else {
						execute(t, c, append(raise("user", "ann"), `UPDATE stint_users SET body = '{"id":"ann","tier":"gold"}' WHERE id = 'ann'`)...)
					}
					f.knows(t, "ann", "gold")
					if f.Status().Problem == "" || f.last() != before {
						t.Error("it is served for a user that was changed")
					}

					if err := c.Rules.Delete(t.Context(), writer, "base", 2); err != nil {
						t.Fatal(err)
					}
					revision, err := c.Rules.Create(t.Context(), writer, base("7/1m"))
					if err != nil {
						t.Fatal(err)
					}
					f.serves(t, revision)
					if s := f.last(); s.Rules.Len() != 1 || f.Status().Problem != "" {
						t.Errorf("repaired, it serves %d rules, problem %q", s.Rules.Len(), f.Status().Problem)
					}
				})
			}
		})
	}
}

// TestBrokenLists are entries and tiers of a newer program.
func TestBrokenLists(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := furnished(t, url)
			ban(t, c, "eve")
			f := follow(t, url, catalog.Options{}, catalog.NodeOptions{Poll: often})
			for _, row := range []struct{ kind, id, table, body, back string }{
				{"ban", "user:eve", "stint_bans", `{"user":"eve","on":["/admin"]}`, `{"user":"eve"}`},
				{"tier", "gold", "stint_tiers", `{"name":"gold","inherits":"iron"}`, `{"name":"gold"}`},
			} {
				write := func(body string) {
					execute(t, c, append(raise(row.kind, row.id), "UPDATE "+row.table+" SET version = (SELECT revision FROM stint_catalog), body = '"+body+"' WHERE id = '"+row.id+"'")...)
				}
				write(row.body)
				wait.Nil(t, "the problem", func() error {
					if p := f.Status().Problem; !strings.Contains(p, row.kind+` "`+row.id+`"`) {
						return fmt.Errorf("problem %q, want the %s", p, row.kind)
					}
					return nil
				})
				write(row.back)
				wait.Nil(t, "the end of the problem", func() error {
					if p := f.Status().Problem; p != "" {
						return errors.New(p)
					}
					return nil
				})
			}
		})
	}
}

// TestBrokenHistory has a node meet another history whose rules cannot be read: what is
// served when they can be again is all of that history.
func TestBrokenHistory(t *testing.T) {
	t.Parallel()
	f := follow(t, testdatabase.SQLite(t), catalog.Options{}, catalog.NodeOptions{Poll: often})
	at, err := f.c.Rules.Create(t.Context(), writer, catalog.Rule{Name: "one", Action: rule.Block, Response: rule.Response{Message: "ours"}})
	if err != nil {
		t.Fatal(err)
	}
	f.serves(t, at)
	execute(t, f.c, append(raise("rule", "two"),
		fmt.Sprintf(`UPDATE stint_changes SET stamp = 'other' WHERE revision = %d`, at),
		`UPDATE stint_rules SET body = '{"name": "one", "action": "block", "response": {"message": "theirs"}}'`,
		`INSERT INTO stint_rules (id, body, version, created_at, updated_at, updated_by) SELECT 'two', '{"name": "two", "news": 1}', version + 1, created_at, updated_at, updated_by FROM stint_rules`)...)
	f.refuses(t, "it is at revision 2")
	if err := f.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "news") {
		t.Fatal(err)
	}
	execute(t, f.c, append(raise("rule", "two"), `UPDATE stint_rules SET body = '{"name": "two", "action": "block"}', version = version + 1 WHERE id = 'two'`)...)
	f.serves(t, at+2)
	if one := f.last().Rules.Rules()[0]; one.Name != "one" || one.Message != "theirs" {
		t.Errorf("%s says %q, which is of the history before", one.Name, one.Message)
	}
}
