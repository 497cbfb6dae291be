package catalogtest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// pages returns all changes, page by page.
func (h *house) pages(t testing.TB, q catalog.ChangeQuery) (all []catalog.LoggedChange) {
	t.Helper()
	for {
		items, next, err := h.Changes(t.Context(), q)
		check(t, err)
		if all = append(all, items...); next == "" {
			return all
		}
		if len(items) != q.Limit || next == q.Before {
			t.Fatalf("%+v: a page of %d, and then comes %q", q, len(items), next)
		}
		q.Before = next
	}
}

// checkChanges pages through the log of changes, by whatever can be asked for.
func checkChanges(h *house) {
	t := h.t
	h.furnish(t)
	ctx := t.Context()
	for i, k := range kinds {
		created, err := k.create(ctx, h, "alice", 0)
		check(t, err)
		updated, err := k.update(ctx, h, "alice", 1, created)
		check(t, err)
		if i%2 == 0 {
			check(t, k.remove(ctx, h, "alice", updated))
		}
	}
	h.makeToken(t, "ann", catalog.Viewer)
	_, err := h.Apply(ctx, &catalog.Document{Tenants: []catalog.Tenant{{ID: "a"}, {ID: "b"}, {ID: "c"}}}, catalog.ApplyOptions{Actor: "another"})
	check(t, err)

	raw := h.changes(t, 0)
	slices.Reverse(raw)
	subjects := []catalog.ChangeQuery{{}, {Kind: "user", ID: "alice"}, {Kind: "user", ID: "Alice"}, {Kind: "ban", ID: "user:alice"}, {Kind: "token"}}
	for _, k := range kinds {
		subjects = append(subjects, catalog.ChangeQuery{Kind: k.kindName()})
	}
	for _, q := range subjects {
		for _, q.Actor = range []string{"", actor, "another", "none"} {
			var want []string
			for _, c := range raw {
				if (q.Kind == "" || c.kind == q.Kind) && (q.ID == "" || c.id == q.ID) && (q.Actor == "" || c.actor == q.Actor) {
					want = append(want, fmt.Sprint(c.revision, c.place, c.kind, c.id, c.actor))
				}
			}
			for _, q.Limit = range []int{1, 2, 7, 1000} {
				var got []string
				for _, c := range h.pages(t, q) {
					got = append(got, fmt.Sprint(c.Revision, c.Place, c.Kind, c.ID, c.Actor))
				}
				if !slices.Equal(got, want) {
					t.Errorf("%+v:\ngot  %q\nwant %q", q, got, want)
				}
			}
		}
	}

	// Before a revision, and what changes say.
	items, _, err := h.Changes(ctx, catalog.ChangeQuery{Before: "5"})
	check(t, err)
	if len(items) != 4 || items[0].Revision != 4 || items[0].At.IsZero() {
		t.Errorf("before revision 5 there is %+v", items)
	}
	items, _, err = h.Changes(ctx, catalog.ChangeQuery{Kind: "tier", ID: "alice"})
	check(t, err)
	if len(items) != 2 {
		t.Fatalf("got %+v", items)
	}
	equal(t, "an update", []any{items[0].Action, items[0].Fields, items[0].Before, items[0].After}, []any{
		catalog.Updated, []catalog.FieldDiff{{Path: "price", Before: `"0"`, After: `"1"`}}, kinds[1].value("alice", 0), kinds[1].value("alice", 1),
	})
	equal(t, "a creation", []any{items[1].Action, items[1].Fields, items[1].Before, items[1].After}, []any{
		catalog.Created, []catalog.FieldDiff{}, nil, kinds[1].value("alice", 0),
	})
	checkHidden(h)
}

