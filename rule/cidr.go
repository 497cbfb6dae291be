package rule

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"sort"
)

// networks finds those that an address is in. Two networks have no address in
// common, or one is inside the other; so the one that begins last before an address
// is the innermost that has it, or is inside that.
type networks struct {
	v4  []uint32     // where networks begin, sorted, to be searched
	v6  []netip.Addr // the same of IPv6
	all []network    // which begin there, those of IPv4 first
}

type network struct {
	prefix  netip.Prefix
	outer   *network    // the smallest that this one is in, or nil
	entries []candidate // of an index: those for which the network is a condition
}

// newNetworks arranges networks, with the entries of each.
func newNetworks(of map[netip.Prefix][]candidate) networks {
	ns := networks{all: make([]network, 0, len(of))} // which point to each other, and stay
	var last *network
	for _, p := range slices.SortedFunc(maps.Keys(of), netip.Prefix.Compare) {
		ns.all = append(ns.all, network{prefix: p, outer: last.with(p.Addr()), entries: of[p]})
		last = &ns.all[len(ns.all)-1]
		if p.Addr().Is4() {
			ns.v4 = append(ns.v4, number(p.Addr()))
		} else {
			ns.v6 = append(ns.v6, p.Addr())
		}
	}
	return ns
}

// number is an IPv4 address as one.
func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// of returns the innermost network that the address is in, or nil.
func (ns *networks) of(a netip.Addr) *network {
	var before int // how many begin at the address, or before it
	all := ns.all[:len(ns.v4)]
	if a.Is4() {
		x := number(a)
		before = sort.Search(len(ns.v4), func(i int) bool { return ns.v4[i] > x })
	} else {
		all = ns.all[len(ns.v4):]
		before = sort.Search(len(ns.v6), func(i int) bool { return ns.v6[i].Compare(a) > 0 })
	}
	if before == 0 {
		return nil
	}
	return all[before-1].with(a)
}

// with returns the innermost network, from n outwards, that the address is in.
func (n *network) with(a netip.Addr) *network {
	for n != nil && !n.prefix.Contains(a) {
		n = n.outer
	}
	return n
}
