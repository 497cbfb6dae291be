package sim

import (
	"cmp"
	"container/heap"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/rule"
)

// replay is a call of Run.
type replay struct {
	candidate rule.Rule
	off       bool // the candidate is switched off

	set     *rule.Set
	rule    *rule.Compiled
	values  *rule.Set // the rule's limits only
	matcher *recorded.Matcher
	by      []rule.Dimension
	asksOf  map[string][]stint.Ask

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
	sums     struct{ matched, not, unclear, refused, refusedNow float64 }
	points   []tally // of the series
	apart    []cover // each of the points
	part     time.Time
	cover    []cover // of the part
	subjects map[string]*tally
	stopped  time.Time     // zero: everything was replayed
	window   time.Duration // the longest window of a limit
	stretch  time.Duration // for which events follow each other; 0: they all do
	crowded  bool          // too many requests had to be held
	places   bool          // the rule has limits of concurrency
	seq      int64         // of the last request that was held
	// unsampled: no requests are recorded that passed without being held.
	unsampled bool

	// The numbers of requests in notes; sampled counts events.
	unclear                           [recorded.Answers]float64
	sampled                           int64
	sampledFor, ownCost, recordedCost float64
	otherRefused, byNetwork           float64
	late, full                        float64
}

// cover is a point that a part of the time covers, and how much of the part that is.
type cover struct {
	point *tally
	share float64
}

// covers returns the points of a request.
func (r *replay) covers(q *Request) []cover {
	first, last := r.pointAt(q.At), r.pointAt(q.PartEnd)
	if q.Part.IsZero() || !q.Part.Before(q.PartEnd) {
		return r.apart[first : first+1]
	}
	if q.Part.Equal(r.part) {
		return r.cover
	}
	r.part, r.cover = q.Part, nil
	for i := r.pointAt(q.Part); i <= last; i++ {
		start := r.preview.Series[i].Start
		from, to := start, start.Add(r.step)
		if from.Before(q.Part) {
			from = q.Part
		}
		if to.After(q.PartEnd) {
			to = q.PartEnd
		}
		if share := float64(to.Sub(from)) / float64(q.PartEnd.Sub(q.Part)); share > 0 {
			r.cover = append(r.cover, cover{&r.points[i], share})
		}
	}
	return r.cover
}

// pointAt returns the index of the point of a time.
func (r *replay) pointAt(t time.Time) int {
	return min(max(int(t.Sub(r.preview.Series[0].Start)/r.step), 0), len(r.points)-1)
}

// tally is some requests: those that match, and those of them that would be refused.
type tally struct{ requests, refused float64 }

func newReplay(o Options) (*replay, error) {
	if took := o.To.Sub(o.From); took <= 0 || took > longest {
		return nil, &stint.InvalidError{Field: "from", Value: o.From.Format(time.RFC3339), Want: "a time before to, which is " +
			o.To.Format(time.RFC3339) + ", and at most 366 days before"}
	}
	r := &replay{
		candidate: o.Rule, unsampled: o.Unsampled, steps: maxSteps, now: o.From,
		asksOf: map[string][]stint.Ask{}, subjects: map[string]*tally{},
	}
	r.off = o.Rule.Enabled != nil && !*o.Rule.Enabled
	r.candidate.Enabled, r.candidate.Replaces = nil, "" // the rule that it may replace is not here
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
	only.Match, only.CountBy, only.Penalty, only.Group, only.Enforce, only.Rollout = rule.Match{Tiers: o.Rule.Match.Tiers}, nil, nil, "", 0, nil
	if r.values, err = compile(only); err != nil {
		return nil, err
	}
	if r.matcher, err = recorded.NewMatcher(&r.candidate, r.set, r.by); err != nil {
		return nil, err
	}
	r.preview.From, r.preview.To = o.From.UTC(), o.To.UTC()
	r.preview.Series, r.step = newSeries(r.preview.From, r.preview.To)
	r.points = make([]tally, len(r.preview.Series))
	for i := range r.points {
		r.apart = append(r.apart, cover{&r.points[i], 1})
	}
	r.preview.Recorded, r.stretch = o.Recorded, o.Stretch
	r.sums.unclear = float64(max(o.Missing, 0))
	r.unclear[recorded.UnclearMissing] = r.sums.unclear
	r.store, err = memstore.New(memstore.Options{MaxKeys: maxKeys, Now: func() time.Time { return r.now }})
	return r, err
}

