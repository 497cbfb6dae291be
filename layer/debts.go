package layer

import (
	"strings"
	"sync"

	"github.com/stintdev/stint"
)

// counter names a counter, as a store does.
type counter struct {
	key       stint.Key
	algorithm stint.Algorithm
}

// debt is what was admitted of a counter and not charged in the store: the units, the
// limit they were last charged under, and how many nodes shared that limit then.
type debt struct {
	units int64
	limit stint.Limit
	nodes int64
}

// debts are the debts of this node. There are at most max of them.
type debts struct {
	max int

	mu   sync.Mutex
	all  map[counter]debt
	lost int64 // units of counters that did not fit
}

// maxUnits is as much as a counter can hold.
const maxUnits = 1<<53 - 1

// add adds units to the debt of an ask's counter, of whose limit this node has one of n parts.
func (d *debts) add(a *stint.Ask, units, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := counter{a.Key, a.Limit.Algorithm}
	owed, known := d.all[c]
	if !known {
		if len(d.all) >= d.max {
			d.lost += max(units, 0)
			return
		}
		if d.all == nil {
			d.all = map[counter]debt{}
		}
		// The caller's strings may be parts of something large.
		c.key = stint.Key{Subject: strings.Clone(c.key.Subject), Name: strings.Clone(c.key.Name)}
	}
	units = max(-maxUnits, min(units, maxUnits))
	d.all[c] = debt{max(-maxUnits, min(owed.units+units, maxUnits)), a.Limit, n}
}

// forget forgets the debt of an ask's counter.
func (d *debts) forget(a *stint.Ask) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, counter{a.Key, a.Limit.Algorithm})
}

// takeSome takes up to n debts out.
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
		d.all = nil // and its room is given back
	}
	return out
}

// takeLost returns the units that were lost since it was last called.
func (d *debts) takeLost() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	lost := d.lost
	d.lost = 0
	return lost
}
