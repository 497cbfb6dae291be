package rlqs

import (
	"math"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/layer"
)

const (
	// margin is how much earlier than its window an assignment ends, since it takes a while to reach Envoy, whose time
	// for it begins then.
	margin = 20 * time.Millisecond
	// slack is how long after the end of an assignment a report is thought to include all that was done under it.
	slack = 100 * time.Millisecond
	// idle is how long a bucket has no requests until Envoy is told to forget it.
	idle = 10 * time.Second
	// silent is how long a bucket is served without a report, or three times as long as its last report took, up to
	// longest.
	silent, longest = 10 * time.Second, 5 * time.Minute
	// soonest is how long it is at least between two assignments of a bucket that Envoy has not asked for by a report.
	soonest = 100 * time.Millisecond
	// maxLive is how many assignments of a bucket are remembered. Those before stay charged.
	maxLive = 64
	// maxAssigned is how many requests an assignment has at most: the protocol has 32 bits.
	maxAssigned = math.MaxUint32
)

// bucket is a bucket of one Envoy.
type bucket struct {
	id      *quotav3.BucketId
	domain  string
	entries []descriptor.Entry // nil: it is not known yet what limits it

	// What limits it, in the configuration that was in use then.
	config *descriptor.Config
	limit  *descriptor.Limit // nil: nothing does
	banned bool
	ask    stint.Ask // for its counter, without a cost

	rate      float64       // requests per second, of late
	elapsed   time.Duration // that its last report was about
	heard     time.Time     // when that arrived
	wanted    time.Time     // when the last report with requests arrived
	remaining int64         // of the limit, as the store last said

	// All requests that were assigned, or passed without; those of them that have passed; those that were given back;
	// and those of assignments that have ended.
	given, passed, back, ended int64

	live   []assignment // the oldest first
	renew  time.Time    // when the next is due; zero: with the next report
	closed time.Time    // there is none before
	serial int64        // of the last
}

// counted reports whether it has a counter.
func (b *bucket) counted() bool { return b.ask.Key.Subject != "" }

// assignment is requests that Envoy may let pass.
type assignment struct {
	ask   stint.Ask // by which they were charged
	units int64
	until time.Time // about when Envoy ends it, at the latest
}

// report notes what Envoy has done, and returns how many requests have passed that were not assigned.
func (b *bucket) report(now time.Time, allowed, denied int64, elapsed time.Duration) (unassigned int64) {
	if n := float64(allowed) + float64(denied); n > 0 {
		// A short time says little: the first report of a bucket is about its first request.
		b.rate = max(n/max(elapsed, soonest).Seconds(), b.rate/2)
		b.wanted = now
	} else {
		b.rate /= 2
	}
	b.heard, b.elapsed = now, elapsed
	b.passed += allowed
	if b.renew.IsZero() || denied > 0 && b.passed+b.back >= b.given {
		b.renew = now
		if b.closed.After(now) {
			b.renew = b.closed
		}
	}
	unassigned = max(0, b.passed+b.back-b.given)
	b.given += unassigned
	b.ended += unassigned
	return unassigned
}

// unused returns what is to be given back of assignments that had ended before the last report was made.
//
// Some of what was reported may have passed under a later assignment. It is taken to have passed under these, so that
// nothing is given back that was used: the rest follows with the next report.
func (b *bucket) unused() (asks []stint.Ask) {
	for len(b.live) > 0 && !b.live[0].until.Add(slack).After(b.heard) {
		a := b.live[0]
		b.live = b.live[1:]
		b.ended += a.units
		if n := min(a.units, b.ended-b.passed-b.back); n > 0 {
			b.back += n
			a.ask.Cost = -n
			asks = append(asks, a.ask)
		}
	}
	return asks
}

// want returns how many requests to assign: what Envoy has in a term and a quarter, and at most its part of half of
// what remains, so that others find some. Near the limit that is one; or none, if Envoy has had no requests of late.
func (b *bucket) want(term time.Duration, sharers int64) int64 {
	inTerm, part := b.rate*term.Seconds(), b.remaining/(2*sharers)
	if part == 0 && inTerm < 0.5 {
		return 0
	}
	return max(1, min(int64(min(math.Ceil(inTerm*1.25), maxAssigned)), part))
}

// assigned notes what was just charged, between begin and now, and returns when Envoy has to stop using it.
func (b *bucket) assigned(d *stint.Decision, term time.Duration, begin, now time.Time) (until time.Time) {
	left := layer.WindowLeft(&b.ask, d)
	life := term
	if left < term+margin {
		life = left - left/1000 - margin // the store's clock may be faster
	}
	until = begin.Add(life)
	c := d.Charge()
	a := assignment{ask: b.ask, units: d.Cost, until: until}
	a.ask.Charge = &c
	if len(b.live) == maxLive {
		b.ended += b.live[0].units
		b.live = b.live[1:]
	}
	b.live = append(b.live, a)
	b.given += d.Cost
	b.remaining = d.Remaining
	b.serial++
	// It may be fewer than Envoy has in that time.
	enough := min(float64(d.Cost)/b.rate, term.Seconds()) * float64(time.Second)
	b.renew = now.Add(min(life-life/8, max(time.Duration(enough), soonest)))
	if end := now.Add(left); left < stint.Never && b.renew.After(until.Add(-margin)) {
		b.renew = end // there is nothing for the next window before it begins
	}
	return until
}

// forgotten reports whether the bucket has had no requests for so long that Envoy should forget it.
func (b *bucket) forgotten(now time.Time) bool { return now.Sub(b.wanted) >= idle }

// mute reports whether Envoy has reported nothing for so long that it gets no more.
func (b *bucket) mute(now time.Time) bool {
	return now.Sub(b.heard) >= min(max(silent, 3*b.elapsed), longest)
}
