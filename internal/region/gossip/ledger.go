package gossip

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// ledger is what this node has admitted of each counter, and how much of it each of the other regions has
// been told, and has acknowledged. Times are by the clock of the store, in microseconds.
type ledger struct {
	seed   maphash.Seed
	shards [64]shard
	max    int // accounts in a shard
}

type shard struct {
	mu       sync.Mutex
	accounts map[counter]*account
	changes  int // with an ID
	max      int // of them
}

// counter tells a counter from others, as stores do.
type counter struct {
	key  stint.Key
	kind uint64
}

// account is what is known of a counter. It is guarded by the lock of its shard.
type account struct {
	shard *shard
	key   stint.Key
	limit stint.Limit
	meter *meter
	held  int64         // for takes that are being decided
	spans []span        // oldest first
	wake  chan struct{} // closed when something was acknowledged; nil: no one waits
	// queued has a bit for each region that has to be told of it.
	queued uint32
	// resets is how often it was reset: what was told before that is not in the spans any more.
	resets uint32
	// begun says that this node's share was opened, and that there are units in it that others may not know of.
	begun bool
	open  sync.Mutex // held while that is done

	over, overIn int64 // see beyond.go
}

// span is what was admitted in one window, or a reset.
type span struct {
	start     int64 // of the window
	reset     bool
	at, until int64 // the last of it, and when it has recovered
	total
	// changes are those that have an ID, oldest first. They become part of the total when all regions know of them.
	changes []change
}

// total is how many units were admitted, and what each of the other regions knows of that.
type total struct {
	spent int64
	known []known // by region
}

// change is one that has an ID.
type change struct {
	id string
	at int64
	total
}

// known is how much a region was told, and has acknowledged, and how much of that had it acknowledged when it last had
// its consent.
type known struct{ told, acked, freed int64 }

// ahead returns how many units a region did not know of when it last had its consent. That is now, if consents is true.
func (t *total) ahead(peer int, consents bool) int64 {
	k := &t.known[peer]
	if consents {
		k.freed = k.acked
	}
	return t.spent - k.freed
}

// settled reports whether all regions have acknowledged it.
func (t *total) settled() bool {
	for i := range t.known {
		if t.known[i].acked != t.spent || t.known[i].told != t.spent {
			return false
		}
	}
	return true
}

// add makes another one part of this one.
func (t *total) add(other *total) {
	t.spent += other.spent
	for i, k := range other.known {
		t.known[i].told += k.told
		t.known[i].acked += k.acked
		t.known[i].freed += k.freed
	}
}

// maxChanges is how many changes with IDs are kept of a counter in a window, until all regions know of them.
const maxChanges = 1024

// fold makes a change part of the total, though there may be regions that do not know of it. They are told what it has
// charged without its ID, and not what it has given back: if a caller makes it in another region as well, no more is given
// back there than was taken.
func (s *span) fold(i int) {
	c := &s.changes[i]
	for p := range c.known {
		k := &c.known[p]
		if untold := c.spent - k.told; untold < 0 {
			k.told, k.acked, k.freed = k.told+untold, k.acked+untold, k.freed+untold
		}
	}
	s.add(&c.total)
	s.changes = slices.Delete(s.changes, i, i+1)
	if len(s.changes) == 0 {
		s.changes = nil
	}
}

// change returns the number of the change with an ID, or -1.
func (s *span) change(id string) int {
	return slices.IndexFunc(s.changes, func(c change) bool { return c.id == id })
}

// MaxPeers is how many other regions there are at most.
const MaxPeers = 15

func newLedger(counters int) *ledger {
	l := &ledger{seed: maphash.MakeSeed()}
	l.max = max(counters/len(l.shards), 1)
	for i := range l.shards {
		l.shards[i].accounts, l.shards[i].max = map[counter]*account{}, max(l.max, maxChanges)
	}
	return l
}

