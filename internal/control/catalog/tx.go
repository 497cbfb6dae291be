package catalog

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// tx is a transaction that changes the catalog. Writers take turns: each begins by raising
// the revision, which locks its row until the end.
type tx struct {
	*sql.Tx
	c        *Catalog
	actor    string
	now      time.Time
	revision int64
	stamp    string
	changes  []Change
	touched  []touch
	checker  *checker   // for people; nil: not made, or rules have changed since
	file     *rule.File // all rules and tiers; nil: not read, or changed since
	problems strict.Problems
	// restoring is the value that a revert restores. Nil: none.
	restoring json.RawMessage
}

// Change is one entry of the log of changes.
type Change struct {
	Revision int64           `json:"revision"`
	At       time.Time       `json:"at"`
	Actor    string          `json:"actor"`
	Kind     string          `json:"kind"`
	ID       string          `json:"id"`
	Before   json.RawMessage `json:"before,omitempty"` // nil: it was created
	After    json.RawMessage `json:"after,omitempty"`  // nil: it was deleted
}

// touch is a rule or a tier that was written, and its path in the document.
type touch struct{ kind, id, path string }

// write makes changes in one transaction and returns the revision that they made. If
// nothing has changed it writes nothing and returns the current revision.
func (c *Catalog) write(ctx context.Context, actor string, do func(*tx) error) (revision int64, err error) {
	defer func() { err = withCause(ctx, err) }()
	var k checker
	if k.checkText("actor", actor, maxTitle); actor == "" {
		k.Add("actor", "missing, want who makes the change", "")
	}
	if k.Problems != nil {
		return 0, k.Problems
	}
	t := &tx{c: c, actor: actor, now: c.options.Now().UTC().Truncate(time.Microsecond), stamp: rand.Text()}
	once := OnceOf(ctx)
	if once != nil && once.held != nil {
		return 0, errTwice
	}
	if t.Tx, err = c.db.BeginTx(ctx, nil); err != nil {
		return 0, c.wrap(err)
	}
	defer func() {
		if once == nil || once.held != t {
			_ = t.Rollback() // after a commit there is nothing to undo
		}
	}()
	if once != nil {
		if err := once.claim(ctx, t); err != nil {
			return 0, c.wrap(err)
		}
	}
	err = t.QueryRowContext(ctx, "UPDATE stint_catalog SET revision = revision + 1, stamp = $1 RETURNING revision", t.stamp).Scan(&t.revision)
	if refusal := c.refusal.Load(); refusal != nil && c.noCatalog(err) {
		return 0, refusal
	}
	if err != nil {
		return 0, c.wrap(err)
	}
	if err := do(t); err != nil {
		return 0, c.wrap(err)
	}
	if err := t.permitted(); err != nil {
		return 0, err
	}
	if err := t.check(ctx); err != nil {
		return 0, c.wrap(err)
	}
	if len(t.changes) == 0 {
		return t.revision - 1, nil
	}
	if err := t.log(ctx); err != nil {
		return 0, c.wrap(err)
	}
	if c.trial {
		return t.revision, nil
	}
	if once != nil {
		once.held = t
		return t.revision, nil
	}
	return t.revision, t.commit(ctx)
}

// commit makes the changes, and notifies the nodes.
func (t *tx) commit(ctx context.Context) error {
	if err := t.Commit(); err != nil {
		return t.c.wrap(err)
	}
	if t.file != nil {
		t.c.memory.Store(&rulesAt{mark{t.revision, t.stamp}, *t.file})
	}
	if len(t.changes) > 0 {
		t.c.notify(ctx)
	}
	return nil
}

// notify notifies the nodes of this process, and those that listen to the side. If it fails,
// they find the change at their next poll.
func (c *Catalog) notify(ctx context.Context) {
	c.wakers.all()
	if c.options.Side != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.options.Side.Publish(ctx, sideChannel, "")
	}
}

