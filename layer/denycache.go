package layer

import (
	"context"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
)

// DenyCacheOptions are the options of [DenyCache]. Zero values mean defaults.
type DenyCacheOptions struct {
	// For is how long a denial is remembered at most. Default 1 s.
	For time.Duration
	// Size is how many denials are remembered; newer ones replace older ones. Default 4,096, at
	// most 1 << 20.
	Size int
	// Now is the clock. After it has stepped back, nothing is remembered until it has caught
	// up. Default: the monotonic clock of the process.
	Now func() time.Time
}

// DenyCache remembers denied takes, and denies them again without asking the store, until the shortest
// of their RetryAfter has passed, and at most for For. It does so for the same keys, limits and costs.
// So a flood against an exhausted limit costs the store one call in that time, for each key and node.
//
// It does not deny what the store would have allowed, with one exception during that time: it does not
// notice that another node has reset a counter, given units back or released a place. Resets and adjustments through this
// layer clear the denial. A changed limit is a different limit. Only denials by the store itself are
// remembered. A denial that a penalty might count as a violation is not remembered before the ban.
//
// A denial by a limit that may be leased ([stint.Policy.Lease]) is remembered for at least half a term, even if
// units recover before, and for at most one term; but not for longer than For. Then one caller asks the store again, and until that is answered
// the others are still denied, for as long again at most: so there is one call, however many callers there are.
//
// Its own decisions have the basis [stint.Remembered]. Their RetryAfter and ResetAfter count down from
// the original denial. Decisions about asks that would have passed are as old as the denial.
func DenyCache(next stint.Store, o DenyCacheOptions) (stint.Store, error) {
	if o.For == 0 {
		o.For = time.Second
	}
	if o.Size == 0 {
		o.Size = 1 << 12
	}
	switch {
	case o.For < 0:
		return nil, invalid("for", o.For, "a positive duration")
	case o.Size < 0 || o.Size > 1<<20:
		return nil, invalid("size", o.Size, "at most "+strconv.Itoa(1<<20))
	}
	if err := Check(PlaceDenyCache, next); err != nil {
		return nil, err
	}
	born := time.Now()
	clock := func() (time.Duration, bool) { return time.Since(born), true } // faster than time.Now
	if o.Now != nil {
		var latest atomic.Int64
		latest.Store(math.MinInt64)
		clock = func() (time.Duration, bool) {
			now := o.Now().Sub(born)
			for {
				last := latest.Load()
				if int64(now) <= last || latest.CompareAndSwap(last, int64(now)) {
					return now, int64(now) >= last
				}
			}
		}
	}
	l := &denyCache{
		next: next, length: o.For, clock: clock, seed: maphash.MakeSeed(),
		denials: make([]atomic.Pointer[denial], o.Size), changes: make([]atomic.Uint64, o.Size),
	}
	return l, nil
}

type denyCache struct {
	next   stint.Store
	length time.Duration
	clock  func() (now time.Duration, ok bool)
	seed   maphash.Seed

	// denials is indexed by a hash of all keys of a take. A new denial replaces the old one.
	denials []atomic.Pointer[denial]
	// changes is indexed by a hash of a key. It counts the adjustments and resets of the key
	// through this layer: the lower half those in flight, the upper half all. While one is in
	// flight no denial of the key is remembered, since it is unclear whether the denial has seen
	// the change.
	changes []atomic.Uint64
}

const (
	begun = 1<<32 + 1
	ended = 1<<32 - 1
)

// denial is a denied take. It is immutable, but for asked.
type denial struct {
	asks      []stint.Ask
	decisions []stint.Decision
	changes   []uint64      // of each key, before the store was asked
	at, until time.Duration // valid from at, when the store was asked
	told      time.Duration // when the store had answered
	again     time.Duration // from then on one caller asks the store again
	asked     atomic.Bool   // one does
}

func (*denyCache) Place() Place { return PlaceDenyCache }

func (l *denyCache) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	now, ok := l.clock()
	if !ok || len(asks) == 0 || len(asks) != len(ds) {
		return l.next.Take(ctx, asks, ds)
	}
	var room [onStack]*atomic.Uint64
	keys, place := l.find(asks, room[:0])
	if d := place.Load(); d != nil && l.answer(d, asks, ds, keys, now) {
		return nil
	}
	var before [onStack]uint64
	changes := before[:0]
	for _, k := range keys {
		changes = append(changes, k.Load())
	}
	err := l.next.Take(ctx, asks, ds)
	if err == nil {
		// The store decided at now or later, so the denial holds at least until now + RetryAfter.
		l.remember(place, asks, ds, changes, now)
	}
	return err
}

