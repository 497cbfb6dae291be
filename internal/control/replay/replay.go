// Package replay sends recorded requests through two rule sets at once, the live rules and a candidate, each with an engine and
// counters of its own, in virtual time: what would be decided otherwise, for whom, and when.
//
//	report, err := replay.Run(ctx, replay.Options{Live: live, Candidate: &candidate}, requests)
//
// Invariants:
//
//   - Requests are decided by [engine.Engine] and [memstore]: if every request was recorded, with all that rules look at, the
//     replay of the live rules decides each as it was decided.
//   - Two equal rule sets decide every request alike.
//   - Rules that look at what is not recorded, at headers and claims, are left out of both sets. Requests that they might decide,
//     and those of which too little is recorded, are replayed all the same, and are counted as unclear. A note says why.
//   - A request that represents several is replayed as so many, at the same instant.
//   - A request that was read for others of its time counts for them in sums, but is replayed as one: otherwise its client would
//     seem to have sent them all.
//   - Memory is bounded, by the number of counters, of requests that are held, and of names with figures of their own. A note
//     says if a bound was reached.
//
// It reads no record and no log, and changes nothing. Each region has counters of its own; rules that regions share have one for all,
// whichever way they share it. All nodes of a region count as one. Limits of concurrency are left out: the record does not say how long
// requests took.
package replay

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/virtual"
	"github.com/stintdev/stint/rule"
)

// Rules are what decides requests.
type Rules struct {
	File rule.File
	// Lists are the exemptions and bans. Directory, if not nil, returns the users, tenants and API keys as of a clock.
	Lists     identity.Lists
	Directory func(now func() time.Time) identity.Directory
	// DefaultTier and IPv6Prefix are those of [identity.Options].
	DefaultTier string
	IPv6Prefix  int
}

// Options configure a replay.
type Options struct {
	Live Rules
	// Candidate is compared with the live rules. If it is nil, these are compared with what was decided only.
	Candidate *Rules
	// From and To are the time of which requests are replayed; zero: all.
	From, To time.Time
	// Logged says that the requests are those of an access log, which does not say what Stint has decided.
	Logged bool
	// Missing is how many requests are known of which there is no event any more.
	Missing int64
	// Recorded is how many events the record has of this time, if it has more than are replayed, and Stretch for how long
	// those follow each other without a gap, in each part of the time.
	Recorded int64
	Stretch  time.Duration
	// Unsampled says that no requests are recorded that passed without being held.
	Unsampled bool
	// Top is how many rules, endpoints, tiers and subjects are listed. Default 10.
	Top int
	// Series is in how many points the time is divided at most, all of it if From and To are given. Default 60.
	Series int
	// MaxKeys is how many counters a rule set has at once. Default 1 << 22, which takes up to 320 MB.
	MaxKeys int
}

// Report is the result of a replay. Numbers of requests are weighted. Denied means that a request does not pass, for whatever
// reason.
type Report struct {
	From        time.Time `json:"from,omitzero"` // of the first request
	To          time.Time `json:"to,omitzero"`   // of the last
	Summary     string    `json:"summary"`
	Events      int64     `json:"events"`             // that were replayed
	Recorded    int64     `json:"recorded,omitempty"` // events of this time, if not all were replayed
	Requests    int64     `json:"requests"`
	DeniedThen  int64     `json:"denied_then"` // when they were recorded
	Differently int64     `json:"differently"` // decided otherwise by the live rules now than then
	Unclear     int64     `json:"unclear"`     // requests of which too little is recorded
	Live        Side      `json:"live"`
	Candidate   *Side     `json:"candidate,omitempty"`
	NewlyDenied int64     `json:"newly_denied"`
	NewlyPassed int64     `json:"newly_passed"`
	Rules       []Row     `json:"rules" nullable:"false"`
	Endpoints   []Row     `json:"endpoints" nullable:"false"`
	Tiers       []Row     `json:"tiers" nullable:"false"`
	Subjects    []Row     `json:"subjects" nullable:"false"`
	Series      []Point   `json:"series" nullable:"false"`
	Step        int64     `json:"step_seconds"`           // between points
	Notes       []string  `json:"notes" nullable:"false"` // limitations
}

// Side is what one rule set does.
type Side struct {
	Denied    int64   `json:"denied"`
	Throttled int64   `json:"throttled"`
	Waited    float64 `json:"waited_seconds"` // by all throttled requests together
	Longest   float64 `json:"longest_wait_seconds"`
	Subjects  int64   `json:"denied_subjects"` // how many different ones were denied
}

