package stint

import (
	"context"
	"strconv"
	"time"
)

// Never is the RetryAfter of a cost that can never pass because it is above
// the limit's capacity.
const Never time.Duration = 1<<63 - 1

// Ask is one question: may Cost units of Key pass under Limit? Cost 0 peeks.
type Ask struct {
	Key   Key
	Limit Limit
	Cost  int64
	// Penalty, if there is one, takes the place of Limit: is Key banned? With a
	// cost of 0 it records nothing.
	Penalty *Penalty
	// Plan is Limit, compiled. Limit alone says what is asked: where Plan is nil or
	// another limit's, the store compiles Limit itself, which costs more than the
	// decision.
	Plan *Plan
	// Charge, in Adjust, is what the ask is about: that charge is changed by Cost, as if its
	// cost had been known then ([Limit.Amend]).
	Charge *Charge
	// Client is whose counter it is, where the subject of Key also has values that a client may
	// make up. Empty: the subject. It does not name the counter: a store that is full uses it to
	// let no client push out the counters of others.
	Client string
	// Policy says how the ask is to be treated beyond counting it. The asks of one
	// compiled limit share it. Nil is the zero Policy.
	Policy *Policy
}

// Policy is what layers around a store know of an ask. It is plain data: each
// field is read by the layers that it names, and by no one else.
type Policy struct {
	OnFailure FailMode // for layer.FailMode
	// Lease is for how long units may be taken ahead, for layer.Lease, and so for how long a denial
	// is remembered, for layer.DenyCache: from MinLease to MaxLease. Zero: not at all.
	Lease time.Duration
	// Split is among how many counters the limit is divided, for layer.Split: from 2 to MaxSplit.
	// Zero: it has one.
	Split int
	// Regions says how the counter is shared among regions, for internal/region. The others are for
	// it, too: Credit is how many units of a gossiped counter a region may have admitted before the
	// other regions know of them (0: a tenth of the limit), OnCredit what becomes of a take beyond
	// that, and Follow says that the parts of a quota follow the demand for the limits of Rule, the
	// name of the rule, which is empty unless Follow is set.
	Regions  Regions
	Credit   int64
	OnCredit OnCredit
	Follow   bool
	Rule     string
}

// Regions is how a counter is shared among regions.
type Regions uint8

const (
	// RegionsOwn has every region count by itself: the limit holds in each.
	RegionsOwn Regions = iota
	// RegionsCentral has the counter in one region, which all others ask.
	RegionsCentral
	// RegionsQuota gives each region a part of the limit.
	RegionsQuota
	// RegionsGossip has every region count by itself, and tell the others what it has admitted.
	RegionsGossip
)

// OnCredit is what becomes of a take for which a region has no credit left, if the other regions
// cannot be reached.
type OnCredit uint8

const (
	// CreditShare has the region decide by its share of what remained.
	CreditShare OnCredit = iota
	// CreditDeny denies the take.
	CreditDeny
)

// The bounds of Policy.
const (
	MinLease = 10 * time.Millisecond // a call to the store takes almost as long
	MaxLease = 10 * time.Second      // for so long units may be missing elsewhere
	MaxSplit = 64
)

// FailMode is what becomes of a take while the store is out of reach.
type FailMode uint8

const (
	// FailLocal has this process decide by its share of the limit. Where it cannot,
	// the take passes.
	FailLocal FailMode = iota
	// FailOpen lets the take pass, uncounted.
	FailOpen
	// FailClosed denies the take.
	FailClosed
	// FailError fails the take with [ErrUnavailable], for callers who have their own
	// answer to that.
	FailError
)

// OnFailure returns what becomes of the ask while the store is out of reach.
func (a *Ask) OnFailure() FailMode {
	if a.Policy == nil {
		return FailLocal
	}
	return a.Policy.OnFailure
}

// Compiled reports whether Plan is that of Limit.
func (a *Ask) Compiled() bool { return a.Plan != nil && a.Plan.limit.is(&a.Limit) }

// CompileIn returns the plan of the ask's limit: the one it carries, or else one
// that is made in room. It allocates nothing unless the limit is not valid.
func (a *Ask) CompileIn(room *Plan) (*Plan, error) {
	if a.Compiled() {
		return a.Plan, nil
	}
	return room, a.Limit.compile(room)
}

