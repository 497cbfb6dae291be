package catalog

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Types of package rule.
type (
	// Rule is a rule.
	Rule = rule.Rule
	// Tier is a tier.
	Tier = rule.Tier
)

// The kinds of records, as the log of changes names them.
const (
	kindRule      = "rule"
	kindTier      = "tier"
	kindTenant    = "tenant"
	kindUser      = "user"
	kindKey       = "api_key"
	kindExemption = "exemption"
	kindBan       = "ban"
)

// people reports whether nodes look up records of a kind one by one. Of other kinds, every
// node holds all records.
func people(kind string) bool { return kind == kindTenant || kind == kindUser || kind == kindKey }

// kindOrder is the order in which kinds are listed and stored: a kind comes after those
// that it refers to.
var kindOrder = []string{kindTier, kindRule, kindTenant, kindUser, kindKey, kindExemption, kindBan}

// kind is one kind of records.
type kind struct {
	name, table string
	filters     filters
	sorts       filters
	canonical   func(body string) ([]byte, error)
	parse       func(body []byte) (any, error) // into a pointer
	// strict rejects unknown fields. If a newer version added a condition to rules, and this
	// one ignored it, the rule would match too much.
	strict bool
}

// Table is the records of one kind.
type Table[T any] struct {
	kind
	c  *Catalog
	id func(*T) string
}

// Record is a value as it is stored.
type Record[T any] struct {
	Value T
	// Version is the revision that wrote it.
	Version          int64
	Created, Updated time.Time
	By               string // who wrote it last
}

// filters are the names that a table can be filtered by, each with its SQL expression: a
// column or, for rules, which are few, a field of the body.
type filters map[string]string

func columns(names ...string) filters {
	f := filters{}
	for _, name := range names {
		f[name] = name
	}
	return f
}

func (c *Catalog) makeTables() {
	c.Rules = newTable(c, kindRule, "stint_rules", func(r *Rule) string { return r.Name }, filters{
		"action": "COALESCE(body ->> 'action', 'reject')",
		"group":  "body ->> 'group'",
		// It is false in PostgreSQL and 0 in SQLite.
		"enabled": "CASE WHEN CAST(body ->> 'enabled' AS TEXT) IN ('false', '0') THEN 'false' ELSE 'true' END",
	})
	c.Tiers = newTable(c, kindTier, "stint_tiers", func(t *Tier) string { return t.Name }, nil)
	c.Tenants = newTable(c, kindTenant, "stint_tenants", func(t *Tenant) string { return t.ID }, columns("tier"))
	c.Users = newTable(c, kindUser, "stint_users", func(u *User) string { return u.ID }, columns("tier", "tenant", "blocked"))
	c.APIKeys = newTable(c, kindKey, "stint_api_keys", func(k *APIKey) string { return k.ID }, columns("tier", "tenant", "user_id"))
	c.Exemptions = newTable(c, kindExemption, "stint_exemptions", (*Entry).ID, nil)
	c.Bans = newTable(c, kindBan, "stint_bans", (*Entry).ID, nil)
}

// kinds returns all kinds, by name.
func (c *Catalog) kinds() map[string]*kind {
	out := map[string]*kind{}
	for _, k := range []*kind{&c.Rules.kind, &c.Tiers.kind, &c.Tenants.kind, &c.Users.kind, &c.APIKeys.kind, &c.Exemptions.kind, &c.Bans.kind} {
		out[k.name] = k
	}
	return out
}

func newTable[T any](c *Catalog, name, table string, id func(*T) string, f filters) *Table[T] {
	canonical := func(body string) ([]byte, error) {
		var v T
		switch err := json.Unmarshal([]byte(body), &v); {
		case err == nil:
			return json.Marshal(&v)
		case json.Valid([]byte(body)):
			return []byte(body), nil // so that it can be replaced or deleted
		default:
			return json.Marshal(body)
		}
	}
	t := &Table[T]{c: c, id: id}
	parse := func(body []byte) (any, error) {
		v := new(T)
		return v, t.decode(string(body), t.strict, v)
	}
	t.kind = kind{name, table, f, c.sorts(name), canonical, parse, !people(name)}
	return t
}

// Get returns the record with the id, or a [NotFoundError].
func (t *Table[T]) Get(ctx context.Context, id string) (Record[T], error) {
	var all []Record[T]
	if storable(id) {
		var err error
		if all, err = t.query(ctx, t.c.reading, "WHERE id = $1", id); err != nil {
			return Record[T]{}, err
		}
	}
	if len(all) == 0 {
		return Record[T]{}, &NotFoundError{t.name, id}
	}
	return all[0], nil
}

