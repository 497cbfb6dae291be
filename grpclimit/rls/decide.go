package rls

import (
	"context"
	"slices"
	"strconv"
	"strings"
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

	// What a request may have. A take has two asks for each, at most.
	maxDescriptors = 2000
	maxEntries     = 64

	// How that is said. It is found out while a request is read, before it takes room.
	tooManyDescriptors = "descriptors: want at most 2000"
	tooManyEntries     = ".entries: want at most 64"
)

// request is what Envoy asks. It is read from protobuf, or from what was.
type request struct {
	domain      string
	hits        uint32
	descriptors []asked
	entries     []descriptor.Entry // of all of them
	// wrong is what makes it unreadable.
	wrong string
}

// asked is a descriptor of a request.
type asked struct {
	from, to int // its entries

	// override, if there is one, takes the place of what is configured.
	override   bool
	requests   uint32
	unit       int32
	multiplier uint32

	own      bool // it has hits of its own
	hits     uint64
	negative bool // they are given back
}

func (q *request) of(i int) []descriptor.Entry {
	d := &q.descriptors[i]
	return q.entries[d.from:d.to]
}

// item is what becomes of a descriptor.
type item struct {
	limit    *descriptor.Limit // nil: none applies
	cost     int64
	apart    bool // it is counted for itself
	over     bool
	banned   bool // and that by a penalty
	from, to int  // of its key
	as       int  // the number, from 1, of the one that was asked for both; 0: none
	brought  bool // the limit came with the request
	decision stint.Decision
}

// work is what a request needs on its way. It is used again and again.
type work struct {
	q     request
	items []item
	asks  []stint.Ask
	ds    []stint.Decision // about the asks
	of    []int            // by ask, its item
	text  []byte
	keys  string
	over  bool // all in all
	quiet bool // no one is told
	began time.Time
	event engine.Event // for the recorder: what it is shown would be allocated each time
}

func (s *Service) begin() *work { return s.works.Get().(*work) }

