package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Document is the content of a catalog, as it is written in a file.
type Document struct {
	rule.File
	Tenants    []Tenant `json:"tenants,omitempty"`
	Users      []User   `json:"users,omitempty"`
	APIKeys    []APIKey `json:"api_keys,omitempty"`
	Exemptions []Entry  `json:"exemptions,omitempty"`
	Bans       []Entry  `json:"bans,omitempty"`
}

// Empty reports whether the document has no records.
func (d *Document) Empty() bool {
	return len(d.Rules)+len(d.Tiers)+len(d.Tenants)+len(d.Users)+len(d.APIKeys)+len(d.Exemptions)+len(d.Bans) == 0
}

// Tenant is a tenant. Those without a tier need not be listed.
type Tenant struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"` // for people
	Tier string `json:"tier,omitempty"` // of its users and keys that have none
}

// User is a user. Those without settings need not be listed.
type User struct {
	ID      string              `json:"id"`
	Tenant  string              `json:"tenant,omitempty"`
	Tier    string              `json:"tier,omitempty"`
	Limits  map[string]Override `json:"limits,omitempty"`
	Blocked *Blocked            `json:"blocked,omitempty"`
}

// Blocked bans a user.
type Blocked struct {
	Reason string `json:"reason,omitempty"`
	Until  Time   `json:"until,omitzero"` // zero: for good
}

// APIKey is an API key, without its secret.
type APIKey struct {
	ID   string `json:"id"`
	Hash string `json:"hash"` // sha256:HEX or hmac-sha256:HEX
	// Prefix is the beginning of the key, so that its owner recognizes it. It is not secret.
	Prefix string `json:"prefix,omitempty"`
	Name   string `json:"name,omitempty"` // for people

	User     string              `json:"user,omitempty"`
	Tenant   string              `json:"tenant,omitempty"`
	Tier     string              `json:"tier,omitempty"`
	Limits   map[string]Override `json:"limits,omitempty"`
	Disabled bool                `json:"disabled,omitempty"`
	// The key is not accepted after Expires or Revoked. Zero: never.
	Expires   Time   `json:"expires,omitzero"`
	Revoked   Time   `json:"revoked,omitzero"`
	RevokedBy string `json:"revoked_by,omitempty"`
	// Replaces is the id of the key that this one was made instead of, and ReplacedBy that of the one made instead of this.
	Replaces   string `json:"replaces,omitempty"`
	ReplacedBy string `json:"replaced_by,omitempty"`
}

