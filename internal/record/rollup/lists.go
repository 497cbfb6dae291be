package rollup

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/stintdev/stint/internal/record/query"
)

// A list is the clients that were refused in some time, in pages sorted by a hash of the names.
// So lists can be merged without reading all of any into memory, and a name is on one page.

// Tests use smaller ones.
var (
	// pageSize is about how many bytes a page has.
	pageSize = 32 << 10
	// pagesAtOnce is how many bytes of pages are buffered until they are written.
	pagesAtOnce = 8 << 20
	// headSize is how many of the clients that were denied most are stored again as the head
	// of the list of an hour or a day, which is enough for most queries. lastSize is the same
	// for the last 24 hours.
	headSize = 1000
	lastSize = 10_000
	// pathsAtOnce is how many paths of a minute are in a list. That of an hour or a day is only a head.
	pathsAtOnce = 100
)

// The parts of a list, in the numbers of the database.
const (
	partOfAll  = iota // a page of a list with a head
	partHead          // the clients that were denied most
	partNoHead        // a page of a list without a head
)

// hashOf returns the hash that names are sorted by, as a number that all databases can store.
func hashOf(name []byte) int64 {
	const prime = 1099511628211
	h := uint64(14695981039346656037)
	for _, b := range name {
		h = (h ^ uint64(b)) * prime
	}
	h ^= h >> 32 // short names have not changed all bits yet
	h *= 0x9e3779b97f4a7c15
	h ^= h >> 29
	return int64(h >> 1)
}

// pair is how often a client was refused by a rule, given by its number.
type pair struct {
	rule            int
	denied, refused int64
}

// entry is a client in a list.
type entry struct {
	hash   int64
	name   []byte
	pairs  []pair // there may be several of a rule
	atMost int64  // the sum of at_most of the heads that it is in
}

// by returns how often the client was refused, by a rule or, if that is negative, by any.
func (e *entry) by(rule int) (denied, refused int64) {
	for _, p := range e.pairs {
		if rule < 0 || p.rule == rule {
			denied += p.denied
			refused += p.refused
		}
	}
	return denied, refused
}

func (e *entry) denied() int64 {
	n, _ := e.by(-1)
	return n
}

// folds has, for the number of each rule, the index where its pair may be.
type folds []int

// fold sums the pairs of each rule. Indexes of earlier calls do no harm: each is checked.
func (f *folds) fold(pairs []pair) []pair {
	n := 0
	for _, p := range pairs {
		if more := p.rule + 1 - len(*f); more > 0 {
			*f = append(*f, make([]int, more)...)
		}
		if at := (*f)[p.rule]; at < n && pairs[at].rule == p.rule {
			pairs[at].denied += p.denied
			pairs[at].refused += p.refused
			continue
		}
		(*f)[p.rule] = n
		pairs[n] = p
		n++
	}
	return pairs[:n]
}

// list writes a list.
type list struct {
	s     *Store
	tx    *sql.Tx
	level level
	kind  int
	start time.Time

	rules words // those of entries
	page  sheet
	pages int64
	rows  []any
	size  int // of rows

	head  []entry
	more  bool  // the head does not have all clients
	floor int64 // the most denials of a client that is not in the head
}

// sheet is a page that is being written.
type sheet struct {
	rules     words
	low, high int64
	body      []byte
}

// newList returns a new list.
func (s *Store) newList(tx *sql.Tx, l level, kind int, start time.Time) *list {
	return &list{s: s, tx: tx, level: l, kind: kind, start: start}
}

// add adds an entry after those that were added before. It copies what it keeps.
func (l *list) add(e *entry) {
	if l.level != last && !l.onlyHead() {
		l.page.add(l.rules.all, e)
	}
	if len(l.page.body) >= pageSize {
		l.turn(l.whole(), 0)
	}
	if l.level == minute {
		return
	}
	if l.more && e.denied() <= l.floor {
		return
	}
	l.head = append(l.head, entry{hash: e.hash, name: slices.Clone(e.name), pairs: slices.Clone(e.pairs)})
	if len(l.head) == 2*l.maxHead() {
		l.cut()
	}
}

// onlyHead reports whether the list has only those that were denied most: it is one of paths, of an hour or a day.
func (l *list) onlyHead() bool { return l.kind == kindPath && l.level != minute }

// maxHead is the largest number of entries of the head.
func (l *list) maxHead() int {
	if l.level == last {
		return lastSize
	}
	return headSize
}

func (p *sheet) add(rules []string, e *entry) {
	if len(p.body) == 0 {
		p.low = e.hash
	}
	p.high = e.hash
	p.body = appendBytes(p.body, e.name)
	p.body = binary.AppendUvarint(p.body, uint64(len(e.pairs)))
	for _, n := range e.pairs {
		p.body = binary.AppendUvarint(p.body, uint64(idOf(&p.rules, rules[n.rule])))
		p.body = binary.AppendUvarint(p.body, uint64(n.denied))
		p.body = binary.AppendUvarint(p.body, uint64(n.refused-n.denied))
	}
}

