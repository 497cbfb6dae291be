package admin

import (
	"context"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/rule"
)

// maxPreview is how many events a preview replays. Of more it reads some in each of 12 to 60 parts of the time. Tests read fewer.
var maxPreview = 20_000

const fewestParts, mostParts = 12, 60

// preview returns what a rule would have done.
func (a *API) preview(ctx context.Context, r *rule.Rule, replacing string, since time.Duration) (sim.Preview, error) {
	store, err := a.record()
	if err != nil {
		return sim.Preview{}, err
	}
	problems, err := a.checkRule(ctx, r, replacing)
	if err == nil {
		err = problems.Err()
	}
	if err != nil {
		return sim.Preview{}, err
	}
	tiers, err := a.tiers(ctx)
	if err != nil {
		return sim.Preview{}, err
	}
	o := sim.Options{Rule: *r, Tiers: tiers, Case: a.options.Engine.Rules().Case(), To: a.now().UTC()}
	o.From = o.To.Add(-since)
	window, err := sim.Window(o)
	if err != nil {
		return sim.Preview{}, err
	}
	s, err := sampler{store: store, most: maxPreview}.read(ctx, query.Range{From: o.From, To: o.To}, window)
	if err != nil {
		return sim.Preview{}, err
	}
	o.Recorded, o.Stretch, o.Missing, o.Unsampled = s.recorded, s.stretch, s.missing, a.options.Unsampled
	return sim.Run(ctx, o, s.each(func(int) {}))
}

// sampler reads events of the record for previews and replays.
type sampler struct {
	store *rollup.Store
	most  int
	told  func(read int) // called with how many more were read; nil: not
}

// sample is the events of a preview or a replay.
type sample struct {
	requests []recorded.Request // the oldest first
	recorded int64              // how many events there are, if not all were read
	stretch  time.Duration      // of a part, how much was read; 0: all of it
	missing  int64              // requests without events
}

// each iterates over the requests. Before each, told is called with how many were there before it.
func (s *sample) each(told func(done int)) iter.Seq2[recorded.Request, error] {
	return func(yield func(recorded.Request, error) bool) {
		for i := range s.requests {
			if told(i); !yield(s.requests[i], nil) {
				return
			}
		}
	}
}

// part is a part of the time of a preview, and what roll-ups count in it: nothing, while it is not rolled up.
type part struct {
	query.Range
	requests, events int64
	cut              bool // it begins within a roll-up
}

// read reads all events of a time or, if there are too many, all those of a stretch in each part of it, so that clients ask as
// often as they did. The stretches are longer, and there are fewer, if windows are long.
func (x sampler) read(ctx context.Context, r query.Range, window time.Duration) (s sample, err error) {
	points, err := countedIn(ctx, x.store, r)
	if err != nil {
		return s, err
	}
	var recorded int64
	for _, p := range points {
		recorded += p.events
	}
	if recorded <= int64(x.most) {
		found, err := x.newest(ctx, r, x.most+1)
		if err != nil {
			return s, err
		}
		if len(found) <= x.most {
			s.all(found, points)
			return s, nil
		}
	}
	parts := mostParts
	if recorded > 0 && window > 0 {
		read := float64(r.To.Sub(r.From)) * float64(x.most) / float64(recorded)
		parts = min(max(int(read/float64(4*window)), fewestParts), mostParts)
	}
	points = merged(points, parts)
	var stretches time.Duration
	for _, p := range points {
		found, stretch, err := x.part(ctx, &p, x.most/len(points))
		if err != nil {
			return s, err
		}
		if stretches += stretch; len(found) == 0 {
			s.missing += p.requests
			continue
		}
		var weight int64
		for i := range found {
			weight += max(found[i].Weight, 1)
		}
		scale := 1.0
		switch length := p.To.Sub(p.From); {
		case stretch == length: // all were read
		case p.requests > 0:
			scale = max(1, float64(p.requests)/float64(weight))
		default: // it is not rolled up
			scale = float64(length) / float64(max(stretch, time.Microsecond))
		}
		for _, q := range slices.Backward(found) {
			q.Scale, q.Part, q.PartEnd = scale, p.From, p.To
			s.requests = append(s.requests, q)
		}
	}
	s.recorded, s.stretch = max(recorded, int64(x.most)+1), stretches/time.Duration(len(points))
	return s, nil
}

// all takes all requests, the newest first. Of a roll-up that has counted more than twice as many events, some were deleted.
func (s *sample) all(found []recorded.Request, points []part) {
	slices.Reverse(found)
	s.requests = found
	i := 0
	for _, p := range points {
		var n, weight int64
		for ; i < len(s.requests) && s.requests[i].At.Before(p.To); i++ {
			n++
			weight += max(s.requests[i].Weight, 1)
		}
		if !p.cut && 2*n < p.events && p.requests > weight {
			s.missing += p.requests - weight
		}
	}
}