// log writes the changes to the log, and notifies nodes on commit.
func (t *tx) log(ctx context.Context) error {
	for i := range t.changes {
		ch := &t.changes[i]
		_, err := t.ExecContext(ctx, `INSERT INTO stint_changes (revision, place, stamp, at, actor, kind, subject, before, after)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			t.revision, i, t.stamp, t.c.dialect.Time(t.now), t.actor, ch.Kind, ch.ID, nullJSON(ch.Before), nullJSON(ch.After))
		if err != nil {
			return err
		}
	}
	if statement := t.c.dialect.Notify(); statement != "" {
		_, err := t.ExecContext(ctx, statement)
		return err
	}
	return nil
}

func nullJSON(body json.RawMessage) any {
	if body == nil {
		return nil
	}
	return string(body)
}

// row is the columns that every table has.
type row struct {
	body             string
	version          int64
	created, updated stamp
	by               string
}

// find returns a row, or nil.
func (t *tx) find(ctx context.Context, table, id string) (*row, error) {
	if !storable(id) {
		return nil, nil
	}
	var r row
	err := t.QueryRowContext(ctx, "SELECT body, version, created_at, updated_at, updated_by FROM "+table+" WHERE id = $1", id).
		Scan(&r.body, &r.version, &r.created, &r.updated, &r.by)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return &r, err
}

// put writes a row in place of the one that was found, if any, and notes the change. If the
// value is the same or has problems, which are noted, it writes nothing.
func (t *tx) put(ctx context.Context, k *kind, id string, found *row, value any, path string) error {
	before := len(t.problems)
	if err := t.checkOne(ctx, id, found, value, path); err != nil || len(t.problems) > before {
		return err
	}
	if r, ok := value.(*Rule); ok && r.Rollout != nil {
		value = t.continued(r, found)
	}
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	ch := Change{Kind: k.name, ID: id, After: body}
	if found == nil {
		_, err = t.ExecContext(ctx, "INSERT INTO "+k.table+" (id, body, version, created_at, updated_at, updated_by) VALUES ($1, $2, $3, $4, $4, $5)",
			id, string(body), t.revision, t.c.dialect.Time(t.now), t.actor)
	} else {
		if ch.Before, err = k.canonical(found.body); err != nil {
			return err
		}
		if bytes.Equal(ch.Before, body) {
			return nil
		}
		_, err = t.ExecContext(ctx, "UPDATE "+k.table+" SET body = $2, version = $3, updated_at = $4, updated_by = $5 WHERE id = $1",
			id, string(body), t.revision, t.c.dialect.Time(t.now), t.actor)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", k.name, strict.Quote(id), err)
	}
	t.note(ch, path)
	if err := t.putWords(ctx, k.name, id, ch.Before, body); err != nil {
		return err
	}
	if u, ok := value.(*User); ok {
		return t.noteTier(ctx, u, ch.Before)
	}
	return nil
}

// continued returns a rule whose rollout has a start: that of the rule in its place, if it is the same rollout. A revert restores the
// rollout as it was.
func (t *tx) continued(r *Rule, found *row) *Rule {
	var before Rule
	if found != nil && t.restoring == nil {
		_ = json.Unmarshal([]byte(found.body), &before) // an unreadable rule has no rollout
	}
	next := *r
	next.Rollout = r.Rollout.Continue(before.Rollout, t.now)
	return &next
}

// noteTier stores when the tier of a user changes.
func (t *tx) noteTier(ctx context.Context, u *User, before []byte) error {
	var was User
	if before != nil {
		if err := json.Unmarshal(before, &was); err != nil {
			return err
		}
	}
	if before == nil && u.Tier == "" || was.Tier == u.Tier {
		return nil
	}
	_, err := t.ExecContext(ctx, "UPDATE stint_users SET upgraded_at = $2 WHERE id = $1", u.ID, t.c.dialect.Time(t.now))
	return err
}

// note notes a change.
func (t *tx) note(ch Change, path string) {
	t.changes = append(t.changes, ch)
	if ch.Kind == kindRule || ch.Kind == kindTier {
		t.touched = append(t.touched, touch{ch.Kind, ch.ID, path})
		t.checker, t.file = nil, nil
	}
}

// remove deletes a row that was found, and notes the change.
func (t *tx) remove(ctx context.Context, k *kind, id string, found *row) error {
	before, err := k.canonical(found.body)
	if err != nil {
		return err
	}
	if err := t.checkUnused(ctx, k, id); err != nil {
		return err
	}
	if _, err := t.ExecContext(ctx, "DELETE FROM "+k.table+" WHERE id = $1", id); err != nil {
		return err
	}
	t.note(Change{Kind: k.name, ID: id, Before: before}, "")
	return t.putWords(ctx, k.name, id, before, nil)
}

// references are the columns that refer to tiers and users.
var references = map[string][]struct{ table, column, what string }{
	kindTier: {{"stint_users", "tier", "user"}, {"stint_api_keys", "tier", "API key"}, {"stint_tenants", "tier", "tenant"}},
	kindUser: {{"stint_api_keys", "user_id", "API key"}, {"stint_tokens", "user_id", "token"}},
}

// checkUnused returns a problem if another record refers to the one with the id.
func (t *tx) checkUnused(ctx context.Context, k *kind, id string) error {
	for _, r := range references[k.name] {
		var by string
		err := t.QueryRowContext(ctx, "SELECT id FROM "+r.table+" WHERE "+r.column+" = $1 ORDER BY id LIMIT 1", id).Scan(&by)
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		default:
			return strict.Problems{{Message: fmt.Sprintf("the %s %s cannot be deleted: the %s %s refers to it", k.name, strict.Quote(id), r.what, strict.Quote(by))}}
		}
	}
	return nil
}

// check returns the problems of the write. Rules and tiers are checked all together.
func (t *tx) check(ctx context.Context) error {
	if len(t.touched) > 0 {
		file, err := t.read(ctx)
		if err != nil {
			return err
		}
		t.problems = append(t.problems, relate(file, t.touched, t.c.checkFile(file, t.touched))...)
	}
	return t.problems.Err()
}

// checkFile returns the problems of all rules and tiers, and of those that are written also
// whether they fit the regions: a region more must not keep others from being changed.
func (c *Catalog) checkFile(file *rule.File, touched []touch) strict.Problems {
	problems := file.Check()
	if c.options.World == nil {
		return problems
	}
	written := map[[2]string]bool{}
	for _, t := range touched {
		written[[2]string{t.kind, t.id}] = true
	}
	// Values of tiers are divided as soon as a rule that does so is written.
	divided := slices.ContainsFunc(file.Rules, func(r Rule) bool { return r.Regions == rule.RegionsQuota && written[[2]string{kindRule, r.Name}] })
	return append(problems, slices.DeleteFunc(file.CheckIn(*c.options.World), func(p strict.Problem) bool {
		kind, name, _, _ := ruleOf(file, p.Path)
		return !written[[2]string{kind, name}] && (kind != kindTier || !divided)
	})...)
}

// checkOne notes the problems of one value. Those that depend on other rules are left to check.
func (t *tx) checkOne(ctx context.Context, id string, found *row, value any, path string) error {
	check, err := t.checkerOf(ctx, value)
	if err != nil {
		return err
	}
	check.Problems, check.had = nil, nil
	before := t.restoring
	if before == nil && found != nil {
		before = json.RawMessage(found.body)
	}
	if before != nil {
		var had struct{ Limits map[string]json.RawMessage }
		_ = json.Unmarshal(before, &had) // an unreadable value has none
		check.had = had.Limits
	}
	switch v := value.(type) {
	case *Rule, *Tier:
		if id == "" || len(id) > maxTitle || !identity.ValidID(id) { // check checks the rest
			check.Refuse(strict.Member(path, "name"), id, "a name", "")
		} else if err := check.checkRule(path, v); err != nil {
			return err
		}
	case *Tenant:
		check.checkName(strict.Member(path, "id"), v.ID)
		check.checkTenant(path, v)
	case *User:
		check.checkName(strict.Member(path, "id"), v.ID)
		check.checkUser(path, v)
	case *APIKey:
		check.checkKey(path, v)
		if v.User != "" && len(check.Problems) == 0 {
			found, err := t.find(ctx, "stint_users", v.User)
			if err != nil {
				return err
			}
			if found == nil {
				check.Refuse(strict.Member(path, "user"), v.User, "the id of a user in the catalog", "")
			}
		}
		if len(check.Problems) == 0 {
			var other string
			err := t.QueryRowContext(ctx, "SELECT id FROM stint_api_keys WHERE hash = $1 AND id <> $2", v.Hash, v.ID).Scan(&other)
			if err == nil {
				check.Add(strict.Member(path, "hash"), "is the hash of the API key "+strict.Quote(other)+" too: want another", "")
			} else if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		}
	case *Entry:
		seen := listing{checker: check}
		check.checkEntry(path, v, &seen)
		seen.check()
	}
	t.problems = append(t.problems, check.Problems...)
	return nil
}

// checkerOf returns the checker for a value. Only people need all rules and tiers.
func (t *tx) checkerOf(ctx context.Context, value any) (*checker, error) {
	switch value.(type) {
	case *Rule, *Tier, *Entry:
		return new(checker), nil
	}
	if t.checker == nil {
		file, err := t.read(ctx)
		if err != nil {
			return nil, err
		}
		t.checker = &checker{names: namesOf(file, "in the catalog"), whole: true, peppered: true}
	}
	return t.checker, nil
}

// read returns all rules and tiers, with the changes of the transaction.
func (t *tx) read(ctx context.Context) (*rule.File, error) {
	if t.file == nil {
		file, err := t.c.file(ctx, t, t.revision-1, len(t.touched) > 0)
		if err != nil {
			return nil, err
		}
		t.file = &file
	}
	return t.file, nil
}

// relate makes paths of problems relative to the records that were written. Of other rules
// and tiers the path begins with the name.
func relate(file *rule.File, touched []touch, problems strict.Problems) strict.Problems {
	paths := map[[2]string]string{}
	for _, c := range touched {
		paths[[2]string{c.kind, c.id}] = c.path
	}
	for i := range problems {
		p := &problems[i]
		kind, name, rest, ok := ruleOf(file, p.Path)
		if !ok {
			continue
		}
		path, written := paths[[2]string{kind, name}]
		if !written {
			path = kind + " " + strict.Quote(name)
			p.Message = "after this change: " + p.Message
		}
		if p.Path = path + rest; path == "" {
			p.Path = strings.TrimPrefix(rest, ".")
		}
	}
	return problems
}

// ruleOf returns the rule or tier that a path begins with, and the rest of the path.
func ruleOf(file *rule.File, path string) (kind, name, rest string, ok bool) {
	section, rest, _ := strings.Cut(path, "[")
	number, rest, _ := strings.Cut(rest, "]")
	n, err := strconv.Atoi(number)
	switch {
	case err != nil:
		return "", "", "", false
	case section == "tiers":
		return kindTier, file.Tiers[n].Name, rest, true
	default:
		return kindRule, file.Rules[n].Name, rest, true
	}
}