// Validate reports what is wrong with the ask as an argument of Take.
func (a Ask) Validate() error {
	if a.Cost < 0 {
		return invalid("cost", strconv.FormatInt(a.Cost, 10), "0 or more; use Adjust to give units back")
	}
	if err := a.Key.Validate(); err != nil {
		return err
	}
	return a.validateTerms()
}

// validateTerms reports what is wrong with the limit or the penalty.
func (a *Ask) validateTerms() error {
	switch {
	case a.Penalty != nil:
		return a.Penalty.Validate()
	case a.Compiled():
		return nil
	default:
		return a.Limit.Validate()
	}
}

// ValidateTake reports what is wrong with the arguments of a take, for stores: with
// costs, limits, penalties and the room for decisions, though not with keys.
func ValidateTake(asks []Ask, ds []Decision) error {
	penalties := false
	for i := range asks {
		a := &asks[i]
		if a.Cost < 0 {
			return a.Validate()
		}
		if a.Charge != nil {
			return invalid("charge", a.Charge.String(), "none: a take makes charges, and Adjust changes them")
		}
		if err := a.validateTerms(); err != nil {
			return err
		}
		penalties = penalties || a.Penalty != nil
	}
	if penalties {
		if i := repeated(asks); i >= 0 {
			return invalid("key", asks[i].Key.String(), "no counter twice in a take that has a penalty")
		}
	}
	return ValidateRoom(asks, ds)
}

// ValidateAdjust is ValidateTake for Adjust.
func ValidateAdjust(asks []Ask, ds []Decision) error {
	for i := range asks {
		if a := &asks[i]; a.Penalty != nil {
			return invalid("penalty", a.Penalty.String(), "none: bans are lifted by Reset, and not adjusted")
		} else if err := a.validateTerms(); err != nil {
			return err
		} else if err := a.validateCharge(); err != nil {
			return err
		}
	}
	return ValidateRoom(asks, ds)
}

func (a *Ask) validateCharge() error {
	if a.Charge == nil {
		return nil
	}
	if err := a.Charge.Validate(); err != nil {
		return err
	}
	if a.Cost < -a.Charge.Cost {
		return invalid("cost", strconv.FormatInt(a.Cost, 10), "at least -"+strconv.FormatInt(a.Charge.Cost, 10)+", what was charged")
	}
	return nil
}

// ValidateRoom reports whether there is not one decision for each ask.
func ValidateRoom(asks []Ask, ds []Decision) error {
	if len(ds) != len(asks) {
		return invalid("decisions", strconv.Itoa(len(ds)), strconv.Itoa(len(asks))+", one for each ask")
	}
	return nil
}

// repeated returns the first ask whose counter was asked before, or -1.
func repeated(asks []Ask) int {
	type counter struct {
		key       Key
		algorithm Algorithm
		window    Window
		penalty   bool
	}
	of := func(a *Ask) counter {
		if a.Penalty != nil {
			return counter{key: a.Key, penalty: true}
		}
		return counter{key: a.Key, algorithm: a.Limit.Algorithm, window: a.Limit.Window}
	}
	const few = 32 // of which it takes longer to fill a map than to compare all
	if len(asks) <= few {
		for i := range asks {
			for j := range i {
				if of(&asks[i]) == of(&asks[j]) {
					return i
				}
			}
		}
		return -1
	}
	seen := make(map[counter]bool, len(asks))
	for i := range asks {
		c := of(&asks[i])
		if seen[c] {
			return i
		}
		seen[c] = true
	}
	return -1
}

// Refund returns the asks of an Adjust that gives back what a take of these asks, which was answered
// by ds, has charged.
func Refund(asks []Ask, ds []Decision) []Ask {
	charges := make([]Charge, 0, len(asks))
	var back []Ask
	for i := range asks {
		c := ds[i].Charge()
		if c.Cost == 0 || asks[i].Penalty != nil {
			continue
		}
		charges = append(charges, c)
		a := asks[i]
		a.Cost, a.Charge = -c.Cost, &charges[len(charges)-1]
		back = append(back, a)
	}
	return back
}