// whole is the part number of the pages with all entries.
func (l *list) whole() int {
	if l.level == minute || l.onlyHead() {
		return partNoHead
	}
	return partOfAll
}

// turn ends the page and begins another.
func (l *list) turn(part int, atMost int64) {
	if len(l.page.body) == 0 {
		return
	}
	data := append(l.page.rules.encode(nil), l.page.body...)
	l.rows = append(l.rows, l.level, l.kind, l.s.db.Time(l.start), l.pages, part, l.page.low, l.page.high, atMost, data)
	l.size += len(data)
	l.pages++
	l.page = sheet{body: l.page.body[:0]}
}

// cut drops all entries of the head except those that were denied most.
func (l *list) cut() {
	size := l.maxHead()
	if len(l.head) <= size {
		return
	}
	slices.SortFunc(l.head, mostDenied)
	l.head, l.more, l.floor = l.head[:size], true, l.head[size-1].denied()
}

func mostDenied(a, b entry) int {
	return cmp.Or(cmp.Compare(b.denied(), a.denied()), compareEntries(a, b))
}

// flush writes the buffered pages.
func (l *list) flush(ctx context.Context) error {
	err := putPages(ctx, l.tx, l.rows)
	l.rows, l.size = l.rows[:0], 0
	return err
}

func putPages(ctx context.Context, tx *sql.Tx, rows []any) error {
	return insert(ctx, tx, "stint_rollup_lists (level, kind, start, page, part, low, high, at_most, data)", 9, rows)
}

// finish writes the rest.
func (l *list) finish(ctx context.Context) error {
	l.turn(l.whole(), 0)
	l.cut()
	slices.SortFunc(l.head, compareEntries)
	for i := range l.head {
		l.page.add(l.rules.all, &l.head[i])
	}
	if l.onlyHead() {
		l.turn(l.whole(), 0)
		return l.flush(ctx)
	}
	atMost := l.floor
	if l.more {
		atMost = max(1, atMost) // a client that was left out may have been refused without being denied
	}
	l.turn(partHead, atMost)
	return l.flush(ctx)
}

func compareEntries(a, b entry) int {
	return cmp.Or(cmp.Compare(a.hash, b.hash), bytes.Compare(a.name, b.name))
}

// refused counts refusals by client.
type refused struct {
	rules words
	names [kindPath + 1]map[string][]pair // by kind
}

func newRefused() *refused {
	r := new(refused)
	for kind := range r.names {
		r.names[kind] = map[string][]pair{}
	}
	return r
}

// count counts a refusal for each kind of name.
func (r *refused) count(rule []byte, names [kindPath + 1]sql.RawBytes, denied bool, weight int64) {
	p := pair{rule: idOf(&r.rules, rule), refused: weight}
	if denied {
		p.denied = weight
	}
	for kind, name := range names {
		if len(name) > 0 {
			r.add(kind, name, p)
		}
	}
}

func (r *refused) add(kind int, name []byte, p pair) {
	pairs := r.names[kind][string(name)]
	if i := slices.IndexFunc(pairs, func(o pair) bool { return o.rule == p.rule }); i >= 0 {
		pairs[i].denied += p.denied
		pairs[i].refused += p.refused
		return
	}
	r.names[kind][string(name)] = append(pairs, p)
}

// addTo adds the names of the kind of a list to it.
func (r *refused) addTo(l *list) {
	all := make([]entry, 0, len(r.names[l.kind]))
	for name, pairs := range r.names[l.kind] {
		all = append(all, entry{hash: hashOf([]byte(name)), name: []byte(name), pairs: pairs})
	}
	if l.kind == kindPath && len(all) > pathsAtOnce {
		slices.SortFunc(all, mostDenied)
		all = all[:pathsAtOnce]
	}
	slices.SortFunc(all, compareEntries)
	l.rules = r.rules
	for i := range all {
		l.add(&all[i])
	}
	l.turn(l.whole(), 0)
}

// mergeInto merges the lists of a level, within the time of a list, into that list.
func (s *Store) mergeInto(ctx context.Context, tx *sql.Tx, l *list, of level) error {
	// Nothing can be written while rows are read, so it alternates.
	var f folds
	for after, more := int64(-1), true; more; {
		more = false
		var w query.Where
		s.during(&w, []part{{of, l.start, l.start.Add(l.level.length())}}, anyOf)
		w.And(fmt.Sprintf("kind = %d AND part <> %d AND high > ?", l.kind, partHead), after)
		err := s.merge(ctx, tx, &l.rules, &w, after, func(e *entry) bool {
			if more = l.size >= pagesAtOnce && e.hash > after; more {
				return false
			}
			after = e.hash
			e.pairs = f.fold(e.pairs)
			l.add(e)
			return true
		})
		if err == nil {
			err = l.flush(ctx)
		}
		if err != nil {
			return err
		}
	}
	return l.finish(ctx)
}

