package catalogtest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// logged returns all changes that a query finds, page by page.
func (s *suite) logged(q catalog.ChangeQuery) (all []catalog.LoggedChange) {
	s.t.Helper()
	for {
		items, next, err := s.Changes(s.t.Context(), q)
		s.check(err)
		if all = append(all, items...); next == "" {
			return all
		}
		if len(items) != q.Limit || next == q.Before {
			s.t.Fatalf("%+v: a page of %d changes, and the next begins at %q", q, len(items), next)
		}
		q.Before = next
	}
}

// checkChanges reads the log of changes by all kinds of queries.
func checkChanges(s *suite) {
	s.prepare()
	ctx, all := s.t.Context(), s.kinds()
	queries := []catalog.ChangeQuery{{}, {Kind: "user", ID: "alice"}, {Kind: "user", ID: "Alice"}, {Kind: "ban", ID: "user:alice"}, {Kind: "token"}}
	for i, k := range all {
		version := s.must(k.update("alice", 1, s.must(k.create("alice", 0))))
		if i%2 == 0 {
			s.check(k.remove("alice", version))
		}
		queries = append(queries, catalog.ChangeQuery{Kind: k.name})
	}
	s.makeToken("ann", catalog.Viewer)
	document := &catalog.Document{Tenants: []catalog.Tenant{{ID: "a"}, {ID: "b"}, {ID: "c"}}}
	s.check(failure(s.Apply(ctx, document, catalog.ApplyOptions{Actor: another})))

	rows := s.changes(0)
	slices.Reverse(rows)
	for _, q := range queries {
		for _, q.Actor = range []string{"", actor, another, "none"} {
			var want []string
			for _, c := range rows {
				if (q.Kind == "" || c.kind == q.Kind) && (q.ID == "" || c.id == q.ID) && (q.Actor == "" || c.actor == q.Actor) {
					want = append(want, fmt.Sprint(c.revision, c.place, c.kind, c.id, c.actor))
				}
			}
			for _, q.Limit = range []int{2, 7, 1000} {
				var got []string
				for _, c := range s.logged(q) {
					got = append(got, fmt.Sprint(c.Revision, c.Place, c.Kind, c.ID, c.Actor))
				}
				if !slices.Equal(got, want) {
					s.t.Errorf("%+v:\ngot  %q\nwant %q", q, got, want)
				}
			}
		}
	}
	if items := s.logged(catalog.ChangeQuery{Before: "5", Limit: 100}); len(items) != 4 || items[0].Revision != 4 || items[0].At.IsZero() {
		s.t.Errorf("before revision 5: got %+v", items)
	}
	items := s.logged(catalog.ChangeQuery{Kind: "tier", ID: "alice", Limit: 100})
	if len(items) != 2 {
		s.t.Fatalf("got %+v", items)
	}
	s.equal("update", []any{items[0].Action, items[0].Fields, items[0].Before, items[0].After}, []any{
		catalog.Updated, []catalog.FieldDiff{{Path: "price", Before: `"0"`, After: `"1"`}}, all[tiers].value("alice", 0), all[tiers].value("alice", 1),
	})
	s.equal("creation", []any{items[1].Action, items[1].Fields, items[1].Before, items[1].After}, []any{
		catalog.Created, []catalog.FieldDiff{}, nil, all[tiers].value("alice", 0),
	})
	checkHidden(s)
}

