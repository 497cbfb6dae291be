package catalog

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// The limits of text for people to read, in bytes, and of the number of overrides.
const (
	maxTitle  = 255
	maxReason = 1024
	maxLimits = 1000
)

// CheckPeople returns the problems of everything except rules and tiers. References to these
// are only checked if the document is whole. Keys with peppered hashes need a pepper.
func (d *Document) CheckPeople(whole, peppered bool) strict.Problems {
	k := checker{names: namesOf(&d.File, "in this file"), whole: whole, peppered: peppered}
	seen := listing{checker: &k}
	for i := range d.Tenants {
		path := strict.Item("tenants", i)
		seen.add(path+".id", identity.Entry{Kind: identity.KindTenant, Value: d.Tenants[i].ID})
		k.checkTenant(path, &d.Tenants[i])
	}
	for i := range d.Users {
		path := strict.Item("users", i)
		seen.add(path+".id", identity.Entry{Kind: identity.KindUser, Value: d.Users[i].ID})
		k.checkUser(path, &d.Users[i])
	}
	for i := range d.APIKeys {
		path := strict.Item("api_keys", i)
		if k.checkKey(path, &d.APIKeys[i]) {
			seen.add(path+".id", identity.Entry{Kind: identity.KindKey, Value: d.APIKeys[i].ID})
		}
	}
	seen.check()
	k.checkEntries("exemptions", d.Exemptions)
	k.checkEntries("bans", d.Bans)
	return k.Problems
}

// names are the names that tenants, users and keys may refer to.
type names struct {
	tiers, limits []string // sorted
	where         string   // for messages
}

func namesOf(f *rule.File, where string) *names {
	n := &names{where: where}
	for _, t := range f.Tiers {
		n.tiers = append(n.tiers, t.Name)
	}
	for _, r := range f.Rules {
		for _, l := range r.Limits {
			n.limits = append(n.limits, l.Name)
		}
	}
	slices.Sort(n.tiers)
	slices.Sort(n.limits)
	n.limits = slices.Compact(n.limits)
	return n
}

type checker struct {
	strict.Report
	*names
	whole, peppered bool
	// had are the overrides that the record already has, or that a revert restores. They may
	// be of limits whose rule was deleted since.
	had map[string]json.RawMessage
}

func (k *checker) checkTenant(path string, t *Tenant) {
	k.checkText(strict.Member(path, "name"), t.Name, maxTitle)
	k.checkTier(strict.Member(path, "tier"), t.Tier)
}

func (k *checker) checkUser(path string, u *User) {
	k.checkID(strict.Member(path, "tenant"), u.Tenant)
	k.checkTier(strict.Member(path, "tier"), u.Tier)
	k.checkLimits(strict.Member(path, "limits"), u.Limits)
	if u.Blocked != nil {
		k.checkText(strict.Member(path, "blocked")+".reason", u.Blocked.Reason, maxReason)
	}
}

// checkKey reports whether the id is valid.
func (k *checker) checkKey(path string, a *APIKey) bool {
	ok := validKeyID(a.ID)
	if !ok {
		k.Refuse(strict.Member(path, "id"), a.ID, "8 to 64 letters and digits: the part of the key between its prefix and its secret", "")
	}
	switch _, hashing, err := parseHash(a.Hash); {
	case err != nil:
		k.Add(strict.Member(path, "hash"), err.Error(), "")
	case hashing == identity.HMAC && !k.peppered:
		k.Add(strict.Member(path, "hash"), "was made with a pepper, and none is set: want identity.pepper or identity.pepper_file", "")
	}
	k.checkText(strict.Member(path, "prefix"), a.Prefix, maxTitle)
	k.checkText(strict.Member(path, "name"), a.Name, maxTitle)
	k.checkID(strict.Member(path, "user"), a.User)
	k.checkID(strict.Member(path, "tenant"), a.Tenant)
	k.checkTier(strict.Member(path, "tier"), a.Tier)
	k.checkLimits(strict.Member(path, "limits"), a.Limits)
	k.checkText(strict.Member(path, "revoked_by"), a.RevokedBy, maxTitle)
	for field, id := range map[string]string{"replaces": a.Replaces, "replaced_by": a.ReplacedBy} {
		if id != "" && !validKeyID(id) {
			k.Refuse(strict.Member(path, field), id, "the id of a key", "")
		}
	}
	return ok
}

func validKeyID(id string) bool {
	return len(id) >= 8 && len(id) <= 64 && !strings.ContainsFunc(id, notAlphanumeric)
}

