package engine

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// Usage is how many units something uses, before or after it is known.
type Usage struct {
	// Cost is for the limits of rules that have a meter; if none of the rules that apply has one, for all
	// limits.
	Cost int64
	// Meters, if not nil, replaces Cost: units by meter. What it leaves out stays as it was reserved.
	Meters map[rule.Meter]int64
	// Model is the language model that was used, and Estimated says that some of the usage was not reported, but
	// estimated. Both are for the [Ledger].
	Model     string
	Estimated bool
}

// Payer is whom a reservation is counted for.
type Payer struct{ User, Tenant, Key, Tier string }

func (u *Usage) validate() error {
	if u.Cost < 0 {
		return invalid("cost", strconv.FormatInt(u.Cost, 10), "0 or more")
	}
	for m, n := range u.Meters {
		if n < 0 {
			return invalid("usage", string(m)+"="+strconv.FormatInt(n, 10), "0 or more")
		}
	}
	return nil
}

// Reservation is what a request has been charged before its cost was known, and the places that it holds
// under limits of [stint.Concurrency]. [Engine.Commit] or [Engine.Cancel] settles it, once: all further
// settlements change nothing. If nothing settles it, what was charged stays charged, and the places come back
// by themselves.
//
// It is not safe for concurrent use, except for Commit and Cancel.
type Reservation struct {
	ID    ID // of the verdict
	Payer Payer

	node    uint64 // which process has made it; it is even
	notable bool   // see Receipt
	items   []reserved
	like    string // whose requests it is like, if it declares no cap for what a language model may use
	expires int64  // when its ticket does, in seconds since the Unix epoch; 0: it has none
}

// reserved is what was charged to one counter.
type reserved struct {
	rule, name string
	meter      rule.Meter
	most       int64 // a request costs no more than that, or 0
	ask        stint.Ask
	// open means that the cost is settled: otherwise it was known before.
	open   bool
	shadow bool
	// refund means that nothing is charged if the server has failed.
	refund bool
	// cut means that a response is cut that uses more.
	cut bool
	// charges are made by Reserve, and by each Extend.
	charges []stint.Charge
}

func (r *reserved) place() bool { return r.ask.Limit.Algorithm == stint.Concurrency }

// cost returns how many units are charged.
func (r *reserved) cost() (units int64) {
	for i := range r.charges {
		units += r.charges[i].Cost
	}
	return units
}

// used returns how many of the units were used.
func (r *reserved) used(u *Usage) int64 {
	units, known := u.Cost, true
	if u.Meters != nil {
		units, known = u.Meters[r.meter]
	}
	switch {
	case !r.open || !known:
		return r.cost()
	case r.most > 0:
		return min(units, r.most)
	}
	return units
}

// Ledger is told what becomes of reservations. It must not block.
type Ledger interface {
	// Reserved tells how many units were reserved under a rule, by Reserve or Extend. The meter is empty if the
	// rule has none.
	Reserved(rule string, m rule.Meter, units int64)
	// Settled tells of a Commit, or of a Cancel. If the receipt is repeated, nothing was changed.
	Settled(r *Receipt, cancelled bool)
}

// Reserve decides a request like [Engine.Decide], and returns what it was charged, to be settled when its cost
// is known. The reservation is nil if the request does not pass, or nothing was counted.
func (e *Engine) Reserve(ctx context.Context, q Request) (v Verdict, r *Reservation, err error) {
	r, err = e.answer(ctx, &q, &v, reserving)
	return v, r, err
}

// tell tells the ledger what was reserved.
func (e *Engine) tell(r *Reservation) {
	if e.ledger == nil {
		return
	}
	before := ""
	for i := range r.items {
		if it := &r.items[i]; it.rule != before && !it.place() { // all limits of a rule have the same cost
			e.ledger.Reserved(it.rule, it.meter, it.cost())
			before = it.rule
		}
	}
}