// Entry exempts or bans one of IP, which may be a network, User, Tenant and Key.
type Entry struct {
	IP     string `json:"ip,omitempty"`
	User   string `json:"user,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	Key    string `json:"key,omitempty"`
	Reason string `json:"reason,omitempty"`
	Until  Time   `json:"until,omitzero"` // zero: for good
}

// ID names the subject of the entry: ip:192.0.2.0/24, user:alice. All spellings of an
// address have the same ID.
func (e *Entry) ID() string {
	given := e.entries()
	if len(given) == 0 {
		return ""
	}
	one := given[0]
	if one.Kind == identity.KindIP {
		one.Value = canonicalIP(one.Value)
	}
	return one.Kind.String() + ":" + one.Value
}

// canonicalIP returns one form for all spellings of an address or a network.
func canonicalIP(text string) string {
	if p, err := netip.ParsePrefix(text); err == nil && !p.IsSingleIP() {
		return p.String()
	} else if err == nil {
		return p.Addr().String()
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return a.String()
	}
	return text
}

// entries returns an entry for each subject that is given. There should be one.
func (e *Entry) entries() []identity.Entry {
	var out []identity.Entry
	for kind, value := range []string{
		identity.KindIP: e.IP, identity.KindUser: e.User, identity.KindTenant: e.Tenant, identity.KindKey: e.Key,
	} {
		if value != "" {
			out = append(out, identity.Entry{Kind: identity.Kind(kind), Value: value, Reason: e.Reason, Until: e.Until.Time})
		}
	}
	return out
}

// Override replaces a limit for one user or API key, for good or until a time. It is
// written as "200/day", or as { limit = "200/day", until = ... }.
type Override struct {
	Limit string // as rule.ParseValue reads it
	Until Time   // zero: for good
}

type overrideTable struct {
	Limit string `json:"limit"`
	Until Time   `json:"until,omitzero"`
}

// MarshalJSON implements [json.Marshaler]: one for good is a string.
func (o Override) MarshalJSON() ([]byte, error) {
	if o.Until.IsZero() {
		return json.Marshal(o.Limit)
	}
	return json.Marshal(overrideTable(o))
}

// UnmarshalJSON implements [json.Unmarshaler].
func (o *Override) UnmarshalJSON(data []byte) error {
	_, problems := strict.JSON("", data, o)
	return problems.Err()
}

// UnmarshalStrict implements [strict.Unmarshaler].
func (o *Override) UnmarshalStrict(found strict.Kind, decode func(into any)) error {
	var t overrideTable
	switch found {
	case strict.String:
		decode(&t.Limit)
	case strict.Table:
		decode(&t)
	default:
		return errors.New("found " + found.String() + `, want a string such as "200/day" or a table such as { limit = "200/day", until = 2026-12-31T00:00:00Z }`)
	}
	*o = Override(t)
	return nil
}

// Time is a time that is written as in RFC 3339, or as a TOML date and time with a zone.
type Time = rule.Time

// values returns the overrides that apply at a time, and when the first of them ends; zero:
// never.
func values(overrides map[string]Override, now time.Time) (out rule.Values, until time.Time) {
	for name, o := range overrides {
		if !o.Until.IsZero() {
			if !now.Before(o.Until.Time) {
				continue
			}
			until = earlier(until, o.Until.Time)
		}
		v, err := rule.ParseValue(o.Limit)
		if err != nil {
			continue // a newer version wrote it
		}
		if out == nil {
			out = make(rule.Values, len(overrides))
		}
		out[name] = v
	}
	return out, until
}

// earlier returns the earlier of two times. Zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// identity converts the tenant for package identity.
func (t *Tenant) identity() *identity.Tenant { return &identity.Tenant{ID: t.ID, Tier: t.Tier} }

// at returns the user as of a time, and until when it stays so; zero: for good.
func (u *User) at(now time.Time) (*identity.User, time.Time) {
	limits, until := values(u.Limits, now)
	out := &identity.User{ID: u.ID, Tenant: u.Tenant, Tier: u.Tier, Limits: limits}
	if b := u.Blocked; b != nil {
		out.Blocked = &identity.Entry{Kind: identity.KindUser, Value: u.ID, Reason: b.Reason, Until: b.Until.Time}
	}
	return out, until
}

// at returns the key as of a time, and until when it stays so; zero: for good.
func (k *APIKey) at(now time.Time) (*identity.Key, time.Time) {
	limits, until := values(k.Limits, now)
	hash, hashing, _ := parseHash(k.Hash) // checked
	return &identity.Key{
		ID: k.ID, Hash: hash, Hashing: hashing, User: k.User, Tenant: k.Tenant, Tier: k.Tier, Limits: limits,
		Disabled: k.Disabled, Expires: k.Expires.Time, Revoked: k.Revoked.Time,
	}, until
}

// Lists returns the exemptions and bans. The document was checked.
func (d *Document) Lists() (l identity.Lists, err error) {
	if l.Exempt, err = newList(d.Exemptions); err != nil {
		return l, fmt.Errorf("exemptions: %w", err)
	}
	if l.Banned, err = newList(d.Bans); err != nil {
		return l, fmt.Errorf("bans: %w", err)
	}
	return l, nil
}

func newList(list []Entry) (*identity.List, error) {
	var entries []identity.Entry
	for i := range list {
		entries = append(entries, list[i].entries()...)
	}
	return identity.NewList(entries)
}