// Decision is the answer to one ask. A denial is a value, not an error.
type Decision struct {
	Allowed bool
	// Basis is what the answer rests on: the count, unless a layer around the
	// store says otherwise.
	Basis Basis
	// Repeated means, in Adjust, that a change with the ID of the charge had been made before, so that
	// this one changed nothing.
	Repeated bool
	// Counter is the store's mark of the counter, for [Charge.Counter].
	Counter uint32
	// At is when it was decided, by the store's clock, in microseconds since the Unix epoch.
	At int64
	// Cost is what was charged: 0 if the take was denied.
	Cost int64

	// Limit is the capacity: the most that Remaining can be.
	Limit int64
	// Remaining is the largest cost that would pass now.
	Remaining int64
	// Before is how many units were charged in the window before the current one. Zero but for
	// [SlidingWindow], where it says how much of what is used will be back at the end of the window.
	Before int64
	// RetryAfter is zero when allowed. When denied it is how long until this
	// cost would pass if nothing else came, exactly, or [Never].
	RetryAfter time.Duration
	// ResetAfter is how long until the full allowance is back.
	ResetAfter time.Duration
	// Delay is how long to hold an allowed request so that requests are evenly
	// spaced. Zero but for [LeakyBucket].
	Delay time.Duration
}

// Basis is what a decision rests on.
type Basis uint8

const (
	// Counted means that the store has counted it, or would have.
	Counted Basis = iota
	// Leased means that this process had taken the units from the store before, at the time At.
	Leased
	// Remembered means that it was denied a moment ago and cannot have recovered
	// since. What it says of other limits is as old as that.
	Remembered
	// Local means that the store was out of reach, and this process decided by its
	// share of the limit.
	Local
	// Open means that no one could count, and it passes by the rule for that case.
	Open
	// Closed means that no one could count, and it is denied by that rule.
	Closed
)

var basisNames = [...]string{Counted: "counted", Leased: "leased", Remembered: "remembered", Local: "local", Open: "open", Closed: "closed"}

// String returns the basis in a word.
func (b Basis) String() string {
	if int(b) >= len(basisNames) {
		return "basis(" + strconv.Itoa(int(b)) + ")"
	}
	return basisNames[b]
}

// MarshalText implements [encoding.TextMarshaler].
func (b Basis) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// Store holds counters. Implementations are safe for concurrent use.
//
// Decisions are written into memory of the caller: ds is as long as asks, and ds[i]
// answers asks[i].
//
// Take decides all asks at one instant of the store's own clock and charges
// every one of them, or none. If every ask was allowed, each decision describes its
// counter after the charge. If any was denied, nothing was charged anywhere:
// the decisions of the asks that would have passed have Allowed set and
// describe their counters as they stand. Asks on the same counter (same key,
// algorithm and window) add up in their order. A denied take is charged nothing, but
// for its penalties: those that answer for what denied record a violation, and
// their decisions describe them afterwards.
//
// Adjust charges without asking (Cost > 0) or gives back (Cost < 0, never below
// nothing used), each ask on its own but all at one instant. Its decisions
// describe the counters afterwards.
//
// With [Ask.Charge] it changes that charge instead, as [Limit.Amend] does; a charge
// from before a Reset gives nothing back, and one of another counter or from the
// future is an [*InvalidError].
//
// Reset forgets the counters of the asks. Costs do not matter to it, and of a limit
// only what names its counter.
//
// An error means that the machinery broke or that an ask is invalid (an
// [*InvalidError]); it wraps [ErrUnavailable] where the store is out of reach.
// After an error no decision was made, whatever ds holds, though a store out of reach
// may have charged. A store does not change asks, and keeps neither asks nor ds after
// it returns.
//
// A store names a counter by its key's bytes and its limit's algorithm and window, or
// by its key and that it is a penalty, and needs no more of a key than that: [Key.Validate]
// is for whoever makes it.
type Store interface {
	Take(ctx context.Context, asks []Ask, ds []Decision) error
	Adjust(ctx context.Context, asks []Ask, ds []Decision) error
	Reset(ctx context.Context, asks []Ask) error
	Close() error
}
