package engine

import (
	"context"
	"net/netip"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
)

// Event is the record of a verdict.
type Event struct {
	ID      ID
	At      time.Time
	Outcome Outcome
	// Shadow means that what is only tried out, such as a log_only rule or a candidate, would have decided otherwise. If the
	// request passed, that would have denied it, and Rule, Limit and the fields about them are about that. If it was denied, it would
	// have passed.
	Shadow bool
	// Cached means that the decision about Limit was remembered, not counted.
	Cached bool

	User, Tenant, Key, Tier string
	IP                      netip.Addr
	Source                  identity.Source
	// Unaccepted is why credentials were rejected.
	Unaccepted identity.Reason
	// Unknown means that the lookup of the user failed, so tier, limits and block are missing.
	Unknown bool

	Rule, Limit string // names; empty if none applied
	Endpoint    string
	Method      string
	// Path is that of the request, as received. It may have a query, and keep a whole request in memory:
	// who records it copies what [rule.CleanPath] returns.
	Path       string
	Used, Max  int64 // of the limit
	Cost       int64
	Status     int
	RetryAfter time.Duration
	Waited     time.Duration // how long the request was held
	Latency    time.Duration // how long the decision took, without Waited
}

// Routine reports whether the request passed without being held, and no log_only rule would have denied it. Of such
// requests recorders may keep a sample, and of the others all: see [Receipt].Notable.
func (e *Event) Routine() bool { return routine(e.Outcome, e.Shadow) }

func routine(o Outcome, shadow bool) bool { return (o == Allowed || o == Exempt) && !shadow }

// Recorder records verdicts. It must not block: it drops and counts events that it cannot handle. It must
// not change the event, or keep it after Record has returned.
type Recorder interface {
	Record(ctx context.Context, e *Event)
}

// none is the limit of an event if none applied.
var none Limit

// fill fills in the event of a verdict. It sets every field, since clearing the event first would take
// half as long again.
func (v *Verdict) fill(e *Event, path string, took time.Duration) {
	s := &v.Subject
	e.Path = path
	e.ID, e.At, e.Outcome, e.Method, e.Status, e.RetryAfter = v.ID, v.At, v.Outcome, v.Method, v.Status, v.RetryAfter
	e.User, e.Tenant, e.Key, e.Tier, e.IP, e.Source = s.User, s.Tenant, s.Key, s.Tier, s.IP, s.Source
	e.Unaccepted, e.Unknown = s.Unaccepted, s.UserError != nil
	e.Waited, e.Latency = v.Waited, took-v.Waited
	r, l := v.Rule, v.Shadowed()
	e.Shadow = l != nil || v.Eased
	if l != nil {
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