// checkHidden checks that the log does not show the hashes of keys, and that a revert brings
// them back.
func checkHidden(s *suite) {
	ctx := s.t.Context()
	k := catalog.APIKey{ID: "12345678", Hash: hashOf("one"), User: owner}
	version := s.must(s.APIKeys.Create(ctx, actor, k))
	k.Hash = hashOf("two")
	version = s.must(s.APIKeys.Update(ctx, actor, k, version))
	s.check(s.APIKeys.Delete(ctx, actor, k.ID, version))
	items := s.logged(catalog.ChangeQuery{Kind: "api_key", ID: k.ID, Limit: 10})
	k.Hash = "(hidden)"
	s.equal("changes", []any{items[0].Before, items[1].Before, items[1].After, items[2].After}, []any{k, k, k, k})
	s.equal("fields", items[1].Fields, []catalog.FieldDiff{{Path: "hash", Before: `"(hidden)"`, After: `"(hidden)"`}})
	diff, err := s.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: version, Force: true})
	s.check(err)
	if len(diff.Items) != 1 || strings.Contains(fmt.Sprint(diff), "sha256") {
		s.t.Errorf("got %+v", diff)
	}
	if r, err := s.APIKeys.Get(ctx, k.ID); err != nil || r.Value.Hash != hashOf("one") {
		s.t.Errorf("after a revert: got %+v, %v", r, err)
	}
}

// reverts reverts a revision, and compares what that changes.
func (s *suite) reverts(o catalog.RevertOptions, want ...string) (revision int64) {
	s.t.Helper()
	before := s.revision()
	o.Actor = "reverter"
	diff, err := s.Revert(s.t.Context(), o)
	s.check(err)
	var got []string
	for _, i := range diff.Items {
		got = append(got, i.Action+" "+i.Kind+" "+i.ID)
	}
	after := before + 1
	if len(want) == 0 || o.DryRun {
		after = before
	}
	if !slices.Equal(got, want) || diff.Revision != after || s.revision() != after {
		s.t.Errorf("%+v: got %q and revision %d of %d, want %q and %d", o, got, diff.Revision, s.revision(), want, after)
	}
	for _, c := range s.changes(before) {
		if c.actor != o.Actor {
			s.t.Errorf("the log says that %s has reverted it", c.actor)
		}
	}
	return diff.Revision
}

// checkRevertKinds reverts changes of a record of each kind.
func checkRevertKinds(s *suite) {
	s.prepare()
	ctx := s.t.Context()
	for _, k := range s.kinds() {
		// is checks the record's value, and returns its version.
		is := func(n int) int64 {
			s.t.Helper()
			r, err := k.get("alice")
			s.check(err)
			s.equal(k.name, r.Value, k.value("alice", n))
			return r.Version
		}
		line := func(action string) string { return action + " " + k.name + " " + k.id("alice") }
		revert := func(revision int64, action string) int64 {
			s.t.Helper()
			unchanged := s.unchanged()
			s.reverts(catalog.RevertOptions{Revision: revision, DryRun: true}, line(action))
			unchanged()
			return s.reverts(catalog.RevertOptions{Revision: revision}, line(action))
		}
		conflict := func(revision int64, texts ...string) {
			s.t.Helper()
			defer s.unchanged()()
			s.rejected(http.StatusConflict, failure(s.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: revision})), texts...)
		}
		created := s.must(k.create("alice", 0))
		updated := s.must(k.update("alice", 1, created))
		reverted := revert(updated, "update")
		is(0)
		s.reverts(catalog.RevertOptions{Revision: updated}) // it is reverted already
		revert(reverted, "update")
		version := is(1)

		// It has changed since it was created.
		conflict(created, k.name, k.id("alice"), strconv.FormatInt(version, 10))
		s.reverts(catalog.RevertOptions{Revision: created, Force: true}, line("delete"))
		s.rejected(http.StatusNotFound, failure(k.get("alice")))
		deleted := s.revision()
		conflict(updated, "deleted since")
		revert(deleted, "create")
		s.check(k.remove("alice", is(1)))
		deleted = s.revision()
		s.must(k.create("alice", 2))
		conflict(deleted, "already")
		s.reverts(catalog.RevertOptions{Revision: deleted, Force: true}, line("update"))
		s.check(k.remove("alice", is(1)))
	}
}

// export returns all records.
func (s *suite) export() *catalog.Document {
	s.t.Helper()
	d, err := s.Export(s.t.Context(), catalog.ExportOptions{Users: true})
	s.check(err)
	return d
}

