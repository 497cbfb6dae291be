package capture

import (
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
)

// errRecord means that a record cannot be read.
var errRecord = errors.New("capture: the file is damaged: a record cannot be read")

// wire writes the fields of records to b, or reads them from it: one description of each record for both.
type wire struct {
	b       []byte
	reading bool
	bad     bool
	terms   *terms
}

func (w *wire) number(n *uint64) {
	if !w.reading {
		w.b = binary.AppendUvarint(w.b, *n)
		return
	}
	v, size := binary.Uvarint(w.b)
	if size <= 0 {
		w.bad, w.b, *n = true, nil, 0
		return
	}
	*n, w.b = v, w.b[size:]
}

// integer is for numbers of any kind, of which those near 0 are short.
func integer[T ~int | ~int64 | ~uint8 | ~uint32](w *wire, n *T) {
	v := int64(*n)
	u := uint64(v<<1) ^ uint64(v>>63)
	w.number(&u)
	if w.reading {
		*n = T(int64(u>>1) ^ -int64(u&1))
	}
}

func (w *wire) flags(all ...*bool) {
	var bits uint64
	for i, f := range all {
		if *f {
			bits |= 1 << i
		}
	}
	if w.number(&bits); w.reading {
		for i, f := range all {
			*f = bits>>i&1 == 1
		}
	}
}

func text[T ~string](w *wire, s *T) {
	n := uint64(len(*s))
	w.number(&n)
	switch {
	case !w.reading:
		w.b = append(w.b, *s...)
	case n > uint64(len(w.b)):
		w.bad, w.b = true, nil
	default:
		*s, w.b = T(w.b[:n]), w.b[n:]
	}
}

// list is for lists: nothing is allocated for more than a file can hold.
func list[T any](w *wire, all *[]T, each func(*T)) {
	n := uint64(len(*all))
	if w.number(&n); w.reading {
		if n > uint64(len(w.b)) {
			w.bad, w.b, n = true, nil, 0
		}
		if *all = nil; n > 0 {
			*all = make([]T, 0, min(n, 64))
		}
	}
	for i := range int(n) {
		if w.reading {
			*all = append(*all, *new(T))
		}
		if each(&(*all)[i]); w.bad {
			return
		}
	}
}

// table is for maps. Keys are in order, so that equal maps are equal bytes.
func table[K ~string, V any](w *wire, m *map[K]V, each func(*V)) {
	type pair struct {
		key   K
		value V
	}
	var all []pair
	if len(*m) > 0 {
		for _, k := range slices.Sorted(maps.Keys(*m)) {
			all = append(all, pair{k, (*m)[k]})
		}
	}
	list(w, &all, func(p *pair) {
		text(w, &p.key)
		each(&p.value)
	})
	if w.reading && len(all) > 0 {
		*m = make(map[K]V, len(all))
		for _, p := range all {
			(*m)[p.key] = p.value
		}
	}
}

// optional is for what may be nil.
func optional[T any](w *wire, p **T, each func(*T)) {
	is := *p != nil
	if w.flags(&is); !is {
		return
	}
	if w.reading {
		*p = new(T)
	}
	each(*p)
}

func (w *wire) time(t *time.Time) {
	is := !t.IsZero()
	if w.flags(&is); !is {
		return
	}
	n := t.UnixNano()
	if integer(w, &n); w.reading {
		*t = time.Unix(0, n).UTC()
	}
}

func (w *wire) address(a *netip.Addr) {
	is := a.IsValid()
	if w.flags(&is); !is {
		return
	}
	var raw string
	if !w.reading {
		b := a.As16()
		raw = string(b[:])
		if a.Is4() {
			raw = raw[len(b)-4:]
		}
	}
	if text(w, &raw); w.reading {
		ip, ok := netip.AddrFromSlice([]byte(raw))
		*a, w.bad = ip, w.bad || !ok
	}
}

func (w *wire) network(p *netip.Prefix) {
	is := p.IsValid()
	if w.flags(&is); !is {
		return
	}
	addr, bits := p.Addr(), p.Bits()
	w.address(&addr)
	if integer(w, &bits); w.reading {
		*p = netip.PrefixFrom(addr, bits)
	}
}

func (w *wire) entry(e *identity.Entry) {
	integer(w, &e.Kind)
	text(w, &e.Value)
	text(w, &e.Reason)
	w.time(&e.Until)
}

func (w *wire) subject(s *identity.Subject) {
	text(w, &s.User)
	text(w, &s.Tenant)
	text(w, &s.Key)
	text(w, &s.Tier)
	w.address(&s.IP)
	w.network(&s.Net)
	integer(w, &s.Source)
	unknown := s.UserError != nil
	if w.flags(&s.Verified, &s.Trusted, &s.BadToken, &unknown); w.reading && unknown {
		s.UserError = errUnknown
	}
	optional(w, &s.Exempt, w.entry)
	optional(w, &s.Banned, w.entry)
	table(w, &s.Claims, func(v *string) { text(w, v) })
	table(w, &s.KeyLimits, w.limit)
	table(w, &s.UserLimits, w.limit)
	list(w, &s.Others, w.subject)
	integer(w, &s.Unaccepted)
}

