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
	// Shadow means that the request passed, and that a log_only rule would have denied it:
	// Rule, Limit and the rest are about that rule.
	Shadow bool
	// Cached means that the decision is from a cache, not from a count.
	Cached bool

	User, Tenant, Key, Tier string
	IP                      string // or a part of it, or its hash, as the settings say

	Rule, Limit string
	Endpoint    string // the pattern that matched
	Method      string
	Used, Max   int64 // of the limit
	Cost        int64
	Status      int
	RetryAfter  time.Duration // or stint.Never
	Waited      time.Duration
	Latency     time.Duration

	Region, Node string
	// Weight is how many decisions it stands for: of those that passed, a sample is stored.
	Weight int64
}

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

// outcomes are the outcomes by name.
var outcomes = func() map[string]engine.Outcome {
	out := map[string]engine.Outcome{}
	for o := engine.Allowed; o <= engine.Unavailable; o++ {
		out[o.String()] = o
	}
	return out
}()

// ParseOutcome returns the outcome of a name, as its String writes it.
func ParseOutcome(name string) (o engine.Outcome, ok bool) {
	o, ok = outcomes[name]
	return o, ok
}

// CheckOutcome reports a name that is neither empty nor that of an outcome.
func CheckOutcome(p *strict.Report, name string) {
	if name != "" {
		words := make([]string, len(outcomes))
		for word, o := range outcomes {
			words[o] = word
		}
		query.CheckWord(p, "outcome", name, words)
	}
}
