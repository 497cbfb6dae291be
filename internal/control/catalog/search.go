package catalog

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A search finds tenants, users and API keys, of which there may be millions, by what begins a
// word of their id or their name. Ids are found by an index of their own. What begins later in
// an id, and all that begins a word of a name, has rows in stint_words, which are written with
// the record. Rules, tiers, exemptions and bans have no words.
//
// A word is a run of letters and digits; all characters beyond ASCII count as such. The case of
// A to Z does not matter.

const (
	maxWords = 8  // of a text
	maxWord  = 64 // characters
)

// isWord reports whether a character is part of a word.
func isWord(r rune) bool { return r >= utf8.RuneSelf || !notAlphanumeric(r) }

// wordsOf returns the rest of a text, cut to maxWord characters, from where each of its first
// words begins: at the first character, or later.
func wordsOf(text string, first bool) (out []string) {
	inside := !first
	for i, r := range text {
		if isWord(r) && !inside && len(out) < maxWords {
			out = append(out, lower(cut(text[i:], maxWord)))
		}
		inside = isWord(r)
	}
	return out
}

// cut returns the first characters of a text.
func cut(text string, most int) string {
	for i := range text {
		if most == 0 {
			return text[:i]
		}
		most--
	}
	return text
}

// searchWords returns the words of a record that its id does not begin with.
func searchWords(kind, id string, body []byte) []string {
	if body == nil || !people(kind) {
		return nil
	}
	var out []string
	if kind != kindKey { // whose ids are random
		out = wordsOf(id, false)
	}
	if kind != kindUser {
		out = append(out, wordsOf(nameOf(body), true)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// putWords replaces the words of a record. Nil is a record that does not exist.
func (t *tx) putWords(ctx context.Context, kind, id string, before, after []byte) error {
	was, is := searchWords(kind, id, before), searchWords(kind, id, after)
	if slices.Equal(was, is) {
		return nil
	}
	for _, word := range was {
		if _, err := t.ExecContext(ctx, "DELETE FROM stint_words WHERE kind = $1 AND word = $2 AND id = $3", kind, word, id); err != nil {
			return err
		}
	}
	if len(is) == 0 {
		return nil
	}
	args, holes := []any{kind, id}, []string{}
	for _, word := range is {
		args = append(args, word)
		holes = append(holes, "($1, $"+strconv.Itoa(len(args))+", $2)")
	}
	_, err := t.ExecContext(ctx, "INSERT INTO stint_words (kind, word, id) VALUES "+strings.Join(holes, ", ")+" ON CONFLICT DO NOTHING", args...)
	return err
}

// Hits are what a search has found: at most a limit of each kind, and one more, which tells
// that there are more.
type Hits struct {
	Rules            []Rule
	Tiers            []Tier
	Tenants          []Tenant
	Users            []User
	APIKeys          []APIKey
	Exemptions, Bans []Entry
}

// MaxSearch is the longest text, in bytes, that is searched for.
const MaxSearch = 512

// Search returns the records that a text stands for, by kind, at most limit and one more of
// each. It finds tenants, users and keys by what begins their id, or a word of their id or
// name; keys by what begins their text, too; rules and tiers by any part of their names;
// exemptions and bans by what begins their subject, such as user:alice or alice. The case of A
// to Z matters only for exemptions and bans. If the text contains the secret of a key, only the
// id of that key is searched for.
func (c *Catalog) Search(ctx context.Context, text string, limit int) (h Hits, err error) {
	defer func() { err = withCause(ctx, err) }()
	var k checker
	if text == "" || len(text) > MaxSearch {
		k.Add("q", "want 1 to "+strconv.Itoa(MaxSearch)+" bytes", "")
	}
	if limit < 1 || limit > 100 {
		k.Add("limit", strconv.Itoa(limit)+": want from 1 to 100", "")
	}
	if k.checkStorable("q", text); k.Problems != nil {
		return h, k.Problems
	}
	most := limit + 1
	keyIDs, secret := keyPrefixes(text)
	for _, id := range keyIDs {
		found, err := c.APIKeys.beginning(ctx, id, most)
		if err != nil {
			return h, err
		}
		for _, key := range found {
			if id == text || key.begins(text) {
				h.APIKeys = merged(c.APIKeys, h.APIKeys, []APIKey{key}, most)
			}
		}
	}
	if secret {
		return h, nil
	}
	steps := []func() error{
		func() (err error) { h.Users, err = c.Users.search(ctx, text, most); return err },
		func() (err error) { h.Tenants, err = c.Tenants.search(ctx, text, most); return err },
		func() error {
			named, err := c.APIKeys.worded(ctx, text, most)
			h.APIKeys = merged(c.APIKeys, h.APIKeys, named, most)
			return err
		},
		func() (err error) { h.Rules, err = c.Rules.containing(ctx, text, most); return err },
		func() (err error) { h.Tiers, err = c.Tiers.containing(ctx, text, most); return err },
		func() (err error) { h.Exemptions, err = entriesBeginning(ctx, c.Exemptions, text, most); return err },
		func() (err error) { h.Bans, err = entriesBeginning(ctx, c.Bans, text, most); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return Hits{}, err
		}
	}
	return h, nil
}

// begins reports whether a text is the beginning of the text of the key, or all of it.
func (k *APIKey) begins(text string) bool {
	return k.Prefix != "" && (strings.HasPrefix(text, k.Prefix) || strings.HasPrefix(k.Prefix, text))
}

// search returns records by what begins their id, and then by words.
func (t *Table[T]) search(ctx context.Context, text string, most int) ([]T, error) {
	out, err := t.beginning(ctx, text, most)
	if err != nil || len(out) == most {
		return out, err
	}
	more, err := t.worded(ctx, text, most)
	return merged(t, out, more, most), err
}

// merged adds records that are not there yet, up to a number.
func merged[T any](t *Table[T], to, from []T, most int) []T {
	for i := range from {
		if len(to) < most && !slices.ContainsFunc(to, func(v T) bool { return t.id(&v) == t.id(&from[i]) }) {
			to = append(to, from[i])
		}
	}
	return to
}

// between returns a condition for an expression that begins with a text.
func between(expression, text string) (condition string, args []any) {
	condition, args = expression+" >= $1", []any{text}
	if end := after(text); end != "" {
		condition, args = condition+" AND "+expression+" < $2", append(args, end)
	}
	return condition, args
}

// beginning returns records whose id begins with a text.
func (t *Table[T]) beginning(ctx context.Context, text string, most int) ([]T, error) {
	where, args := between("lower(id)", lower(text))
	return t.values(t.query(ctx, t.c.reading, "WHERE "+where+" ORDER BY lower(id), id LIMIT "+strconv.Itoa(most), args...))
}

// worded returns records with a word that begins with a text. The words may be those that the
// record had before a node of an older version has changed it.
func (t *Table[T]) worded(ctx context.Context, text string, most int) ([]T, error) {
	const perRecord = 2 // words of a record that may begin with the same text
	where, args := between("word", lower(cut(text, maxWord)))
	args = append(args, t.name)
	found, err := t.values(t.query(ctx, t.c.reading, "WHERE id IN (SELECT id FROM (SELECT id FROM stint_words WHERE kind = $"+strconv.Itoa(len(args))+" AND "+where+
		" ORDER BY word, id LIMIT "+strconv.Itoa(perRecord*most)+") AS found) ORDER BY id", args...))
	return slices.DeleteFunc(found, func(v T) bool {
		body, err := json.Marshal(&v)
		return err != nil || !strings.Contains(lower(t.id(&v)+"\n"+nameOf(body)), lower(text))
	}), err
}

// nameOf returns the name in the JSON of a record.
func nameOf(body []byte) string {
	var v struct{ Name string }
	_ = json.Unmarshal(body, &v) // what cannot be read has no name
	return v.Name
}

// containing returns records whose id contains a text. There are few.
func (t *Table[T]) containing(ctx context.Context, text string, most int) ([]T, error) {
	q := Query{Contains: text, Limit: most}
	where, args, err := q.where(t.c, &t.kind)
	if err != nil {
		return nil, err
	}
	return t.values(t.query(ctx, t.c.reading, where, args...))
}

func (*Table[T]) values(records []Record[T], err error) ([]T, error) {
	out := make([]T, len(records))
	for i := range records {
		out[i] = records[i].Value
	}
	return out, err
}

// entriesBeginning returns entries whose subject begins with a text.
func entriesBeginning(ctx context.Context, t *Table[Entry], text string, most int) (out []Entry, err error) {
	for _, kind := range []string{"", "ip:", "user:", "tenant:", "key:"} {
		where, args := between("id", kind+text)
		found, err := t.values(t.query(ctx, t.c.reading, "WHERE "+where+" ORDER BY id LIMIT "+strconv.Itoa(most), args...))
		if err != nil {
			return nil, err
		}
		out = merged(t, out, found, most)
	}
	return out, nil
}

// HasSecret reports whether a text contains a large part of the secret of a key, so that it must
// not be searched for.
func HasSecret(text string) bool {
	_, secret := keyPrefixes(text)
	return secret
}

// Known returns which ids are in the catalog, of users, tenants or keys.
func (c *Catalog) Known(ctx context.Context, kind string, ids []string) (out []string, err error) {
	defer func() { err = withCause(ctx, err) }()
	table := map[string]string{"user": "stint_users", "tenant": "stint_tenants", "key": "stint_api_keys"}[kind]
	where, args := among(ids)
	if len(args) == 0 {
		return nil, nil
	}
	rows, err := c.reading.QueryContext(ctx, "SELECT id FROM "+table+" "+where, args...)
	if err != nil {
		return nil, c.wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, c.wrap(err)
		}
		out = append(out, id)
	}
	return out, c.wrap(rows.Err())
}
