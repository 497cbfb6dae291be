package layer

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stintdev/stint"
)

// Split divides counters that are too busy for one server, those of asks whose [stint.Policy.Split] is N.
// Such a counter consists of N parts, from 2 to [stint.MaxSplit], which are counters of their own. A Redis Cluster
// keeps them in different slots, evenly spread. Each has a part of the limit's max and burst, and the parts add up
// to the limit exactly. A limit with fewer than N units has as many parts as units. Asks without a split are
// passed on.
//
// A take begins at one part, by chance another one on each node, and after 1,024 takes at the next, so that the
// servers of all parts have as much to do. If that denies, all parts are asked for what remains, at about the same
// time, and the take goes to one that can pass it, or gathers its cost from several, all or nothing. Following takes of this node begin there. So most takes are one call for one
// counter, and a denial is three calls. If others are faster, a take tries again, at most as often as there
// are parts. So no more passes than the limit allows, and what is denied could not be passed by any parts
// together. In a sliding_window, each part rounds what is left of the window before up to a unit. In a
// token_bucket, a part that is full gains nothing while others are used.
//
// A leaky_bucket is not split, since only one counter can space requests evenly, and neither are concurrency,
// penalties, and limits whose parts would not be exact.
//
// # Decisions
//
// Peeks, denials and adjustments without a charge describe all parts together: Remaining and Before are sums,
// ResetAfter is the latest. A take that passes describes the part that it was charged to, and of the others what
// this node has last heard. One that it has not heard of, or that has recovered since, counts as unused. So
// Remaining may be too high there, by what others have used since.
//
// RetryAfter is never later than the take would pass. It is exact for a cost of 1. For more it is the earliest
// time at which one part has gained its share of what is missing. A cost above the capacity is denied with
// [stint.Never].
//
// # Charges
//
// A charge is changed in the part where it was made, and one that several parts share evenly in these: a cost is
// gathered that way if what is left allows it. Otherwise it is changed in all parts, in proportion to their limits, since
// it does not tell how much each was charged. Together they never give back more than was charged and has not recovered. In
// windows they give back all of it, unless a part has used less than it gives back; in a sliding_log, what each part
// was charged at the instant of the charge, by the clock of its server; in a token_bucket, what would be left if what
// was charged to each part had drained from then on. If the servers' clocks were in different windows when a cost was
// gathered, the charge is one of the earlier window, and gives back nothing of the later one.
//
// More is charged to the part of the charge as far as something remains, and then to others; with an ID, which must
// change the same parts each time, to all in proportion. The same holds for adjustments without a charge. They give
// back where most is used. What is charged beyond the limit is divided in proportion, and not known: after that, a
// refund may free units of one part while more was charged to another than it has. Parts that cannot be reached are left
// out. Resets are of all parts.
//
// # Names
//
// The first part has the name of the counter. The others have a subject with four more bytes: 0xFF, which no valid key
// has, and three digits, by which each quarter of the slots, and of the other powers of two, has at most one part
// more than another. They are spread by chance if the subject is longer than 124 bytes. If a limit is split from now on, its first part goes on with
// what was used before, and the others begin at nothing: until it has recovered, at most N-1 Nths of the limit may
// pass in addition. If N is raised, the same holds for the new parts. If it is lowered, or the split is removed,
// what was used of the parts that are gone is forgotten, and charges of them are charges of another counter. If max
// is lowered, parts that have used less than their new limits pass the rest, whatever others have used.
//
// # Failures
//
// If a part cannot be reached, and nothing was changed ([stint.ErrNotApplied]), the take goes to the others. If
// these are exhausted it is denied, although the part might have passed it, with a RetryAfter of at most a second:
// so it never passes more than the limit. Only if no part can be reached, the error is returned, and so is every
// error after which something may have been charged. For a [Fallback], the server of a split counter is that of its
// first part.
//
// # Penalties
//
// Penalties record a violation if the take is denied in the end, once. If another limit denies it, that is one more
// call.
//
// # Bounds
//
// The parts of up to 1,024 counters are remembered, and what was heard of them, in at most 18 MB. Those of others are made
// anew for each take.
func Split(next stint.Store) (stint.Store, error) {
	if err := Check(PlaceSplit, next); err != nil {
		return nil, err
	}
	return &split{next: next, seed: maphash.MakeSeed(), wholes: make([]atomic.Pointer[whole], 1<<10)}, nil
}

type split struct {
	next stint.Store
	seed maphash.Seed
	// wholes is a table of sets. A counter belongs to one by its hash, and takes any place in it. One that has lost its
	// place begins where chance has it again. Those with long names have no place, so that their size is bounded.
	wholes []atomic.Pointer[whole]
	takes  sync.Pool // of *parting
}

func (*split) Place() Place { return PlaceSplit }