// checkHidden looks for the hashes of keys in what the log shows.
func checkHidden(h *house) {
	t := h.t
	ctx := t.Context()
	k := catalog.APIKey{ID: "12345678", Hash: hashOf("one"), User: owner}
	version, err := h.APIKeys.Create(ctx, actor, k)
	check(t, err)
	k.Hash = hashOf("two")
	version, err = h.APIKeys.Update(ctx, actor, k, version)
	check(t, err)
	check(t, h.APIKeys.Delete(ctx, actor, k.ID, version))
	items := h.pages(t, catalog.ChangeQuery{Kind: "api_key", ID: k.ID, Limit: 10})
	k.Hash = "(hidden)"
	equal(t, "changes", []any{items[0].Before, items[1].Before, items[1].After, items[2].After}, []any{k, k, k, k})
	equal(t, "fields", items[1].Fields, []catalog.FieldDiff{{Path: "hash", Before: `"(hidden)"`, After: `"(hidden)"`}})
	diff, err := h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: version, Force: true})
	check(t, err)
	back, err := h.APIKeys.Get(ctx, k.ID)
	if check(t, err); back.Value.Hash != hashOf("one") {
		t.Errorf("brought back is %+v", back)
	}
	if len(diff.Items) != 1 || strings.Contains(fmt.Sprint(diff), "sha256") {
		t.Errorf("got %+v", diff)
	}
}

func checkBadChangeQueries(h *house) {
	t := h.t
	for _, c := range []struct {
		q    catalog.ChangeQuery
		path string
	}{
		{catalog.ChangeQuery{Limit: -1}, "limit"},
		{catalog.ChangeQuery{Limit: 1001}, "limit"},
		{catalog.ChangeQuery{Kind: "rul"}, "kind"},
		{catalog.ChangeQuery{ID: "alice"}, "kind"},
		{catalog.ChangeQuery{Kind: "user", ID: "\x00"}, "id"},
		{catalog.ChangeQuery{Kind: "user", ID: "\xff"}, "id"},
		{catalog.ChangeQuery{Actor: "a\x00"}, "actor"},
		{catalog.ChangeQuery{Before: "x"}, "before"},
		{catalog.ChangeQuery{Before: "1.x"}, "before"},
		{catalog.ChangeQuery{Before: "."}, "before"},
		{catalog.ChangeQuery{Before: "99999999999999999999"}, "before"},
	} {
		h.refuses(t, invalid, func(ctx context.Context) error {
			_, _, err := h.Changes(ctx, c.q)
			if !names(err, c.path) {
				t.Errorf("%+v: got %v, want a problem with %s", c.q, err, c.path)
			}
			return err
		})
	}
	for _, before := range []string{"-5", "0", "-9223372036854775808.-1"} {
		if items, next, err := h.Changes(t.Context(), catalog.ChangeQuery{Before: before}); err != nil || items != nil || next != "" {
			t.Errorf("before %s there are %v, %q, %v", before, items, next, err)
		}
	}
}

