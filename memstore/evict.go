package memstore

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"

	"github.com/stintdev/stint"
)

// This file decides who is evicted; the package doc says by which rules, and why.

// A client with more than one of share parts of a full shard loses its own counters first, and bans have at
// most one of banShare. Keys spread evenly, so this holds for the whole store, too.
const (
	share    = 16
	banShare = 2
)

// kept is what a shard has to know of a counter to keep it.
type kept struct {
	from
	ban    bool // it is the state of a penalty
	hasLog bool
}

// from is where a counter comes from: hashes of its client and, in family, also of its limit.
type from struct{ client, family uint32 }

func (s *Store) keeping(a *stint.Ask) kept {
	return kept{from: s.fromOf(a), ban: a.Penalty != nil, hasLog: hasLog(a)}
}

// fromOf returns where the ask's counter comes from. Rules write what identifies a client into the subject
// of a key, and what anyone may make up into its name, after the names of rule and limit. So made-up values
// are of one client and one family. Where the subject has both, the ask names its client.
func (s *Store) fromOf(a *stint.Ask) from {
	client := s.subjects.of(cmp.Or(a.Client, a.Key.Subject))
	return from{uint32(client.hi), uint32(client.with(s.names.of(a.Key.Limit()), 0).lo)}
}

// Why counters are evicted.
const (
	byNeed  = iota // there was no other room
	byShare        // the client had more than its share
	byBans         // there were too many bans
	reasons
)

// victim is a counter that may be evicted.
type victim struct {
	id    id
	until int64
	worth uint8
	// excess is 0 if its client is within its share, and otherwise how many counters its family has, as
	// a power of two.
	excess uint8
	ban    bool
}

// victim returns the cell's counter as a victim. The caller holds the cell.
func (x *cell) victim(excess uint8) victim {
	return victim{id: x.id(), until: x.Until, worth: x.worth, excess: excess, ban: x.ban}
}

func (v victim) reason() int {
	switch {
	case v.excess > 0:
		return byShare
	case v.ban:
		return byBans
	default:
		return byNeed
	}
}

// compare orders victims. Counters of clients that have more than their share go first, and of these the
// largest family: made-up values replace each other. Then those that are worth least, and then the one
// closest to recovery.
func (v victim) compare(w victim) int {
	return cmp.Or(cmp.Compare(w.excess, v.excess), cmp.Compare(v.worth, w.worth), cmp.Compare(v.until, w.until))
}

// full reports whether something has to be evicted first.
func (sh *shard) full(k kept) bool { return sh.live() >= sh.quota || sh.crowded(k) }

// crowded reports whether a ban must go, not a counter: a new ban is one too many.
func (sh *shard) crowded(k kept) bool { return k.ban && sh.table.bans >= max(sh.quota/banShare, 1) }

// choice is what to choose the next victim from without scanning the shard, which takes microseconds: some
// victims of the last scan, the first of them last, and the counters that were inserted since.
type choice struct {
	known []victim
	fresh []id
}

// maxChoice is how many counters a choice has at most.
const maxChoice = 16

// choice returns the choice among bans, or among counters.
func (sh *shard) choice(bans bool) *choice {
	if bans {
		return &sh.bans
	}
	return &sh.counters
}

// evict makes room: it removes the counters that have recovered, or else the first victim. It reports
// whether it removed any. Counters never replace bans, unless there is nothing else.
func (sh *shard) evict(k kept, now int64) bool {
	bans := sh.crowded(k) || sh.table.bans == sh.live()
	from := sh.choice(bans)
	if sh.evictFrom(from, now) {
		return true
	}
	most := min(max(sh.live()/64, 1), maxChoice)
	// Until the next scan, a client may get as many more counters as are known victims.
	crowd := sh.count(k.from, max(sh.quota/share-sh.quota/64, 1))
	defer crowds.Put(crowd)
	known := from.known[:0]
	dropped := sh.visit(len(sh.table.cells), now, func(x *cell) {
		if x.ban != bans {
			return
		}
		v := x.victim(crowd.excess(x.from))
		if len(known) == most && v.compare(known[0]) >= 0 {
			return
		}
		i, _ := slices.BinarySearchFunc(known, v, func(a, b victim) int { return b.compare(a) })
		if known = slices.Insert(known, i, v); len(known) > most {
			known = slices.Delete(known, 0, 1)
		}
	})
	from.known, from.fresh = known, from.fresh[:0]
	if dropped {
		from.known = known[:0]
		return true
	}
	return sh.evictFrom(from, now)
}

// evictFrom removes the first victim of a choice that was not used since. It reports false if there are no
// known victims any more.
func (sh *shard) evictFrom(from *choice, now int64) bool {
	for len(from.known) > 0 {
		v := sh.next(from)
		x := sh.acquire(v.id)
		if x == nil {
			continue
		}
		if x.Until == v.until && x.worth == v.worth {
			sh.remove(x)
			sh.evicted[v.reason()]++
			if v.excess == 0 {
				sh.lost = now
			}
			return true
		}
		x.release(v.id)
	}
	return false
}

// next takes the first victim out of a choice. It may be a new counter: otherwise, a flood of them would
// replace all known victims before the next scan.
func (sh *shard) next(from *choice) victim {
	last, at := len(from.known)-1, -1
	v := from.known[last]
	fresh := from.fresh
	if v.excess > 0 || v.worth <= 1 {
		fresh = nil // hardly any counter is worth less
	}
	for i, c := range fresh {
		if x := sh.acquire(c); x != nil {
			if w := x.victim(0); w.compare(v) < 0 {
				v, at = w, i
			}
			x.release(c)
		}
	}
	if at < 0 {
		from.known = from.known[:last]
	} else {
		from.fresh = slices.Delete(from.fresh, at, at+1)
	}
	return v
}

// crowd counts the counters of clients, and of the families of those that have more than their share.
type crowd struct {
	most              int
	clients, families map[uint32]int
}

// crowds are reused, because they are large.
var crowds = sync.Pool{New: func() any { return &crowd{clients: map[uint32]int{}, families: map[uint32]int{}} }}

// count counts the counters of the shard, and a new one. A client may have as many as most.
func (sh *shard) count(add from, most int) *crowd {
	c := crowds.Get().(*crowd)
	c.most = most
	clear(c.clients)
	clear(c.families)
	c.clients[add.client]++
	largest := 0
	for x := range sh.table.all() {
		n := c.clients[x.client] + 1
		c.clients[x.client] = n
		largest = max(largest, n)
	}
	if largest > most {
		for x := range sh.table.all() {
			if c.clients[x.client] > most {
				c.families[x.family]++
			}
		}
	}
	return c
}

// excess returns the excess of victims.
func (c *crowd) excess(f from) uint8 {
	if len(c.families) == 0 || c.clients[f.client] <= c.most {
		return 0
	}
	return uint8(bits.Len(uint(c.families[f.family])))
}