// Row is the figures of a rule, endpoint, tier or subject. The requests of a rule are those that it applied to, in the set in which
// there are more of them.
type Row struct {
	Name        string `json:"name"`
	Requests    int64  `json:"requests"`
	Live        int64  `json:"denied_live"`
	Candidate   int64  `json:"denied_candidate"`
	NewlyDenied int64  `json:"newly_denied"`
	NewlyPassed int64  `json:"newly_passed"`
	// ShadowLive and ShadowCandidate are requests that pass, and that a rule which is tried out would have denied.
	ShadowLive      int64 `json:"shadow_live,omitempty"`
	ShadowCandidate int64 `json:"shadow_candidate,omitempty"`
	// Subjects is how many different subjects a rule of the candidate has denied; of others it is 0.
	Subjects int64 `json:"denied_subjects,omitempty"`
}

// Point is a part of the time, from its start to that of the next.
type Point struct {
	Start       time.Time `json:"start"`
	Requests    int64     `json:"requests"`
	Live        int64     `json:"denied_live"`
	Candidate   int64     `json:"denied_candidate"`
	NewlyDenied int64     `json:"newly_denied"`
	NewlyPassed int64     `json:"newly_passed"`
}

const live, candidate = 0, 1

// The bounds of a replay. Tests have lower ones.
var (
	maxKeys  = 1 << 22 // counters of a rule set at once
	maxNames = 100_000 // with figures of their own, of a kind
)

// run is a call of Run.
type run struct {
	o       Options
	ctx     context.Context //nolint:containedctx // of the call of Run, which it lives as long as
	world   *virtual.World
	sides   []*side
	failed  error
	idle    []*job
	turns   []*turn
	figures figures
	first   time.Time
	// told, if it is not nil, is called with how many of the requests of an event each set denies.
	told func(event int64, denied []int64)

	// The numbers of requests in notes; sampled counts events.
	unclear                  [recorded.Answers]float64
	sampled                  int64
	sampledFor, recordedCost float64
	rejected, late           float64
	byNetwork                float64
}

// Run replays requests, oldest first. If rules are invalid, the error is of type [rule.Problems].
func Run(ctx context.Context, o Options, requests iter.Seq2[recorded.Request, error]) (Report, error) {
	return newRun(ctx, o).run(requests)
}

func newRun(ctx context.Context, o Options) *run {
	o.Top, o.Series, o.MaxKeys = cmp.Or(o.Top, 10), cmp.Or(o.Series, 60), cmp.Or(o.MaxKeys, maxKeys)
	return &run{o: o, ctx: ctx}
}

func (r *run) run(requests iter.Seq2[recorded.Request, error]) (Report, error) {
	defer func() {
		if r.world != nil {
			r.world.Close()
		}
	}()
	if err := r.begin(); err != nil {
		return Report{}, err
	}
	for q, err := range requests {
		if err = cmp.Or(err, r.ctx.Err(), r.failed); err != nil {
			return Report{}, err
		}
		if q.At.Before(r.o.From) || !r.o.To.IsZero() && !q.At.Before(r.o.To) {
			continue
		}
		r.add(&q)
	}
	const longest = time.Hour // no request is held longer
	r.world.Finish(r.world.Now().Add(longest))
	if err := cmp.Or(r.failed, r.ctx.Err()); err != nil {
		return Report{}, err
	}
	return r.report(), nil
}

// begin makes the engines. Time begins with the first request.
func (r *run) begin() error {
	r.world = virtual.New(time.Time{})
	all := []*Rules{&r.o.Live}
	if r.o.Candidate != nil {
		all = append(all, r.o.Candidate)
	}
	for _, from := range all {
		s, err := newSide(from, r.world, &r.o)
		if err != nil {
			return err
		}
		r.sides = append(r.sides, s)
	}
	r.figures.begin(r.o.Series, r.o.From, r.o.To)
	return nil
}

// add replays a request, after those that are held until then.
func (r *run) add(q *recorded.Request) {
	if r.figures.events++; r.first.IsZero() {
		r.first = q.At
	}
	times := q.Times()
	n := q.Counts(times)
	if q.Rejected {
		r.rejected += n
		return
	}
	if q.At.Before(r.world.Now()) {
		r.late += n
	} else {
		r.world.Advance(q.At)
	}
	if times > 1 {
		r.sampled++
		r.sampledFor += n
	}
	why := recorded.Yes
	for _, s := range r.sides {
		if a := s.unclear(q); a.Unclear() && !why.Unclear() {
			why = a
		}
	}
	if why.Unclear() {
		r.unclear[why] += n
	}
	j := r.newJob(q, times)
	p, ok := recorded.Network(q.IP)
	if q.IP != "" && (!ok || !p.IsSingleIP()) && slices.ContainsFunc(r.sides, func(s *side) bool { return s.byIP }) {
		r.byNetwork += n
	}
	if j.request.Cost = r.sides[live].costOf(q); j.request.Cost > 0 {
		r.recordedCost += n
	}
	for i := range r.sides {
		r.decide(j, i)
	}
	if j.open--; j.open == 0 {
		r.settle(j)
	}
}