// back reverts a revision, and checks what that says.
func (h *house) back(t testing.TB, o catalog.RevertOptions, want ...string) int64 {
	t.Helper()
	before := h.revision(t)
	o.Actor = "reverter"
	diff, err := h.Revert(t.Context(), o)
	check(t, err)
	var got []string
	for _, i := range diff.Items {
		got = append(got, strings.Join([]string{i.Action, i.Kind, i.ID}, " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v: got %q, want %q", o, got, want)
	}
	after := before + 1
	if len(want) == 0 || o.DryRun {
		after = before
	}
	if diff.Revision != after || h.revision(t) != after {
		t.Errorf("%+v: made revision %d, there is %d, want %d", o, diff.Revision, h.revision(t), after)
	}
	for _, c := range h.changes(t, before) {
		if c.actor != o.Actor {
			t.Errorf("reverted by %s", c.actor)
		}
	}
	return diff.Revision
}

// checkRevertKinds reverts what becomes of a thing of each kind.
func checkRevertKinds(h *house) {
	t := h.t
	h.furnish(t)
	ctx := t.Context()
	for _, k := range kinds {
		is := func(n int) int64 {
			t.Helper()
			value, r, err := k.get(ctx, h, "alice")
			if n < 0 {
				if catalog.Status(err) != http.StatusNotFound {
					t.Errorf("%s: it is there: %v, %v", k.kindName(), value, err)
				}
				return 0
			}
			check(t, err)
			equal(t, k.kindName(), value, k.value("alice", n))
			return r.version
		}
		reverts := func(revision int64, action string) int64 {
			t.Helper()
			line := action + " " + k.kindName() + " " + k.key("alice")
			dump := Dump(t, h.db)
			h.back(t, catalog.RevertOptions{Revision: revision, DryRun: true}, line)
			if Dump(t, h.db) != dump {
				t.Errorf("%s: a dry run has changed something", k.kindName())
			}
			return h.back(t, catalog.RevertOptions{Revision: revision}, line)
		}
		created, err := k.create(ctx, h, "alice", 0)
		check(t, err)
		updated, err := k.update(ctx, h, "alice", 1, created)
		check(t, err)

		reverted := reverts(updated, "update")
		is(0)
		h.back(t, catalog.RevertOptions{Revision: updated}) // again, which changes nothing
		reverts(reverted, "update")
		version := is(1)

		// What has changed since.
		h.refuses(t, http.StatusConflict, func(ctx context.Context) error {
			_, err := h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: created})
			return err
		}, k.kindName(), k.key("alice"), strconv.FormatInt(version, 10))
		h.back(t, catalog.RevertOptions{Revision: created, Force: true}, "delete "+k.kindName()+" "+k.key("alice"))
		is(-1)
		deleted := h.revision(t)
		h.refuses(t, http.StatusConflict, func(ctx context.Context) error {
			_, err := h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: updated})
			return err
		}, "deleted since")
		reverts(deleted, "create")
		version = is(1)
		check(t, k.remove(ctx, h, "alice", version))
		deleted = h.revision(t)
		again, err := k.create(ctx, h, "alice", 2)
		check(t, err)
		h.refuses(t, http.StatusConflict, func(ctx context.Context) error {
			_, err := h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: deleted})
			return err
		}, "already")
		h.back(t, catalog.RevertOptions{Revision: deleted, Force: true}, "update "+k.kindName()+" "+k.key("alice"))
		check(t, k.remove(ctx, h, "alice", is(1)))
		if again == 0 {
			t.Error("it is of no version")
		}
	}
}

// checkRevertAll reverts a revision that has replaced everything.
func checkRevertAll(h *house) {
	t := h.t
	ctx := t.Context()
	house := func(n string) *catalog.Document {
		return &catalog.Document{
			File: rule.File{
				Rules: []catalog.Rule{
					{Name: "r" + n, CountBy: []dimension{"user"}, Match: rule.Match{Tiers: []string{"t" + n}}, Limits: []namedLimit{{Name: "l" + n, Limit: "1/1s"}}},
					{Name: "shared", Match: rule.Match{Paths: []string{"/" + n}}, Limits: []namedLimit{{Name: "shared" + n, Limit: "1/1s"}}},
				},
				Tiers: []catalog.Tier{{Name: "t" + n, Limits: map[string]string{"l" + n: "2/1s"}}},
			},
			Tenants: []catalog.Tenant{{ID: "o" + n, Tier: "t" + n}, {ID: "shared", Tier: "t" + n}},
			Users:   []catalog.User{{ID: "u" + n, Tier: "t" + n, Limits: map[string]catalog.Override{"l" + n: {Limit: "3/1s"}}}, {ID: "shared", Tier: "t" + n}},
			APIKeys: []catalog.APIKey{
				{ID: "keykeykey" + n, Hash: hashOf(n), User: "u" + n, Tier: "t" + n},
				{ID: "sharedkey", Hash: hashOf("s"), User: "u" + n},
			},
			Exemptions: []catalog.Entry{{User: "u" + n}},
			Bans:       []catalog.Entry{{IP: "192.0.2." + n}, {User: "shared", Reason: n}},
		}
	}
	export := func() *catalog.Document {
		t.Helper()
		d, err := h.Export(ctx, catalog.ExportOptions{Users: true})
		check(t, err)
		return d
	}
	_, err := h.Apply(ctx, house("1"), catalog.ApplyOptions{Actor: actor})
	check(t, err)
	first := export()
	diff, err := h.Apply(ctx, house("2"), catalog.ApplyOptions{Actor: actor, Prune: true})
	check(t, err)
	second := export()

	got, err := h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: diff.Revision})
	check(t, err)
	equal(t, "reverted", export(), first)
	if len(got.Items) != len(diff.Items) {
		t.Errorf("%d things were changed, and %d brought back", len(diff.Items), len(got.Items))
	}
	again, err := h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: got.Revision})
	check(t, err)
	equal(t, "reverted back", export(), second)

	// One of many, and the rest.
	h.back(t, catalog.RevertOptions{Revision: again.Revision, Kind: "ban", ID: "user:shared"}, "update ban user:shared")
	h.back(t, catalog.RevertOptions{Revision: again.Revision, Kind: "ban", ID: "user:shared"})
	rest, err := h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: again.Revision})
	check(t, err)
	if len(rest.Items) != len(diff.Items)-1 {
		t.Errorf("%d things were brought back, want all but one of %d", len(rest.Items), len(diff.Items))
	}
	equal(t, "reverted again", export(), first)
	// All of the beginning: then there is nothing.
	_, err = h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: 1})
	check(t, err)
	if d := export(); !d.Empty() {
		t.Errorf("there is %+v", d)
	}
}

