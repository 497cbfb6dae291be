package catalog_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	roles := []catalog.Role{catalog.Viewer, catalog.Operator, catalog.Administrator}
	for i, r := range roles {
		for j, other := range roles {
			if r.Includes(other) != (i >= j) {
				t.Errorf("%s includes %s: %v", r, other, r.Includes(other))
			}
		}
		for _, none := range []catalog.Role{"", "root"} {
			if r.Includes(none) || none.Includes(r) || none.Includes(none) {
				t.Errorf("%q is a role", none)
			}
		}
	}
}

// clock is a time that is set.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time         { return time.UnixMicro(c.at.Load()).UTC() }
func (c *clock) after(by time.Duration) { c.at.Add(by.Microseconds()) }

// TestTokensExpire has time pass.
func TestTokensExpire(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var now clock
			now.at.Store(1_700_000_000_000_000)
			c, err := catalog.Open(url, catalog.Options{Now: now.now, Patience: patience})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			ctx := t.Context()
			if _, err := c.Up(ctx, 0); err != nil {
				t.Fatal(err)
			}
			start := now.now()
			text, token, err := c.CreateToken(ctx, writer, catalog.Token{Name: "ann", Role: catalog.Administrator, Expires: start.Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			lasting, _, err := c.CreateToken(ctx, writer, catalog.Token{Name: "ben", Role: catalog.Viewer})
			if err != nil {
				t.Fatal(err)
			}
			begin := func(ttl time.Duration, expires time.Time) string {
				t.Helper()
				text, s, err := c.CreateSession(ctx, token, ttl)
				if err != nil || !s.Expires.Equal(expires) {
					t.Fatalf("a session of %v until %v, %v, want %v", ttl, s.Expires, err, expires)
				}
				return text
			}
			short, long := begin(30*time.Minute, start.Add(30*time.Minute)), begin(2*time.Hour, token.Expires)
			is := func(tokenGood, shortGood, longGood bool) {
				t.Helper()
				_, err1 := c.TokenOf(ctx, text)
				_, err2 := c.SessionOf(ctx, short)
				_, err3 := c.SessionOf(ctx, long)
				some, err4 := c.AnyToken(ctx)
				if err4 != nil || some != tokenGood {
					t.Errorf("any token: %v, %v", some, err4)
				}
				for i, good := range []bool{tokenGood, shortGood, longGood} {
					if err := []error{err1, err2, err3}[i]; good && err != nil || !good && !errors.Is(err, catalog.ErrBadToken) {
						t.Errorf("after %v, %d: got %v, want good: %v", now.now().Sub(start), i, err, good)
					}
				}
				if _, err := c.TokenOf(ctx, lasting); err != nil {
					t.Error(err)
				}
			}
			is(true, true, true)
			now.after(30*time.Minute - time.Microsecond)
			is(true, true, true)
			now.after(time.Microsecond)
			is(true, false, true)
			if n := ask(t, catalog.DB(c), "SELECT count(*) FROM stint_sessions"); n[0] != "2" {
				t.Errorf("there are %s sessions", n[0])
			}
			begin(time.Hour, token.Expires) // which deletes the one that is over
			if n := ask(t, catalog.DB(c), "SELECT count(*) FROM stint_sessions"); n[0] != "2" {
				t.Errorf("there are %s sessions", n[0])
			}
			now.after(30*time.Minute - time.Microsecond)
			is(true, false, true)
			now.after(time.Microsecond)
			is(false, false, false)
			if _, _, err := c.CreateSession(ctx, token, time.Hour); catalog.Status(err) != 422 {
				t.Errorf("a session of a token that is over: %v", err)
			}

			// Its last use is noted once a minute.
			var noted []time.Duration
			for range 8 {
				now.after(25 * time.Second)
				if _, err := c.TokenOf(ctx, lasting); err != nil {
					t.Fatal(err)
				}
				all, err := c.Tokens(ctx)
				if err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(all, func(t catalog.Token) bool { return t.Name == "ben" })
				noted = append(noted, all[i].LastUsed.Sub(start.Add(time.Hour)))
			}
			noted = slices.Compact(noted)
			// The first is the use just before the end of the hour.
			if want := []time.Duration{-time.Microsecond, 75 * time.Second, 150 * time.Second}; !slices.Equal(noted, want) {
				t.Errorf("uses were noted after %v, want %v", noted, want)
			}
		})
	}
}

