// Package sim previews a rule: [Run] replays recorded requests against it, with its own
// counters, and the time of each request as the clock.
//
// Invariants:
//
//   - Rules are evaluated by [engine.Step] and [stint.Limit], with [memstore]: if every
//     request was recorded, the preview denies exactly what the rule would have denied.
//   - Nothing is guessed. If the record does not say whether the rule matches a request,
//     the request is unclear: it is not replayed, and a note says why.
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
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// Request is a recorded request.
type Request struct {
	At     time.Time
	Method string
	// Endpoint is the path pattern of the rule that decided. It is empty if that rule had
	// none.
	Endpoint                string
	User, Tenant, Key, Tier string
	// IP is an address, a network, or a hash.
	IP string
	// Cost is the units that it was charged; 0 if there was no limit.
	Cost int64
	// Weight is the number of requests that it represents; 0 is 1.
	Weight int64
	// Refused says that it was denied, and RefusedBy by which rule, if any.
	Refused   bool
	RefusedBy string
}

// Options configure a preview.
type Options struct {
	Rule     rule.Rule
	Tiers    []rule.Tier
	Case     rule.Case // as rules are compiled
	From, To time.Time // requests at other times are ignored; at most 366 days apart
}

// Preview is the result of a replay. Numbers of requests are weighted.
type Preview struct {
	From        time.Time `json:"from"`
	To          time.Time `json:"to"`
	Events      int64     `json:"events"`
	Requests    int64     `json:"requests"` // that the events represent
	Matched     int64     `json:"matched"`
	WouldRefuse int64     `json:"would_refuse"`
	RefusedNow  int64     `json:"refused_now"` // of those that matched
	Unclear     int64     `json:"unclear"`     // whether they match
	Subjects    int64     `json:"subjects"`    // with separate counters
	Top         []Subject `json:"top"`         // most denied first
	Series      []Point   `json:"series"`
	Notes       []string  `json:"notes"` // limitations of the preview
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
	longest     = 366 * 24 * time.Hour
	maxTop      = 10
	maxPoints   = 60
	maxWeight   = 1 << 32 // so that no sum of weights overflows
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
	p.Subjects = int64(len(r.subjects))
	p.Top = []Subject{}
	for _, s := range r.subjects {
		if s.WouldRefuse > 0 {
			p.Top = append(p.Top, *s)
		}
	}
	slices.SortFunc(p.Top, func(a, b Subject) int {
		return cmp.Or(-cmp.Compare(a.WouldRefuse, b.WouldRefuse), -cmp.Compare(a.Requests, b.Requests), cmp.Compare(a.Subject, b.Subject))
	})
	p.Top = p.Top[:min(len(p.Top), maxTop)]
	p.Notes = r.notes()
	return p
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
		say(n > 0, "Unclear, because %s: %s.", whys[why], requests(n))
	}
	say(r.off, "The rule is disabled: this is what it would do if it were enabled.")
	say(r.rule.Action == rule.LogOnly, "The rule is log_only: this is what it would deny if it were enforced.")
	say(r.rule.Group != "", "Other rules of the group %s are ignored: one of them may apply to some requests instead.", r.rule.Group)
	say(r.places, "Limits of concurrency are left out: the record does not say how long requests were served.")
	say(r.sampled > 0, "Requests that passed were sampled, and many of one client in a second are one event: %s for %s, which are replayed at the same instant. Short bursts look larger than they were.",
		count(r.sampled, "event"), requests(r.sampledFor))
	say(4*r.window > r.preview.To.Sub(r.preview.From), "Counters are empty at the start, and windows are up to %v long: with earlier usage, more requests would be denied.", stint.Every(r.window))
	say(r.ownCost > 0, "Replayed with the cost of the rule, which differs from the recorded cost: %s.", requests(r.ownCost))
	say(r.recordedCost > 0, "Replayed with the recorded cost: %s.", requests(r.recordedCost))
	say(r.otherRefused > 0, "Denied for other reasons at the time, and replayed all the same: %s.", requests(r.otherRefused))
	say(r.byNetwork > 0, "Counted by network, because the recorded addresses are truncated: %s.", requests(r.byNetwork))
	say(r.late > 0, "Recorded out of order, and replayed at the time of the previous request: %s.", requests(r.late))
	say(r.full > 0, "Only included in the totals, because there are more than %d subjects: %s.", maxSubjects, requests(r.full))
	say(r.crowded, "More than %d requests had to be held at once: the others count as denied.", maxHeld)
	say(r.store.Stats().Evicted > 0, "There are more than %d counters, so some were reset: otherwise, more requests would be denied.", maxKeys)
	say(len(r.asksOf) > 0, "Overrides of users and API keys are ignored.")
	return out
}

func requests(n int64) string { return count(n, "request") }

func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