// Query selects the records that meet all of its conditions.
type Query struct {
	// Sort is the field to sort by: id, created_at, updated_at, of rules priority, and of keys and tenants name. A
	// minus before it puts the last first. Default id.
	Sort string
	// After continues a list: with [Cursor] of the last record of the page before. Sorted by id, that is its id.
	After  string
	Prefix string // ids that begin with it
	// Contains is a part of the id, whatever the case of A to Z. Tenants, users and API keys
	// cannot be searched by it: there may be millions.
	Contains string
	Limit    int // from 1 to 1000; default 100
	// Filters are fields and their values: tier, tenant and user_id, and of rules action,
	// group and enabled, which is "true" or "false". Blocked selects users that are blocked,
	// or were until a time that has passed.
	Filters map[string]string
	Blocked bool
}

// List returns records. If there are as many as the limit, there may be more.
func (t *Table[T]) List(ctx context.Context, q Query) ([]Record[T], error) {
	if q.Limit == 0 {
		q.Limit = 100
	}
	if err := q.check(&t.kind); err != nil {
		return nil, err
	}
	where, args, err := q.where(t.c, &t.kind)
	if err != nil {
		return nil, err
	}
	return t.query(ctx, t.c.reading, where, args...)
}

// where returns the query as SQL.
func (q *Query) where(c *Catalog, of *kind) (condition string, args []any, err error) {
	var where []string
	add := func(condition string, arg any) {
		args = append(args, arg)
		where = append(where, strings.ReplaceAll(condition, "?", "$"+strconv.Itoa(len(args))))
	}
	field, down := q.order()
	compared, direction := " > ", ""
	if down {
		compared, direction = " < ", " DESC"
	}
	order := "id" + direction
	first, ok, err := q.after()
	if err != nil {
		return "", nil, err
	}
	if field != "id" {
		order = of.sorts[field] + direction + ", " + order
	}
	switch {
	case !ok:
	case field == "id":
		add("id"+compared+"?", first.ID)
	default:
		args = append(args, first.argument(c))
		add("("+of.sorts[field]+", id)"+compared+"($"+strconv.Itoa(len(args))+", ?)", first.ID)
	}
	if q.Prefix != "" {
		add("id >= ?", q.Prefix)
		if end := after(q.Prefix); end != "" {
			add("id < ?", end)
		}
	}
	if q.Contains != "" {
		add("lower(id) <> replace(lower(id), ?, '')", lower(q.Contains))
	}
	for name, value := range q.Filters {
		add(of.filters[name]+" = ?", value)
	}
	if q.Blocked {
		where = append(where, "blocked IS NOT NULL")
	}
	args = append(args, q.Limit)
	if len(where) > 0 {
		condition = "WHERE " + strings.Join(where, " AND ")
	}
	return condition + " ORDER BY " + order + " LIMIT $" + strconv.Itoa(len(args)), args, nil
}

// lower makes A to Z lower case, as lower() does in SQL without a locale.
func lower(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, text)
}

// check returns what is wrong with the query for a kind.
func (q *Query) check(of *kind) error {
	var k checker
	if q.Limit < 1 || q.Limit > 1000 {
		k.Add("limit", strconv.Itoa(q.Limit)+": want from 1 to 1000", "")
	}
	if field, _ := q.order(); of.sorts[field] == "" {
		k.Refuse("sort", q.Sort, "one of "+strings.Join(slices.Sorted(maps.Keys(of.sorts)), ", ")+", or with a minus before it", "")
	}
	k.checkStorable("after", q.After)
	k.checkStorable("prefix", q.Prefix)
	if k.checkStorable("contains", q.Contains); q.Contains != "" && people(of.name) {
		k.Add("contains", "is not supported for "+of.name+"s, of which there may be millions: use prefix", "")
	}
	for name, value := range q.Filters {
		if of.filters[name] == "" || name == "blocked" { // see Query.Blocked
			k.Add(name, "unknown filter", "")
		}
		if name == "enabled" && value != "true" && value != "false" {
			k.Refuse(name, value, "true or false", "")
		}
		k.checkStorable(name, value)
	}
	if q.Blocked && of.filters["blocked"] == "" {
		k.Add("blocked", "unknown filter", "")
	}
	return k.Problems.Err()
}

