package gossip

import (
	"hash/maphash"
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
	// begun says that this node's share was opened, and that there are units in it that others may not know of.
	begun bool
	open  sync.Mutex // held while that is done

	// What was left when this node last heard of it, and what was charged after nothing was left, in one window.
	left, over, overIn int64
}

// seen notes what is left of the counter.
func (acc *account) seen(d *stint.Decision) { acc.left = d.Remaining }

// exceed notes that units were admitted elsewhere, after which nothing is left. It returns how far the counter is
// beyond its limit, as far as this node can tell.
func (acc *account) exceed(at, units int64) int64 {
	if start := windowStart(&acc.limit, at); start != acc.overIn {
		acc.over, acc.overIn = 0, start
	}
	acc.over += max(units-acc.left, 0)
	acc.left = 0
	return acc.over
}

// span is what was admitted in one window, or one change that has an ID, or a reset.
type span struct {
	start     int64 // of the window
	id        string
	reset     bool
	at, until int64 // the last of it, and when it has recovered
	spent     int64
	known     []known // by region
}

// known is how much of a span a region was told, and has acknowledged, and how much of that had it acknowledged when
// it last had its consent.
type known struct{ told, acked, freed int64 }

// MaxPeers is how many other regions there are at most.
const MaxPeers = 15

func newLedger(counters int) *ledger {
	l := &ledger{seed: maphash.MakeSeed()}
	l.max = max(counters/len(l.shards), 1)
	for i := range l.shards {
		l.shards[i].accounts = map[counter]*account{}
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
		}
	}
	acc.spans = acc.spans[:n]
}

// ahead returns by how many units this node is ahead of what a region knew when this one last had its consent. That is
// now, if consents is true.
func (acc *account) ahead(peer int, now int64, consents bool) int64 {
	n := acc.held
	for i := range acc.spans {
		s := &acc.spans[i]
		if s.reset || s.until <= now {
			continue
		}
		k := &s.known[peer]
		if consents {
			k.freed = k.acked
		}
		n += s.spent - k.freed
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
	}
	return true
}

// record notes that units were admitted, or given back. There are that many other regions.
func (acc *account) record(at, until, units int64, id string, peers int) {
	start := windowStart(&acc.limit, at)
	for i := range acc.spans {
		if s := &acc.spans[i]; s.start == start && s.id == id && !s.reset {
			s.spent += units
			s.at, s.until = max(s.at, at), max(s.until, until)
			return
		}
	}
	acc.spans = append(acc.spans, span{start: start, id: id, at: at, until: until, spent: units, known: make([]known, peers)})
}

// tell returns what a region has to be told of the counter, and notes that it was.
func (acc *account) tell(peer int) (entries []Entry) {
	for i := range acc.spans {
		s := &acc.spans[i]
		if units := s.spent - s.known[peer].told; units != 0 {
			s.known[peer].told = s.spent
			entries = append(entries, Entry{Key: acc.key, Limit: acc.limit, At: s.at, Units: units, ID: s.id, Reset: s.reset})
		}
	}
	return entries
}

// acknowledge notes that a region knows of an entry. Consents says that this one has its consent now.
func (acc *account) acknowledge(peer int, e *Entry, consents bool) {
	start := windowStart(&e.Limit, e.At)
	for i := range acc.spans {
		if s := &acc.spans[i]; s.start == start && s.id == e.ID && s.reset == e.Reset {
			if s.known[peer].acked += e.Units; consents {
				s.known[peer].freed = s.known[peer].acked
			}
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

// recovered returns when what a decision has charged has recovered, whatever others have charged. In a bucket that
// is when all of it would have drained.
func recovered(l *stint.Limit, d *stint.Decision) int64 {
	switch l.Algorithm {
	case stint.TokenBucket, stint.LeakyBucket:
		full := float64(l.Window.Length().Microseconds()) * float64(l.Cap()) / float64(l.Max)
		return d.At + int64(full) + 1
	default:
		return d.At + d.ResetAfter.Microseconds()
	}
}
