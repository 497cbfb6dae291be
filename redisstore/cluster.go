package redisstore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/slot"
)

// home returns where the counter of a key is, as the number of its lane.
func (s *Store) home(key string) home {
	switch s.config.topology {
	case cluster:
		return home{now: slot.Of(key), was: -1}
	case ring:
		return s.ring.of(key)
	case single, sentinel:
	}
	return home{now: 0, was: -1}
}

// onePlace returns the place that has all counters of a request, if there is one, so that they can be in
// one call.
func (s *Store) onePlace(asks []stint.Ask, items []item) (place int, ok bool) {
	if len(s.lanes) == 1 {
		return 0, true
	}
	for i := range asks {
		// Without a subject there is no hash tag: the whole key determines the slot.
		if k := &asks[i].Key; i > 0 && k.Subject == asks[i-1].Key.Subject && k.Subject != "" {
			continue
		}
		h := s.home(items[i].key)
		if h.was >= 0 || i > 0 && h.now != place {
			return 0, false
		}
		place = h.now
	}
	return place, true
}

// lane returns the lane of a place.
func (s *Store) lane(place int) *lane {
	l := s.lanes[place].Load()
	if l == nil {
		s.lanes[place].CompareAndSwap(nil, new(lane))
		l = s.lanes[place].Load()
	}
	return l
}

// scatter decides a request that needs several calls: its counters are in several places, or it has too
// many asks.
func (s *Store) scatter(ctx context.Context, r *request) error {
	if len(r.items) > wholeAsks {
		var cancel context.CancelFunc
		ctx, cancel = s.deadline.Within(ctx) // of all calls together
		defer cancel()
	}
	if r.kind == adjust {
		if first := slices.IndexFunc(r.items, together); first >= 0 {
			return s.settle(ctx, r, first)
		}
	}
	return s.spread(ctx, r)
}

// spread sends the parts of a request to their places.
func (s *Store) spread(ctx context.Context, r *request) error {
	parts := s.cut(r, nowAt)
	if s.ring == nil || !s.ring.moves {
		return s.gather(ctx, r, parts, s.start)
	}
	return s.gatherMoved(ctx, r, parts)
}

// together reports whether an item is one of several changes that are made together.
func together(it item) bool { return it.charge.Together && it.charge.ID != "" }

// settle makes changes that need several calls, of which some are made together. The first of these is made alone,
// and its mark keeps the sum of all. Whoever finds another sum there has come later, and changes nothing. Who finds
// the same sends the others again: they are made once, and a caller that has failed may not have sent them.
func (s *Store) settle(ctx context.Context, r *request, first int) error {
	ctx, cancel := s.deadline.Within(ctx) // of both calls together
	defer cancel()
	sum := sumOf(r.items)
	head, rest := &request{kind: adjust, ctx: ctx}, &request{kind: adjust, ctx: ctx}
	for i, it := range r.items {
		if together(it) {
			it.sum = sum
		}
		if i == first {
			head.items = append(head.items, it)
		} else {
			rest.items = append(rest.items, it)
		}
	}
	if err := s.spread(ctx, head); err != nil || head.err != nil {
		r.err = head.err
		return err
	}
	decided := head.out[0]
	for i := range rest.items {
		if it := &rest.items[i]; together(*it) && head.other {
			it.charge, it.cost = stint.Charge{}, 0 // it is only read
		}
	}
	if len(rest.items) > 0 {
		if err := s.spread(ctx, rest); err != nil {
			return err
		}
		if r.err = rest.err; r.err != nil {
			if errors.Is(r.err, stint.ErrNotApplied) { // the first call was
				r.err = unavailable(errors.New("one of several calls failed: " + r.err.Error()))
				if failed := new(partsError); errors.As(rest.err, &failed) {
					r.err = &partsError{r.err, failed.servers}
				}
			}
			return nil
		}
	}
	r.out = slices.Insert(append(r.out[:0], rest.out...), first, decided)
	for i := range r.out {
		if together(r.items[i]) {
			r.out[i].Repeated = decided.Repeated
		}
	}
	return nil
}

