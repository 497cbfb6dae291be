// Package network parses addresses and networks, and finds the networks that contain an
// address. Addresses are unmapped and have no zone.
package network

import (
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// Parse parses an address or a network, or says what would be right.
func Parse(text string) (p netip.Prefix, want string) {
	text, _, zoned := strings.Cut(text, "%")
	if strings.Contains(text, "/") {
		p, _ = netip.ParsePrefix(text)
	} else if a, err := netip.ParseAddr(text); err == nil {
		p = netip.PrefixFrom(a, a.BitLen())
	}
	switch {
	case !p.IsValid():
		return p, "an address or a network, such as 192.0.2.1, 10.0.0.0/8 or 2001:db8::/32"
	case zoned:
		return p, "an address without a zone"
	}
	return p, Check(p)
}

// Check says what would be right instead of a network that matches no address.
func Check(p netip.Prefix) (want string) {
	switch a, bits := p.Addr(), p.Bits(); {
	case !p.IsValid():
		return "a network"
	case a.Is4In6() && bits < 96:
		return "an IPv4 network such as 10.0.0.0/8: mapped addresses count as IPv4"
	case a.Is4In6():
		text := netip.PrefixFrom(a.Unmap(), bits-96).Masked().String()
		return strings.TrimSuffix(text, "/32") + ": mapped addresses count as IPv4"
	case p != p.Masked():
		return p.Masked().String() + ", or " + a.String() + " for the one address"
	}
	return ""
}

// Table holds networks, sorted. Two networks have no address in common, or one contains the
// other. So of the networks that contain an address, the smallest is the last one that begins
// at or before the address, or contains that one.
type Table[T any] []Network[T]

// Network is a network of a table, with its value.
type Network[T any] struct {
	prefix netip.Prefix
	Value  T
	Outer  *Network[T] // the smallest network that contains this one, or nil
}

// NewTable returns a table of networks with their values.
func NewTable[T any](values map[netip.Prefix]T) Table[T] {
	t := make(Table[T], 0, len(values)) // with this capacity, because networks point to each other
	var last *Network[T]
	for _, p := range slices.SortedFunc(maps.Keys(values), netip.Prefix.Compare) {
		t = append(t, Network[T]{p, values[p], last.containing(p.Addr())})
		last = &t[len(t)-1]
	}
	return t
}

// Smallest returns the smallest network that contains the address, or nil.
func (t Table[T]) Smallest(a netip.Addr) *Network[T] {
	i := sort.Search(len(t), func(i int) bool { return t[i].prefix.Addr().Compare(a) > 0 })
	if i == 0 {
		return nil
	}
	return t[i-1].containing(a)
}

// containing returns the smallest network, from n outwards, that contains the address.
func (n *Network[T]) containing(a netip.Addr) *Network[T] {
	for n != nil && !n.prefix.Contains(a) {
		n = n.Outer
	}
	return n
}