// onStack is how many asks a take can have without allocating.
const onStack = 8

func (l *denyCache) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	defer l.changing(asks)()
	return l.next.Adjust(ctx, asks, ds)
}

func (l *denyCache) Reset(ctx context.Context, asks []stint.Ask) error {
	defer l.changing(asks)()
	return l.next.Reset(ctx, asks)
}

// changing notes that counters are being adjusted or reset, until done is called.
func (l *denyCache) changing(asks []stint.Ask) (done func()) {
	note := func(n uint64) {
		for i := range asks {
			l.changes[l.hash(&asks[i].Key)%uint64(len(l.changes))].Add(n)
		}
	}
	note(begun)
	return func() { note(ended) }
}

func (l *denyCache) Close() error {
	for i := range l.denials {
		l.denials[i].Store(nil)
	}
	return l.next.Close()
}

func (l *denyCache) hash(k *stint.Key) uint64 {
	return maphash.String(l.seed, k.Subject)*31 + maphash.String(l.seed, k.Name)
}

// find returns the change counters of the keys, and the slot for a denial of the asks.
func (l *denyCache) find(asks []stint.Ask, keys []*atomic.Uint64) ([]*atomic.Uint64, *atomic.Pointer[denial]) {
	all := uint64(0)
	for i := range asks {
		h := l.hash(&asks[i].Key)
		all = all*31 + h
		keys = append(keys, &l.changes[h%uint64(len(l.changes))])
	}
	return keys, &l.denials[all%uint64(len(l.denials))]
}

// answer writes the decisions to ds and returns true if the denial applies to the take.
func (l *denyCache) answer(d *denial, asks []stint.Ask, ds []stint.Decision, keys []*atomic.Uint64, now time.Duration) bool {
	if len(d.asks) != len(asks) || now < d.at || now >= d.until {
		return false
	}
	for i := range asks {
		a, b := &asks[i], &d.asks[i]
		if a.Cost != b.Cost || a.Key != b.Key || a.Limit != b.Limit || a.Penalty != b.Penalty || keys[i].Load() != d.changes[i] {
			return false
		}
	}
	if now >= d.again && d.asked.CompareAndSwap(false, true) {
		return false
	}
	copy(ds, d.decisions)
	passed := max(0, now-d.told) // since the reply, so that no client comes back before the store would let it pass
	for i := range ds {
		x := &ds[i]
		x.Basis = stint.Remembered
		x.ResetAfter = max(x.ResetAfter-passed, 0)
		if x.RetryAfter != stint.Never && !x.Allowed {
			x.RetryAfter = max(x.RetryAfter-passed, d.again-now, time.Microsecond)
		}
	}
	return true
}

// counts reports whether a penalty would count the take as a violation if it were denied again.
func counts(asks []stint.Ask, ds []stint.Decision) bool {
	for i := range asks {
		if asks[i].Penalty != nil && asks[i].Cost > 0 && ds[i].Allowed {
			return true
		}
	}
	return false
}

// remember stores the denial of a take, if it was denied.
func (l *denyCache) remember(place *atomic.Pointer[denial], asks []stint.Ask, ds []stint.Decision, changes []uint64, now time.Duration) {
	length, denied, leased := l.length, false, false
	for i := range ds {
		if ds[i].Basis != stint.Counted {
			return // another layer decided, which is fast but may soon be wrong
		}
		if !ds[i].Allowed {
			denied = true
			retry := ds[i].RetryAfter
			if p := asks[i].Policy; p != nil && p.Lease > 0 {
				// Within half a term, enough units have recovered to take several at once. Within a
				// term, other nodes give back what they hold.
				retry = min(max(retry, p.Lease/2), p.Lease)
				leased = true
			}
			length = min(length, retry)
		}
	}
	if !denied || length <= 0 || counts(asks, ds) {
		return
	}
	if slices.ContainsFunc(changes, func(n uint64) bool { return uint32(n) != 0 }) {
		return // a change is in flight
	}
	told, ok := l.clock()
	if !ok {
		return
	}
	asks = slices.Clone(asks)
	for i := range asks { // clone, since the caller's strings may be parts of larger ones
		k := &asks[i].Key
		k.Subject, k.Name = strings.Clone(k.Subject), strings.Clone(k.Name)
	}
	d := &denial{asks: asks, decisions: slices.Clone(ds), changes: slices.Clone(changes), at: now, told: told}
	d.again, d.until = now+length, now+length
	if leased {
		d.until += length
	}
	place.Store(d)
}