// source is a page that is read.
type source struct {
	reader
	rules  []int
	atMost int64

	hash  int64 // of the next entry, like the rest
	name  []byte
	pairs []pair
}

// next reads the next entry, and reports whether there is one.
func (p *source) next() bool {
	if !p.more() {
		return false
	}
	p.name = p.text()
	p.hash = hashOf(p.name)
	n := p.number()
	p.pairs = p.pairs[:0]
	for ; n > 0 && !p.bad; n-- {
		rule, denied, other := p.number(), int64(p.number()), int64(p.number())
		if rule >= uint64(len(p.rules)) {
			p.bad = true
			break
		}
		p.pairs = append(p.pairs, pair{p.rules[rule], denied, denied + other})
	}
	return !p.bad
}

// heap is the pages that are being merged, the one with the least entry first. It holds copies
// of the hashes, and no pointers: keeping it in order takes most of the time.
type heap struct {
	order []place
	pages []source
	free  []int // of pages
}

// place is a page in the order.
type place struct {
	hash int64
	page int
}

func (h *heap) less(a, b place) bool {
	if a.hash != b.hash {
		return a.hash < b.hash
	}
	return bytes.Compare(h.pages[a.page].name, h.pages[b.page].name) < 0
}

// push adds a page, which has an entry.
func (h *heap) push(p source) {
	at := len(h.pages)
	if n := len(h.free); n > 0 {
		at, h.free = h.free[n-1], h.free[:n-1]
		h.pages[at] = p
	} else {
		h.pages = append(h.pages, p)
	}
	h.order = append(h.order, place{p.hash, at})
	for i := len(h.order) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.less(h.order[i], h.order[parent]) {
			return
		}
		h.order[i], h.order[parent] = h.order[parent], h.order[i]
		i = parent
	}
}

// next advances the first page to its next entry, and removes it if it has none.
func (h *heap) next() {
	first := h.order[0]
	if p := &h.pages[first.page]; p.next() {
		first.hash = p.hash
	} else {
		*p = source{reader: reader{bad: p.bad}}
		h.free = append(h.free, first.page)
		last := len(h.order) - 1
		first, h.order = h.order[last], h.order[:last]
		if last == 0 {
			return
		}
	}
	i := 0
	for {
		child := 2*i + 1
		if child+1 < len(h.order) && h.less(h.order[child+1], h.order[child]) {
			child++
		}
		if child >= len(h.order) || !h.less(h.order[child], first) {
			break
		}
		h.order[i] = h.order[child]
		i = child
	}
	h.order[i] = first
}

// merge calls visit with each entry of the pages that a condition finds, merged by name, whose
// hash is larger than after, until visit returns false. The entry is valid during the call.
func (s *Store) merge(ctx context.Context, q query.Querier, rules *words, w *query.Where, after int64, visit func(*entry) bool) error {
	rows, err := q.QueryContext(ctx, "SELECT low, at_most, data FROM stint_rollup_lists WHERE "+w.String()+" ORDER BY low", w.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var (
		h       heap
		page    source // the next one, if it is pending
		low     int64
		pending bool
		e       entry
	)
	for more := true; ; {
		if !pending && more {
			if more = rows.Next(); more {
				page = source{}
				if err := rows.Scan(&low, &page.atMost, &page.data); err != nil {
					return err
				}
				page.rules, pending = page.words(rules), true
			}
		}
		// Several names may have the same hash, in pages of any order.
		if pending && (len(h.order) == 0 || low <= h.order[0].hash) {
			there := page.next()
			for there && page.hash <= after {
				there = page.next()
			}
			if page.bad {
				return errDamaged
			}
			if there {
				h.push(page)
			}
			pending = false
			continue
		}
		if len(h.order) == 0 {
			return rows.Err()
		}
		e.hash, e.name, e.pairs, e.atMost = h.order[0].hash, append(e.name[:0], h.pages[h.order[0].page].name...), e.pairs[:0], 0
		for len(h.order) > 0 && h.order[0].hash == e.hash {
			p := &h.pages[h.order[0].page]
			if !bytes.Equal(p.name, e.name) {
				break
			}
			e.pairs = append(e.pairs, p.pairs...)
			e.atMost += p.atMost
			if h.next(); p.bad {
				return errDamaged
			}
		}
		if !visit(&e) {
			return nil
		}
	}
}