// add replays a request, after held requests that are due.
func (r *replay) add(q *Request) error {
	if err := r.release(q.At); err != nil {
		return err
	}
	r.steps--
	weight := q.Times()
	n := q.Counts(weight)
	p := &r.preview
	p.Events++
	before := r.matcher.Steps()
	subject, a := r.matcher.Match(q)
	r.steps -= (r.matcher.Steps() - before) / 16
	cost := r.costOf(q)
	switch a {
	case recorded.No:
		r.sums.not += n
		return nil
	case recorded.Yes:
	default:
		r.sums.unclear += n
		r.unclear[a] += n
		return nil
	}
	if q.At.Before(r.now) {
		r.late += n
	} else {
		r.now = q.At
	}
	if weight > 1 {
		r.sampled++
		r.sampledFor += float64(weight)
	}
	points := r.covers(q)
	r.sums.matched += n
	for _, c := range points {
		c.point.requests += n * c.share
	}
	if q.Refused {
		r.sums.refusedNow += n
		if q.Rule != r.rule.Name {
			r.otherRefused += n
		}
	}
	t := turn{event: p.Events, points: points, left: weight, scale: q.Counts(1), of: r.subject(subject)}
	if t.of != nil {
		t.of.requests += n
	} else {
		r.full += n
	}
	switch r.rule.Action {
	case rule.Block:
		r.refuse(&t, weight)
		return nil
	case rule.Allow:
		return nil
	default:
	}
	if p, ok := recorded.Network(q.IP); ok && !p.IsSingleIP() && slices.Contains(r.by, "ip") {
		r.byNetwork += n
	}
	switch own := max(r.candidate.Cost.Units, 1); {
	case cost != own:
		r.recordedCost += n
	case q.Cost > 0 && q.Cost != own:
		r.ownCost += n
	}
	t.step.Asks, t.cost = slices.Clone(r.asksFor(q.Tier)), cost
	for i := range t.step.Asks {
		t.step.Asks[i].Key.Subject = subject
	}
	t.step.Hits = []rule.Hit{{Rule: r.rule, To: len(t.step.Asks)}}
	return r.take(t)
}

// subject returns the figures of a subject, or nil if there are too many.
func (r *replay) subject(name string) *tally {
	s := r.subjects[name]
	if s == nil && len(r.subjects) < maxSubjects {
		s = new(tally)
		r.subjects[name] = s
	}
	return s
}

// costOf returns the cost of a request. If a header sets it, only the recorded cost is
// known.
func (r *replay) costOf(q *Request) int64 {
	own := max(r.candidate.Cost.Units, 1)
	switch {
	case q.Cost <= 0 || q.Cost == own:
		return own
	case r.candidate.Cost.Header != "":
		return min(q.Cost, r.candidate.Cost.Max)
	case own > 1:
		return own
	default:
		return min(q.Cost, maxUnits)
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
	event  int64 // their number
	points []cover
	of     *tally      // nil: there are too many subjects
	scale  float64     // how many requests each of them stands for in sums
	step   engine.Step // of the next of them
	cost   int64       // of each
	left   int64       // how many are left
	at     time.Time   // when they are due again
	seq    int64       // orders those with the same time
}

func (r *replay) refuse(t *turn, n int64) {
	sum := float64(n) * t.scale
	r.sums.refused += sum
	for _, c := range t.points {
		c.point.refused += sum * c.share
	}
	if t.of != nil {
		t.of.refused += sum
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
