package layer

import (
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

// debt is the units of a counter that were admitted but not charged in the store, the limit they were
// last charged under, and how many nodes shared that limit at the time.
type debt struct {
	units int64
	limit stint.Limit
	nodes int64
	until time.Duration // since the layer was made: by then all of it has recovered
}

// debts holds the debts of this node, at most max of them.
type debts struct {
	max int

	mu  sync.Mutex
	all map[counter]debt
	// changes are of charges that the store has made, to be made when it is back. There are at most
	// max of them.
	changes []stint.Ask
	lost    int64 // units of counters that did not fit
}

// maxUnits is the most that a counter can hold.
const maxUnits = 1<<53 - 1

// add adds units to the debt of an ask's counter, whose limit is shared by n nodes. They have recovered
// at the time until.
func (d *debts) add(a *stint.Ask, units, n int64, until time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := counter{a.Key, a.Limit.Kind()}
	owed, known := d.all[c]
	if !known {
		if len(d.all) >= d.max {
			d.lost += max(units, 0)
			return
		}
		if d.all == nil {
			d.all = map[counter]debt{}
		}
		// Clone, since the caller's strings may be parts of larger ones.
		c.key = stint.Key{Subject: strings.Clone(c.key.Subject), Name: strings.Clone(c.key.Name)}
	}
	units = max(-maxUnits, min(units, maxUnits))
	d.all[c] = debt{max(-maxUnits, min(owed.units+units, maxUnits)), a.Limit, n, max(owed.until, until)}
}

// giveBack lowers the debt of an ask's counter, if there is one: a charge was given back before it was paid.
func (d *debts) giveBack(a *stint.Ask, units int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := counter{a.Key, a.Limit.Kind()}
	if owed := d.all[c]; owed.units > 0 {
		owed.units = max(owed.units-units, 0)
		d.all[c] = owed
	}
}

// forget removes the debt of an ask's counter.
func (d *debts) forget(a *stint.Ask) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, counter{a.Key, a.Limit.Kind()})
}

// takeSome removes and returns up to n debts.
func (d *debts) takeSome(n int) map[counter]debt {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[counter]debt{}
	for c, owed := range d.all {
		if len(out) == n {
			break
		}
		out[c] = owed
		delete(d.all, c)
	}
	if len(d.all) == 0 {
		d.all = nil // free its memory
	}
	return out
}

// takeLost returns the units lost since its last call.
func (d *debts) takeLost() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	lost := d.lost
	d.lost = 0
	return lost
}

// change remembers a change of a charge that the store has made. One that does not fit is lost: units that
// would be given back stay charged.
func (d *debts) change(a *stint.Ask) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.changes) >= d.max {
		d.lost += max(a.Cost, 0)
		return
	}
	later, charge := *a, *a.Charge
	later.Key = stint.Key{Subject: strings.Clone(a.Key.Subject), Name: strings.Clone(a.Key.Name)}
	charge.ID = strings.Clone(charge.ID)
	later.Charge = &charge
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