// account returns the account of an ask's counter, with its shard locked. It returns none, and locks nothing, if
// there is no room.
func (l *ledger) account(a *stint.Ask, now int64) *account {
	c := counter{a.Key, a.Limit.Kind()}
	sh := &l.shards[maphash.Comparable(l.seed, c)%uint64(len(l.shards))]
	sh.mu.Lock()
	acc := sh.accounts[c]
	if acc == nil {
		if len(sh.accounts) >= l.max && sh.sweep(now) == 0 {
			sh.mu.Unlock()
			return nil
		}
		acc = &account{shard: sh, key: a.Key}
		sh.accounts[c] = acc
	}
	acc.limit = a.Limit
	acc.expire(now)
	return acc
}

// sweep removes the accounts in which nothing is left. It returns how many these were.
func (sh *shard) sweep(now int64) (n int) {
	for c, acc := range sh.accounts {
		if acc.expire(now); len(acc.spans) == 0 && acc.held == 0 && acc.queued == 0 && !acc.begun {
			delete(sh.accounts, c)
			n++
		}
	}
	return n
}

// late is for how long others are told of what has recovered here: by their clocks it may not have.
const late = int64(time.Second / time.Microsecond)

// expire forgets what has recovered: no one needs to know of it any more.
func (acc *account) expire(now int64) {
	n := 0
	for i := range acc.spans {
		if acc.spans[i].until+late > now {
			acc.spans[n] = acc.spans[i]
			n++
		} else {
			acc.shard.changes -= len(acc.spans[i].changes)
		}
	}
	clear(acc.spans[n:])
	acc.spans = acc.spans[:n]
}

// ahead returns by how many units this node is ahead of what a region knew when this one last had its consent. That is
// now, if consents is true. What was given back in a window counts only against what was admitted in it.
func (acc *account) ahead(peer int, now int64, consents bool) int64 {
	n := acc.held
	for i := range acc.spans {
		s := &acc.spans[i]
		if s.reset || s.until <= now {
			continue
		}
		of := s.ahead(peer, consents)
		for c := range s.changes {
			of += s.changes[c].ahead(peer, consents)
		}
		n += max(of, 0)
	}
	return n
}

// everyoneKnows reports whether the other regions have acknowledged all that was admitted and has not recovered.
func (acc *account) everyoneKnows(now int64) bool {
	for i := range acc.spans {
		s := &acc.spans[i]
		if s.reset || s.until <= now {
			continue
		}
		for p := range s.known {
			if s.known[p].acked != s.spent {
				return false
			}
		}
		if len(s.changes) > 0 {
			return false
		}
	}
	return true
}

// span returns the span of the window that has an instant. There are that many other regions.
func (acc *account) span(at, until int64, peers int) *span {
	start := windowStart(&acc.limit, at)
	i := slices.IndexFunc(acc.spans, func(s span) bool { return s.start == start && !s.reset })
	if i < 0 {
		i = len(acc.spans)
		acc.spans = append(acc.spans, span{start: start, total: total{known: make([]known, peers)}})
	}
	s := &acc.spans[i]
	s.at, s.until = max(s.at, at), max(s.until, until)
	return s
}

// record notes that units were admitted, or given back. There are that many other regions. It reports whether these should
// be told at once, since many changes wait for that.
func (acc *account) record(at, until, units int64, id string, peers int) (urgent bool) {
	s := acc.span(at, until, peers)
	if id == "" || peers == 0 {
		s.spent += units
		return false
	}
	if i := s.change(id); i >= 0 {
		s.changes[i].spent += units
		return false
	}
	s.changes = append(s.changes, change{id, at, total{units, make([]known, peers)}})
	if acc.shard.changes++; len(s.changes) > maxChanges || acc.shard.changes > acc.shard.max {
		s.fold(0)
		acc.shard.changes--
	}
	return len(s.changes) > maxChanges/2
}

// knows reports whether there is a change with an ID that others may not know of.
func (acc *account) knows(at int64, id string) bool {
	start := windowStart(&acc.limit, at)
	return slices.ContainsFunc(acc.spans, func(s span) bool { return s.start == start && s.change(id) >= 0 })
}

