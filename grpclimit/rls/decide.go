package rls

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/identity"
)

const (
	maxHits = 1<<53 - 1

	// The bounds of a request. A take has at most two asks for each descriptor.
	maxDescriptors = 2000
	maxEntries     = 64

	// The errors beyond these bounds, which are found while a request is read.
	tooManyDescriptors = "descriptors: want at most 2000"
	tooManyEntries     = ".entries: want at most 64"
)

// request is a request of Envoy.
type request struct {
	domain      string
	hits        uint32
	descriptors []asked
	entries     []descriptor.Entry // of all descriptors
	wrong       string             // why it could not be read
}

// asked is a descriptor of a request.
type asked struct {
	from, to int // its entries

	override   bool // it brings a limit, which replaces the configured one
	requests   uint32
	unit       int32
	multiplier uint32

	own      bool // it has its own hits_addend
	hits     uint64
	negative bool // the hits are given back
}

func (q *request) of(i int) []descriptor.Entry {
	d := &q.descriptors[i]
	return q.entries[d.from:d.to]
}

// item is the state of a descriptor while its request is decided.
type item struct {
	limit    *descriptor.Limit // nil if none applies
	cost     int64
	apart    bool // it is counted independently of the others
	over     bool
	banned   bool // it is over because of a penalty
	from, to int  // of its key in work.keys
	as       int  // 1 + the index of the equal item that is asked for both, or 0
	brought  bool // the limit came with the request
	decision stint.Decision
}

// work is the state of a request. It is reused.
type work struct {
	q     request
	items []item
	asks  []stint.Ask
	ds    []stint.Decision // on the asks
	of    []int            // the item of each ask
	text  []byte
	keys  string
	over  bool // the request as a whole
	quiet bool // it is neither recorded nor counted in metrics
	alone bool // this process decided by itself, because the store is out of reach
	began time.Time
	event engine.Event // here, because a local variable would be allocated for each request
}

func (s *Service) begin() *work { return s.works.Get().(*work) }

// end clears the state of a request for reuse. After a large request it is not reused.
func (s *Service) end(w *work) {
	const maxKept = 1 << 10
	if cap(w.items) > maxKept || cap(w.q.descriptors) > maxKept || cap(w.q.entries) > maxKept || cap(w.text) > 64*maxKept {
		return
	}
	clear(w.q.entries)
	clear(w.items)
	clear(w.asks)
	*w = work{
		q:     request{descriptors: w.q.descriptors[:0], entries: w.q.entries[:0]},
		items: w.items[:0], asks: w.asks[:0], ds: w.ds[:0], of: w.of[:0], text: w.text[:0],
	}
	s.works.Put(w)
}

// decide decides the request: each descriptor, and the request as a whole.
func (s *Service) decide(ctx context.Context, w *work) error {
	u, err := s.prepare(w)
	if err != nil {
		w.failed(&s.stats.invalid)
		return err
	}
	if err = ctx.Err(); err == nil {
		if err = s.count(unending, w); err != nil {
			w.failed(&s.stats.undecided)
		}
	}
	if err != nil {
		return failure(err)
	}
	if w.alone && !w.quiet {
		s.stats.alone.Add(1)
	}
	w.over = s.denies(w)
	s.record(ctx, w, u)
	return nil
}

// failed counts a call that failed.
func (w *work) failed(calls *atomic.Uint64) {
	if !w.quiet {
		calls.Add(1)
	}
}

// prepare checks the request, and finds the limits of its descriptors.
func (s *Service) prepare(w *work) (*setup, error) {
	if err := w.q.check(); err != nil {
		return nil, err
	}
	u := s.current.Load()
	if u == nil {
		return nil, status.Error(codes.Unavailable, "no limits are loaded yet")
	}
	w.began = s.o.Now()
	tree := u.config.Domain(w.q.domain)
	if tree == nil && !w.quiet {
		s.stats.missing(w.q.domain, len(w.q.descriptors))
	}
	if err := w.find(u.config, tree, tree != nil && tree.Independent()); err != nil {
		return nil, err
	}
	w.writeKeys()
	return u, nil
}