// after returns the first string, in the order of bytes, that is greater than all with the
// prefix. Empty: there is none. In UTF-8 that is also the order of characters.
func after(prefix string) string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch last {
		case unicode.MaxRune: // increment the character before it
		case 0xd7ff:
			return prefix + "\ue000" // there are no surrogates in UTF-8
		default:
			return prefix + string(last+1)
		}
	}
	return ""
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (t *Table[T]) query(ctx context.Context, q querier, where string, args ...any) ([]Record[T], error) {
	return t.read(ctx, q, t.strict, where, args...)
}

func (t *Table[T]) read(ctx context.Context, q querier, strict bool, where string, args ...any) (out []Record[T], err error) {
	defer func() { err = withCause(ctx, err) }()
	rows, err := q.QueryContext(ctx, "SELECT id, body, version, created_at, updated_at, updated_by FROM "+t.table+" "+where, args...)
	if err != nil {
		return nil, t.c.wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var r row
		if err := rows.Scan(&id, &r.body, &r.version, &r.created, &r.updated, &r.by); err != nil {
			return nil, t.c.wrap(err)
		}
		rec := Record[T]{Version: r.version, Created: r.created.Time, Updated: r.updated.Time, By: r.by}
		if err := t.decode(r.body, strict, &rec.Value); err != nil {
			return nil, &unreadableError{t.name, id, err}
		}
		out = append(out, rec)
	}
	return out, t.c.wrap(rows.Err())
}

func (*Table[T]) decode(body string, strict bool, into *T) error {
	if !strict {
		return json.Unmarshal([]byte(body), into) // which is faster
	}
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// Create stores a new record and returns its version.
func (t *Table[T]) Create(ctx context.Context, actor string, value T) (version int64, err error) {
	id := t.id(&value)
	return t.c.write(ctx, actor, func(x *tx) error {
		found, err := x.find(ctx, t.table, id)
		if err != nil {
			return err
		}
		if found != nil {
			return &ConflictError{Kind: t.name, ID: id, Found: found.version}
		}
		return x.put(ctx, &t.kind, id, nil, &value, "")
	})
}

// Update replaces the version that was seen and returns the new version, or the same one if
// nothing has changed. An id cannot be changed.
func (t *Table[T]) Update(ctx context.Context, actor string, value T, seen int64) (version int64, err error) {
	id := t.id(&value)
	_, err = t.c.write(ctx, actor, func(x *tx) error {
		found, err := t.seen(ctx, x, id, seen)
		if err != nil {
			return err
		}
		version = found.version
		before := len(x.changes)
		if err := x.put(ctx, &t.kind, id, found, &value, ""); err != nil {
			return err
		}
		if len(x.changes) > before {
			version = x.revision
		}
		return nil
	})
	return version, err
}

// Delete deletes the version that was seen.
func (t *Table[T]) Delete(ctx context.Context, actor, id string, seen int64) error {
	_, err := t.c.write(ctx, actor, func(x *tx) error {
		found, err := t.seen(ctx, x, id, seen)
		if err != nil {
			return err
		}
		return x.remove(ctx, &t.kind, id, found)
	})
	return err
}

// seen returns the row if it is still the version that was seen.
func (t *Table[T]) seen(ctx context.Context, x *tx, id string, version int64) (*row, error) {
	found, err := x.find(ctx, t.table, id)
	switch {
	case err != nil:
		return nil, err
	case found == nil:
		return nil, &NotFoundError{t.name, id}
	case found.version != version:
		return nil, &ConflictError{Kind: t.name, ID: id, Seen: version, Found: found.version}
	}
	return found, nil
}

// Modify reads a record, changes it and stores it, and repeats that if another writer has
// changed it meanwhile. It returns the new version.
func (t *Table[T]) Modify(ctx context.Context, actor, id string, change func(*T) error) (version int64, err error) {
	for {
		r, err := t.Get(ctx, id)
		if err != nil {
			return 0, err
		}
		if err := change(&r.Value); err != nil {
			return 0, err
		}
		if now := t.id(&r.Value); now != id {
			return 0, strict.Problems{{Message: "the id of the " + t.name + " " + strict.Quote(id) + " cannot be changed to " + strict.Quote(now)}}
		}
		version, err := t.Update(ctx, actor, r.Value, r.Version)
		if !errors.As(err, new(*ConflictError)) {
			return version, err
		}
	}
}
