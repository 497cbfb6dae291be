package catalog_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

// refuses waits until a node refuses the history, with a text.
func (f *follower) refuses(t testing.TB, text string) {
	t.Helper()
	wait.Nil(t, "the refusal", func() error {
		if s := f.Status(); !s.Refused || !strings.Contains(s.Problem, text) {
			return fmt.Errorf("refused: %v, problem %q, away: %w", s.Refused, s.Problem, s.Away)
		}
		return nil
	})
}

// accept accepts the history, and returns the revision of that.
func accept(t testing.TB, c *catalog.Catalog) int64 {
	t.Helper()
	d, err := c.Apply(t.Context(), &catalog.Document{}, catalog.ApplyOptions{Actor: writer, AcceptHistory: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Items) != 1 || d.Items[0].Kind != "history" {
		t.Errorf("accepted with %+v", d.Items)
	}
	return d.Revision
}

// emptied is what is left of a database after everything in it was deleted.
var emptied = append([]string{
	"DELETE FROM stint_api_keys", "DELETE FROM stint_users", "DELETE FROM stint_tenants", "DELETE FROM stint_rules", "DELETE FROM stint_tiers",
	"DELETE FROM stint_bans", "DELETE FROM stint_exemptions", "DELETE FROM stint_tokens", "DELETE FROM stint_changes",
}, "UPDATE stint_catalog SET revision = 0, stamp = ''")

// TestRefusedAtStart starts a node on a database that does not continue the history of its
// last good rules: they serve, and stay on disk, until someone accepts the database.
func TestRefusedAtStart(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, want string
		lose       func(t *testing.T, c *catalog.Catalog)
	}{
		{"emptied", "it is at revision 0, and was at 3", func(t *testing.T, c *catalog.Catalog) { t.Helper(); execute(t, c, emptied...) }},
		{"set back", "it is at revision 1, and was at 3", func(t *testing.T, c *catalog.Catalog) {
			t.Helper()
			execute(t, c, append(restored(1), "DELETE FROM stint_bans")...)
		}},
		{"set back, and written to", "it is at revision 5, which is not a later one of revision 3", func(t *testing.T, c *catalog.Catalog) {
			t.Helper()
			execute(t, c, append(restored(1), "DELETE FROM stint_bans")...)
			for _, user := range []string{"u1", "u2", "u3", "u4"} {
				ban(t, c, user)
			}
		}},
		{"the same revision of another history", "it is at revision 3, which is not a later one of revision 3", func(t *testing.T, c *catalog.Catalog) {
			t.Helper()
			execute(t, c, append(restored(1), "DELETE FROM stint_bans")...)
			ban(t, c, "u1")
			ban(t, c, "u2")
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for name, url := range urls(t) {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					c, dir := furnished(t, url), t.TempDir()
					node := catalog.NodeOptions{LastGood: dir, Poll: often}
					f := follow(t, url, catalog.Options{}, node)
					f.serves(t, ban(t, c, "eve"))
					f.serves(t, grade(t, c, "ann", "gold")) // which is no rule, but is on disk as well
					f.stop()
					if err := c.CheckHistory(t.Context(), dir); err != nil {
						t.Errorf("it would be refused: %v", err)
					}
					row.lose(t, c)
					if err := c.CheckHistory(t.Context(), dir); !errors.As(err, new(*catalog.HistoryError)) {
						t.Errorf("it would not be refused: %v", err)
					}
					for range 2 { // the first start has not overwritten anything
						f = follow(t, url, catalog.Options{}, node)
						f.refuses(t, row.want)
						f.looksOn(t)
						if s := f.Status(); s.Revision != 3 || s.Saved.IsZero() || !banned(f.last(), "eve") || f.last().Rules.Len() != 1 {
							t.Errorf("it serves %d, which is not the last good: %+v", s.Revision, s)
						}
						f.stop()
					}
					// Of what is refused, nothing is used: an emptied database knows no keys.
					f = follow(t, url, catalog.Options{}, node)
					if _, err := f.Directory().Key(t.Context(), "some"); !errors.Is(err, catalog.ErrUnavailable) {
						t.Errorf("a key: %v", err)
					}
					// A node that has followed nothing yet takes what is there.
					fresh := follow(t, url, catalog.Options{}, catalog.NodeOptions{LastGood: t.TempDir(), Poll: often})
					if s := fresh.Status(); s.Refused || s.Problem != "" {
						t.Errorf("a new node: %+v", s)
					}
					at := accept(t, c)
					f.serves(t, at)
					fresh.serves(t, at)
					if banned(f.last(), "eve") {
						t.Error("what was accepted is not in use")
					}
					f.stop()
					follow(t, url, catalog.Options{}, node).serves(t, at)
				})
			}
		})
	}
}

// TestAcceptedOnce restores a backup that has an acceptance in it: it is not one of the
// backup.
func TestAcceptedOnce(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, dir := furnished(t, url), t.TempDir()
			node := catalog.NodeOptions{LastGood: dir, Poll: often}
			f := follow(t, url, catalog.Options{}, node)
			f.serves(t, accept(t, c)) // 2: there was nothing to accept
			f.serves(t, ban(t, c, "eve"))
			f.serves(t, ban(t, c, "mallory"))
			execute(t, c, restored(3)...)
			f.refuses(t, "it is at revision 3, and was at 4")
			f.stop()
			f = follow(t, url, catalog.Options{}, node)
			f.refuses(t, "it is at revision 3, and was at 4")
			f.serves(t, accept(t, c)) // 4 again
			f.serves(t, ban(t, c, "u1"))
			// Before the first acceptance, and after it only in part.
			execute(t, c, restored(1)...)
			f.refuses(t, "it is at revision 1, and was at 5")
			f.serves(t, accept(t, c))
		})
	}
}