// report returns the report.
func (r *run) report() Report {
	p := r.figures.report(r.o.Top, len(r.sides))
	p.From, p.To, p.Recorded = r.first.UTC(), r.figures.last.UTC(), r.o.Recorded
	for _, n := range r.unclear {
		p.Unclear += recorded.Whole(n)
	}
	if r.o.Logged {
		p.DeniedThen, p.Differently = 0, 0
	}
	p.Summary, p.Notes = r.summary(&p), r.notes()
	return p
}

func (r *run) summary(p *Report) string {
	switch {
	case p.Requests == 0 && r.o.Unsampled:
		return "No requests were denied or delayed in this time. Those that passed are not recorded."
	case p.Requests == 0:
		return "No requests were recorded in this time."
	}
	text := fmt.Sprintf("Of %s, the live rules deny %d (%s)", recorded.Requests(p.Requests), p.Live.Denied, recorded.Percent(p.Live.Denied, p.Requests))
	if p.Candidate == nil {
		text += "."
	} else {
		text += fmt.Sprintf(", and the candidate %d (%s). It newly denies %d and newly passes %d.",
			p.Candidate.Denied, recorded.Percent(p.Candidate.Denied, p.Requests), p.NewlyDenied, p.NewlyPassed)
	}
	if !r.o.Logged {
		text += fmt.Sprintf(" At the time, %d were denied", p.DeniedThen)
		if p.Differently > 0 {
			text += fmt.Sprintf("; %d %s decided otherwise than by the live rules now", p.Differently, recorded.Were(p.Differently))
		}
		text += "."
	}
	if p.Recorded > 0 {
		text += " " + recorded.Estimate(p.Events, p.Recorded)
	}
	return text
}

// notes returns the limitations of the report.
func (r *run) notes() []string {
	out := []string{}
	say := func(applies bool, format string, args ...any) {
		if applies {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	left, places, window, evicted, regions := map[string]bool{}, false, time.Duration(0), false, false
	for _, s := range r.sides {
		for _, name := range s.left {
			left[name] = true
		}
		places, regions = places || s.places, regions || s.regions && len(s.engines) > 1
		window = max(window, s.window)
		evicted = evicted || s.store.Stats().Evicted > 0
	}
	const most = 5
	names := sortedKeys(left)
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("%d more", len(left)-most))
	}
	say(len(left) > 0, "Left out, because headers and claims are not recorded: %s.", strings.Join(names, ", "))
	for why, n := range r.unclear {
		say(n > 0, "Unclear, because %s: %s.", recorded.Answer(why).Why(), recorded.Requests(recorded.Whole(n)))
	}
	say(r.o.Missing > 0, "Not replayed, because %s: %s.", recorded.UnclearMissing.Why(), recorded.Requests(r.o.Missing))
	say(r.rejected > 0, "Not replayed, because their credentials were rejected: %s.", recorded.Requests(recorded.Whole(r.rejected)))
	say(places, "Limits of concurrency are left out: it is not recorded how long requests were served.")
	say(regions, "Rules that regions share have one counter for all of them: a region may have denied before, when its part was used up.")
	say(r.o.Unsampled, "Requests that pass without being held are not recorded, so they are not replayed: more may be newly denied.")
	say(r.sampled > 0, "%s", recorded.SampledNote(r.sampled, r.sampledFor))
	say(r.o.Stretch > 0, "%s", recorded.StretchNote(r.o.Stretch))
	say(4*window > cmp.Or(r.o.Stretch, r.figures.last.Sub(r.first)), "%s", recorded.EarlierNote(window, r.o.Stretch))
	say(r.recordedCost > 0, "Replayed with the recorded cost: %s.", recorded.Requests(recorded.Whole(r.recordedCost)))
	say(r.byNetwork > 0, "Counted by what is recorded of the address: %s.", recorded.Requests(recorded.Whole(r.byNetwork)))
	say(r.late > 0, "Recorded out of order, and replayed at the time of the previous request: %s.", recorded.Requests(recorded.Whole(r.late)))
	say(r.figures.full(), "There are more than %d subjects, endpoints, tiers or rules: those with few denied requests are not listed, and requests of others may be more than are shown.", maxNames)
	say(evicted, "There are more than %d counters, so some were reset: otherwise, more requests would be denied.", r.o.MaxKeys)
	return out
}
