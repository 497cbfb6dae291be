package layer

import (
	"sync"

	"github.com/stintdev/stint"
)

// debtor is a counter, by hashes of its key that no one can know: that two have the same
// will not happen.
type debtor [2]uint64

// terms are under which limit a counter was charged last, and of how many parts of it this
// node has had one. Many counters have the same.
type terms struct {
	limit stint.Limit
	n     int64
}

// owed is what was admitted of a counter, or a place for that, which has no terms.
type owed struct {
	who   debtor
	units int64
	terms *terms
}

// debt is one that is to be paid.
type debt struct {
	owed
	key stint.Key
}

// book is some of the debts: not all who decide have to wait for each other.
//
// To look a debt up is most of what a decision costs while the store is away, and most of
// that is waiting for memory. So it is in one place with its debtor, and what is not needed
// for that is elsewhere.
type book struct {
	mu    sync.Mutex
	all   []owed      // by who, or the next place that is free; a power of 2
	keys  []stint.Key // of all
	count int
	known map[terms]*terms
	_     [40]byte // so that books do not share what processors exchange
}

// place returns where a debt is, or would be. There is a place that is free.
func place(all []owed, who debtor) int {
	last := len(all) - 1
	i := int(who[0]>>8^who[1]) & last // the lowest bits tell the books apart
	for all[i].terms != nil && all[i].who != who {
		i = (i + 1) & last
	}
	return i
}

// find returns a debt, or nil.
func (b *book) find(who debtor) *owed {
	if len(b.all) == 0 {
		return nil
	}
	if d := &b.all[place(b.all, who)]; d.terms != nil {
		return d
	}
	return nil
}

// enter adds a debt that is not there.
func (b *book) enter(who debtor, k stint.Key, t terms) *owed {
	if b.count*4 >= len(b.all)*3 {
		b.grow()
	}
	i := place(b.all, who)
	b.count++
	b.keys[i] = k
	b.all[i] = owed{who: who, terms: b.shared(t)}
	return &b.all[i]
}

func (b *book) grow() {
	size := max(16, 2*len(b.all))
	all, keys := make([]owed, size), make([]stint.Key, size)
	for i, d := range b.all {
		if d.terms != nil {
			to := place(all, d.who)
			all[to], keys[to] = d, b.keys[i]
		}
	}
	b.all, b.keys = all, keys
}

// shared returns the terms that all share who have the same.
func (b *book) shared(t terms) *terms {
	p := b.known[t]
	if p == nil {
		if b.known == nil {
			b.known = map[terms]*terms{}
		}
		p = new(t)
		b.known[t] = p
	}
	return p
}

// close returns all debts, and begins anew.
func (b *book) close() (out []debt) {
	b.mu.Lock()
	all, keys := b.all, b.keys
	out = make([]debt, 0, b.count)
	b.all, b.keys, b.count, b.known = nil, nil, 0, nil
	b.mu.Unlock()
	for i := range all {
		if all[i].terms != nil {
			out = append(out, debt{all[i], keys[i]})
		}
	}
	return out
}
