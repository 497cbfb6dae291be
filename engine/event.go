package engine

import (
	"net/netip"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
)

// Event is a verdict as it is recorded.
type Event struct {
	ID      ID
	At      time.Time
	Outcome Outcome
	// Shadow says that the request passed, and that a rule that is only tried out
	// would have refused it. Rule, Limit and the rest are about that.
	Shadow bool
	// Cached says that the decision about Limit was remembered, not counted.
	Cached bool

	User, Tenant, Key, Tier string
	IP                      netip.Addr
	Source                  identity.Source
	// Unaccepted is why credentials that were sent were not accepted.
	Unaccepted identity.Reason
	// Unknown says that the directory could not tell about the user, whose tier, limits
	// and block are therefore missing.
	Unknown bool

	Rule, Limit string // names; empty if none applied
	Endpoint    string
	Method      string
	Used, Max   int64 // of the limit
	Cost        int64
	Status      int
	RetryAfter  time.Duration
	Waited      time.Duration // how long the request was held
	Latency     time.Duration // how long it took, without that
}

// Recorder is told about verdicts. It must not block, and must not keep the request
// waiting: what it cannot take it drops, and counts. The event is the caller's: it is not to
// be changed, nor kept after Record has returned.
type Recorder interface {
	Record(e *Event)
}

// none is what an event says of a limit if none applied.
var none Limit

// tell makes the event of a verdict that took so long. It sets all fields: to clear them
// first costs as much as half of the rest.
func (v *Verdict) tell(e *Event, took time.Duration) {
	s := &v.Subject
	e.ID, e.At, e.Outcome, e.Method, e.Status, e.RetryAfter = v.ID, v.At, v.Outcome, v.Method, v.Status, v.RetryAfter
	e.User, e.Tenant, e.Key, e.Tier, e.IP, e.Source = s.User, s.Tenant, s.Key, s.Tier, s.IP, s.Source
	e.Unaccepted, e.Unknown = s.Unaccepted, s.UserError != nil
	e.Waited, e.Latency = v.Waited, took-v.Waited
	r, l := v.Rule, v.Shadowed()
	e.Shadow = l != nil
	if e.Shadow {
		r, e.RetryAfter = l.Rule, l.Decision.RetryAfter
	} else if l = v.Binding(); l == nil {
		l = &none
	}
	e.Rule = ""
	if r != nil {
		e.Rule = r.Name
	}
	d := &l.Decision
	e.Limit, e.Endpoint, e.Cost, e.Max, e.Used = l.Name, l.Endpoint, l.Cost, d.Limit, d.Limit-d.Remaining
	e.Cached = d.Basis == stint.Remembered
}