func (l *split) Close() error { return l.next.Close() }

// anySplit reports whether an ask has a policy that splits its counter.
func anySplit(asks []stint.Ask) bool {
	for i := range asks {
		if p := asks[i].Policy; p != nil && p.Split > 1 {
			return true
		}
	}
	return false
}

// isSplit reports whether the ask's counter has parts, if its limit is large enough.
func isSplit(a *stint.Ask) bool {
	return a.Policy != nil && a.Policy.Split > 1 && a.Penalty == nil &&
		a.Limit.Algorithm != stint.LeakyBucket && a.Limit.Algorithm != stint.Concurrency
}

// Take passes most takes on, and is small for that.
func (l *split) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if anySplit(asks) {
		return l.take(ctx, asks, ds)
	}
	return l.next.Take(ctx, asks, ds)
}

func (l *split) take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := stint.ValidateTake(asks, ds); err != nil {
		return err
	}
	p := l.begin(asks, ds)
	defer l.end(p)
	if len(p.views) == 0 {
		return l.next.Take(ctx, asks, ds)
	}
	return p.take(ctx)
}

func (l *split) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if !anySplit(asks) {
		return l.next.Adjust(ctx, asks, ds)
	}
	if err := stint.ValidateAdjust(asks, ds); err != nil {
		return err
	}
	p := l.begin(asks, ds)
	defer l.end(p)
	if len(p.views) == 0 {
		return l.next.Adjust(ctx, asks, ds)
	}
	return p.adjust(ctx)
}

// Reset resets as many parts as the policy says, since the max of the limit does not matter to a reset.
func (l *split) Reset(ctx context.Context, asks []stint.Ask) error {
	if !anySplit(asks) {
		return l.next.Reset(ctx, asks)
	}
	var all []stint.Ask
	for i := range asks {
		a := asks[i]
		if !isSplit(&a) {
			all = append(all, a)
			continue
		}
		part := a
		for _, part.Key.Subject = range partSubjects(a.Key.Subject, min(a.Policy.Split, stint.MaxSplit)) {
			all = append(all, part)
		}
	}
	err := l.next.Reset(ctx, all)
	for i := range asks { // what was heard of them holds no longer
		if isSplit(&asks[i]) {
			l.forget(&asks[i])
		}
	}
	return err
}

// places returns where a counter may be kept, and a number that differs between nodes.
func (l *split) places(a *stint.Ask) (set []atomic.Pointer[whole], chance uint64) {
	h, sets := hash(l.seed, a), uint64(len(l.wholes)/inSet)
	first := h % sets * inSet
	return l.wholes[first : first+inSet], h / sets
}

// find returns the counter of an ask, or nil if it has no parts.
func (l *split) find(a *stint.Ask) *whole {
	set, chance := l.places(a)
	for i := range set {
		if w := set[i].Load(); w != nil && w.key == a.Key && w.limit == a.Limit && w.split == a.Policy.Split {
			return w.orNone()
		}
	}
	w := newWhole(a, chance)
	const longest = 128
	if len(a.Key.Subject) > longest || len(a.Key.Name) > longest {
		return w.orNone()
	}
	for i := range set {
		if set[i].CompareAndSwap(nil, w) {
			return w.orNone()
		}
	}
	set[rand.N(len(set))].Store(w)
	return w.orNone()
}

// forget forgets what was heard of the counter of an ask, under whatever limit.
func (l *split) forget(a *stint.Ask) {
	set, _ := l.places(a)
	for i := range set {
		if w := set[i].Load(); w != nil && w.key == a.Key {
			set[i].CompareAndSwap(w, nil)
		}
	}
}

// begin returns a take or an adjustment with room for its steps. The caller returns it with end.
func (l *split) begin(asks []stint.Ask, ds []stint.Decision) *parting {
	p, ok := l.takes.Get().(*parting)
	if !ok {
		p = new(parting)
	}
	p.layer, p.asks, p.ds = l, asks, ds
	p.wants = slices.Grow(p.wants[:0], len(asks))[:len(asks)]
	clear(p.wants)
	for i := range asks {
		if isSplit(&asks[i]) {
			p.wants[i].view = p.viewOf(i)
		}
	}
	return p
}

func (l *split) end(p *parting) {
	clear(p.sent)
	clear(p.wants)
	clear(p.views)
	*p = parting{sent: p.sent[:0], from: p.from[:0], out: p.out[:0], wants: p.wants[:0], views: p.views[:0], shares: p.shares[:0]}
	l.takes.Put(p)
}

// unheard returns the error of a peek. It has changed nothing, whatever became of it.
func unheard(err error) error {
	if unreachable(err) {
		return fmt.Errorf("%w; %w", err, stint.ErrNotApplied)
	}
	return err
}