// TestTokensDisturbNoNode makes and revokes a token: nodes are at its revision, and read
// nothing for it.
func TestTokensDisturbNoNode(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := furnished(t, url)
			f := follow(t, url, catalog.Options{}, catalog.NodeOptions{Poll: often})
			f.knows(t, "ann", "iron")
			before, first, misses := f.Status().Loads, f.last(), f.Lookups()["user"].Misses
			_, made, err := c.CreateToken(t.Context(), writer, catalog.Token{Name: "ann", Role: catalog.Viewer})
			if err != nil {
				t.Fatal(err)
			}
			f.serves(t, 2)
			if err := c.RevokeToken(t.Context(), writer, made.ID); err != nil {
				t.Fatal(err)
			}
			f.serves(t, 3)
			f.knows(t, "ann", "iron")
			if s := f.Status(); s.Loads != before || f.last() != first || s.Problem != "" || f.Lookups()["user"].Misses != misses {
				t.Errorf("rules were read %d times, then %d; users looked up %d times, then %d", before, s.Loads, misses, f.Lookups()["user"].Misses)
			}
			// What is changed next is seen as ever.
			f.serves(t, ban(t, c, "eve"))
			if !banned(f.last(), "eve") {
				t.Error("the ban after it is not in use")
			}
			// A trial is of no one's concern.
			at := f.Status().Revision
			if v, err := f.c.Trial().Bans.Create(t.Context(), writer, catalog.Entry{User: "mallory"}); err != nil || v != at+1 {
				t.Errorf("a trial made %d, %v", v, err)
			}
			f.looksOn(t)
			if f.Status().Revision != at || banned(f.last(), "mallory") {
				t.Error("a trial is in use")
			}
		})
	}
}

