package sim

import (
	"cmp"
	"container/heap"
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// replay is a call of Run.
type replay struct {
	candidate rule.Rule
	off       bool // the candidate is switched off
	// ignoreCase says that the case of paths does not matter.
	ignoreCase bool

	set      *rule.Set
	rule     *rule.Compiled
	values   *rule.Set // the rule's limits only
	paths    *rule.Set // the rule's paths only; nil if it has none
	patterns []pattern // the same
	methods  map[string]bool
	tiers    map[string]bool
	networks []netip.Prefix // in order, and none in another
	by       []rule.Dimension
	known    map[string]path // endpoints
	asksOf   map[string][]stint.Ask

	store *memstore.Store
	now   time.Time
	steps int // left
	held  waiting
	ds    []stint.Decision
	// verdict is that of the last request that was denied. Its memory is reused.
	verdict engine.Verdict
	// told, if it is not nil, is called with the outcome of each request, by its number.
	told func(event int64, refused bool)

	preview  Preview
	step     time.Duration // of the series
	subjects map[string]*Subject
	stopped  time.Time     // zero: everything was replayed
	window   time.Duration // the longest window of a limit
	crowded  bool          // too many requests had to be held
	places   bool          // the rule has limits of concurrency
	seq      int64         // of the last request that was held

	// The numbers of requests in notes; sampled counts events.
	unclear                                    [answers]int64
	sampled, sampledFor, ownCost, recordedCost int64
	otherRefused, byNetwork, late, full        int64
}

func newReplay(o Options) (*replay, error) {
	if took := o.To.Sub(o.From); took <= 0 || took > longest {
		return nil, &stint.InvalidError{Field: "from", Value: o.From.Format(time.RFC3339), Want: "a time before to, which is " +
			o.To.Format(time.RFC3339) + ", and at most 366 days before"}
	}
	r := &replay{
		candidate: o.Rule, ignoreCase: o.Case == rule.IgnoreCase, steps: maxSteps, now: o.From,
		known: map[string]path{}, asksOf: map[string][]stint.Ask{}, subjects: map[string]*Subject{},
	}
	r.off = o.Rule.Enabled != nil && !*o.Rule.Enabled
	r.candidate.Enabled = nil
	// Tiers may have values for other rules.
	names := map[string]bool{}
	for _, l := range o.Rule.Limits {
		names[l.Name] = true
	}
	tiers := slices.Clone(o.Tiers)
	for i := range tiers {
		tiers[i].Limits = maps.Clone(tiers[i].Limits)
		maps.DeleteFunc(tiers[i].Limits, func(name, _ string) bool { return !names[name] })
	}
	compile := func(c rule.Rule) (set *rule.Set, err error) {
		return rule.Compile(rule.File{Rules: []rule.Rule{c}, Tiers: tiers, Case: o.Case})
	}
	var err error
	if r.set, err = compile(r.candidate); err != nil {
		return nil, err
	}
	r.rule = r.set.Rules()[0]
	r.by = r.rule.CountBy()
	only := r.candidate
	only.Match, only.CountBy, only.Penalty, only.Group = rule.Match{Tiers: o.Rule.Match.Tiers}, nil, nil, ""
	if r.values, err = compile(only); err != nil {
		return nil, err
	}
	if paths := o.Rule.Match.Paths; len(paths) > 0 {
		only := rule.Rule{Name: "paths", Match: rule.Match{Paths: paths}, Action: rule.Block}
		if r.paths, err = rule.Compile(rule.File{Rules: []rule.Rule{only}, Case: o.Case}); err != nil {
			return nil, err
		}
		for _, text := range paths {
			r.patterns = append(r.patterns, r.parse(text))
		}
	}
	r.methods, r.tiers, r.networks = setOf(o.Rule.Match.Methods), setOf(o.Rule.Match.Tiers), networksOf(o.Rule.Match.IPRanges)
	r.preview.From, r.preview.To = o.From.UTC(), o.To.UTC()
	r.preview.Series, r.step = newSeries(r.preview.From, r.preview.To)
	r.store, err = memstore.New(memstore.Options{MaxKeys: maxKeys, Now: func() time.Time { return r.now }})
	return r, err
}

func setOf(values []string) map[string]bool {
	set := make(map[string]bool, len(values))
	for _, v := range values {
		set[v] = true
	}
	return set
}

// add replays a request, after held requests that are due.
func (r *replay) add(q *Request) error {
	if err := r.release(q.At); err != nil {
		return err
	}
	r.steps--
	weight := min(max(q.Weight, 1), maxWeight)
	p := &r.preview
	p.Events++
	p.Requests += weight
	subject, a := r.match(q)
	switch a {
	case no:
		return nil
	case yes:
	default:
		p.Unclear += weight
		r.unclear[a] += weight
		return nil
	}
	if q.At.Before(r.now) {
		r.late += weight
	} else {
		r.now = q.At
	}
	if weight > 1 {
		r.sampled++
		r.sampledFor += weight
	}
	point := &p.Series[q.At.Sub(p.Series[0].Start)/r.step]
	p.Matched += weight
	point.Matched += weight
	if q.Refused {
		p.RefusedNow += weight
		if q.RefusedBy != r.rule.Name {
			r.otherRefused += weight
		}
	}
	t := turn{event: p.Events, point: point, left: weight, of: r.subject(subject)}
	if t.of != nil {
		t.of.Requests += weight
	} else {
		r.full += weight
	}
	switch r.rule.Action {
	case rule.Block:
		r.refuse(&t, weight)
		return nil
	case rule.Allow:
		return nil
	default:
	}
	if p, ok := network(q.IP); ok && !p.IsSingleIP() && slices.Contains(r.by, "ip") {
		r.byNetwork += weight
	}
	t.step.Asks, t.cost = slices.Clone(r.asksFor(q.Tier)), r.costOf(q, weight)
	for i := range t.step.Asks {
		t.step.Asks[i].Key.Subject = subject
	}
	t.step.Hits = []rule.Hit{{Rule: r.rule, To: len(t.step.Asks)}}
	return r.take(t)
}

// subject returns the figures of a subject, or nil if there are too many.
func (r *replay) subject(name string) *Subject {
	s := r.subjects[name]
	if s == nil && len(r.subjects) < maxSubjects {
		s = &Subject{Subject: name}
		r.subjects[name] = s
	}
	return s
}

// costOf returns the cost of a request. If a header sets it, only the recorded cost is
// known.
func (r *replay) costOf(q *Request, weight int64) int64 {
	own := max(r.candidate.Cost.Units, 1)
	switch {
	case q.Cost <= 0 || q.Cost == own:
		return own
	case r.candidate.Cost.Header != "":
		r.recordedCost += weight
		return min(q.Cost, r.candidate.Cost.Max)
	case own > 1:
		r.ownCost += weight
		return own
	default:
		r.recordedCost += weight
		return q.Cost
	}
}

// asksFor returns the asks of the rule for a tier, without subjects and costs.
func (r *replay) asksFor(tier string) []stint.Ask {
	if !r.set.Tier(tier) {
		tier = ""
	}
	asks, ok := r.asksOf[tier]
	if ok {
		return asks
	}
	for _, q := range r.values.Quotas(&rule.Attrs{Tier: tier}) {
		if q.Unlimited() {
			continue
		}
		if q.Ask.Limit.Algorithm == stint.Concurrency {
			r.places = true // the record does not say how long requests took
			continue
		}
		plan, _ := q.Ask.Limit.Compile() // the rule is valid
		asks = append(asks, stint.Ask{Key: stint.Key{Name: r.rule.Name + ":" + q.Name}, Limit: q.Ask.Limit, Plan: plan})
		from, to := q.Ask.Limit.Window.Bounds(r.preview.From)
		r.window = max(r.window, to.Sub(from))
	}
	if r.rule.Penalty != nil && len(asks) > 0 {
		asks = append(asks, stint.Ask{Key: stint.Key{Name: r.rule.Name + ":penalty!"}, Penalty: r.rule.Penalty})
	}
	r.asksOf[tier] = asks
	return asks
}

// turn is identical requests at the same instant.
type turn struct {
	event int64 // their number
	point *Point
	of    *Subject    // nil: there are too many subjects
	step  engine.Step // of the next of them
	cost  int64       // of each
	left  int64       // how many are left
	at    time.Time   // when they are due again
	seq   int64       // orders those with the same time
}

func (r *replay) refuse(t *turn, n int64) {
	r.preview.WouldRefuse += n
	t.point.WouldRefuse += n
	if t.of != nil {
		t.of.WouldRefuse += n
	}
	r.settle(t, n, true)
}

// settle records the outcome of n requests.
func (r *replay) settle(t *turn, n int64, refused bool) {
	t.left -= n
	if r.told != nil {
		r.told(t.event, refused)
	}
}

// take takes for the requests of a turn, one after the other, and holds the rest if they
// would be held.
func (r *replay) take(t turn) error {
	s := &t.step
	if len(s.Asks) == 0 {
		return nil // unlimited
	}
	for t.left > 0 {
		t.setCosts(t.cost)
		s.Begin()
		if err := r.ask(s.Asks); err != nil {
			return err
		}
		if !slices.ContainsFunc(r.ds, func(d stint.Decision) bool { return !d.Allowed }) {
			r.settle(&t, 1, false)
			// As many more pass as fit.
			more := t.left
			for i, d := range r.ds {
				if s.Asks[i].Penalty == nil {
					more = min(more, d.Remaining/t.cost)
				}
			}
			if more > 0 {
				r.settle(&t, more, false)
				t.setCosts(more * t.cost)
				if err := r.ask(s.Asks); err != nil {
					return err
				}
			}
			continue
		}
		if wait := s.Hold(r.ds); wait > 0 {
			if len(r.held) < maxHeld {
				s.Waited += wait
				r.seq++
				t.at, t.seq = r.now.Add(wait), r.seq
				heap.Push(&r.held, t)
				return nil
			}
			r.crowded = true
		}
		if s.Denied(r.ds) {
			if err := r.ask(s.Asks); err != nil {
				return err
			}
		}
		r.verdict = engine.Verdict{Limits: r.verdict.Limits[:0]}
		s.Conclude(&r.verdict, r.ds)
		if r.rule.Penalty == nil || r.verdict.Outcome == engine.Banned {
			r.refuse(&t, t.left) // the rest would be denied, too
			return nil
		}
		r.refuse(&t, 1)
	}
	return nil
}

// setCosts sets the units of all asks.
func (t *turn) setCosts(units int64) {
	for i := range t.step.Asks {
		a := &t.step.Asks[i]
		if a.Cost = units; a.Penalty != nil {
			a.Cost = 1
		}
	}
}

// ask takes from the store.
func (r *replay) ask(asks []stint.Ask) error {
	for i := range asks {
		if p := asks[i].Penalty; p != nil {
			r.steps -= int(p.Threshold) / 16 // its violations are copied
		}
	}
	r.steps -= len(asks)
	r.ds = slices.Grow(r.ds[:0], len(asks))[:len(asks)]
	return r.store.Take(context.Background(), asks, r.ds) //nolint:forbidigo // a store in memory never blocks
}

// release takes for held requests that are due until a time.
func (r *replay) release(until time.Time) error {
	for len(r.held) > 0 && !r.held[0].at.After(until) && r.steps > 0 {
		t := heap.Pop(&r.held).(turn)
		r.now = t.at
		if err := r.take(t); err != nil {
			return err
		}
	}
	return nil
}

// waiting is a heap of held requests, by the time when they are due.
type waiting []turn

func (w waiting) Len() int      { return len(w) }
func (w waiting) Swap(i, j int) { w[i], w[j] = w[j], w[i] }
func (w *waiting) Push(t any)   { *w = append(*w, t.(turn)) }

func (w waiting) Less(i, j int) bool {
	return cmp.Or(w[i].at.Compare(w[j].at), cmp.Compare(w[i].seq, w[j].seq)) < 0
}

func (w *waiting) Pop() any {
	last := len(*w) - 1
	t := (*w)[last]
	(*w)[last] = turn{}
	*w = (*w)[:last]
	return t
}
