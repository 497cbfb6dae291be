// Package sim says what a rule would have done: [Run] replays requests that were
// recorded against it, with counters of its own and the time of each request as the
// clock.
//
// What holds:
//
//   - What a rule means is what [engine.Step] says, and the algorithms are those of
//     [stint.Limit], by way of [memstore]: where the record has every request, what is
//     refused here would have been refused.
//   - Nothing is guessed. A request of which the record does not say whether the rule
//     matches it is unclear, is not replayed, and a note says why.
//   - A request that stands for several is so many at its instant.
//   - A request that would be held and then pass is not refused. A rule that only logs,
//     or that is switched off, is replayed as if it were in force.
//   - Memory and time are bounded whatever the requests are: so many steps, subjects,
//     counters and requests that are held, and a note where that was not enough.
//
// It refuses to look at other rules: what they refused then is replayed, and in a group
// the rule is the best one. It does not know what single users and API keys have in
// place of a limit, reads no record itself, and changes nothing.
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

// Request is a request as the record has it.
type Request struct {
	At     time.Time
	Method string
	// Endpoint is the path of the rule that decided then: a pattern, or a path if it has
	// no wild segments. It is empty if that rule had none.
	Endpoint                string
	User, Tenant, Key, Tier string
	// IP is an address, a network, or a hash.
	IP string
	// Cost is the units it took then; 0 if there was no limit.
	Cost int64
	// Weight is how many requests it stands for; 0 is 1.
	Weight int64
	// Refused says that it was refused then, and RefusedBy by which rule, if by any.
	Refused   bool
	RefusedBy string
}

// Options are what is replayed.
type Options struct {
	Rule     rule.Rule
	Tiers    []rule.Tier
	From, To time.Time // requests at other times are left out; at most 366 days
}

// Preview is what a rule would have done. Numbers of requests are weighted.
type Preview struct {
	From        time.Time `json:"from"`
	To          time.Time `json:"to"`
	Events      int64     `json:"events"`   // that were looked at
	Requests    int64     `json:"requests"` // that they stand for
	Matched     int64     `json:"matched"`
	WouldRefuse int64     `json:"would_refuse"`
	RefusedNow  int64     `json:"refused_now"` // of those that matched
	Unclear     int64     `json:"unclear"`     // whether they match
	Subjects    int64     `json:"subjects"`    // that were counted apart
	Top         []Subject `json:"top"`         // most refused first
	Series      []Point   `json:"series"`
	Notes       []string  `json:"notes"` // what is to be known to read this
}

// Subject is what has a counter of its own, such as user:alice.
type Subject struct {
	Subject     string `json:"subject"`
	Requests    int64  `json:"requests"`
	WouldRefuse int64  `json:"would_refuse"`
}

// Point is the part of a preview that begins at a time.
type Point struct {
	Start       time.Time `json:"start"`
	Matched     int64     `json:"matched"`
	WouldRefuse int64     `json:"would_refuse"`
}

// The bounds of a replay.
const (
	maxSteps    = 2_000_000 // requests that are looked at, and asks that are made for them
	maxSubjects = 100_000   // that are told apart
	maxKeys     = 1 << 18   // counters at once
	maxHeld     = 10_000    // requests at once that wait until they can pass
	longest     = 366 * 24 * time.Hour
	maxTop      = 10
	maxPoints   = 60
	maxWeight   = 1 << 32 // so that no sum of weights overflows
)

// Run replays requests, the oldest first. What is wrong with the rule is an error of
// type [rule.Problems].
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

// newSeries returns at most maxPoints empty points, at round times, and the time
// between them.
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

// finish makes the preview of what was counted.
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

// notes are what is to be known to read the preview.
func (r *replay) notes() []string {
	out := []string{}
	say := func(holds bool, format string, args ...any) {
		if holds {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	say(!r.stopped.IsZero(), "There is more than can be replayed: what came after %s is not in these figures. Ask about a shorter time.", r.stopped.UTC().Format(time.RFC3339))
	for why, n := range r.unclear {
		say(n > 0, "Unclear, since %s: %s.", whys[why], requests(n))
	}
	say(r.off, "The rule is switched off: this is what it would do.")
	say(r.rule.Action == rule.LogOnly, "The rule is only tried out: this is what it would refuse if it were in force.")
	say(r.rule.Group != "", "Other rules of the group %s are not looked at: for some requests one of them may apply instead.", r.rule.Group)
	say(r.sampled > 0, "The record has a sample of requests that passed: %s for %s, which are replayed at the same instants. Short bursts look larger than they were.",
		count(r.sampled, "event"), requests(r.sampledFor))
	say(4*r.window > r.preview.To.Sub(r.preview.From), "Counters are empty at the beginning, and limits count over up to %v: with what was used before, more would be refused.", stint.Every(r.window))
	say(r.ownCost > 0, "Replayed with the units that the rule says, though others were taken then: %s.", requests(r.ownCost))
	say(r.recordedCost > 0, "Replayed with the units that were taken then: %s.", requests(r.recordedCost))
	say(r.otherRefused > 0, "Refused then for other reasons, and replayed nonetheless: %s.", requests(r.otherRefused))
	say(r.byNetwork > 0, "Counted by network, since the record does not have whole addresses: %s.", requests(r.byNetwork))
	say(r.late > 0, "Recorded in the wrong order, and replayed at the time of the one before: %s.", requests(r.late))
	say(r.full > 0, "Only in the sums, since there are more than %d subjects: %s.", maxSubjects, requests(r.full))
	say(r.crowded, "More than %d had to be held at once: those that found no place are refused.", maxHeld)
	say(r.store.Stats().Evicted > 0, "There are more than %d counters, and some began anew: without that, more would be refused.", maxKeys)
	say(len(r.asksOf) > 0, "What single users and API keys have in place of a limit is not looked at.")
	return out
}

func requests(n int64) string { return count(n, "request") }

func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
