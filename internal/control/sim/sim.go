// Package sim previews a rule: [Run] replays recorded requests against it, with its own
// counters, and the time of each request as the clock.
//
// Invariants:
//
//   - Rules are evaluated by [engine.Step] and [stint.Limit], with [memstore]: if every
//     request was recorded, the preview denies exactly what the rule would have denied.
//   - Nothing is guessed. If the record does not say whether the rule matches a request,
//     the request is unclear: it is not replayed, and a note says why. Every request matches, does not
//     match, or is unclear, and the summary says how many.
//   - A request that was read for others of its time counts for them in sums, but is replayed as one:
//     otherwise its client would seem to have sent them all.
//   - A request that represents several is replayed as many times, at the same instant.
//   - A request that would be held and then pass is not denied. A rule that is log_only or
//     disabled is replayed as if it were enforced.
//   - Memory and time are bounded, by the number of steps, subjects, counters and held
//     requests. A note says if a bound was reached.
//
// Other rules are ignored: requests that they denied are replayed, and the rule applies as
// the only one of its group. Overrides of users and API keys are ignored, too. The package
// does not read the record itself, and changes nothing.
package sim

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/rule"
)

// Request is a recorded request.
type Request = recorded.Request

// Options configure a preview.
type Options struct {
	Rule     rule.Rule
	Tiers    []rule.Tier
	Case     rule.Case // as rules are compiled
	From, To time.Time // requests at other times are ignored; at most 366 days apart
	// Recorded is how many events the record has of this time, if it has more than are replayed, and Stretch for how long
	// those follow each other without a gap, in each part of the time.
	Recorded int64
	Stretch  time.Duration
	// Unsampled says that no requests are recorded that passed without being held.
	Unsampled bool
	// Missing is how many requests were counted of which there is no event any more.
	Missing int64
}

// Preview is the result of a replay. Numbers of requests are weighted. Those that match, those that do not match, and those that are
// unclear are all requests.
type Preview struct {
	From        time.Time `json:"from"`
	To          time.Time `json:"to"`
	Summary     string    `json:"summary"`            // in words, with the shares
	Events      int64     `json:"events"`             // that were replayed
	Recorded    int64     `json:"recorded,omitempty"` // events of this time, if not all were replayed
	Requests    int64     `json:"requests"`           // that the events represent
	Matched     int64     `json:"matched"`
	NotMatched  int64     `json:"not_matched"`
	Unclear     int64     `json:"unclear"` // whether they match
	Shares      Shares    `json:"shares"`  // of the requests
	WouldRefuse int64     `json:"would_refuse"`
	RefusedNow  int64     `json:"refused_now"`     // of those that matched
	Subjects    int64     `json:"subjects"`        // with separate counters
	Denied      int64     `json:"denied_subjects"` // of these
	Top         []Subject `json:"top"`             // most denied first
	Series      []Point   `json:"series"`
	Notes       []string  `json:"notes"` // limitations of the preview
}

// Shares is how sure a preview is: the shares of the requests that are known to match, that are known not to match, and of which it
// is not known. They are 0 if there are no requests.
type Shares struct {
	Matched    float64 `json:"matched"`
	NotMatched float64 `json:"not_matched"`
	Unclear    float64 `json:"unclear"`
}

// Subject is a subject with its own counters, such as user:alice.
type Subject struct {
	Subject     string `json:"subject"`
	Requests    int64  `json:"requests"`
	WouldRefuse int64  `json:"would_refuse"`
}

// Point is a part of a preview, from its start to that of the next.
type Point struct {
	Start       time.Time `json:"start"`
	Matched     int64     `json:"matched"`
	WouldRefuse int64     `json:"would_refuse"`
}

// The bounds of a replay.
const (
	maxSteps    = 2_000_000 // requests and their asks
	maxSubjects = 100_000   // with separate figures
	maxKeys     = 1 << 18   // counters at once
	maxHeld     = 10_000    // requests held at once
	maxUnits    = 1 << 53   // of the requests of an event; no limit is larger
	longest     = 366 * 24 * time.Hour
	maxTop      = 10
	maxPoints   = 60
)