// reset forgets all that was admitted, told or not, and notes that.
func (acc *account) reset(now int64, peers int) {
	for i := range acc.spans {
		acc.shard.changes -= len(acc.spans[i].changes)
	}
	clear(acc.spans)
	acc.resets++
	acc.spans = append(acc.spans[:0], span{
		start: windowStart(&acc.limit, now), reset: true, at: now, until: now + stint.Once.Microseconds(),
		total: total{1, make([]known, peers)},
	})
}

// tell adds what a region has to be told of the counter to a batch, as far as it has room, and notes that it was. It
// reports whether there is more.
func (acc *account) tell(peer int, b *sent) (more bool) {
	most := maxUnits(&acc.limit)
	tell := func(t *total, e Entry) {
		for units := t.spent - t.known[peer].told; units != 0; units -= e.Units {
			e.Key, e.Limit, e.Units = acc.key, acc.limit, max(min(units, most), -most)
			if more = !b.add(&e, acc); more {
				return
			}
			t.known[peer].told += e.Units
		}
	}
	for i := range acc.spans {
		s := &acc.spans[i]
		tell(&s.total, Entry{At: s.at, Reset: s.reset})
		for c := range s.changes {
			if more {
				return true
			}
			tell(&s.changes[c].total, Entry{At: s.changes[c].at, ID: s.changes[c].id})
		}
		if more {
			return true
		}
	}
	return false
}

// acknowledge notes that a region knows of an entry. Consents says that this one has its consent now.
func (acc *account) acknowledge(peer int, e *Entry, consents bool) {
	start := windowStart(&e.Limit, e.At)
	for i := range acc.spans {
		s := &acc.spans[i]
		if s.start != start || s.reset != e.Reset {
			continue
		}
		t, c := &s.total, -1
		if e.ID != "" {
			if c = s.change(e.ID); c >= 0 { // or else it is part of the total
				t = &s.changes[c].total
			}
		}
		if t.known[peer].acked += e.Units; consents {
			t.known[peer].freed = t.known[peer].acked
		}
		if c >= 0 && t.settled() {
			s.fold(c)
			acc.shard.changes--
		}
	}
	if acc.wake != nil {
		close(acc.wake)
		acc.wake = nil
	}
}

// waiting returns a channel that is closed when something was acknowledged.
func (acc *account) waiting() <-chan struct{} {
	if acc.wake == nil {
		acc.wake = make(chan struct{})
	}
	return acc.wake
}

// windowStart returns the start of the window that has the instant. What was admitted in different windows
// must be told apart; of buckets and logs it is enough that it is told soon.
func windowStart(l *stint.Limit, at int64) int64 {
	start, _ := l.Window.Bounds(time.UnixMicro(at))
	return start.UnixMicro()
}

// recovered returns when what was charged at an instant has recovered, whatever others have charged, as a decision
// says. In a bucket that is when all of it would have drained.
func recovered(l *stint.Limit, at int64, d *stint.Decision) int64 {
	switch l.Algorithm {
	case stint.FixedWindow, stint.SlidingWindow, stint.SlidingLog, stint.Concurrency:
		if at == d.At {
			return at + d.ResetAfter.Microseconds()
		}
	case stint.TokenBucket, stint.LeakyBucket:
	}
	switch l.Algorithm {
	case stint.TokenBucket, stint.LeakyBucket:
		full := float64(l.Window.Length().Microseconds()) * float64(l.Cap()) / float64(l.Max)
		return d.At + int64(full) + 1
	case stint.FixedWindow:
		_, end := l.Window.Bounds(time.UnixMicro(at))
		return end.UnixMicro()
	case stint.SlidingWindow:
		_, end := l.Window.Bounds(time.UnixMicro(at))
		_, end = l.Window.Bounds(end)
		return end.UnixMicro()
	case stint.SlidingLog, stint.Concurrency:
	}
	return at + l.Window.Length().Microseconds()
}