// errUnknown stands for the error of a lookup, whose text is not captured.
var errUnknown = errors.New("capture: the lookup of the user failed")

func (w *wire) facts(f *engine.Facts) {
	w.number(&f.Number)
	w.time(&f.At)
	text(w, &f.Method)
	text(w, &f.Path)
	w.flags(&f.IgnoreCase, &f.Named, &f.Held, &f.Reserves, &f.Open)
	table(w, &f.Headers, func(lines *[]string) { list(w, lines, func(s *string) { text(w, s) }) })
	w.subject(&f.Subject)
	optional(w, &f.Refused, func(e *identity.RefusedError) {
		integer(w, &e.Reason)
		text(w, &e.Key)
		integer(w, &e.RetryAfter)
	})
	integer(w, &f.Cost)
	units := func(n *int64) { integer(w, n) }
	table(w, &f.Usage, units)
	table(w, &f.Estimate, units)
	table(w, &f.Usual, units)
	integer(w, &f.Left)
	list(w, &f.Turns, func(t *engine.Turn) {
		integer(w, &t.At)
		w.flags(&t.Ok)
		integer(w, &t.Waited)
		optional(w, &t.Banned, w.entry)
	})
}

func (w *wire) verdict(v *Verdict) {
	w.flags(&v.Failed, &v.Eased)
	if v.Failed {
		return
	}
	id := string(v.ID[:])
	if text(w, &id); w.reading {
		if len(id) != len(v.ID) {
			w.bad = true
		}
		copy(v.ID[:], id)
	}
	w.verdictFields(v)
}

// verdictFields are those by which verdicts are compared.
func (w *wire) verdictFields(v *Verdict) {
	integer(w, &v.Outcome)
	text(w, &v.Rule)
	text(w, &v.Method)
	integer(w, &v.Status)
	integer(w, &v.RetryAfter)
	integer(w, &v.Waited)
	list(w, &v.Limits, func(l *Limit) {
		text(w, &l.Rule)
		text(w, &l.Name)
		text(w, &l.Endpoint)
		integer(w, &l.Cost)
		w.flags(&l.Penalty, &l.Shadow, &l.Candidate)
		w.limit(&l.Limit)
		w.decision(&l.Decision)
	})
}

func (w *wire) decision(d *stint.Decision) {
	w.flags(&d.Allowed, &d.Repeated)
	integer(w, &d.Basis)
	integer(w, &d.At)
	integer(w, &d.Cost)
	integer(w, &d.Limit)
	integer(w, &d.Remaining)
	integer(w, &d.Before)
	integer(w, &d.RetryAfter)
	integer(w, &d.ResetAfter)
	integer(w, &d.Delay)
}

func (w *wire) call(c *Call) {
	w.number(&c.Number)
	integer(w, &c.Kind)
	w.flags(&c.Failed)
	list(w, &c.Asks, w.ask)
	list(w, &c.Decisions, w.decision)
	if w.reading && len(c.Decisions) != len(c.Asks) && (c.Kind != engine.ResetCall || len(c.Decisions) > 0) {
		w.bad = true
	}
}

func (w *wire) ask(a *stint.Ask) {
	text(w, &a.Key.Subject)
	text(w, &a.Key.Name)
	integer(w, &a.Cost)
	p := a.Policy
	if p == nil {
		p = new(stint.Policy)
	}
	banning, elsewhere := a.Penalty != nil, p.Lease > 0 || p.Split > 1 || p.Regions != stint.RegionsOwn
	w.flags(&banning, &elsewhere)
	if w.reading && elsewhere {
		a.Policy = elsewhereCounted
	}
	if banning {
		w.penalty(&a.Penalty)
	} else {
		w.limit(&a.Limit)
		if w.reading {
			a.Plan = w.terms.plans[a.Limit]
		}
	}
	optional(w, &a.Charge, func(c *stint.Charge) {
		integer(w, &c.At)
		integer(w, &c.Cost)
		integer(w, &c.Reset)
		w.flags(&c.Local)
		text(w, &c.ID)
		integer(w, &c.Keep)
	})
}

// elsewhereCounted is the policy of asks that are not, or not only, decided by the counter that they name.
var elsewhereCounted = &stint.Policy{Split: stint.MaxSplit}

// Elsewhere reports whether an ask of a capture is not, or not only, decided by the counter that it names: that is leased, split, or
// shared among regions.
func Elsewhere(a *stint.Ask) bool { return a.Policy == elsewhereCounted }

