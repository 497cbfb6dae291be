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
	// Size is how many denials are remembered; newer ones take the places of
	// older ones. Default 4,096, at most 1 << 20.
	Size int
	// Now is the clock. While it is behind what it has shown before, nothing is
	// remembered. Default: the process's own, which never is.
	Now func() time.Time
}

// DenyCache remembers takes that were denied, and denies them again without
// asking, until the first of their RetryAfter has passed, and at most for a
// second: the same keys under the same limits, for costs that are at least as
// large. A flood against an exhausted limit costs the store one call in that
// time, for each key and node.
//
// It does not deny what the store would have allowed, with these exceptions, within
// that second: it does not see that another node has reset a counter or given
// units back, or that a counter has been asked under a second limit with another
// window, which may have dropped what it held. What is reset or adjusted through
// it, it forgets. A changed limit is another limit. Only what the store itself has
// denied is remembered. What a penalty might count as a violation is not, until it
// has led to a ban.
//
// What it answers by itself has the basis [stint.Remembered]. Times are counted on
// from when it came, and a larger cost is told that of the smaller one, so that it
// may have to wait longer; what it says of the asks that would have passed is as
// old as the denial.
func DenyCache(next stint.Store, o DenyCacheOptions) (stint.Store, error) {
	if o.For == 0 {
		o.For = time.Second
	}
	if o.Size == 0 {
		o.Size = 1 << 12
	}
	switch {
	case o.For < 0:
		return nil, invalid("for", o.For, "some time")
	case o.Size < 0 || o.Size > 1<<20:
		return nil, invalid("size", o.Size, "at most "+strconv.Itoa(1<<20))
	}
	if err := check(atDenyCache, next); err != nil {
		return nil, err
	}
	born := time.Now()
	clock := func() (time.Duration, bool) { return time.Since(born), true } // quicker than the time of day
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
		next: next, length: o.For, clock: clock, seed: maphash.MakeSeed(), local: new(atomic.Bool),
		denials: make([]atomic.Pointer[denial], o.Size), changes: make([]atomic.Uint64, o.Size),
	}
	l.until.Store(never)
	if f, ok := bare(next).(*fallback); ok {
		l.local = &f.away
	}
	return l, nil
}

type denyCache struct {
	next   stint.Store
	length time.Duration
	clock  func() (now time.Duration, ok bool)
	seed   maphash.Seed
	local  *atomic.Bool // another stands in for the store, of which nothing is remembered
	until  atomic.Int64 // until then there may be denials; the least there is: there are none

	// denials has a place for each hash of a take's keys. One take of its place
	// pushes out another.
	denials []atomic.Pointer[denial]
	// changes tells, for each hash of a key, what is done to it through this
	// layer other than takes: how many of these are on their way, in the lower
	// half, and above it how many there have been. Meanwhile nothing is
	// remembered of the key: some takes would see the change, and some not.
	changes []atomic.Uint64
}

// never is no time of any clock.
const never = math.MinInt64

const (
	begun = 1<<32 + 1
	ended = 1<<32 - 1
)

// denial is a take that was denied. It does not change.
type denial struct {
	asks      []stint.Ask
	decisions []stint.Decision
	changes   []uint64      // of each key, before the store was asked
	at, until time.Duration // it holds from the first, when the store was asked
	told      time.Duration // when the store had answered
}

func (*denyCache) position() position { return atDenyCache }

func (l *denyCache) Take(ctx context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	if len(asks) == 0 {
		return l.next.Take(ctx, asks)
	}
	local := l.local.Load()
	until := l.until.Load()
	if local && until == never {
		return l.next.Take(ctx, asks)
	}
	now, ok := l.clock()
	if local && ok && int64(now) >= until {
		l.until.CompareAndSwap(until, never)
	}
	if !ok {
		return l.next.Take(ctx, asks)
	}
	var room [few]*atomic.Uint64
	keys, place := l.find(asks, room[:0])
	if d := place.Load(); d != nil {
		if ds := l.answer(d, asks, keys, now); ds != nil {
			return ds, nil
		}
	}
	var before [few]uint64
	changes := before[:0]
	for _, k := range keys {
		changes = append(changes, k.Load())
	}
	ds, err := l.next.Take(ctx, asks)
	if err == nil {
		// The store decided at now or later, so what it says ends no sooner.
		l.remember(place, asks, ds, changes, now)
	}
	return ds, err
}