// reserve notes what the asks of rules were charged, as far as it will be settled.
func (e *Engine) reserve(w *work, hits []rule.Hit, asks []stint.Ask, ds []stint.Decision, shadow bool) {
	if w.purpose < reserving {
		return
	}
	for i := range hits {
		h := &hits[i]
		meter, most := h.Rule.Meter()
		for j := h.From; j < h.To; j++ {
			a := &asks[j]
			place := a.Limit.Algorithm == stint.Concurrency
			if a.Penalty != nil || w.purpose == serving && meter == "" && !place {
				continue
			}
			c := ds[j].Charge()
			if c.Cost == 0 {
				continue
			}
			if w.reservation == nil {
				w.reservation = &Reservation{node: e.node}
				if w.attrs.Usual != nil {
					w.reservation.like = payerOf(&w.attrs)
				}
			}
			bare := *a
			bare.Cost = 0
			w.reservation.items = append(w.reservation.items, reserved{
				rule: h.Rule.Name, name: h.LimitOf(asks, j), meter: meter, most: most, ask: bare,
				open:    !place && (meter != "" || !w.attrs.Metered),
				shadow:  shadow,
				refund:  h.Rule.Refunds(),
				cut:     h.Rule.Cuts(),
				charges: []stint.Charge{c},
			})
		}
	}
}

// Settled is a limit of a reservation.
type Settled struct {
	Rule, Name string
	Meter      rule.Meter // empty if the rule has none
	Limit      stint.Limit
	Shadow     bool // the rule is log_only
	// Reserved is how many units were charged before, and Used how many are charged now. Those that are
	// used but were not reserved are the overshoot.
	Reserved, Used int64
	// Decision is the state of the counter now.
	Decision stint.Decision
}

// Receipt says what became of a reservation.
type Receipt struct {
	ID     ID // of the verdict
	Payer  Payer
	Limits []Settled
	// Model and Estimated are those of the [Usage].
	Model     string
	Estimated bool
	// Notable means that the event of the verdict is not routine: see [Event.Routine].
	Notable bool
	// Repeated means that it had been settled before, and nothing was changed now.
	Repeated bool
}

// Rules yields one limit of each rule that counts units, since all limits of a rule have the same cost. Places are
// not units.
func (r *Receipt) Rules() iter.Seq[*Settled] {
	return func(yield func(*Settled) bool) {
		before := ""
		for i := range r.Limits {
			s := &r.Limits[i]
			if s.Rule == before || s.Limit.Algorithm == stint.Concurrency {
				continue
			}
			if before = s.Rule; !yield(s) {
				return
			}
		}
	}
}

// Commit settles a reservation by what was used, in one call to the store. What was used beyond the reservation
// is charged in full, and what was not used is given back, both as if it had been known when it was reserved.
// Places are released. Limits whose cost was known before stay as they are.
//
// It is an error if the store cannot be reached. After an error it may be called again, by any process: what was
// applied is not applied twice.
func (e *Engine) Commit(ctx context.Context, r *Reservation, u Usage) (Receipt, error) {
	if err := u.validate(); err != nil {
		return Receipt{}, err
	}
	return e.settle(ctx, r, settlement{Usage: u, stored: true, used: func(it *reserved) int64 { return it.used(&u) }})
}

// Cancel settles a reservation as if the request had never been made: everything is given back.
func (e *Engine) Cancel(ctx context.Context, r *Reservation) (Receipt, error) {
	return e.settle(ctx, r, settlement{cancelled: true, stored: true, used: func(*reserved) int64 { return 0 }})
}

// settlement is how a reservation is settled.
type settlement struct {
	Usage
	cancelled bool
	used      func(*reserved) int64
	stored    bool          // it is an error unless the store has it: it is answered for
	keep      time.Duration // for stint.Charge.Keep
}

func (e *Engine) settle(ctx context.Context, r *Reservation, how settlement) (Receipt, error) {
	receipt := Receipt{ID: r.ID, Payer: r.Payer, Notable: r.notable, Limits: make([]Settled, len(r.items)), Model: how.Model, Estimated: how.Estimated}
	var asks []stint.Ask
	var of []int // the items of the asks
	for i := range r.items {
		it, s := &r.items[i], &receipt.Limits[i]
		*s = it.settled(how.used(it))
		if it.place() {
			s.Used = 0
		}
		change, begin := s.Used-s.Reserved, len(asks)
		// The latest charge is given back first: of the others, more has recovered.
		for j := len(it.charges) - 1; j >= 0; j-- {
			c := it.charges[j]
			if !it.place() { // a place that was released is not there to be released again
				c.ID, c.Keep, c.Together = r.ID.String()+"."+strconv.Itoa(j), how.keep, true
			}
			a := it.ask
			a.Cost, a.Charge = max(change, -c.Cost), &c
			change -= a.Cost
			if it.place() && c.Local && r.node != e.node {
				continue // another process has given it, and it comes back by itself
			}
			if how.stored {
				a.Policy = orFail(a.Policy)
			}
			asks, of = append(asks, a), append(of, i)
		}
		slices.Reverse(asks[begin:]) // the first charge decides: it is in all tickets of the reservation
	}
	ds := make([]stint.Decision, len(asks))
	if err := e.adjust(ctx, asks, ds); err != nil {
		return Receipt{}, err
	}
	decided := false
	for j := range ds {
		if it := &r.items[of[j]]; it.place() {
			e.lines.released(it.ask.Key)
		} else if !decided { // by the first, whatever stores the others are in
			receipt.Repeated, decided = ds[j].Repeated, true
		}
		receipt.Limits[of[j]].Decision = ds[j]
	}
	if e.ledger != nil {
		e.ledger.Settled(&receipt, how.cancelled)
	}
	return receipt, nil
}