// Run replays requests, oldest first. If the rule is invalid, the error is of type
// [rule.Problems].
func Run(ctx context.Context, o Options, requests iter.Seq2[Request, error]) (Preview, error) {
	r, err := newReplay(o)
	if err != nil {
		return Preview{}, err
	}
	return r.run(ctx, o, requests)
}

func (r *replay) run(ctx context.Context, o Options, requests iter.Seq2[Request, error]) (Preview, error) {
	for q, err := range requests {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return Preview{}, err
		}
		if q.At.Before(o.From) || !q.At.Before(o.To) {
			continue
		}
		if r.steps <= 0 {
			r.stopped = q.At
			break
		}
		if err := r.add(&q); err != nil {
			return Preview{}, err
		}
	}
	if err := r.release(o.To.Add(rule.MaxDelay)); err != nil {
		return Preview{}, err
	}
	return r.finish(), nil
}

// Window returns the longest window of the limits of the rule, for any tier.
func Window(o Options) (time.Duration, error) {
	r, err := newReplay(o)
	if err != nil {
		return 0, err
	}
	r.asksFor("")
	for i := range o.Tiers {
		r.asksFor(o.Tiers[i].Name)
	}
	return r.window, nil
}

// newSeries returns at most maxPoints empty points, at round times, and their distance.
func newSeries(from, to time.Time) ([]Point, time.Duration) {
	steps := []time.Duration{
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
	}
	step := steps[0]
	for i := 1; to.Sub(from.Truncate(step)) > maxPoints*step; i++ {
		if i < len(steps) {
			step = steps[i]
		} else {
			step *= 2
		}
	}
	var points []Point
	for at := from.Truncate(step); at.Before(to); at = at.Add(step) {
		points = append(points, Point{Start: at})
	}
	return points, step
}

// finish returns the preview.
func (r *replay) finish() Preview {
	p := r.preview
	p.Matched, p.NotMatched, p.Unclear = recorded.Whole(r.sums.matched), recorded.Whole(r.sums.not), recorded.Whole(r.sums.unclear)
	p.Requests = p.Matched + p.NotMatched + p.Unclear
	p.WouldRefuse, p.RefusedNow = recorded.Whole(r.sums.refused), recorded.Whole(r.sums.refusedNow)
	if all := float64(p.Requests); all > 0 {
		p.Shares = Shares{float64(p.Matched) / all, float64(p.NotMatched) / all, float64(p.Unclear) / all}
	}
	for i, n := range r.points {
		p.Series[i].Matched, p.Series[i].WouldRefuse = recorded.Whole(n.requests), recorded.Whole(n.refused)
	}
	p.Subjects = int64(len(r.subjects))
	p.Top = []Subject{}
	for name, n := range r.subjects {
		if n.refused > 0 {
			p.Denied++
			p.Top = append(p.Top, Subject{name, recorded.Whole(n.requests), recorded.Whole(n.refused)})
		}
	}
	slices.SortFunc(p.Top, func(a, b Subject) int {
		return cmp.Or(-cmp.Compare(a.WouldRefuse, b.WouldRefuse), -cmp.Compare(a.Requests, b.Requests), cmp.Compare(a.Subject, b.Subject))
	})
	p.Top = p.Top[:min(len(p.Top), maxTop)]
	p.Summary, p.Notes = p.summary(r.unsampled), r.notes()
	return p
}

