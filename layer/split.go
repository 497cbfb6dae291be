package layer

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
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
// servers of all parts have as much to do. If that part denies, all parts are asked at about the same time, and the
// take goes to one that can pass it. Following takes of this node begin there. So most takes are one call for one
// counter, and a denial is two calls. If others are faster, a take tries again, at most as often as there are parts.
//
// A cost is charged to one part as a whole. So one above the capacity of a part can never pass, and a take is denied if
// each part has less left than its cost. All parts together may then have more, which Remaining says: with N parts, at
// most N times one less than the cost. Asks of one take for the same counter go to the same part.
//
// A leaky_bucket is not split, since only one counter can space requests evenly, and neither are concurrency,
// penalties, and limits whose parts would not be exact.
//
// # Decisions
//
// Remaining and Before are sums of all parts, and ResetAfter is the latest, by what all parts have answered. A take that
// passes describes the part that it was charged to, and of the others what this node has last heard. One that it has not
// heard of, or that has recovered since, counts as unused. So Remaining may be too high there, by what others have
// used since. RetryAfter is when a part will pass the cost, exactly, or [stint.Never].
//
// # Charges
//
// Adjust changes the part that was charged, whatever the change, so one with an ID is made once, as without a split.
// More is charged in full. A part that has been charged more than it can hold passes nothing until that has recovered,
// and other parts still pass theirs. So what takes charge is never above the limit; all charges are above it by at most
// what was added to charges of each part after the last take of that part.
//
// An adjustment without a charge, or of a charge that another store has made, takes up what is left of the parts, or gives
// back what is used of them, and divides the rest equally. Parts that cannot be reached are left out. Resets are
// of all parts.
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
// Penalties record a violation if the take is denied in the end, once, in one more call.
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
		return l.parted(ctx, asks, ds, stint.ValidateTake, l.next.Take, (*parting).take)
	}
	return l.next.Take(ctx, asks, ds)
}

func (l *split) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if anySplit(asks) {
		return l.parted(ctx, asks, ds, stint.ValidateAdjust, l.next.Adjust, (*parting).adjust)
	}
	return l.next.Adjust(ctx, asks, ds)
}

// parted calls do, or next if no counter has parts.
func (l *split) parted(ctx context.Context, asks []stint.Ask, ds []stint.Decision, valid func([]stint.Ask, []stint.Decision) error,
	next call, do func(*parting, context.Context) error,
) error {
	if err := valid(asks, ds); err != nil {
		return err
	}
	p := l.begin(asks, ds)
	defer l.end(p)
	if len(p.groups) == 0 {
		return next(ctx, asks, ds)
	}
	return do(p, ctx)
}

// call is Take or Adjust of a store.
type call = func(context.Context, []stint.Ask, []stint.Decision) error

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
	for i := range asks {
		p.of = append(p.of, p.groupOf(&asks[i]))
	}
	return p
}

func (l *split) end(p *parting) {
	clear(p.sent)
	clear(p.groups)
	*p = parting{sent: p.sent[:0], out: p.out[:0], of: p.of[:0], groups: p.groups[:0]}
	l.takes.Put(p)
}

// unheard returns the error of a peek. It has changed nothing, whatever became of it.
func unheard(err error) error {
	if unreachable(err) {
		return fmt.Errorf("%w; %w", err, stint.ErrNotApplied)
	}
	return err
}
