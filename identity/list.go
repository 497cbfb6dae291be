package identity

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
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
	nets networks
}

// NewList returns a list of the entries. The error reports all that is wrong with them.
func NewList(entries []Entry) (*List, error) {
	l := &List{}
	var errs []error
	for i := range entries {
		e := entries[i]
		if want := l.add(&e); want != "" {
			field := "identity entries[" + strconv.Itoa(i) + "]"
			errs = append(errs, &stint.InvalidError{Field: field, Value: e.Kind.String() + " " + e.Value, Want: want})
		}
	}
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	return l, nil
}

// add returns what would be right if the entry is wrong, or "".
func (l *List) add(e *Entry) string {
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
		p, want := parseNetwork(e.Value)
		if want != "" {
			return want
		}
		if !l.nets.add(p, e) {
			return once
		}
	default:
		return "a kind: " + strings.Join(kindNames[:], ", ")
	}
	return ""
}

// parseNetwork reads an address or a network, or says what would be right.
func parseNetwork(text string) (p netip.Prefix, want string) {
	var err error
	if strings.Contains(text, "/") {
		p, err = netip.ParsePrefix(text)
	} else {
		var a netip.Addr
		if a, err = netip.ParseAddr(text); a.Zone() != "" {
			return p, "an address without a zone"
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if err != nil {
		return p, "an address or a network, such as 192.0.2.1 or 2001:db8::/32"
	}
	return p, checkNetwork(p)
}

// checkNetwork says what would be right instead of a network that no client's address
// can match, because addresses are normalized.
func checkNetwork(p netip.Prefix) (want string) {
	switch {
	case !p.IsValid():
		return "a network"
	case p.Addr().Is4In6():
		return "the IPv4 address itself, " + p.Addr().Unmap().String()
	case p.Masked() != p:
		return p.Masked().String() + ", without host bits"
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

// address returns the entry of the longest network that the address is in.
func (l *List) address(a netip.Addr, now time.Time) *Entry {
	if l == nil {
		return nil
	}
	return l.nets.find(a, now)
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

// networks finds the longest network that contains an address: one lookup for each prefix
// length in use, of which there are few, and at most 33 or 129. A trie would follow a
// pointer for each bit.
type networks struct {
	entries map[netip.Prefix]*Entry
	v4, v6  []int // the lengths in use, longest first
}

// add reports whether the network is new.
func (n *networks) add(p netip.Prefix, e *Entry) bool {
	if n.entries[p] != nil {
		return false
	}
	if n.entries == nil {
		n.entries = map[netip.Prefix]*Entry{}
	}
	n.entries[p] = e
	lengths := &n.v6
	if p.Addr().Is4() {
		lengths = &n.v4
	}
	if !slices.Contains(*lengths, p.Bits()) {
		*lengths = append(*lengths, p.Bits())
		slices.SortFunc(*lengths, func(a, b int) int { return b - a })
	}
	return true
}

// find returns the entry of the longest network that holds at the time, or nil.
func (n *networks) find(a netip.Addr, now time.Time) *Entry {
	lengths := n.v6
	if a.Is4() {
		lengths = n.v4
	}
	for _, bits := range lengths {
		p, _ := a.Prefix(bits) // zero if the address is invalid
		if e := n.entries[p]; e != nil && e.Holds(now) {
			return e
		}
	}
	return nil
}
