package rollup

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
)

// group is the fields that decisions share that are counted together.
type group struct {
	rule, tier, endpoint, region string
	outcome                      engine.Outcome
	shadow                       bool
}

// sums are the numbers of a group.
type sums struct {
	total, events, cached int64
	latency               record.Sketch
}

func (s *sums) merge(o *sums) {
	s.total += o.total
	s.events += o.events
	s.cached += o.cached
	s.latency.Merge(&o.latency)
}

// tally is the counts of some time.
type tally map[group]*sums

// of returns the sums of a group.
func (t tally) of(g group) *sums {
	if t[g] == nil {
		t[g] = new(sums)
	}
	return t[g]
}

// dim is what decisions are grouped by, besides their outcome: by all of rule, tier, endpoint and
// region, or by one of them, which is what most queries need. Fives are also grouped by two of
// them, if one is tier or region. The numbers of dims and cells are those of the database.
type dim int

const (
	allDims dim = iota
	byRule
	byTier
	byEndpoint
	byRegion
	byRuleTier
	byTierEndpoint
	byRuleRegion
	byEndpointRegion
	byTierRegion
	dims // the number of dims
)

// apart has a bit for each of rule, tier, endpoint and region that a dim groups by.
var apart = [dims]int{
	allDims: 1 | 2 | 4 | 8, byRule: 1, byTier: 2, byEndpoint: 4, byRegion: 8,
	byRuleTier: 1 | 2, byTierEndpoint: 2 | 4, byRuleRegion: 1 | 8, byEndpointRegion: 4 | 8, byTierRegion: 2 | 8,
}

// Fives by all dims are so large that they are split into the cells of a grid, by rule and by
// endpoint: a query about one rule reads a row of it, and one about one endpoint a column.
const (
	gridRows, gridColumns = 8, 4 // queries about one rule are more common

	firstCell = dim(16)
)

func gridRow(rule string) dim        { return dim(hashOf([]byte(rule)) % gridRows) }
func gridColumn(endpoint string) dim { return dim(hashOf([]byte(endpoint)) % gridColumns) }

// cell returns the cell of a group.
func (g *group) cell() dim { return firstCell + gridRow(g.rule)*gridColumns + gridColumn(g.endpoint) }

// view is which counts to read: those of a dim and, if rule and endpoint are not empty, of the
// cells that may have them.
type view struct {
	dim            dim
	rule, endpoint string
}

// dims returns the dims to read at a level, as a list for SQL.
func (v view) dims(l level) string {
	switch {
	case v.dim != allDims && (v.dim <= byRegion || l == fives):
		return strconv.Itoa(int(v.dim))
	case l != fives:
		return strconv.Itoa(int(allDims))
	}
	var cells []string
	for row := range dim(gridRows) {
		for column := range dim(gridColumns) {
			if (v.rule == "" || gridRow(v.rule) == row) && (v.endpoint == "" || gridColumn(v.endpoint) == column) {
				cells = append(cells, strconv.Itoa(int(firstCell+row*gridColumns+column)))
			}
		}
	}
	return strings.Join(cells, ",")
}

// only returns a group with only the fields that a dim groups by.
func (d dim) only(g group) group {
	for i, text := range [...]*string{&g.rule, &g.tier, &g.endpoint, &g.region} {
		if apart[d]&(1<<i) == 0 {
			*text = ""
		}
	}
	return g
}

// dimOf returns the dim that groups by the fields that are not empty, or by more.
func dimOf(rule, tier, endpoint, region string) dim {
	bits := 0
	for i, text := range []string{rule, tier, endpoint, region} {
		if text != "" {
			bits |= 1 << i
		}
	}
	if bits == 0 {
		return byRegion // the smallest
	}
	return dim(max(0, slices.Index(apart[:], bits)))
}

// putCounts inserts the counts of a time.
func (s *Store) putCounts(ctx context.Context, tx *sql.Tx, l level, start time.Time, all tally) error {
	if len(all) == 0 {
		return nil
	}
	var args []any
	put := func(d dim, sum tally) { args = append(args, l, d, s.db.Time(start), sum.encode()) }
	if l == fives {
		cells := map[dim]tally{}
		for g, n := range all {
			if cells[g.cell()] == nil {
				cells[g.cell()] = tally{}
			}
			cells[g.cell()][g] = n
		}
		for d, sum := range cells {
			put(d, sum)
		}
	} else {
		put(allDims, all)
	}
	for d := byRule; d < dims && (d <= byRegion || l == fives); d++ {
		sum := tally{}
		for g, n := range all {
			sum.of(d.only(g)).merge(n)
		}
		put(d, sum)
	}
	return insert(ctx, tx, "stint_rollup_counts (level, dim, start, data)", 4, args)
}