// unending is the context of calls of the store. A caller that leaves does not cancel them:
// a call that was sent cannot be taken back, and stores bound how long it takes. A context
// that can end would add a tenth to the cost.
var unending = context.Background() //nolint:forbidigo // see above

// check returns an error if the request is invalid.
func (q *request) check() error {
	switch {
	case q.wrong != "":
		return status.Error(codes.InvalidArgument, q.wrong)
	case q.domain == "":
		return invalid("domain", "must not be empty")
	case len(q.descriptors) == 0:
		return invalid("descriptors", "want at least one")
	}
	for i := range q.descriptors {
		if d := &q.descriptors[i]; d.from == d.to {
			return invalid(place(i)+".entries", "want at least one")
		}
		for j, e := range q.of(i) {
			if e.Key == "" {
				return invalid(place(i)+".entries["+strconv.Itoa(j)+"].key", "must not be empty")
			}
		}
	}
	return nil
}

func place(i int) string { return "descriptors[" + strconv.Itoa(i) + "]" }

// find finds the limit of each descriptor.
func (w *work) find(config *descriptor.Config, tree *descriptor.Tree, apart bool) error {
	if n := len(w.q.descriptors); cap(w.items) < n {
		w.items = make([]item, n)
	} else {
		w.items = w.items[:n]
	}
	replaces := false
	for i := range w.items {
		d, it := &w.q.descriptors[i], &w.items[i]
		switch {
		case d.override:
			if err := it.override(config, d); err != nil {
				return invalid(place(i)+".limit", strings.TrimPrefix(err.Error(), "stint: "))
			}
		case tree != nil:
			it.limit = tree.Find(w.q.of(i))
		}
		hits := d.hits
		if !d.own {
			hits = max(1, uint64(w.q.hits))
		}
		it.cost = int64(min(hits, maxHits))
		it.apart = apart || d.own
		replaces = replaces || it.limit != nil && len(it.limit.Replaces) > 0
	}
	if replaces {
		w.replace()
	}
	return nil
}

// replace drops the limits that other limits replace.
func (w *work) replace() {
	replaced := map[string]bool{}
	for i := range w.items {
		if l := w.items[i].limit; l != nil {
			for _, name := range l.Replaces {
				replaced[name] = true
			}
		}
	}
	for i := range w.items {
		if l := w.items[i].limit; l != nil && !l.Unlimited && replaced[l.Name] {
			w.items[i].limit = nil
		}
	}
}

// override sets the limit that the descriptor brings.
func (it *item) override(config *descriptor.Config, d *asked) error {
	window, err := config.Window(descriptor.Unit(d.unit), d.multiplier)
	if err != nil {
		return err
	}
	it.brought, it.limit = true, &descriptor.Limit{
		Requests: d.requests, Unit: descriptor.Unit(d.unit), Multiplier: d.multiplier,
		Limit: stint.Limit{Algorithm: stint.FixedWindow, Max: int64(d.requests), Window: window},
	}
	it.limit.Counter = descriptor.Counter(it.limit.Limit)
	it.limit.Plan, _ = it.limit.Limit.Compile() // it fails for a limit of 0, which is never asked
	return nil
}

// quota reports whether the limit is in quota_mode.
func (it *item) quota(all bool) bool { return all || it.limit.Quota }

// denied reports whether the limits deny the request. If all limits are in quota_mode, a
// descriptor without a limit is a quota with room, as in envoyproxy/ratelimit.
func (w *work) denied(allQuota bool) bool {
	quotas, over := 0, 0
	for i := range w.items {
		it := &w.items[i]
		if it.limit == nil && allQuota {
			quotas++
		}
		if it.limit == nil || it.limit.Unlimited {
			continue
		}
		isOver := it.over && !it.limit.Shadow
		if it.quota(allQuota) {
			quotas++
			if isOver {
				over++
			}
		} else if isOver {
			return true
		}
	}
	return quotas > 0 && quotas == over
}

// counted reports whether the item has a counter.
func (it *item) counted() bool {
	return it.limit != nil && !it.limit.Unlimited && it.limit.Requests > 0
}

