package rule

import (
	"maps"
	"net/netip"
	"slices"
	"sort"
)

// networks finds the networks that contain an address. Two networks have no address in
// common, or one contains the other. So of the networks that contain an address, the
// smallest is the last network that begins at or before the address, or contains it.
type networks []network // sorted

type network struct {
	prefix  netip.Prefix
	outer   *network    // the smallest network that contains this one, or nil
	entries []candidate // of an index: the entries that have the network as a condition
}

// newNetworks arranges networks, with the entries of each.
func newNetworks(entries map[netip.Prefix][]candidate) networks {
	ns := make(networks, 0, len(entries)) // with this capacity, because networks point to each other
	var last *network
	for _, p := range slices.SortedFunc(maps.Keys(entries), netip.Prefix.Compare) {
		ns = append(ns, network{prefix: p, outer: last.containing(p.Addr()), entries: entries[p]})
		last = &ns[len(ns)-1]
	}
	return ns
}

// smallest returns the smallest network that contains the address, or nil.
func (ns networks) smallest(a netip.Addr) *network {
	i := sort.Search(len(ns), func(i int) bool { return ns[i].prefix.Addr().Compare(a) > 0 })
	if i == 0 {
		return nil
	}
	return ns[i-1].containing(a)
}

// containing returns the smallest network, from n outwards, that contains the address.
func (n *network) containing(a netip.Addr) *network {
	for n != nil && !n.prefix.Contains(a) {
		n = n.outer
	}
	return n
}