// countedIn returns what the roll-ups count in a time, in the smallest parts that a series has.
func countedIn(ctx context.Context, store *rollup.Store, r query.Range) ([]part, error) {
	series, err := store.Series(ctx, rollup.SeriesQuery{Range: r})
	if err != nil {
		return nil, err
	}
	whole := []part{{Range: r}}
	if len(series) == 0 || len(series[0].Points) == 0 {
		return whole, nil
	}
	points := series[0].Points
	var out []part
	for i, p := range points {
		one := part{Range: query.Range{From: query.Later(p.Start, r.From), To: r.To}, requests: p.Total, events: p.Events}
		end := r.To
		if i+1 < len(points) {
			end = points[i+1].Start
			one.To = query.Earlier(end, r.To)
		}
		if !one.From.Before(one.To) {
			continue
		}
		if one.cut = p.Start.Before(r.From); one.cut && end.After(p.Start) {
			share := float64(one.To.Sub(one.From)) / float64(end.Sub(query.Later(p.Start, r.From.Truncate(time.Minute))))
			one.requests, one.events = int64(share*float64(p.Total)), int64(share*float64(p.Events))
		}
		out = append(out, one)
	}
	if len(out) == 0 {
		return whole, nil
	}
	out[0].From = r.From
	return out, nil
}

// merged makes as many parts of about the same length, or fewer.
func merged(parts []part, most int) (out []part) {
	if len(parts) == 1 && parts[0].events == 0 { // nothing is rolled up
		p := parts[0]
		for i := range most {
			at := func(i int) time.Time { return p.From.Add(p.To.Sub(p.From) / time.Duration(most) * time.Duration(i)) }
			out = append(out, part{Range: query.Range{From: at(i), To: at(i + 1)}})
		}
		out[most-1].To = p.To
		return out
	}
	for group := range slices.Chunk(parts, (len(parts)+most-1)/most) {
		one := group[0]
		for _, p := range group[1:] {
			one.To, one.requests, one.events = p.To, one.requests+p.requests, one.events+p.events
		}
		out = append(out, one)
	}
	return out
}

// part returns about as many requests of the part as wanted, the newest first, and the length of the stretch that they are all of.
func (x sampler) part(ctx context.Context, p *part, wanted int) ([]recorded.Request, time.Duration, error) {
	length := p.To.Sub(p.From)
	at := p.Range
	if p.events > int64(wanted) {
		// Anywhere in the part, as something may happen at the start of each, but at the same place each time.
		size := time.Duration(float64(length) * float64(wanted) / float64(p.events))
		random := rand.New(rand.NewPCG(uint64(p.From.UnixNano()), 1))
		at.From = p.From.Add(time.Duration(random.Int64N(int64(length-size) + 1)))
		at.To = at.From.Add(max(size, time.Microsecond))
	}
	found, err := x.newest(ctx, at, 2*wanted)
	if err == nil && len(found) == 0 && at != p.Range { // there may be some elsewhere in the part
		at = p.Range
		found, err = x.newest(ctx, at, 2*wanted)
	}
	if n := len(found); n > 0 && n == 2*wanted {
		at.From = found[n-1].At // there may be more before it
	}
	return found, at.To.Sub(at.From), err
}

// newest returns the newest requests of a time.
func (x sampler) newest(ctx context.Context, r query.Range, most int) (out []recorded.Request, err error) {
	for page, err := range find(ctx, x.store, record.EventQuery{Range: r}, most) {
		if err != nil {
			return nil, err
		}
		for i := range page {
			e := NewEvent(&page[i])
			out = append(out, e.Request())
		}
		if x.told != nil {
			x.told(len(page))
		}
	}
	return out, nil
}

// Request converts an event to a request that can be replayed.
func (e *Event) Request() recorded.Request {
	q := recorded.Request{
		At: e.Time, Method: e.Method, Path: e.Path, Endpoint: e.Endpoint, User: e.User, Tenant: e.Tenant, Key: e.Key, Tier: e.Tier,
		IP: e.IP, Cost: e.Cost, Weight: e.Weight, Rule: e.Rule, Region: e.Region,
	}
	var outcome engine.Outcome
	if outcome.UnmarshalText([]byte(e.Outcome)) == nil {
		q.Refused, q.Rejected = !outcome.Passed(), outcome == engine.Unauthorized
	}
	for _, s := range e.Settled {
		if s.Meter == "" || s.Used == 0 {
			continue
		}
		if q.Usage == nil {
			q.Usage = map[rule.Meter]int64{}
		}
		q.Usage[rule.Meter(s.Meter)] = s.Used
	}
	return q
}