// count asks the store until everything is charged that should be. A take is charged as a
// whole or not at all, so the items that deny it are removed, and the rest is asked again.
// Most requests need one take. Those with an exhausted limit that does not deny them need
// two.
func (s *Service) count(ctx context.Context, w *work) error {
	for i := range w.items {
		it := &w.items[i]
		it.over = it.limit != nil && !it.limit.Unlimited && it.limit.Requests == 0
	}
	denied := s.denies(w)
	for i := range w.items {
		it := &w.items[i]
		if !it.counted() || w.q.descriptors[i].negative {
			continue
		}
		cost := it.cost
		if denied && !it.apart {
			cost = 0 // only to report what remains
		}
		s.ask(w, i, cost)
	}
	w.fold()
	for len(w.asks) > 0 {
		w.makeRoom()
		if err := s.o.Store.Take(ctx, w.asks, w.ds); err != nil {
			return err
		}
		if !w.learn() {
			break
		}
		w.remove(s.denies(w))
	}
	return s.settle(ctx, w)
}

// denies reports whether the request is denied, as far as the items are decided.
func (s *Service) denies(w *work) bool { return !s.o.Shadow && w.denied(s.o.Quota) }

// makeRoom makes room for the decisions about the asks.
func (w *work) makeRoom() { w.ds = slices.Grow(w.ds[:0], len(w.asks))[:len(w.asks)] }

// ask appends the asks of an item.
func (s *Service) ask(w *work, i int, cost int64) {
	w.asks, w.of = append(w.asks, s.limitAsk(w, i, cost)), append(w.of, i)
	if it := &w.items[i]; it.limit.Penalty != nil {
		ask := stint.Ask{Key: w.key(it), Client: w.client(i), Penalty: it.limit.Penalty, Cost: min(cost, 1), Policy: &s.policy}
		w.asks, w.of = append(w.asks, ask), append(w.of, i)
	}
}

// limitAsk returns the ask for an item's limit.
func (s *Service) limitAsk(w *work, i int, cost int64) stint.Ask {
	it := &w.items[i]
	return stint.Ask{Key: w.key(it), Client: w.client(i), Limit: it.limit.Limit, Plan: it.limit.Plan, Cost: cost, Policy: &s.policy}
}

// fold merges the asks of equal descriptors into one for all their hits, if there are
// penalties: a take with penalties cannot have the same counter twice.
func (w *work) fold() {
	if !slices.ContainsFunc(w.asks, func(a stint.Ask) bool { return a.Penalty != nil }) {
		return
	}
	first := map[stint.Key]int{} // the first item with this key
	n := 0
	for i, of := range w.of {
		a := &w.asks[i]
		if earlier, again := first[a.Key]; again && earlier != of {
			if a.Penalty == nil {
				w.items[of].as = earlier + 1
				for j := range w.asks[:n] {
					if w.of[j] == earlier && w.asks[j].Penalty == nil {
						w.asks[j].Cost = min(w.asks[j].Cost+a.Cost, maxHits)
					}
				}
			}
			continue
		}
		first[a.Key] = of
		w.asks[n], w.of[n] = *a, of
		n++
	}
	clear(w.asks[n:])
	w.asks, w.of = w.asks[:n], w.of[:n]
}

// unfold copies the decisions to the items whose asks were merged.
func (w *work) unfold() {
	for i := range w.items {
		if it := &w.items[i]; it.as > 0 {
			one := &w.items[it.as-1]
			it.over, it.banned, it.decision = one.over, one.banned, one.decision
		}
	}
}

// learn stores the decisions in the items, and reports whether the take was denied.
func (w *work) learn() (denied bool) {
	for i := range w.ds {
		d, it := &w.ds[i], &w.items[w.of[i]]
		switch {
		case w.asks[i].Penalty == nil:
			it.decision = *d
			// An item that was asked without its cost is over if not enough remains.
			it.over = !d.Allowed || w.asks[i].Cost == 0 && d.Remaining < max(it.cost, 1)
		case !d.Allowed: // banned, whatever remains
			it.over, it.banned = true, true
			it.decision.RetryAfter = d.RetryAfter
		}
		denied = denied || !d.Allowed
		w.alone = w.alone || d.Basis >= stint.Local
	}
	w.unfold()
	return denied
}