// sumOf returns a number that tells the changes that are made together from others with the same IDs.
func sumOf(items []item) int64 {
	h := fnv.New64a()
	for i := range items {
		if it := &items[i]; together(*it) {
			_, _ = fmt.Fprintf(h, "%s %s %d\n", it.key, it.charge.ID, it.cost)
		}
	}
	return max(int64(h.Sum64()&maxInt), 1) // 0: there is none
}

// cut splits a request into parts that have one place each.
func (s *Store) cut(r *request, place func(home) int) []*part {
	at := make([]int, len(r.items))
	for i := range r.items {
		at[i] = place(s.home(r.items[i].key))
	}
	number := at
	if len(r.items) > wholeAsks {
		number = smallParts(r.items, at)
	}
	parts := split(r, func(i int) int { return number[i] })
	for _, p := range parts {
		p.place = at[p.from[0]]
	}
	return parts
}

// smallParts returns the number of the part that each item belongs to. A part has counters of one
// place, and at most wholeAsks asks, unless more have to be decided together: asks of one
// counter, or a penalty and the asks it guards. No take has both.
func smallParts(items []item, at []int) []int {
	size := make([]int, len(items)) // of the asks that start there and stay together
	first := make(map[string]int, len(items))
	for i := range items {
		if _, ok := first[items[i].key]; !ok {
			first[items[i].key] = i
		}
		size[first[items[i].key]]++
		if n := items[i].guarded; n > 0 {
			clear(size[i-n : i+1])
			size[i-n] = n + 1
		}
	}
	type part struct{ number, asks int }
	filling := map[int]part{} // by place
	numbers, n := make([]int, len(items)), 0
	for i := range items {
		if j := first[items[i].key]; j < i {
			numbers[i] = numbers[j]
			continue
		}
		p, ok := filling[at[i]]
		if !ok || (size[i] > 0 && p.asks+size[i] > wholeAsks) {
			p = part{number: n}
			n++
		}
		p.asks += size[i]
		filling[at[i]], numbers[i] = p, p.number
	}
	return numbers
}

// decideByCounter decides a request counter by counter, because its slot is being migrated
// and some of its counters have moved while others have not.
func (s *Store) decideByCounter(ctx context.Context, r *request) {
	parts := split(r, func(i int) string { return r.items[i].key })
	// Not through the lane, which this request occupies.
	start := func(p *request) {
		s.work.Go(func() {
			s.sendAlone(ctx, p)
			s.finish(ctx, p)
		})
	}
	if err := s.gather(ctx, r, parts, start); err != nil {
		r.err = err
	}
}

// part is the part of a request that one call decides.
type part struct {
	*request
	from []int // the index of each item in the request
	old  bool  // where its counters were before a change of the ring
}

// passed reports whether the part is a take that was charged.
func (p *part) passed() bool {
	return p.err == nil && (p.kind == take || p.kind == twins) && p.before != nil
}

func split[P comparable](r *request, place func(i int) P) []*part {
	var parts []*part
	byPlace := map[P]*part{}
	for i := range r.items {
		at := place(i)
		p := byPlace[at]
		if p == nil {
			p = &part{request: &request{kind: r.kind, place: r.place, ctx: r.ctx, done: make(chan struct{}, 1), track: r.kind == take || r.kind == twins}}
			byPlace[at] = p
			parts = append(parts, p)
		}
		it := r.items[i]
		if it.guarded > 0 { // the asks it guards may be in other parts
			it.guarded = len(p.from) - sort.SearchInts(p.from, i-it.guarded)
		}
		p.items = append(p.items, it)
		p.from = append(p.from, i)
	}
	for _, p := range parts {
		if p.kind == twins && !repeats(p.items) {
			p.kind = take
		}
	}
	return parts
}

