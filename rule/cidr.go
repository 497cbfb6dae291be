package rule

import (
	"maps"
	"net/netip"
	"slices"
)

// networks finds those that an address is in. Two networks have no address in
// common, or one is inside the other; so the one that begins last before an address
// is the innermost that has it, or is inside that.
type networks struct {
	starts []netip.Addr // sorted, to be searched
	all    []*network   // which begin there
}

type network struct {
	prefix  netip.Prefix
	outer   *network // the smallest that this one is in, or nil
	entries []*entry // of an index: those for which the network is a condition
}

// newNetworks arranges networks, with the entries of each.
func newNetworks(of map[netip.Prefix][]*entry) networks {
	var ns networks
	var last *network
	for _, p := range slices.SortedFunc(maps.Keys(of), netip.Prefix.Compare) {
		last = &network{prefix: p, outer: last.with(p.Addr()), entries: of[p]}
		ns.starts = append(ns.starts, p.Addr())
		ns.all = append(ns.all, last)
	}
	return ns
}

// of returns the innermost network that the address is in, or nil.
func (ns *networks) of(a netip.Addr) *network {
	i, _ := slices.BinarySearchFunc(ns.starts, a, func(start, a netip.Addr) int {
		if start.Compare(a) <= 0 {
			return -1
		}
		return 1
	})
	if i == 0 {
		return nil
	}
	return ns.all[i-1].with(a)
}

// with returns the innermost network, from n outwards, that the address is in.
func (n *network) with(a netip.Addr) *network {
	for n != nil && !n.prefix.Contains(a) {
		n = n.outer
	}
	return n
}