// checkRevertRefused reverts what cannot be.
func checkRevertRefused(h *house) {
	t := h.t
	h.furnish(t) // a rule, a tier and a user
	ctx := t.Context()
	_, err := h.Users.Create(ctx, actor, catalog.User{ID: "alice", Tier: tier, Limits: map[string]catalog.Override{limit: {Limit: "1/1s"}}})
	check(t, err)
	check(t, h.Users.Delete(ctx, actor, "alice", 4)) // revision 5
	_, err = h.Tenants.Create(ctx, actor, catalog.Tenant{ID: "acme", Tier: tier})
	check(t, err)
	_, token := h.makeToken(t, "ann", catalog.Viewer) // 7
	check(t, h.RevokeToken(ctx, actor, token.ID))
	check(t, h.Rules.Delete(ctx, actor, "base", 1))
	_, err = h.db.ExecContext(ctx, "UPDATE stint_changes SET kind = 'unheard-of' WHERE revision = 3")
	check(t, err)
	for _, c := range []struct {
		o      catalog.RevertOptions
		status int
		says   []string
	}{
		{catalog.RevertOptions{Revision: 99}, http.StatusNotFound, []string{`revision "99"`}},
		{catalog.RevertOptions{Revision: 0}, http.StatusNotFound, nil},
		{catalog.RevertOptions{Revision: -1}, http.StatusNotFound, nil},
		{catalog.RevertOptions{Revision: 1, Kind: "rule", ID: "other"}, http.StatusNotFound, []string{"revision 1", "rule", `"other"`}},
		{catalog.RevertOptions{Revision: 1, Kind: "rule", ID: "a\x00"}, http.StatusNotFound, nil},
		{catalog.RevertOptions{Revision: 1, Kind: "rule"}, invalid, []string{"kind and id"}},
		{catalog.RevertOptions{Revision: 1, ID: "base"}, invalid, []string{"kind and id"}},
		{catalog.RevertOptions{Revision: 7}, invalid, []string{"token", "revoked"}},
		{catalog.RevertOptions{Revision: 8, Force: true}, invalid, []string{"token", "make another"}},
		{catalog.RevertOptions{Revision: 2}, invalid, []string{`tier "gold" cannot be deleted`, `tenant "acme"`}},
		{catalog.RevertOptions{Revision: 2, Force: true}, invalid, []string{"cannot be deleted"}},
		{catalog.RevertOptions{Revision: 3}, invalid, []string{"unheard-of", "cannot be reverted"}},
	} {
		for _, c.o.DryRun = range []bool{false, true} {
			c.o.Actor = actor
			h.refuses(t, c.status, func(ctx context.Context) error { _, err := h.Revert(ctx, c.o); return err }, c.says...)
		}
	}
	h.refuses(t, invalid, func(ctx context.Context) error {
		_, err := h.Revert(ctx, catalog.RevertOptions{Revision: 9})
		return err
	}, "actor")
	// What was said of a limit whose rule has gone meanwhile is no hindrance, and a tier is.
	h.back(t, catalog.RevertOptions{Revision: 5}, "create user alice")
	_, err = h.Tiers.Create(ctx, actor, catalog.Tier{Name: "silver"})
	check(t, err)
	version, err := h.Users.Create(ctx, actor, catalog.User{ID: "bob", Tier: "silver"})
	check(t, err)
	check(t, h.Users.Delete(ctx, actor, "bob", version))
	check(t, h.Tiers.Delete(ctx, actor, "silver", version-1))
	h.refuses(t, invalid, func(ctx context.Context) error {
		_, err := h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: version + 1, Force: true})
		return err
	}, `user "bob".tier`, "silver")
	// Too many at once.
	_, err = h.db.ExecContext(ctx, `INSERT INTO stint_changes SELECT c.revision, n, c.stamp, c.at, c.actor, c.kind, c.subject, c.before, c.after FROM stint_changes c,
		(WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000) SELECT n FROM numbers) AS many WHERE c.revision = 6`)
	check(t, err)
	h.unwatched = true
	h.refuses(t, invalid, func(ctx context.Context) error {
		_, err := h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: 6})
		return err
	}, "more than 10000")
}

