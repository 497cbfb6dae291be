package layer

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stintdev/stint"
)

// counter identifies a counter.
type counter struct {
	key  stint.Key
	kind uint64 // of the limit
}

// debt is units of a counter that were admitted but not charged in the store.
type debt struct {
	key stint.Key
	terms
	span
	account uint64 // its number
}

// terms are the limit that a counter was last charged under, how that is treated, and how many nodes shared it at
// the time.
type terms struct {
	limit  stint.Limit
	policy *stint.Policy
	nodes  int64
}

// span is units that were admitted in one window, or, of a log, within an eighth of one.
type span struct {
	units int64         // negative if more was given back than admitted
	at    time.Duration // when the last of them were, since the layer was made
	until int64         // when the first of them have recovered, by the store's clock: it tells spans apart
}

func (s *span) join(x span) {
	s.units, s.at = max(-maxUnits, min(s.units+x.units, maxUnits)), max(s.at, x.at)
}

const (
	// logSpans is into how many spans the window of a log is divided.
	logSpans = 8
	// maxSpans is how many spans of a counter are kept. When there is one more, the first two have recovered.
	maxSpans = logSpans + 2
)

// account is the debts of a counter. One that was reset gets another.
type account struct {
	number uint64
	terms
	spans []span // by until
}

// find returns the place of the span to which units belong that have recovered at the time until, or where it
// would be.
func (a *account) find(until int64) (i int, found bool) {
	length := a.limit.Window.Length().Microseconds()/logSpans + 1 // windows are further apart
	return slices.BinarySearchFunc(a.spans, until, func(s span, until int64) int {
		switch d := s.until - until; {
		case d <= -length:
			return -1
		case d >= length:
			return 1
		}
		return 0
	})
}

// debts holds the debts of this node, for at most max counters.
type debts struct {
	max int

	mu       sync.Mutex
	accounts uint64 // how many there have been
	all      map[counter]account
	// paid is what was charged in the store, as long as it may be given back: for keptPaid.
	paid map[counter]account
	// changes are of charges that the store has made, to be made when it is back. There are at most
	// max of them.
	changes []stint.Ask
	lost    int64 // units of counters that did not fit
}

// keptPaid is how long it is known what was paid: as long as a ticket may be valid.
const keptPaid = time.Hour

// maxUnits is the most that a counter can hold.
const maxUnits = 1<<53 - 1

// add adds a debt. Units that are given back are the last that were admitted.
func (d *debts) add(x debt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.addTo(&d.all, x) {
		d.lost += max(x.units, 0)
	}
}

// addTo adds a debt to those that are owed, or paid. It returns false if there is no room.
func (d *debts) addTo(all *map[counter]account, x debt) bool {
	c := counter{x.key, x.limit.Kind()}
	owed, known := (*all)[c]
	if !known {
		if len(*all) >= d.max {
			return false
		}
		if *all == nil {
			*all = map[counter]account{}
		}
		// Clone, since the caller's strings may be parts of larger ones.
		c.key = stint.Key{Subject: strings.Clone(c.key.Subject), Name: strings.Clone(c.key.Name)}
		d.accounts++
		owed.number = d.accounts
	}
	owed.terms = x.terms
	x.units = max(-maxUnits, min(x.units, maxUnits))
	for i := len(owed.spans) - 1; i >= 0 && x.units < 0; i-- {
		back := min(-x.units, max(owed.spans[i].units, 0))
		owed.spans[i].units -= back
		x.units += back
	}
	if i, found := owed.find(x.until); found {
		owed.spans[i].join(x.span)
	} else if owed.spans = slices.Insert(owed.spans, i, x.span); len(owed.spans) > maxSpans {
		owed.spans[1].join(owed.spans[0])
		owed.spans = slices.Delete(owed.spans, 0, 1)
	}
	(*all)[c] = owed
	return true
}

// settled notes that a debt was paid. Those that were paid long ago are forgotten.
func (d *debts) settled(x debt, now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x.units > 0 && !d.addTo(&d.paid, x) {
		maps.DeleteFunc(d.paid, func(_ counter, a account) bool { return now-a.spans[len(a.spans)-1].at > keptPaid })
		d.addTo(&d.paid, x) // if there is no room, it is not given back
	}
}

