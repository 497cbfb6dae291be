package audit

import (
	"time"

	"github.com/stintdev/stint/engine"
)

// Event is a decision as it is kept. Times are whole microseconds.
type Event struct {
	ID      engine.ID
	At      time.Time // UTC
	Outcome engine.Outcome
	// Shadow says that the request passed, and that a rule that is only tried out would
	// have refused it: Rule, Limit and the rest are about that.
	Shadow bool
	// Cached says that the decision rests on what was remembered, not on a count.
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
	// Weight is how many decisions it stands for: those that passed are a sample.
	Weight int64
}