// few is how many asks are worked on without allocating.
const few = 8

func (l *denyCache) Adjust(ctx context.Context, asks []stint.Ask) ([]stint.Decision, error) {
	for i := range asks {
		change := l.change(&asks[i].Key)
		change.Add(begun)
		defer change.Add(ended)
	}
	return l.next.Adjust(ctx, asks)
}

func (l *denyCache) Reset(ctx context.Context, keys ...stint.Key) error {
	for i := range keys {
		change := l.change(&keys[i])
		change.Add(begun)
		defer change.Add(ended)
	}
	return l.next.Reset(ctx, keys...)
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

// change is where changes of the key are counted.
func (l *denyCache) change(k *stint.Key) *atomic.Uint64 {
	return &l.changes[l.hash(k)%uint64(len(l.changes))]
}

// find returns where changes of the keys are counted, and where a denial of the
// asks is.
func (l *denyCache) find(asks []stint.Ask, keys []*atomic.Uint64) ([]*atomic.Uint64, *atomic.Pointer[denial]) {
	all := uint64(0)
	for i := range asks {
		h := l.hash(&asks[i].Key)
		all = all*31 + h
		keys = append(keys, &l.changes[h%uint64(len(l.changes))])
	}
	return keys, &l.denials[all%uint64(len(l.denials))]
}

// answer returns the decisions if the take is remembered, and nil if it is not.
func (l *denyCache) answer(d *denial, asks []stint.Ask, keys []*atomic.Uint64, now time.Duration) []stint.Decision {
	if len(d.asks) != len(asks) || now < d.at || now >= d.until {
		return nil
	}
	for i := range asks {
		a, b := &asks[i], &d.asks[i]
		same := a.Cost == b.Cost || (a.Cost > b.Cost && !d.decisions[i].Allowed && a.Penalty == nil)
		if !same || a.Key != b.Key || a.Limit != b.Limit || a.Penalty != b.Penalty || keys[i].Load() != d.changes[i] {
			return nil
		}
	}
	ds := slices.Clone(d.decisions)
	passed := max(0, now-d.told) // no one is told to come back before the store would let them pass
	for i := range ds {
		x := &ds[i]
		x.Basis = stint.Remembered
		x.ResetAfter = max(x.ResetAfter-passed, 0)
		if x.RetryAfter != stint.Never {
			x.RetryAfter = max(x.RetryAfter-passed, 0)
		}
		if asks[i].Cost > x.Limit && asks[i].Penalty == nil {
			x.RetryAfter = stint.Never
		}
	}
	return ds
}

// counts reports whether the take, denied again, could be a violation that a
// penalty wants to know of.
func counts(asks []stint.Ask, ds []stint.Decision) bool {
	for i := range asks {
		if asks[i].Penalty != nil && asks[i].Cost > 0 && ds[i].Allowed {
			return true
		}
	}
	return false
}

// remember notes a take that was denied.
func (l *denyCache) remember(place *atomic.Pointer[denial], asks []stint.Ask, ds []stint.Decision, changes []uint64, now time.Duration) {
	length, denied := l.length, false
	for i := range ds {
		if ds[i].Basis != stint.Counted {
			return // what stands in for the store is quick, and soon wrong
		}
		if !ds[i].Allowed {
			denied = true
			length = min(length, ds[i].RetryAfter)
		}
	}
	if !denied || length <= 0 || counts(asks, ds) {
		return
	}
	if slices.ContainsFunc(changes, func(n uint64) bool { return uint32(n) != 0 }) {
		return // one is on its way
	}
	told, ok := l.clock()
	if !ok {
		return
	}
	asks = slices.Clone(asks)
	for i := range asks { // the caller's strings may be parts of something large
		k := &asks[i].Key
		k.Subject, k.Name = strings.Clone(k.Subject), strings.Clone(k.Name)
	}
	place.Store(&denial{
		asks: asks, decisions: slices.Clone(ds), changes: slices.Clone(changes), at: now, until: now + length, told: told,
	})
	for {
		until := l.until.Load()
		if until >= int64(now+length) || l.until.CompareAndSwap(until, int64(now+length)) {
			return
		}
	}
}