// orFail returns the policy with an error while the store cannot be reached.
func orFail(p *stint.Policy) *stint.Policy {
	var fail stint.Policy
	if p != nil {
		fail = *p
	}
	fail.OnFailure = stint.FailError
	return &fail
}

func (e *Engine) adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if len(asks) == 0 {
		return nil
	}
	err := e.store.Adjust(ctx, asks, ds)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (r *reserved) settled(used int64) Settled {
	return Settled{Rule: r.rule, Name: r.name, Meter: r.meter, Limit: r.ask.Limit, Shadow: r.shadow, Reserved: r.cost(), Used: used}
}

// Extension says whether more was reserved.
type Extension struct {
	Allowed bool
	// RetryAfter is how long until that could pass, or [stint.Never].
	RetryAfter time.Duration
	Limits     []Settled
}

// Extend reserves more for a request: of all limits whose costs are settled, or of none. It also renews the
// places that the request holds. A place that was lost, because it was not renewed in time, is taken again;
// if there is none, the extension is denied.
func (e *Engine) Extend(ctx context.Context, r *Reservation, more Usage) (x Extension, err error) {
	if err := more.validate(); err != nil {
		return x, err
	}
	lost, err := e.renew(ctx, r)
	if err != nil {
		return x, err
	}
	return e.extend(ctx, r, func(i int) (units int64, ok bool) {
		it := &r.items[i]
		if units = more.Cost; more.Meters != nil {
			units = more.Meters[it.meter]
		}
		if slices.Contains(lost, i) {
			return 1, true
		}
		return units, it.open && !it.shadow // what a log_only rule counts denies nothing
	})
}

// extend takes more units for some items of a reservation, or for none.
func (e *Engine) extend(ctx context.Context, r *Reservation, more func(item int) (units int64, ok bool)) (x Extension, err error) {
	var asks []stint.Ask
	var of []int
	for i := range r.items {
		if units, ok := more(i); ok {
			a := r.items[i].ask
			a.Cost = units
			asks, of = append(asks, a), append(of, i)
		}
	}
	ds := make([]stint.Decision, len(asks))
	if len(asks) > 0 {
		if err := e.take(ctx, asks, ds); err != nil {
			return x, err
		}
	}
	x.Allowed = !denied(ds)
	before := ""
	for j := range ds {
		it := &r.items[of[j]]
		x.RetryAfter = max(x.RetryAfter, ds[j].RetryAfter)
		if c := ds[j].Charge(); x.Allowed && c.Cost > 0 {
			it.charges = append(it.charges, c)
			if e.ledger != nil && it.rule != before && !it.place() {
				e.ledger.Reserved(it.rule, it.meter, c.Cost)
				before = it.rule
			}
		}
		s := it.settled(0)
		s.Decision = ds[j]
		x.Limits = append(x.Limits, s)
	}
	return x, nil
}

// renew renews the places of a reservation, and returns which were lost.
func (e *Engine) renew(ctx context.Context, r *Reservation) (lost []int, err error) {
	var asks []stint.Ask
	var of []int
	for i := range r.items {
		if it := &r.items[i]; it.place() {
			if len(it.charges) == 0 {
				lost = append(lost, i)
				continue
			}
			a := it.ask
			a.Charge = &it.charges[0]
			asks, of = append(asks, a), append(of, i)
		}
	}
	ds := make([]stint.Decision, len(asks))
	err = e.adjust(ctx, asks, ds)
	if invalid := new(stint.InvalidError); errors.As(err, &invalid) {
		clear(ds) // the store's clock was set back, and it does not know of them
	} else if err != nil {
		return nil, err
	}
	for j := range ds {
		it := &r.items[of[j]]
		if it.charges = it.charges[:0]; ds[j].Cost > 0 {
			it.charges = append(it.charges, ds[j].Charge())
		} else {
			lost = append(lost, of[j])
		}
	}
	return lost, nil
}