// checkTrial writes everything to a trial: it has to answer as the catalog does, and to
// leave nothing behind.
func checkTrial(h *house) {
	t := h.t
	h.furnish(t)
	ctx := t.Context()
	trial := &house{Catalog: h.Trial(), db: h.db, t: t}
	for _, k := range kinds {
		for _, name := range []string{"alice", "bob"} {
			_, err := k.create(ctx, h, name, 0)
			check(t, err)
		}
	}
	text, token := h.makeToken(t, "ann", catalog.Operator)
	session, _, err := h.CreateSession(ctx, token, 1<<40)
	check(t, err)
	document := &catalog.Document{Tenants: []catalog.Tenant{{ID: "new"}}, Bans: []catalog.Entry{{User: "alice"}}}
	writes := map[string]func(h *house) (any, error){
		"apply": func(h *house) (any, error) { return h.Apply(ctx, document, catalog.ApplyOptions{Actor: actor}) },
		"order": func(h *house) (any, error) { return h.OrderRules(ctx, actor, []string{"bob", "alice"}) },
		"revert": func(h *house) (any, error) {
			return h.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: 4, Force: true})
		},
		"bad": func(h *house) (any, error) {
			return h.Tenants.Create(ctx, actor, catalog.Tenant{ID: "x", Tier: "none"})
		},
		"token":  func(h *house) (any, error) { _, made, err := h.CreateToken(ctx, actor, token); return made.Name, err },
		"key":    func(h *house) (any, error) { _, _, v, err := h.CreateKey(ctx, actor, catalog.APIKey{}); return v, err },
		"end":    func(h *house) (any, error) { return nil, h.EndSession(ctx, session) },
		"revoke": func(h *house) (any, error) { return nil, h.RevokeToken(ctx, actor, token.ID) },
	}
	for _, k := range kinds {
		writes["create "+k.kindName()] = func(h *house) (any, error) { return k.create(ctx, h, "carol", 0) }
		writes["again "+k.kindName()] = func(h *house) (any, error) { return k.create(ctx, h, "alice", 0) }
		writes["modify "+k.kindName()] = func(h *house) (any, error) { return k.modify(ctx, h, "alice", 1) }
		writes["delete "+k.kindName()] = func(h *house) (any, error) {
			_, r, err := k.get(ctx, h, "bob")
			check(t, err)
			return nil, k.remove(ctx, h, "bob", r.version)
		}
	}
	for name, write := range writes {
		before := Dump(t, h.db)
		got, gotErr := write(trial)
		if after := Dump(t, h.db); after != before {
			t.Errorf("%s: a trial has changed\n%s\nto\n%s", name, before, after)
		}
		want, wantErr := write(h)
		equal(t, name, got, want)
		if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
			t.Errorf("%s: a trial says %v, want %v", name, gotErr, wantErr)
		}
	}
	_, err = trial.TokenOf(ctx, text)
	bad(t, "revoked", err)
}