// TestNodeState has nodes say how they are.
func TestNodeState(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := furnished(t, url)
			var beats atomic.Int64
			node := func(name string, state func() json.RawMessage) *follower {
				return follow(t, url, catalog.Options{}, catalog.NodeOptions{Name: name, Poll: often, State: state})
			}
			a := node("a", func() json.RawMessage { return fmt.Appendf(nil, `{"beats": %d}`, beats.Add(1)) })
			node("b", nil)
			node("c", func() json.RawMessage { return json.RawMessage(`{"beats"`) })
			node("d", func() json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`) })
			wait.Nil(t, "what all nodes say", func() error {
				nodes, err := c.Nodes(t.Context(), time.Minute)
				if err != nil || len(nodes) != 4 {
					return fmt.Errorf("%d nodes, %w", len(nodes), err)
				}
				var state struct{ Beats int }
				if err := json.Unmarshal(nodes[0].State, &state); err != nil || state.Beats < 3 || nodes[0].ID != a.ID() {
					return fmt.Errorf("%+v, %w", nodes[0], err)
				}
				for _, n := range nodes[1:] {
					if n.State != nil {
						return fmt.Errorf("%s says %s", n.Name, n.State)
					}
				}
				_, err = json.Marshal(nodes)
				return err
			})
		})
	}
}

// TestPagesUseIndexes looks at the plans of what is asked of tables that grow: none may
// read more than it returns.
func TestPagesUseIndexes(t *testing.T) {
	t.Parallel()
	const n = 5000
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, postgres := connect(t, url), name == "postgres"
			if _, err := c.Up(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			first(t, c, postgres, n)
			if _, err := c.Up(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			// One has written most of it, and another a little of everything.
			execute(t, c, "UPDATE stint_changes SET actor = 'bob', kind = CASE WHEN revision % 3 = 0 THEN 'rule' ELSE 'ban' END WHERE revision % 1000 = 0", "ANALYZE")
			type asked struct {
				what  string
				query string
				args  []any
			}
			var all []asked
			for _, q := range []catalog.ChangeQuery{{}, {Kind: "user"}, {Kind: "rule"}, {Kind: "user", ID: "u7"}, {Kind: "user", Actor: "bob"}, {Kind: "rule", Actor: "ann"}} {
				q.Limit = 50
				query, args := q.SQL()
				all = append(all, asked{fmt.Sprintf("%+v", q), query, args})
			}
			list := func(what string, query string, args []any) { all = append(all, asked{what, query, args}) }
			for _, q := range []catalog.Query{{Limit: 20}, {Prefix: "u12", Limit: 20}, {After: "u5", Limit: 20}, {Filters: map[string]string{"tier": "t5"}, Limit: 20}, {Blocked: true, Limit: 20, After: "u5"}} {
				query, args := c.Users.SQL(q)
				list(fmt.Sprintf("users %+v", q), query, args)
			}
			last := catalog.Record[catalog.User]{Value: catalog.User{ID: "u77"}, Created: time.UnixMicro(1700000000000000), Updated: time.UnixMicro(1700000000000000)}
			for _, sort := range []string{"-id", "created_at", "-created_at", "updated_at", "-updated_at"} {
				q := catalog.Query{Limit: 20, Sort: sort}
				for range 2 { // the first page, and the next
					query, args := c.Users.SQL(q)
					list(fmt.Sprintf("users %+v", q), query, args)
					q.After = catalog.Cursor(q, &last, "u77")
				}
			}
			for _, sort := range []string{"name", "-name"} {
				query, args := c.APIKeys.SQL(catalog.Query{Limit: 20, Sort: sort})
				list("keys by "+sort, query, args)
			}
			query, args := c.APIKeys.SQL(catalog.Query{Prefix: "keykeykey12", Limit: 20})
			list("keys", query, args)
			query, args = c.Tenants.SQL(catalog.Query{Prefix: "o12", Limit: 20})
			list("tenants", query, args)
			for _, a := range all {
				explain, bad := "EXPLAIN QUERY PLAN ", []string{"FOR ORDER BY", "SCAN stint_changes\n"}
				if postgres {
					explain, bad = "EXPLAIN ", []string{"Seq Scan", "Sort  ("}
				}
				plan := strings.Join(ask(t, catalog.DB(c), explain+a.query, a.args...), "\n")
				if !postgres && !strings.Contains(plan, "USING INDEX") && !strings.Contains(plan, "USING COVERING INDEX") {
					t.Errorf("%s has no index:\n%s", a.what, plan)
				}
				for _, word := range bad {
					if strings.Contains(plan+"\n", word) {
						t.Errorf("%s:\n%s", a.what, plan)
					}
				}
			}
		})
	}
}

// BenchmarkCheckRule checks one of many rules.
func BenchmarkCheckRule(b *testing.B) {
	c := open(b, "sqlite::memory:")
	d := &catalog.Document{}
	for i := range 10_000 {
		d.Rules = append(d.Rules, catalog.Rule{
			Name: fmt.Sprintf("r%d", i), CountBy: []rule.Dimension{"user"}, Match: rule.Match{Paths: []string{fmt.Sprintf("/v1/things/%d/*", i)}, Methods: []string{"GET", "POST"}},
			Limits: []rule.Limit{{Name: "requests", Limit: "100/1m"}, {Name: "burst", Limit: "10/1s"}},
		})
	}
	if _, err := c.Apply(b.Context(), d, catalog.ApplyOptions{Actor: writer}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if problems, err := c.CheckRule(b.Context(), d.Rules[77], "r77"); err != nil || problems != nil {
			b.Fatal(problems, err)
		}
	}
}