// encode encodes a tally: the texts, and then each group with the indexes of its texts.
func (t tally) encode() []byte {
	groups := slices.SortedFunc(maps.Keys(t), func(a, b group) int {
		return cmp.Or(strings.Compare(a.rule, b.rule), strings.Compare(a.tier, b.tier), strings.Compare(a.endpoint, b.endpoint), strings.Compare(a.region, b.region),
			cmp.Compare(a.outcome, b.outcome), compareBool(a.shadow, b.shadow))
	})
	var w words
	var body, latency []byte
	for _, g := range groups {
		for _, text := range []string{g.rule, g.tier, g.endpoint, g.region} {
			body = binary.AppendUvarint(body, uint64(idOf(&w, text)))
		}
		flags := uint64(g.outcome) << 1
		if g.shadow {
			flags |= 1
		}
		n := t[g]
		for _, v := range []uint64{flags, uint64(n.total), uint64(n.events), uint64(n.cached)} {
			body = binary.AppendUvarint(body, v)
		}
		latency, _ = n.latency.AppendBinary(latency[:0]) // it does not fail
		body = appendBytes(body, latency)
	}
	return append(w.encode(nil), body...)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// counted is a stored group and its numbers.
type counted struct {
	group
	ids                   [4]int // of its texts, plus 1
	total, events, cached int64
	latency               []byte
}

// add adds the numbers of a stored group.
func (s *sums) add(c *counted) error {
	s.total += c.total
	s.events += c.events
	s.cached += c.cached
	return s.latency.MergeBinary(c.latency)
}

var errDamaged = errors.New("a roll-up is damaged, or a newer version has written it")

// eachCounts calls f with each stored group of some parts, in order of time.
func (s *Store) eachCounts(ctx context.Context, q query.Querier, v view, parts []part, f func(start time.Time, c *counted) error) error {
	var w query.Where
	s.during(&w, parts, func(l level) string { return " AND dim IN (" + v.dims(l) + ")" })
	var known words
	var c counted
	err := query.Each(ctx, q, func(rows *sql.Rows) error {
		var start database.Stamp
		var data sql.RawBytes
		if err := rows.Scan(&start, &data); err != nil {
			return err
		}
		return c.each(&known, data, func() error { return f(start.Time, &c) })
	}, "SELECT start, data FROM stint_rollup_counts WHERE "+w.String()+" ORDER BY start", w.Args...)
	return err
}

// each decodes one group after the other.
func (c *counted) each(known *words, data []byte, f func() error) error {
	r := reader{data: data}
	texts := r.words(known)
	for r.more() {
		for i, into := range [...]*string{&c.rule, &c.tier, &c.endpoint, &c.region} {
			n := r.number()
			if n >= uint64(len(texts)) {
				return errDamaged
			}
			if id := texts[n] + 1; id != c.ids[i] { // most are those of the group before
				c.ids[i], *into = id, known.all[texts[n]]
			}
		}
		flags := r.number()
		c.outcome, c.shadow = engine.Outcome(min(flags>>1, 0xff)), flags&1 == 1
		c.total, c.events, c.cached = int64(r.number()), int64(r.number()), int64(r.number())
		c.latency = r.text()
		if r.bad || c.outcome > engine.Unavailable {
			return errDamaged
		}
		if err := f(); err != nil {
			return err
		}
	}
	if r.bad {
		return errDamaged
	}
	return nil
}

// words numbers texts.
type words struct {
	ids map[string]int
	all []string
}

// idOf returns the number of a text.
func idOf[T string | ~[]byte](w *words, text T) int {
	if id, ok := w.ids[string(text)]; ok {
		return id
	}
	if w.ids == nil {
		w.ids = map[string]int{}
	}
	id := len(w.all)
	w.all = append(w.all, string(text))
	w.ids[w.all[id]] = id
	return id
}

// encode appends all texts.
func (w *words) encode(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(w.all)))
	for _, text := range w.all {
		b = appendBytes(b, text)
	}
	return b
}

func appendBytes[T string | ~[]byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// reader decodes stored data. If that is damaged, the reader is bad and returns zeros.
type reader struct {
	data []byte
	at   int // the next byte: cheaper than reslicing
	bad  bool
}

// more reports whether there are more bytes.
func (r *reader) more() bool { return r.at < len(r.data) }

// fail marks the reader as bad, at the end.
func (r *reader) fail() { r.at, r.bad = len(r.data), true }

func (r *reader) number() uint64 {
	if r.at < len(r.data) && r.data[r.at] < 0x80 { // as most are
		r.at++
		return uint64(r.data[r.at-1])
	}
	v, n := binary.Uvarint(r.data[r.at:])
	if n <= 0 {
		r.fail()
		return 0
	}
	r.at += n
	return v
}

func (r *reader) text() []byte {
	n := r.number()
	if n > uint64(len(r.data)-r.at) {
		r.fail()
		return nil
	}
	r.at += int(n)
	return r.data[r.at-int(n) : r.at]
}

// words reads texts, and returns their numbers in known.
func (r *reader) words(known *words) []int {
	n := r.number()
	if n > uint64(len(r.data)-r.at) {
		r.fail()
		return nil
	}
	out := make([]int, n)
	for i := range out {
		out[i] = idOf(known, r.text())
	}
	return out
}