// checkRevertAll reverts a revision that has replaced everything.
func checkRevertAll(s *suite) {
	ctx := s.t.Context()
	document := func(n string) *catalog.Document {
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
	s.check(failure(s.Apply(ctx, document("1"), catalog.ApplyOptions{Actor: actor})))
	first := s.export()
	diff, err := s.Apply(ctx, document("2"), catalog.ApplyOptions{Actor: actor, Prune: true})
	s.check(err)
	second, revision := s.export(), diff.Revision
	revert := func(what string, want *catalog.Document, items int) {
		s.t.Helper()
		diff, err := s.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: revision})
		s.check(err)
		s.equal(what, s.export(), want)
		if revision = diff.Revision; len(diff.Items) != items {
			s.t.Errorf("%s: %d records were reverted, want %d", what, len(diff.Items), items)
		}
	}
	revert("reverted", first, len(diff.Items))
	revert("reverted back", second, len(diff.Items))
	s.reverts(catalog.RevertOptions{Revision: revision, Kind: "ban", ID: "user:shared"}, "update ban user:shared")
	s.reverts(catalog.RevertOptions{Revision: revision, Kind: "ban", ID: "user:shared"})
	revert("reverted again", first, len(diff.Items)-1)
	s.check(failure(s.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: 1})))
	if d := s.export(); !d.Empty() {
		s.t.Errorf("after the first revision was reverted: got %+v, want nothing", d)
	}
}

// checkInvalidReverts tries reverts that are not possible.
func checkInvalidReverts(s *suite) {
	s.prepare() // revisions 1 to 3: a rule, a tier and a user
	ctx := s.t.Context()
	s.must(s.Users.Create(ctx, actor, catalog.User{ID: "alice", Tier: tier, Limits: map[string]catalog.Override{limit: {Limit: "1/1s"}}}))
	s.check(s.Users.Delete(ctx, actor, "alice", 4)) // revision 5
	s.must(s.Tenants.Create(ctx, actor, catalog.Tenant{ID: "acme", Tier: tier}))
	_, token := s.makeToken("ann", catalog.Viewer) // revision 7
	s.check(s.RevokeToken(ctx, actor, token.ID))
	s.check(s.Rules.Delete(ctx, actor, "base", 1))
	s.must(s.Tiers.Create(ctx, actor, catalog.Tier{Name: "silver"})) // revision 10
	s.must(s.Users.Create(ctx, actor, catalog.User{ID: "bob", Tier: "silver"}))
	s.check(s.Users.Delete(ctx, actor, "bob", 11))
	s.check(s.Tiers.Delete(ctx, actor, "silver", 10))
	_, err := s.db.ExecContext(ctx, "UPDATE stint_changes SET kind = 'unheard-of' WHERE revision = 3")
	s.check(err)
	// Revision 9 has changed too many records.
	_, err = s.db.ExecContext(ctx, `INSERT INTO stint_changes SELECT c.revision, n, c.stamp, c.at, c.actor, c.kind, c.subject, c.before, c.after FROM stint_changes c,
		(WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10000) SELECT n FROM numbers) AS many WHERE c.revision = 9`)
	s.check(err)
	unchanged := s.unchanged()
	for _, c := range []struct {
		o      catalog.RevertOptions
		status int
		texts  []string
	}{
		{catalog.RevertOptions{Revision: 99}, http.StatusNotFound, []string{`revision "99"`}},
		{catalog.RevertOptions{Revision: 0}, http.StatusNotFound, nil},
		{catalog.RevertOptions{Revision: -1}, http.StatusNotFound, nil},
		{catalog.RevertOptions{Revision: 1, Kind: "rule", ID: "other"}, http.StatusNotFound, []string{"revision 1", "rule", `"other"`}},
		{catalog.RevertOptions{Revision: 1, Kind: "rule", ID: "a\x00"}, http.StatusNotFound, nil},
		{catalog.RevertOptions{Revision: 1, Kind: "rule"}, invalid, []string{"kind and id"}},
		{catalog.RevertOptions{Revision: 1, ID: "base"}, invalid, []string{"kind and id"}},
		{catalog.RevertOptions{Revision: 7}, invalid, []string{"token", "revoked"}},
		{catalog.RevertOptions{Revision: 8, Force: true}, invalid, []string{"token", "create another"}},
		{catalog.RevertOptions{Revision: 2}, invalid, []string{`tier "gold" cannot be deleted`, `tenant "acme"`}},
		{catalog.RevertOptions{Revision: 2, Force: true}, invalid, []string{"cannot be deleted"}},
		{catalog.RevertOptions{Revision: 3}, invalid, []string{"unheard-of", "cannot be reverted"}},
		{catalog.RevertOptions{Revision: 9}, invalid, []string{"more than 10000"}},
		{catalog.RevertOptions{Revision: 12, Force: true}, invalid, []string{`user "bob".tier`, "silver"}},
	} {
		for _, c.o.DryRun = range []bool{false, true} {
			c.o.Actor = actor
			s.rejected(c.status, failure(s.Revert(ctx, c.o)), c.texts...)
		}
	}
	s.problem(failure(s.Revert(ctx, catalog.RevertOptions{Revision: 5})), "actor")
	unchanged()
	// An override of a limit whose rule was deleted since does not prevent it.
	s.reverts(catalog.RevertOptions{Revision: 5}, "create user alice")
}