// terms are the limits and penalties of records, by number. A record has the number, and a record before it the text.
type terms struct {
	limits    sync.Map // stint.Limit -> uint64
	penalties sync.Map // *stint.Penalty -> uint64
	last      atomic.Uint64

	mu    sync.Mutex
	fresh []byte // records of those that are new

	// For reading.
	limitOf   map[uint64]stint.Limit
	plans     map[stint.Limit]*stint.Plan
	penaltyOf map[uint64]*stint.Penalty
}

func (w *wire) limit(l *stint.Limit) {
	var n uint64
	if !w.reading && *l != (stint.Limit{}) {
		n = numberOf(w.terms, &w.terms.limits, *l, l.String)
	}
	if w.number(&n); w.reading && n > 0 {
		known, ok := w.terms.limitOf[n]
		*l, w.bad = known, w.bad || !ok
	}
}

func (w *wire) penalty(p **stint.Penalty) {
	var n uint64
	if !w.reading {
		n = numberOf(w.terms, &w.terms.penalties, *p, (*p).String)
	}
	if w.number(&n); w.reading {
		known, ok := w.terms.penaltyOf[n]
		*p, w.bad = known, w.bad || !ok
	}
}

// numberOf returns the number of a limit or a penalty.
func numberOf[T comparable](t *terms, all *sync.Map, of T, spell func() string) uint64 {
	if n, ok := all.Load(of); ok {
		return n.(uint64) //nolint:forcetypeassert // there is nothing else in it
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok := all.Load(of); ok {
		return n.(uint64) //nolint:forcetypeassert // as above
	}
	n, words := t.last.Add(1), spell()
	_, penalty := any(of).(*stint.Penalty)
	w := wire{b: t.fresh}
	from := w.begin(termFrame)
	w.number(&n)
	w.flags(&penalty)
	text(&w, &words)
	w.end(from)
	t.fresh = w.b
	all.Store(of, n)
	return n
}

// learn reads the record of a limit or a penalty.
func (t *terms) learn(w *wire) {
	var n uint64
	var penalty bool
	var words string
	w.number(&n)
	w.flags(&penalty)
	text(w, &words)
	var err error
	if penalty {
		t.penaltyOf[n], err = stint.ParsePenalty(words)
	} else {
		var l stint.Limit
		if l, err = stint.ParseLimit(words); err == nil {
			t.limitOf[n] = l
			t.plans[l], err = l.Compile()
		}
	}
	w.bad = w.bad || err != nil
}

// takeFresh returns the records of terms that are new since the last call.
func (t *terms) takeFresh() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.fresh
	t.fresh = nil
	return b
}

// The kinds of frames: a kind, the length in four bytes, and the record.
const (
	headerFrame = 'h'
	termFrame   = 't'
	callFrame   = 'c'
	factsFrame  = 'd'
)

const (
	frameBytes = 5
	maxFrame   = 4 << 20
)

func (w *wire) begin(kind byte) (from int) {
	w.b = append(w.b, kind, 0, 0, 0, 0)
	return len(w.b)
}

func (w *wire) end(from int) {
	binary.BigEndian.PutUint32(w.b[from-4:from], uint32(len(w.b)-from))
}

// Verdict is a verdict, by names in place of rules.
type Verdict struct {
	ID      engine.ID
	Failed  bool // there was none: the decision ended with an error
	Outcome engine.Outcome
	// Rule is that which decided, or empty.
	Rule, Method string
	Eased        bool
	Status       int
	RetryAfter   time.Duration
	Waited       time.Duration
	Limits       []Limit // the binding one first
}

// Limit is a limit of a verdict.
type Limit struct {
	Rule, Name, Endpoint       string
	Limit                      stint.Limit
	Cost                       int64
	Penalty, Shadow, Candidate bool
	Decision                   stint.Decision
}

// NewVerdict returns a verdict of an engine by names. It reuses the memory of into.
func NewVerdict(v *engine.Verdict, into *Verdict) {
	limits := into.Limits[:0]
	*into = Verdict{ID: v.ID, Outcome: v.Outcome, Method: v.Method, Eased: v.Eased, Status: v.Status, RetryAfter: v.RetryAfter, Waited: v.Waited}
	if v.Rule != nil {
		into.Rule = v.Rule.Name
	}
	for i := range v.Limits {
		l := &v.Limits[i]
		limits = append(limits, Limit{
			Rule: l.Rule.Name, Name: l.Name, Endpoint: l.Endpoint, Limit: l.Limit, Cost: l.Cost,
			Penalty: l.Penalty != nil, Shadow: l.Shadow, Candidate: l.Candidate, Decision: l.Decision,
		})
	}
	into.Limits = limits
}

// Call is a call to the store.
type Call struct {
	Number    uint64 // of the decision; 0: none that is captured
	Kind      engine.CallKind
	Failed    bool
	Asks      []stint.Ask
	Decisions []stint.Decision
}