// TestWritesWhileRefused says that what is written would not be in use, rather than to
// store it and be silent. Tokens are needed to sign in.
func TestWritesWhileRefused(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := furnished(t, url)
			f := follow(t, url, catalog.Options{}, catalog.NodeOptions{Poll: often})
			f.serves(t, ban(t, c, "eve"))
			execute(t, c, emptied...)
			f.refuses(t, "it is at revision 0, and was at 2")
			ctx, d := t.Context(), &catalog.Document{File: rule.File{Rules: []rule.Rule{base("5/1m")}}}
			_, err := f.c.Bans.Create(ctx, writer, catalog.Entry{User: "mallory"})
			if !errors.As(err, new(*catalog.HistoryError)) || catalog.Status(err) != http.StatusServiceUnavailable {
				t.Errorf("a ban: %v", err)
			}
			if _, err = f.c.Apply(ctx, d, catalog.ApplyOptions{Actor: writer}); catalog.Status(err) != http.StatusServiceUnavailable || !strings.Contains(err.Error(), "--accept-history") {
				t.Errorf("a document: %v", err)
			}
			if _, _, err = f.c.CreateToken(ctx, writer, catalog.Token{Name: "ops", Role: catalog.Administrator}); err != nil {
				t.Errorf("a token: %v", err)
			}
			// Another process learns it from what the node reports.
			wait.Nil(t, "the report of the refusal", func() error {
				nodes, err := c.Nodes(ctx, time.Hour)
				if err == nil && (len(nodes) != 1 || !nodes[0].RefusesHistory()) {
					err = fmt.Errorf("nodes report %+v", nodes)
				}
				return err
			})
			if _, err = c.Apply(ctx, d, catalog.ApplyOptions{Actor: writer}); catalog.Status(err) != http.StatusServiceUnavailable || !strings.Contains(err.Error(), "--accept-history") {
				t.Errorf("a document of another process: %v", err)
			}
			done, err := f.c.Apply(ctx, d, catalog.ApplyOptions{Actor: writer, AcceptHistory: true})
			if err != nil {
				t.Fatal(err)
			}
			f.serves(t, done.Revision)
			if f.last().Rules.Len() != 1 || banned(f.last(), "eve") {
				t.Error("what was applied is not in use")
			}
			f.serves(t, ban(t, f.c, "mallory"))
			// It can be seen, and what was applied with it can be reverted.
			changes, _, err := c.Changes(ctx, catalog.ChangeQuery{Kind: "history"})
			if err != nil || len(changes) != 1 || changes[0].Revision != done.Revision {
				t.Errorf("logged: %+v, %v", changes, err)
			}
			if _, err := c.Revert(ctx, catalog.RevertOptions{Actor: writer, Revision: done.Revision}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNoTables drops everything while a node runs. It creates nothing, so that a backup can
// be restored, until it is told to.
func TestNoTables(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := furnished(t, url)
			f := follow(t, url, catalog.Options{}, catalog.NodeOptions{Poll: often, Migrate: true})
			f.serves(t, ban(t, c, "eve"))
			if _, err := c.Down(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			f.refuses(t, "it has no tables of Stint, and was at revision 2")
			f.looksOn(t)
			if s, err := c.Schema(t.Context()); err != nil || s.Current != 0 || !banned(f.last(), "eve") {
				t.Errorf("the schema is at %d, %v", s.Current, err)
			}
			if _, err := f.c.Bans.Create(t.Context(), writer, catalog.Entry{User: "mallory"}); !errors.As(err, new(*catalog.HistoryError)) {
				t.Errorf("a ban: %v", err)
			}
			if err := f.Look(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.serves(t, 0)
			if banned(f.last(), "eve") {
				t.Error("the ban is still in use")
			}
			f.serves(t, ban(t, c, "mallory"))
		})
	}
}

// TestReplacedFile replaces the file of a database by one of another history, and puts it
// back.
func TestReplacedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, kept := filepath.Join(dir, "stint.db"), filepath.Join(dir, "kept.db")
	other := furnished(t, "sqlite:"+filepath.Join(dir, "other.db"))
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	c := furnished(t, "sqlite:"+path)
	f := newFollower(t, "sqlite:"+path, catalog.Options{}, catalog.NodeOptions{}).begin(t) // which does not poll
	f.serves(t, ban(t, c, "eve"))
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	move(path, kept)
	wait.Nil(t, "that the file is missed", func() error {
		if s := f.Status(); !errors.Is(s.Away, catalog.ErrMoved) {
			return fmt.Errorf("away: %w", s.Away)
		}
		return nil
	})
	if _, err := f.c.Bans.Create(t.Context(), writer, catalog.Entry{User: "u1"}); !errors.Is(err, catalog.ErrMoved) || catalog.Status(err) != http.StatusServiceUnavailable {
		t.Errorf("a ban: %v", err)
	}
	move(filepath.Join(dir, "other.db"), path)
	f.refuses(t, "it is at revision 1, and was at 2")
	if !banned(f.last(), "eve") {
		t.Error("the ban is not in use any more")
	}
	move(kept, path)
	f.serves(t, 2)
	f.serves(t, ban(t, f.c, "mallory"))
	if s := f.last(); !banned(s, "eve") || !banned(s, "mallory") {
		t.Error("a ban is missing")
	}
}