// checkTrial makes every kind of write to a trial and then to the catalog. Both have to
// return the same, and the trial has to leave nothing behind.
func checkTrial(s *suite) {
	s.prepare()
	ctx := s.t.Context()
	trial := &suite{Catalog: s.Trial(), db: s.db, t: s.t}
	writes := map[string]func(*suite) (any, error){
		"order": func(s *suite) (any, error) { return s.OrderRules(ctx, actor, []string{"bob", "alice"}) },
		"revert": func(s *suite) (any, error) {
			return s.Revert(ctx, catalog.RevertOptions{Actor: actor, Revision: 4, Force: true})
		},
		"rejected": func(s *suite) (any, error) {
			return s.Tenants.Create(ctx, actor, catalog.Tenant{ID: "x", Tier: "none"})
		},
		"key": func(s *suite) (any, error) { _, _, v, err := s.CreateKey(ctx, actor, catalog.APIKey{}); return v, err },
		"apply": func(s *suite) (any, error) {
			return s.Apply(ctx, &catalog.Document{Tenants: []catalog.Tenant{{ID: "new"}}, Bans: []catalog.Entry{{User: "alice"}}}, catalog.ApplyOptions{Actor: actor})
		},
	}
	for i, k := range s.kinds() {
		s.must(k.create("alice", 0))
		s.must(k.create("bob", 0))
		writes["create "+k.name] = func(s *suite) (any, error) { return s.kinds()[i].create("carol", 0) }
		writes["create again "+k.name] = func(s *suite) (any, error) { return s.kinds()[i].create("alice", 0) }
		writes["modify "+k.name] = func(s *suite) (any, error) { return s.kinds()[i].modify("alice", 1) }
		writes["delete "+k.name] = func(s *suite) (any, error) {
			r, err := k.get("bob")
			s.check(err)
			return nil, s.kinds()[i].remove("bob", r.Version)
		}
	}
	text, token := s.makeToken("ann", catalog.Operator)
	session, _, err := s.CreateSession(ctx, token, 1<<40)
	s.check(err)
	writes["token"] = func(s *suite) (any, error) { _, made, err := s.CreateToken(ctx, actor, token); return made.Name, err }
	writes["end session"] = func(s *suite) (any, error) { return nil, s.EndSession(ctx, session) }
	writes["revoke"] = func(s *suite) (any, error) { return nil, s.RevokeToken(ctx, actor, token.ID) }
	for name, write := range writes {
		unchanged := s.unchanged()
		got, gotErr := write(trial)
		unchanged()
		want, wantErr := write(s)
		if s.equal(name, got, want); fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
			s.t.Errorf("%s: the trial returned %v, want %v", name, gotErr, wantErr)
		}
	}
	s.badToken("revoked", failure(trial.TokenOf(ctx, text)))
}