// convoy starts the parts in order and waits for each in turn. When wait returns false, it
// starts no more. At most wholeAsks asks are in flight at once, so that other requests get a
// turn. It returns how many parts were started.
func convoy(parts []*part, start func(*request), wait func(*part) bool) (started int) {
	asks := 0
	for i := 0; i < len(parts); i++ {
		for ; started < len(parts) && (started == i || asks+len(parts[started].items) <= wholeAsks); started++ {
			asks += len(parts[started].items)
			start(parts[started].request)
		}
		if !wait(parts[i]) {
			parts = parts[:started]
		}
		asks -= len(parts[i].items)
	}
	return started
}

// gather decides every part. If one part of a take is denied, the charges of the others are
// undone. The remaining parts are still asked, since the caller gets a decision for every ask.
func (s *Store) gather(ctx context.Context, r *request, parts []*part, start func(*request)) error {
	var gone error
	waited := 0
	started := convoy(parts, start, func(p *part) bool {
		if gone == nil {
			gone = s.await(ctx, p.request)
		}
		if gone != nil {
			return false
		}
		waited++
		return p.err == nil
	})
	parts = parts[:started]
	if gone != nil {
		var pending []*part
		for _, p := range parts[waited:] {
			select {
			case <-p.done:
			default:
				pending = append(pending, p)
			}
		}
		gone = s.blame(gone, pending)
		s.work.Go(func() {
			for _, p := range pending {
				<-p.done // the call has a deadline
			}
			s.undo(parts, start)
		})
		return gone
	}
	r.err = nil
	r.makeRoom()
	denied, nothingApplied := false, true
	var failed []*part
	for _, p := range parts {
		r.other = r.other || p.other
		if p.err != nil {
			r.err, denied = p.err, true
			failed = append(failed, p)
		}
		nothingApplied = nothingApplied && errors.Is(p.err, stint.ErrNotApplied)
		for i := range p.out {
			denied = denied || !p.out[i].Allowed
		}
	}
	if errors.Is(r.err, stint.ErrNotApplied) && !nothingApplied {
		// Nothing was applied by that part, but other parts may have been.
		r.err = unavailable(errors.New("one of several calls failed: " + r.err.Error()))
	}
	r.err = s.blame(r.err, failed)
	if r.track && !denied { // r is itself a part
		r.before = make([]before, len(r.items))
	}
	for _, p := range parts {
		for i, d := range p.out {
			switch charged := p.passed() && p.items[i].penalty == nil; {
			case charged && denied:
				p.before[i].restate(&p.items[i], &d)
			case charged && r.track:
				r.before[p.from[i]] = p.before[i]
			}
			if p.old {
				tighten(&r.out[p.from[i]], d)
			} else {
				r.out[p.from[i]] = d
			}
		}
	}
	if denied {
		// Wait for the undo, but no longer than the caller does.
		undone := make(chan struct{})
		s.work.Go(func() {
			s.undo(parts, start)
			close(undone)
		})
		select {
		case <-undone:
		case <-ctx.Done():
		}
	}
	return nil
}

// undo gives back what parts of a take have charged, as if it had not been: see [stint.Limit.Amend].
func (s *Store) undo(parts []*part, start func(*request)) {
	var undos []*part
	for _, p := range parts {
		if !p.passed() {
			continue
		}
		u := &part{request: &request{kind: undo, place: p.place, done: make(chan struct{}, 1)}}
		for i := range p.items {
			if it := p.items[i]; it.penalty == nil && p.out[i].Cost > 0 {
				it.charge = p.out[i].Charge()
				it.cost = -it.charge.Cost
				u.items = append(u.items, it)
			}
		}
		if len(u.items) > 0 {
			s.stats.undone.Add(1)
			undos = append(undos, u)
		}
	}
	convoy(undos, start, func(u *part) bool {
		<-u.done // the call has a deadline
		if u.err != nil {
			s.stats.kept.Add(1)
		}
		return true
	})
}
