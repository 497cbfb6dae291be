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
	all   []owed      // by who, or the next place that was free; a power of 2
	keys  []stint.Key // of all
	count int
	at    int // where debts are taken out next
	known map[terms]*terms
	_     [32]byte // so that books do not share what processors exchange
}

// home returns where a debt is looked for first.
func home(who debtor, size int) int {
	return int(who[0]>>8^who[1]) & (size - 1) // the lowest bits tell the books apart
}

// place returns where a debt is, or would be. There is a place that is free.
func place(all []owed, who debtor) int {
	i := home(who, len(all))
	for all[i].terms != nil && all[i].who != who {
		i = (i + 1) & (len(all) - 1)
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

// shared returns the terms that all share who have the same, or nearly all: those that no
// one has any more are not kept for ever.
func (b *book) shared(t terms) *terms {
	p := b.known[t]
	if p == nil {
		if b.known == nil || len(b.known) > b.count {
			b.known = map[terms]*terms{}
		}
		p = new(t)
		b.known[t] = p
	}
	return p
}

// take takes some debts out, most at most.
func (b *book) take(most int) (out []debt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.count > 0 && len(out) < most {
		if d := b.all[b.at]; d.terms != nil {
			out = append(out, debt{d, b.keys[b.at]})
			b.remove(b.at)
		} else {
			b.at = (b.at + 1) & (len(b.all) - 1)
		}
	}
	if b.count == 0 {
		b.all, b.keys, b.at, b.known = nil, nil, 0, nil
	}
	return out
}

// remove makes a place free, and moves those there, or to where one was, who had to go
// further because of it.
func (b *book) remove(i int) {
	last := len(b.all) - 1
	for j := (i + 1) & last; b.all[j].terms != nil; j = (j + 1) & last {
		if from := home(b.all[j].who, len(b.all)); (j-from)&last >= (j-i)&last {
			b.all[i], b.keys[i] = b.all[j], b.keys[j]
			i = j
		}
	}
	b.all[i], b.keys[i] = owed{}, stint.Key{}
	b.count--
}

// forget removes a debt, and reports whether there was one.
func (b *book) forget(who debtor) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count == 0 {
		return false
	}
	i := place(b.all, who)
	if b.all[i].terms == nil {
		return false
	}
	b.remove(i)
	return true
}