// giveBack lowers a debt. It returns how many of the units were paid before, so that the store is to give them back.
func (d *debts) giveBack(x debt) (paid int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := counter{x.key, x.limit.Kind()}
	rest := -x.units
	rest -= lower(d.all[c], x.until, rest)
	return lower(d.paid[c], x.until, rest)
}

// lower lowers what an account has in the span of the time until, and returns by how much.
func lower(a account, until, by int64) int64 {
	i, found := a.find(until)
	if !found {
		return 0
	}
	by = max(min(by, a.spans[i].units), 0)
	a.spans[i].units -= by
	return by
}

// forget removes the debts of an ask's counter.
func (d *debts) forget(a *stint.Ask) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, counter{a.Key, a.Limit.Kind()})
	delete(d.paid, counter{a.Key, a.Limit.Kind()})
}

// some returns the debts of some counters that are wanted: n debts, or a few more. They are owed until they are done,
// so that what is given back meanwhile lowers them.
func (d *debts) some(n int, want func(*stint.Ask) bool) (some []debt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c, owed := range d.all {
		if len(some) >= n {
			break
		}
		if !want(&stint.Ask{Key: c.key, Limit: owed.limit, Policy: owed.policy}) {
			continue
		}
		for _, s := range owed.spans {
			some = append(some, debt{c.key, owed.terms, s, owed.number})
		}
	}
	return some
}

// done notes that a debt is owed no longer. If units of it were given back since, the store is to give back as many.
func (d *debts) done(x debt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := counter{x.key, x.limit.Kind()}
	owed, ok := d.all[c]
	if !ok || owed.number != x.account {
		return // it was reset
	}
	i, found := owed.find(x.until)
	if !found {
		i = 0 // it was joined with the next
	}
	if owed.spans[i].units -= x.units; owed.spans[i].units == 0 {
		owed.spans = slices.Delete(owed.spans, i, i+1)
	}
	if d.all[c] = owed; len(owed.spans) == 0 {
		delete(d.all, c)
	}
	if len(d.all) == 0 {
		d.all = nil // free its memory
	}
}

// owes reports whether the store is to be charged for the ask's counter.
func (d *debts) owes(a *stint.Ask) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, owes := d.all[counter{a.Key, a.Limit.Kind()}]
	return owes || slices.ContainsFunc(d.changes, func(c stint.Ask) bool { return c.Key == a.Key && c.Cost > 0 })
}

// none reports whether nothing is owed.
func (d *debts) none() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all) == 0 && len(d.changes) == 0
}

// takeAll forgets everything that is owed, and returns how many units that were.
func (d *debts) takeAll() (units int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, owed := range d.all {
		for _, s := range owed.spans {
			units += max(s.units, 0)
		}
	}
	for i := range d.changes {
		units += max(d.changes[i].Cost, 0)
	}
	d.all, d.changes = nil, nil
	return units
}

// takeLost returns the units lost since its last call.
func (d *debts) takeLost() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	lost := d.lost
	d.lost = 0
	return lost
}

// change remembers a change of what the store has charged. One that does not fit is lost: units that
// would be given back stay charged.
func (d *debts) change(a *stint.Ask) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.changes) >= d.max {
		d.lost += max(a.Cost, 0)
		return
	}
	later := *a
	later.Key = stint.Key{Subject: strings.Clone(a.Key.Subject), Name: strings.Clone(a.Key.Name)}
	if a.Charge != nil {
		charge := *a.Charge
		charge.ID = strings.Clone(charge.ID)
		later.Charge = &charge
	}
	d.changes = append(d.changes, later)
}

// takeChange takes a change out.
func (d *debts) takeChange() (a stint.Ask, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.changes) == 0 {
		return a, false
	}
	a = d.changes[0]
	if d.changes = d.changes[1:]; len(d.changes) == 0 {
		d.changes = nil
	}
	return a, true
}
