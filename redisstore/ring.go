package redisstore

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"slices"
	"strconv"

	"github.com/stintdev/stint/internal/kit/slot"
)

// A ring is several servers that do not know each other. Every subject has a slot, as in a Cluster, and
// this file says which server has it. A server has virtualNodes points on a circle for each unit of its
// weight, and a slot belongs to the next point. The points depend on nothing but the server's name, so one
// more or one fewer server moves the slots that this server gets or had, and no others.
//
// Every process and every version must find the same points: otherwise each would count for itself. A test
// pins them.

// Bounds of a ring.
const (
	maxRing   = 64      // servers
	maxWeight = 100     // of a server
	maxPoints = 1 << 20 // of all servers together: computing them takes some tenths of a second
)

// node is a server of a ring.
type node struct {
	addr   string // host:port, which is its name
	weight int
}

// owners returns for each slot the index of the node that has it.
//
// The share of a server varies because its points are random: with v points each, by about 1/sqrt(v) of a
// fair share, and by 2 % more for ten servers, which have 1,638 slots each. Of 100 rings, the server that was
// furthest from its fair share was off by (go test -run TestRingSpread -v ./redisstore)
//
//	points      128   1024   2048
//	3 servers  19 %    7 %    6 %
//	10 servers 29 %   11 %    8 %
//
// so the default of virtual_nodes is 2048.
func owners(nodes []node, virtualNodes int) []uint16 {
	const none = slot.Count
	out, nearest := slices.Repeat([]uint16{none}, slot.Count), make([]uint64, slot.Count)
	for n := range nodes {
		for p := range nodes[n].points(virtualNodes) {
			// Slot k is at k * 2^50. Only the first point after it matters.
			if k := p >> 50; out[k] == none || p < nearest[k] {
				out[k], nearest[k] = uint16(n), p
			}
		}
	}
	next := uint16(none)
	for range 2 { // the last slots may belong to the first point
		for k := slot.Count - 1; k >= 0; k-- {
			if out[k] == none {
				out[k] = next
			}
			next = out[k]
		}
	}
	return out
}

// points returns the node's points. Each SHA-256 of its name, a # and a number has four of them, in the
// order of its bytes.
func (n *node) points(virtualNodes int) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		var sum [sha256.Size]byte
		for i := range virtualNodes * n.weight {
			if i%4 == 0 {
				sum = sha256.Sum256([]byte(n.addr + "#" + strconv.Itoa(i/4)))
			}
			if !yield(binary.BigEndian.Uint64(sum[i%4*8:])) {
				return
			}
		}
	}
}

// placement says which servers of a ring have the counters of which slots.
type placement struct {
	addrs []string // of all servers: those of the ring, then others that it had before
	homes []home
	slots []uint16 // the index of each slot's home
	moves bool     // some slots are being moved
}

// home is where the counters of some slots are, by the indices of servers: where they belong, and where
// they were before, or -1 if that is the same.
type home struct{ now, was int }

// newPlacement returns the placement of a ring.
func newPlacement(c *config) *placement {
	p := &placement{slots: make([]uint16, slot.Count)}
	index := func(addr string) int {
		i := slices.Index(p.addrs, addr)
		if i < 0 {
			i = len(p.addrs)
			p.addrs = append(p.addrs, addr)
		}
		return i
	}
	for i := range c.nodes {
		index(c.nodes[i].addr)
	}
	now := owners(c.nodes, c.virtualNodes)
	was := now
	if len(c.was) > 0 {
		was = owners(c.was, c.virtualNodes)
	}
	for k := range p.slots {
		h := home{now: int(now[k]), was: -1}
		if len(c.was) > 0 {
			if before := index(c.was[was[k]].addr); before != h.now {
				h.was, p.moves = before, true
			}
		}
		at := slices.Index(p.homes, h)
		if at < 0 {
			at = len(p.homes)
			p.homes = append(p.homes, h)
		}
		p.slots[k] = uint16(at)
	}
	return p
}

// of returns the home of a key.
func (p *placement) of(key string) home { return p.homes[p.slots[slot.Of(key)]] }

// name returns the name of a home: that of its server, or, while its counters are moved, old->new. Takes
// of these need both, so that they fail if either does, and have a breaker of their own.
func (p *placement) name(h home) string {
	if h.was < 0 {
		return p.addrs[h.now]
	}
	return p.addrs[h.was] + "->" + p.addrs[h.now]
}

// servers returns the homes as servers.
func (p *placement) servers() *servers {
	names := make([]string, len(p.homes))
	for i, h := range p.homes {
		names[i] = p.name(h)
	}
	return newServers(names, p.slots)
}

// shares returns the part of all slots that each server has, and the part that is moved.
func (p *placement) shares() (all []Share, moves float64) {
	for _, addr := range p.addrs {
		all = append(all, Share{Server: addr})
	}
	const one = 1.0 / slot.Count
	for _, at := range p.slots {
		h := p.homes[at]
		all[h.now].Now += one
		if h.was < 0 {
			all[h.now].Was += one
		} else {
			all[h.was].Was += one
			moves += one
		}
	}
	return all, moves
}
