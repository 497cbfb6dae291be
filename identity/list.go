package identity

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/network"
)

// Entry exempts or bans someone.
type Entry struct {
	Kind Kind
	// Value is an address or a network, as 192.0.2.1 or 2001:db8::/32, or the id of a
	// user, tenant or API key.
	Value string
	// Reason is for people.
	Reason string
	// Until is when the entry expires. Zero: never.
	Until time.Time
}

// Holds reports whether the entry has not expired.
func (e *Entry) Holds(now time.Time) bool { return e.Until.IsZero() || now.Before(e.Until) }

// Kind is what an entry names.
type Kind uint8

// The kinds of entries.
const (
	KindIP Kind = iota
	KindUser
	KindTenant
	KindKey
)

var kindNames = [...]string{KindIP: "ip", KindUser: "user", KindTenant: "tenant", KindKey: "key"}

// String returns "ip", "user", "tenant" or "key".
func (k Kind) String() string { return nameOf(kindNames[:], k) }

// MarshalText implements [encoding.TextMarshaler].
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (k *Kind) UnmarshalText(text []byte) error { return parseName("kind", kindNames[:], text, k) }

// List is a set of entries. It does not change. A nil list is empty.
type List struct {
	ids  [len(kindNames)]map[string]*Entry // by kind
	nets network.Table[*Entry]
}

// NewList returns a list of the entries. The error reports all that is wrong with them.
func NewList(entries []Entry) (*List, error) {
	l := &List{}
	nets := map[netip.Prefix]*Entry{}
	var errs []error
	for i := range entries {
		e := entries[i]
		if want := l.add(&e, nets); want != "" {
			field := "identity entries[" + strconv.Itoa(i) + "]"
			errs = append(errs, &stint.InvalidError{Field: field, Value: e.Kind.String() + " " + e.Value, Want: want})
		}
	}
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	l.nets = network.NewTable(nets)
	return l, nil
}

// add returns what would be right if the entry is wrong, or "".
func (l *List) add(e *Entry, nets map[netip.Prefix]*Entry) string {
	const once = "it only once"
	switch e.Kind {
	case KindUser, KindTenant, KindKey:
		ids := &l.ids[e.Kind]
		if (*ids)[e.Value] != nil {
			return once
		}
		if !ValidID(e.Value) {
			return wantID
		}
		if *ids == nil {
			*ids = map[string]*Entry{}
		}
		(*ids)[e.Value] = e
	case KindIP:
		p, want := network.Parse(e.Value)
		switch {
		case want != "":
			return want
		case nets[p] != nil:
			return once
		}
		nets[p] = e
	default:
		return "a kind: " + strings.Join(kindNames[:], ", ")
	}
	return ""
}

// Find returns the entry that applies to the subject, or nil: that of its key, user or
// tenant, or else of its address.
func (l *List) Find(s *Subject, now time.Time) *Entry {
	if e := l.name(s, now); e != nil {
		return e
	}
	return l.address(s.IP, now)
}

// address returns the entry of the smallest network that contains the address.
func (l *List) address(a netip.Addr, now time.Time) *Entry {
	if l == nil {
		return nil
	}
	for n := l.nets.Smallest(a); n != nil; n = n.Outer {
		if n.Value.Holds(now) {
			return n.Value
		}
	}
	return nil
}

// name returns the entry of the subject's key, or else of its user or tenant.
func (l *List) name(s *Subject, now time.Time) *Entry {
	if l == nil {
		return nil
	}
	for _, e := range [...]*Entry{l.ids[KindKey][s.Key], l.ids[KindUser][s.User], l.ids[KindTenant][s.Tenant]} {
		if e != nil && e.Holds(now) {
			return e
		}
	}
	return nil
}
