package record

import (
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record/query"
)

// Event is a stored decision. Times are whole microseconds.
type Event struct {
	ID      engine.ID
	At      time.Time // UTC
	Outcome engine.Outcome
	// Shadow means that what is only tried out would have decided otherwise: see [engine.Event].
	Shadow bool
	// Cached means that the decision is from a cache, not from a count.
	Cached bool

	User, Tenant, Key, Tier string
	IP                      string // or a part of it, or its hash, as the settings say
	// Source is how the client was identified: the name of an [identity.Source], or [SourceGiven]. Unaccepted is why its
	// credentials were not accepted: the name of an [identity.Reason]. They are empty if that is not known.
	Source, Unaccepted string

	Rule, Limit string
	Endpoint    string // the pattern that matched
	Method      string
	// Path is that of the request, as rules match it, or what the settings keep of it. Empty, if that is not known. {name} stands
	// for a segment that is not stored, and /** for more of them.
	Path       string
	Used, Max  int64 // of the limit
	Cost       int64
	Status     int
	RetryAfter time.Duration // or stint.Never
	Waited     time.Duration
	Latency    time.Duration

	Region, Node string
	// Weight is how many decisions it stands for: of those that passed, a sample is stored.
	Weight int64
	// Settled is what became of its reservation, by rule. It is empty if it has none, or if that is not settled, or not
	// written yet. [Store.Write] leaves it out, since it is known later.
	Settled []Settlement
}

// SourceGiven is the source of clients that the caller has named: a program, in the decision API or in its middleware.
const SourceGiven = "given"

// RetryMicros returns a time until a retry in microseconds, and -1 for stint.Never.
func RetryMicros(d time.Duration) int64 {
	if d == stint.Never {
		return -1
	}
	return max(0, d.Microseconds())
}

// RetryAfter is the reverse of [RetryMicros].
func RetryAfter(micros int64) time.Duration {
	if micros < 0 {
		return stint.Never
	}
	return time.Duration(micros) * time.Microsecond
}

// ParseOutcome returns the outcome of a name, as its String writes it.
func ParseOutcome(name string) (o engine.Outcome, ok bool) {
	err := o.UnmarshalText([]byte(name))
	return o, err == nil
}

// CheckOutcome reports a name that is neither empty nor that of an outcome.
func CheckOutcome(p *strict.Report, name string) {
	if name == "" {
		return
	}
	var words []string
	for o := engine.Allowed; o <= engine.Unavailable; o++ {
		words = append(words, o.String())
	}
	query.CheckWord(p, "outcome", name, words)
}