// summary says how many requests match, do not match, and are unclear. While requests are unclear, or were not read or recorded, it
// does not say that none match.
func (p *Preview) summary(unsampled bool) string {
	var text string
	switch {
	case unsampled && p.Requests == 0:
		return "No requests were denied or delayed in this time. Those that passed are not recorded, so it is not known whether the rule matches any."
	case p.Requests == 0:
		return "No requests were recorded in this time."
	case unsampled && p.Matched == 0 && p.Unclear == 0 && p.Recorded == 0:
		return fmt.Sprintf("The rule matches none of %s that %s denied or delayed. Those that passed are not recorded, so it is not known whether it matches any of them.",
			recorded.Requests(p.Requests), recorded.Were(p.Requests))
	case p.Matched == 0 && p.Unclear == 0 && p.Recorded == 0:
		return fmt.Sprintf("The rule matches none of %s.", recorded.Requests(p.Requests))
	case p.Matched == 0 && p.Unclear == 0:
		text = fmt.Sprintf("The rule matches none of %s that were read, which stand for %s.", recorded.Count(p.Events, "event"), recorded.Requests(p.Requests))
	default:
		parts := []string{"none is known to match"}
		if p.Matched > 0 {
			parts[0] = fmt.Sprintf("%d match (%s)", p.Matched, recorded.Percent(p.Matched, p.Requests))
		}
		if p.NotMatched > 0 {
			parts = append(parts, fmt.Sprintf("%d do not match (%s)", p.NotMatched, recorded.Percent(p.NotMatched, p.Requests)))
		}
		if p.Unclear > 0 {
			parts = append(parts, fmt.Sprintf("of %d it is not known whether they match (%s)", p.Unclear, recorded.Percent(p.Unclear, p.Requests)))
		}
		last := len(parts) - 1
		text = fmt.Sprintf("Of %s, %s", recorded.Requests(p.Requests), strings.Join(parts[:last], ", "))
		if last > 0 {
			text += " and "
		}
		text += parts[last] + "."
	}
	if p.Matched > 0 {
		text += fmt.Sprintf(" Of those that match, the rule would have denied %d (%s); denied at the time: %d.", p.WouldRefuse, recorded.Percent(p.WouldRefuse, p.Matched), p.RefusedNow)
	}
	if p.Recorded > 0 {
		text += " " + recorded.Estimate(p.Events, p.Recorded)
	}
	if unsampled {
		text += " Requests that passed are not recorded, and not among these."
	}
	return text
}

// notes returns the limitations of the preview.
func (r *replay) notes() []string {
	out := []string{}
	say := func(applies bool, format string, args ...any) {
		if applies {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	say(!r.stopped.IsZero(), "There are too many events: those after %s are not included. Choose a shorter time.", r.stopped.UTC().Format(time.RFC3339))
	for why, n := range r.unclear {
		say(n > 0, "Unclear, because %s: %s.", recorded.Answer(why).Why(), recorded.Requests(recorded.Whole(n)))
	}
	say(r.off, "The rule is disabled: this is what it would do if it were enabled.")
	say(r.rule.Action == rule.LogOnly, "The rule is log_only: this is what it would deny if it were enforced.")
	say(r.rule.Action == rule.Mark, "The rule marks requests, and denies none: this is what it would mark.")
	say(r.candidate.Partial(), "The rule is in force for a part of clients: this is what it would deny if it were in force for all.")
	say(r.rule.Group != "", "Other rules of the group %s are ignored: one of them may apply to some requests instead.", r.rule.Group)
	say(r.places, "Limits of concurrency are left out: the record does not say how long requests were served.")
	say(r.sampled > 0, "%s", recorded.SampledNote(r.sampled, r.sampledFor))
	say(r.stretch > 0, "%s", recorded.StretchNote(r.stretch))
	say(4*r.window > cmp.Or(r.stretch, r.preview.To.Sub(r.preview.From)), "%s", recorded.EarlierNote(r.window, r.stretch))
	say(r.ownCost > 0, "Replayed with the cost of the rule, which differs from the recorded cost: %s.", recorded.Requests(recorded.Whole(r.ownCost)))
	say(r.recordedCost > 0, "Replayed with the recorded cost: %s.", recorded.Requests(recorded.Whole(r.recordedCost)))
	say(r.otherRefused > 0, "Denied for other reasons at the time, and replayed all the same: %s.", recorded.Requests(recorded.Whole(r.otherRefused)))
	say(r.byNetwork > 0, "Counted by network, because the recorded addresses are truncated: %s.", recorded.Requests(recorded.Whole(r.byNetwork)))
	say(r.late > 0, "Recorded out of order, and replayed at the time of the previous request: %s.", recorded.Requests(recorded.Whole(r.late)))
	say(r.full > 0, "Only included in the totals, because there are more than %d subjects: %s.", maxSubjects, recorded.Requests(recorded.Whole(r.full)))
	say(r.crowded, "More than %d requests had to be held at once: the others count as denied.", maxHeld)
	say(r.store.Stats().Evicted > 0, "There are more than %d counters, so some were reset: otherwise, more requests would be denied.", maxKeys)
	say(len(r.asksOf) > 0, "Overrides of users and API keys are ignored.")
	return out
}
