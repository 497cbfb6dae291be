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
	v4  []span4      // of IPv4, sorted, to be searched without a look at the networks
	v6  []netip.Addr // where those of IPv6 begin
	all []network    // those of IPv4 first
}

// span4 is the first and the last address of a network, and the place of the smallest
// that it is in, or -1.
type span4 struct {
	first, last uint32
	outer       int32
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
		if !p.Addr().Is4() {
			ns.v6 = append(ns.v6, p.Addr())
			continue
		}
		first, outer := number(p.Addr()), int32(len(ns.v4)-1)
		for outer >= 0 && first > ns.v4[outer].last {
			outer = ns.v4[outer].outer
		}
		ns.v4 = append(ns.v4, span4{first, first | uint32(1<<(32-p.Bits())-1), outer})
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
	if a.Is4() {
		x := number(a)
		i := int32(sort.Search(len(ns.v4), func(i int) bool { return ns.v4[i].first > x })) - 1
		for i >= 0 && x > ns.v4[i].last {
			i = ns.v4[i].outer
		}
		if i < 0 {
			return nil
		}
		return &ns.all[i]
	}
	i := sort.Search(len(ns.v6), func(i int) bool { return ns.v6[i].Compare(a) > 0 })
	if i == 0 {
		return nil
	}
	return ns.all[len(ns.v4)+i-1].with(a)
}

// with returns the innermost network, from n outwards, that the address is in.
func (n *network) with(a netip.Addr) *network {
	for n != nil && !n.prefix.Contains(a) {
		n = n.outer
	}
	return n
}