func notAlphanumeric(r rune) bool {
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

// parseHash reads the hash of a key's secret. The error does not show the text, which may be
// the secret itself.
func parseHash(text string) (hash [32]byte, hashing identity.Hashing, err error) {
	how, digits, _ := strings.Cut(text, ":")
	sum, err := hex.DecodeString(digits)
	if err != nil || len(sum) != len(hash) || hashing.UnmarshalText([]byte(how)) != nil {
		return hash, hashing, errors.New("want sha256: or hmac-sha256: and the hash of the secret in 64 hexadecimal digits")
	}
	return [32]byte(sum), hashing, nil
}

func (k *checker) checkEntries(section string, list []Entry) {
	seen := listing{checker: k}
	for i := range list {
		k.checkEntry(strict.Item(section, i), &list[i], &seen)
	}
	seen.check()
}

func (k *checker) checkEntry(path string, e *Entry, seen *listing) {
	given := e.entries()
	if len(given) != 1 {
		k.Add(path, "has "+strconv.Itoa(len(given))+" of ip, user, tenant and key, want one of them", "")
	}
	for _, one := range given {
		seen.add(strict.Member(path, one.Kind.String()), one)
	}
	k.checkText(strict.Member(path, "reason"), e.Reason, maxReason)
}

// listing is names that have to be valid and unique by the rules of package identity.
type listing struct {
	*checker
	entries []identity.Entry
	paths   []string
}

func (l *listing) add(path string, e identity.Entry) {
	l.entries, l.paths = append(l.entries, e), append(l.paths, path)
}

func (l *listing) check() {
	_, err := identity.NewList(l.entries)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return
	}
	for _, err := range joined.Unwrap() {
		invalid := new(stint.InvalidError)
		if !errors.As(err, &invalid) {
			continue
		}
		i, _ := strconv.Atoi(strings.Trim(strings.TrimPrefix(invalid.Field, "identity entries"), "[]"))
		l.Refuse(l.paths[i], l.entries[i].Value, invalid.Want, "")
	}
}

// checkName checks the name of a client.
func (k *checker) checkName(path, id string) {
	one := listing{checker: k}
	one.add(path, identity.Entry{Kind: identity.KindUser, Value: id})
	one.check()
}

// checkID is checkName for a name that may be empty.
func (k *checker) checkID(path, id string) {
	if id != "" {
		k.checkName(path, id)
	}
}

// checkText checks text for people to read, which may be empty.
func (k *checker) checkText(path, text string, maxBytes int) {
	if len(text) > maxBytes || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		k.Refuse(path, text, "at most "+strconv.Itoa(maxBytes)+" bytes of UTF-8 without control characters", "")
	}
}

// storable reports whether every database can store the text.
func storable(text string) bool { return utf8.ValidString(text) && !strings.Contains(text, "\x00") }

func (k *checker) checkStorable(path, text string) {
	if !storable(text) {
		k.Refuse(path, text, "UTF-8 without the character U+0000", "")
	}
}

// checkRule checks that the texts of a rule or a tier can be stored. In its JSON, an escaped
// U+FFFD stands for invalid UTF-8.
func (k *checker) checkRule(path string, value any) error {
	body, err := json.Marshal(value)
	if err != nil || !bytes.Contains(body, []byte(`\u0000`)) && !bytes.Contains(body, []byte(`\ufffd`)) {
		return err
	}
	tree, err := decode(body)
	k.checkTree(path, tree)
	return err
}

func (k *checker) checkTree(path string, v any) {
	switch v := v.(type) {
	case string:
		k.checkStorable(path, strings.ReplaceAll(v, "\ufffd", "\xff"))
	case []any:
		for i := range v {
			k.checkTree(strict.Item(path, i), v[i])
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			k.checkTree(strict.Member(path, name), name)
			k.checkTree(strict.Member(path, name), v[name])
		}
	}
}

func (k *checker) checkTier(path, tier string) {
	if _, ok := slices.BinarySearch(k.tiers, tier); !ok && k.whole && tier != "" {
		k.Refuse(path, tier, "the name of a tier "+k.where, k.Closest(tier, k.tiers))
	}
}

func (k *checker) checkLimits(path string, limits map[string]Override) {
	if len(limits) > maxLimits {
		k.Add(path, strconv.Itoa(len(limits))+" limits, want at most "+strconv.Itoa(maxLimits), "")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		path := strict.Member(path, name)
		if _, ok := slices.BinarySearch(k.limits, name); !ok && k.whole && k.had[name] == nil {
			k.Refuse(path, name, "the name of a limit of a rule", k.Closest(name, k.limits))
		}
		text := limits[name].Limit
		if _, err := rule.ParseValue(text); err != nil {
			message, invalid := err.Error(), new(stint.InvalidError)
			if errors.As(err, &invalid) {
				message = strict.Quote(invalid.Value) + ": want " + invalid.Want
			}
			k.Add(path, message, k.Closest(text, []string{"unlimited"}))
		}
	}
}