// remove removes the asks of items that deny and, if the request is denied, of all that
// are counted together.
func (w *work) remove(denied bool) {
	n := 0
	for i, of := range w.of {
		if it := &w.items[of]; it.over || denied && !it.apart {
			continue
		}
		w.asks[n], w.of[n] = w.asks[i], of
		n++
	}
	clear(w.asks[n:])
	w.asks, w.of = w.asks[:n], w.of[:n]
}

// settle charges independent items that did not fit, and gives back negative hits.
func (s *Service) settle(ctx context.Context, w *work) error {
	w.asks, w.of = w.asks[:0], w.of[:0]
	for i := range w.items {
		it, d := &w.items[i], &w.q.descriptors[i]
		cost := it.cost
		switch {
		case !it.counted() || cost == 0:
			continue
		case d.negative:
			cost = -cost
		// If nothing remains, charging more changes nothing.
		case !it.apart || !it.over || it.banned || it.decision.Remaining == 0:
			continue
		}
		w.asks, w.of = append(w.asks, s.limitAsk(w, i, cost)), append(w.of, i)
	}
	if len(w.asks) == 0 {
		return nil
	}
	w.makeRoom()
	if err := s.o.Store.Adjust(ctx, w.asks, w.ds); err != nil {
		return err
	}
	for i := range w.ds {
		if it := &w.items[w.of[i]]; w.q.descriptors[w.of[i]].negative {
			it.decision = w.ds[i]
		}
	}
	return nil
}

// reset returns in how many seconds, rounded up, the whole limit is available again, or a
// denied request can pass.
func (it *item) reset(now time.Time) int64 {
	d, l := &it.decision, &it.limit.Limit
	left := d.ResetAfter
	switch {
	case it.over && d.RetryAfter > 0 && d.RetryAfter != stint.Never:
		left = d.RetryAfter
	case left == 0 && l.Algorithm == stint.FixedWindow:
		_, end := l.Window.Bounds(now) // nothing was counted in this window
		left = end.Sub(now)
	}
	return int64((left + time.Second - 1) / time.Second)
}

// record adds the request to the metrics, and records it with its tightest limit.
func (s *Service) record(ctx context.Context, w *work, u *setup) {
	if w.quiet {
		return
	}
	if s.o.Shadow && w.denied(s.o.Quota) {
		s.stats.shadowed.Add(1)
	}
	var which *item
	for i := range w.items {
		it := &w.items[i]
		if it.limit == nil {
			continue
		}
		s.stats.add(u, w, i, float32(s.o.NearRatio))
		switch {
		case which == nil, it.over && !which.over, it.over == which.over && it.remaining() < which.remaining():
			which = it
		}
	}
	if s.o.Recorder == nil || which == nil {
		return
	}
	d := &which.decision
	e := &w.event
	*e = engine.Event{
		ID: engine.NewID(w.began), At: w.began, Source: identity.ByHeader, Rule: which.limit.Path, Limit: which.limit.Name, Cost: which.cost,
		Max: int64(which.limit.Requests), Used: max(int64(which.limit.Requests)-d.Remaining, 0), Latency: s.o.Now().Sub(w.began),
	}
	e.Method, e.Path = w.q.called()
	switch {
	case w.over && which.banned:
		e.Outcome, e.Status, e.RetryAfter = engine.Banned, 429, d.RetryAfter
	case w.over:
		e.Outcome, e.Status, e.RetryAfter = engine.Denied, 429, d.RetryAfter
	case which.over:
		e.Shadow, e.RetryAfter = true, d.RetryAfter
	}
	s.o.Recorder.Record(ctx, e)
}

// called returns what a request called, if an entry of a descriptor says so: Envoy sends headers under any name, and these are
// the usual ones.
func (q *request) called() (method, path string) {
	for i := range q.entries {
		switch e := &q.entries[i]; e.Key {
		case "path", ":path":
			path = e.Value
		case "method", ":method":
			if i := slices.Index(methods, e.Value); i >= 0 {
				method = methods[i]
			}
		}
	}
	return method, path
}

// methods are those that are recorded: clients may invent others.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace,
}

// remaining returns what remains of the limit.
func (it *item) remaining() int64 {
	if it.limit.Unlimited {
		return maxHits
	}
	return it.decision.Remaining
}
