// Package recorded is what previews and replays share: requests as the record, or an access log, has them, and what can be told of
// them.
//
// Nothing is guessed: headers and claims are not recorded, and of paths and addresses perhaps only a part. Where that does not tell
// whether a rule matches, the [Answer] is unclear, and says why. The package reads no record and decides no request.
package recorded

import (
	"fmt"
	"math"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/rule"
)

// Request is a recorded request.
type Request struct {
	At     time.Time
	Method string
	// Path is that of the request, in which {name} is any part, and ** at the end any number of them. It is empty
	// if it was not recorded; then the rest is told by Endpoint, the path pattern of the rule that decided, which is empty if that
	// rule had none.
	Path, Endpoint          string
	User, Tenant, Key, Tier string
	// IP is an address, a network, or a hash.
	IP string
	// Cost is the units that it was charged; 0 if there was no limit. Usage is what it has used in the end, by meter.
	Cost  int64
	Usage map[rule.Meter]int64
	// Weight is the number of requests that it represents; 0 is 1.
	Weight int64
	// Scale is how many requests of a part of the time each of these stands for, because the others were not read; 0 is 1.
	// Part and PartEnd are that part, and 0 if it is At.
	Scale         float64
	Part, PartEnd time.Time
	// Refused says that it was denied, Rejected that its credentials were, and Rule by which rule it was decided, if any.
	Refused, Rejected bool
	Rule              string
	// Region is where it was decided; empty: there are none.
	Region string
}

// Counts returns how many requests n of them count for in sums.
func (q *Request) Counts(n int64) float64 {
	if q.Scale > 0 {
		return float64(n) * q.Scale
	}
	return float64(n)
}

// MaxWeight is the largest weight of a request, so that no sum of weights overflows.
const MaxWeight = 1 << 32

// Times returns how many requests it represents.
func (q *Request) Times() int64 { return min(max(q.Weight, 1), MaxWeight) }

// SampledNote is the note about events that represent several requests.
func SampledNote(events int64, requests float64) string {
	return fmt.Sprintf("Requests that passed were sampled, and many of one client in a second are one event: %s for %s, which are replayed at the same instant. Short bursts look larger than they were.",
		Count(events, "event"), Requests(Whole(requests)))
}

// Estimate says that figures are estimates, because not all events of a time were read.
func Estimate(read, of int64) string {
	return fmt.Sprintf("These are estimates from %d of %s, read evenly from the whole time.", read, Count(of, "event"))
}

// StretchNote is the note about events that stand for the others of their part of the time.
func StretchNote(stretch time.Duration) string {
	return fmt.Sprintf("Not all events were read: of each part of the time, only those of about %v, which stand for the others.", stretch.Round(time.Millisecond))
}

// EarlierNote is the note about usage before the first request that was read or, if not all were, before that of each stretch.
func EarlierNote(window, stretch time.Duration) string {
	start := "at the start"
	if stretch > 0 {
		start = "at the start of each of these"
	}
	return fmt.Sprintf("Counters are empty %s, and windows are up to %v long: with earlier usage, more requests would be denied.", start, stint.Every(window))
}

// Whole returns a number of requests, of which each may have counted for a part.
func Whole(n float64) int64 { return int64(math.Round(n)) }

// Requests returns a number of requests in words.
func Requests(n int64) string { return Count(n, "request") }

// Count returns a number with a noun.
func Count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Were returns the verb for a number of requests.
func Were(n int64) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

// Percent returns a share that is only written as 0 % or 100 % if it is.
func Percent(n, of int64) string {
	share := 100 * float64(n) / float64(of)
	switch {
	case n > 0 && share < 0.1:
		return "less than 0.1 %"
	case n < of && share > 99.9:
		return "more than 99.9 %"
	case n == 0 || n == of || share >= 10 && share <= 90:
		return fmt.Sprintf("%.0f %%", share)
	default:
		return fmt.Sprintf("%.1f %%", share)
	}
}