// end lets go of what belongs to the request.
func (s *Service) end(w *work) {
	const most = 1 << 10 // a client's making
	if cap(w.items) > most || cap(w.q.descriptors) > most || cap(w.q.entries) > most || cap(w.text) > 64*most {
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

// decide fills in what becomes of each descriptor, and of all.
func (s *Service) decide(ctx context.Context, w *work) error {
	if err := w.q.check(); err != nil {
		return err
	}
	u := s.current.Load()
	if u == nil {
		return status.Error(codes.Unavailable, "no limits are loaded yet")
	}
	w.began = s.o.Now()
	tree := u.config.Domain(w.q.domain)
	apart := tree != nil && tree.Independent()
	if err := w.find(u.config, tree, apart); err != nil {
		return err
	}
	w.writeKeys()
	err := ctx.Err()
	if err == nil {
		err = s.count(unending, w)
	}
	if err != nil {
		return failure(err)
	}
	w.over = s.refuses(w)
	s.tell(w, u)
	return nil
}

// unending is the context of stores. Who leaves while they are asked has asked: what is
// on its way cannot be called back, and stores bound how long it takes. A context that
// can end would cost a tenth of the call.
var unending = context.Background() //nolint:forbidigo // see above

// check reports what is wrong with the request.
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

// replace drops the limits that others take the place of.
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

// override is the limit that a descriptor brings.
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
	it.limit.Plan, _ = it.limit.Limit.Compile() // nothing passes a limit of 0, which is not valid
	return nil
}

// quota reports whether the limit refuses only together with others.
func (it *item) quota(all bool) bool { return all || it.limit.Quota }

// refused is refuses, but for the service's shadow mode.
func (w *work) refused(allQuota bool) bool {
	quotas, over := 0, 0
	for i := range w.items {
		it := &w.items[i]
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

// counted reports whether there is a counter to ask.
func (it *item) counted() bool {
	return it.limit != nil && !it.limit.Unlimited && it.limit.Requests > 0
}

// count asks the store, until all is charged that is to be. A take is charged as a
// whole or not at all, so what denies is set aside, and the rest is asked again: most
// requests are one take, and those that meet an exhausted limit that does not refuse
// them are two.
func (s *Service) count(ctx context.Context, w *work) error {
	for i := range w.items {
		it := &w.items[i]
		it.over = it.limit != nil && !it.limit.Unlimited && it.limit.Requests == 0
	}
	refused := s.refuses(w)
	for i := range w.items {
		it := &w.items[i]
		if !it.counted() || w.q.descriptors[i].negative {
			continue
		}
		cost := it.cost
		if refused && !it.apart {
			cost = 0 // it is only told how it stands
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
		w.setAside(s.refuses(w))
	}
	return s.settle(ctx, w)
}

// refuses reports whether the request is refused, for all that is known.
func (s *Service) refuses(w *work) bool { return !s.o.Shadow && w.refused(s.o.Quota) }

// makeRoom makes room for the decisions about the asks.
func (w *work) makeRoom() { w.ds = slices.Grow(w.ds[:0], len(w.asks))[:len(w.asks)] }

// ask adds the asks of an item.
func (s *Service) ask(w *work, i int, cost int64) {
	w.asks, w.of = append(w.asks, s.limitAsk(w, i, cost)), append(w.of, i)
	if it := &w.items[i]; it.limit.Penalty != nil {
		w.asks, w.of = append(w.asks, s.penaltyAsk(w, i, min(cost, 1))), append(w.of, i)
	}
}

// limitAsk is the ask about an item's limit.
func (s *Service) limitAsk(w *work, i int, cost int64) stint.Ask {
	it := &w.items[i]
	return stint.Ask{Key: w.key(it), Limit: it.limit.Limit, Plan: it.limit.Plan, Cost: cost, Policy: &s.policy}
}

// penaltyAsk is the ask about an item's penalty.
func (s *Service) penaltyAsk(w *work, i int, cost int64) stint.Ask {
	it := &w.items[i]
	return stint.Ask{Key: w.key(it), Penalty: it.limit.Penalty, Cost: cost, Policy: &s.policy}
}

// fold has descriptors that a request has twice be asked once, for all of their hits,
// if there are penalties: in a take that has any, no counter can be asked twice.
func (w *work) fold() {
	if !slices.ContainsFunc(w.asks, func(a stint.Ask) bool { return a.Penalty != nil }) {
		return
	}
	first := map[stint.Key]int{} // the item that has it
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

// unfold has them answered as the one that was asked.
func (w *work) unfold() {
	for i := range w.items {
		if it := &w.items[i]; it.as > 0 {
			one := &w.items[it.as-1]
			it.over, it.banned, it.decision = one.over, one.banned, one.decision
		}
	}
}

// learn keeps what the store says, and reports whether it denies.
func (w *work) learn() (denied bool) {
	for i := range w.ds {
		d, it := &w.ds[i], &w.items[w.of[i]]
		switch {
		case w.asks[i].Penalty == nil:
			it.decision = *d
			// Where less was asked than it costs, what is left tells.
			it.over = !d.Allowed || w.asks[i].Cost == 0 && d.Remaining < max(it.cost, 1)
		case !d.Allowed: // it is banned, whatever is left
			it.over, it.banned = true, true
			it.decision.RetryAfter = d.RetryAfter
		}
		denied = denied || !d.Allowed
	}
	w.unfold()
	return denied
}

// setAside takes out the asks of items that deny and, if the request is refused, of
// all that are counted together.
func (w *work) setAside(refused bool) {
	n := 0
	for i, of := range w.of {
		if it := &w.items[of]; it.over || refused && !it.apart {
			continue
		}
		w.asks[n], w.of[n] = w.asks[i], of
		n++
	}
	clear(w.asks[n:])
	w.asks, w.of = w.asks[:n], w.of[:n]
}

// settle charges what has to be charged although it was refused, and gives back what
// is given back.
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
		// If nothing is left, more than that could not be told from it.
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

// reset is how long, in whole seconds, until the limit stands as if nothing had been,
// or until what was refused can pass.
func (it *item) reset(now time.Time) int64 {
	d, l := &it.decision, &it.limit.Limit
	left := d.ResetAfter
	switch {
	case it.over && d.RetryAfter > 0 && d.RetryAfter != stint.Never:
		left = d.RetryAfter
	case left == 0 && l.Algorithm == stint.FixedWindow:
		_, end := l.Window.Bounds(now) // nothing is counted in it
		left = end.Sub(now)
	}
	return int64((left + time.Second - 1) / time.Second)
}

// tell tells the recorder and the metrics what has become of the request.
func (s *Service) tell(w *work, u *setup) {
	if w.quiet {
		return
	}
	var which *item
	for i := range w.items {
		it := &w.items[i]
		if it.limit == nil {
			continue
		}
		s.stats.add(u, w, i, s.near)
		switch {
		case which == nil, it.over && !which.over, it.over == which.over && it.left() < which.left():
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
	switch {
	case w.over && which.banned:
		e.Outcome, e.Status, e.RetryAfter = engine.Banned, 429, d.RetryAfter
	case w.over:
		e.Outcome, e.Status, e.RetryAfter = engine.Denied, 429, d.RetryAfter
	case which.over:
		e.Shadow, e.RetryAfter = true, d.RetryAfter
	}
	s.o.Recorder.Record(e)
}

// left is what is left of the limit.
func (it *item) left() int64 {
	if it.limit.Unlimited {
		return maxHits
	}
	return it.decision.Remaining
}
