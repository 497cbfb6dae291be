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
		return nil, invalid("for", o.For, "a positive duration")
	case o.Size < 0 || o.Size > 1<<20:
		return nil, invalid("size", o.Size, "at most "+strconv.Itoa(1<<20))
	}
	if err := Check(PlaceDenyCache, next); err != nil {
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

	// denials has a place for each hash of a take's keys. One take of its place
	// pushes out another.
	denials []atomic.Pointer[denial]
	// changes tells, for each hash of a key, what is done to it through this
	// layer other than takes: how many of these are on their way, in the lower
	// half, and above it how many there have been. Meanwhile nothing is
	// remembered of the key: some takes would see the change, and some not.
	changes []atomic.Uint64
}

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
		// The store decided at now or later, so what it says ends no sooner.
		l.remember(place, asks, ds, changes, now)
	}
	return err
}

// onStack is how many asks are worked on without allocating.
const onStack = 8

func (l *denyCache) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	defer l.changing(asks)()
	return l.next.Adjust(ctx, asks, ds)
}

func (l *denyCache) Reset(ctx context.Context, asks []stint.Ask) error {
	defer l.changing(asks)()
	return l.next.Reset(ctx, asks)
}

// changing notes that counters are changed other than by takes, until what it returns is called.
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

// answer answers in ds and returns true if the take is remembered.
func (l *denyCache) answer(d *denial, asks []stint.Ask, ds []stint.Decision, keys []*atomic.Uint64, now time.Duration) bool {
	if len(d.asks) != len(asks) || now < d.at || now >= d.until {
		return false
	}
	for i := range asks {
		a, b := &asks[i], &d.asks[i]
		same := a.Cost == b.Cost || (a.Cost > b.Cost && !d.decisions[i].Allowed && a.Penalty == nil)
		if !same || a.Key != b.Key || a.Limit != b.Limit || a.Penalty != b.Penalty || keys[i].Load() != d.changes[i] {
			return false
		}
	}
	copy(ds, d.decisions)
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
	return true
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
}
