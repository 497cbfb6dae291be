package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/link/linkpb"
)

const (
	// askBytes is what an ask takes beside its strings, and chargeBytes its charge, at most.
	askBytes, chargeBytes = 48, 80
	// maxErrorText is how many bytes of each text of an error are sent.
	maxErrorText = 1 << 10
)

// checkCall reports what is wrong with asks that are to be sent, and how many bytes they become at most.
func checkCall(asks []stint.Ask) (int, error) {
	m := measure{bytes: envelope}
	for i := range asks {
		a := &asks[i]
		m.bytes += askBytes
		m.field(len(a.Key.Subject), len(a.Key.Name), len(a.Client))
		if a.Charge != nil {
			m.bytes += chargeBytes
			m.field(len(a.Charge.ID))
		}
		if a.Penalty != nil {
			m.bytes += chargeBytes
			m.field(10 * len(a.Penalty.Multipliers))
		} else if err := m.limit(a.Limit); err != nil {
			return 0, err
		}
	}
	if len(asks) > MaxAsks {
		return 0, &stint.InvalidError{Field: "asks", Value: strconv.Itoa(len(asks)), Want: "at most " + strconv.Itoa(MaxAsks) + " for another region"}
	}
	if m.bytes > MaxMessage {
		return 0, &stint.InvalidError{Field: "asks", Value: strconv.Itoa(m.bytes) + " bytes", Want: "at most " + strconv.Itoa(MaxMessage) + " for another region"}
	}
	return m.bytes, nil
}

// copyAsks returns asks that share nothing with those of a caller who may have given up.
func copyAsks(asks []stint.Ask) []stint.Ask {
	out := slices.Clone(asks)
	for i := range out {
		if c := out[i].Charge; c != nil {
			charge := *c
			out[i].Charge = &charge
		}
		if p := out[i].Penalty; p != nil {
			penalty := *p
			penalty.Multipliers = slices.Clone(p.Multipliers)
			out[i].Penalty = &penalty
		}
		if p := out[i].Policy; p != nil {
			policy := *p
			out[i].Policy = &policy
		}
	}
	return out
}

// asks returns asks as messages. Of the policy only Split is sent: it names the counters, which the far
// region's own nodes have divided in the same way. The rest is for the layers around the caller's store.
func (s *speller) asks(asks []stint.Ask) []*linkpb.Ask {
	all := make([]linkpb.Ask, len(asks))
	out := make([]*linkpb.Ask, len(asks))
	for i := range asks {
		a, m := &asks[i], &all[i]
		m.Subject, m.Name, m.Client, m.Cost = []byte(a.Key.Subject), []byte(a.Key.Name), []byte(a.Client), a.Cost
		if p := a.Penalty; p != nil {
			m.Penalty = &linkpb.Penalty{
				Threshold: p.Threshold, Within: int64(p.Within), Cooldown: int64(p.Cooldown), Multipliers: p.Multipliers,
			}
		} else {
			m.Limit, m.LimitText = s.refer(a.Limit)
		}
		if c := a.Charge; c != nil {
			m.Charge = &linkpb.Charge{At: c.At, Cost: c.Cost, Reset_: c.Reset, Counter: c.Counter, Local: c.Local, Id: []byte(c.ID), Keep: c.Keep.Microseconds()}
		}
		if a.Policy != nil {
			m.Split = uint32(max(a.Policy.Split, 0))
		}
		out[i] = m
	}
	return out
}

// policies are those of asks from other regions, by Split. While the store is out of reach, the caller
// decides what becomes of the take.
var policies = func() (all [stint.MaxSplit + 1]stint.Policy) {
	for i := range all {
		all[i] = stint.Policy{OnFailure: stint.FailError, Split: i}
	}
	return all
}()

// asks reads asks. What is wrong with their values is for the store to say.
func (g *glossary) asks(messages []*linkpb.Ask) ([]stint.Ask, error) {
	out := make([]stint.Ask, len(messages))
	for i, m := range messages {
		a := &out[i]
		a.Key = stint.Key{Subject: string(m.GetSubject()), Name: string(m.GetName())}
		a.Client, a.Cost = string(m.GetClient()), m.GetCost()
		if p := m.GetPenalty(); p != nil {
			a.Penalty = &stint.Penalty{
				Threshold: p.GetThreshold(), Within: time.Duration(p.GetWithin()), Cooldown: time.Duration(p.GetCooldown()),
				Multipliers: p.GetMultipliers(),
			}
		} else {
			var err error
			if a.Limit, a.Plan, err = g.find(m.GetLimit(), m.GetLimitText()); err != nil {
				return nil, err
			}
		}
		if c := m.GetCharge(); c != nil {
			a.Charge = &stint.Charge{
				At: c.GetAt(), Cost: c.GetCost(), Reset: c.GetReset_(), Counter: c.GetCounter(), Local: c.GetLocal(), ID: string(c.GetId()),
				Keep: time.Duration(min(max(c.GetKeep(), -1), maxClock)) * time.Microsecond,
			}
		}
		if m.GetSplit() > stint.MaxSplit {
			return nil, refuse(BadMessage, "a limit split in %d, want at most %d", m.GetSplit(), stint.MaxSplit)
		}
		a.Policy = &policies[m.GetSplit()]
	}
	return out, nil
}

// packDecisions returns decisions as messages.
func packDecisions(ds []stint.Decision) []*linkpb.Decision {
	out := make([]*linkpb.Decision, len(ds))
	for i := range ds {
		d := &ds[i]
		out[i] = &linkpb.Decision{
			Allowed: d.Allowed, Basis: uint32(d.Basis), Counter: d.Counter, At: d.At, Cost: d.Cost,
			Limit: d.Limit, Remaining: d.Remaining, Before: d.Before,
			RetryAfter: int64(d.RetryAfter), ResetAfter: int64(d.ResetAfter), Delay: int64(d.Delay), MadeBefore: d.Repeated,
		}
	}
	return out
}

// unpackDecisions reads decisions, one for each ask.
func unpackDecisions(messages []*linkpb.Decision, ds []stint.Decision) error {
	if len(messages) != len(ds) {
		return fmt.Errorf("%d decisions about %d asks", len(messages), len(ds))
	}
	for i, m := range messages {
		if m.GetBasis() > uint32(stint.Closed) {
			return fmt.Errorf("a decision with basis %d, want at most %d", m.GetBasis(), stint.Closed)
		}
		ds[i] = stint.Decision{
			Allowed: m.GetAllowed(), Basis: stint.Basis(m.GetBasis()), Counter: m.GetCounter(), At: m.GetAt(), Cost: m.GetCost(),
			Limit: m.GetLimit(), Remaining: m.GetRemaining(), Before: m.GetBefore(),
			RetryAfter: time.Duration(m.GetRetryAfter()), ResetAfter: time.Duration(m.GetResetAfter()), Delay: time.Duration(m.GetDelay()),
			Repeated: m.GetMadeBefore(),
		}
	}
	return nil
}

// packError returns an error of a store as a message.
func packError(err error) *linkpb.Failure {
	cut := func(s string) []byte { return []byte(s[:min(len(s), maxErrorText)]) }
	f := &linkpb.Failure{Text: cut(err.Error())}
	invalid := (*stint.InvalidError)(nil)
	switch {
	case errors.As(err, &invalid):
		f.Kind = linkpb.Failure_KIND_INVALID
		f.Field, f.Value, f.Want = cut(invalid.Field), cut(invalid.Value), cut(invalid.Want)
	case errors.Is(err, stint.ErrNotApplied), errors.Is(err, stint.ErrClosed):
		f.Kind = linkpb.Failure_KIND_NOT_APPLIED
	case errors.Is(err, stint.ErrUnavailable), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		f.Kind = linkpb.Failure_KIND_UNAVAILABLE
	}
	return f
}

// unpackError reads the error of a region's store.
func unpackError(region string, f *linkpb.Failure) error {
	text := string(f.GetText())
	switch f.GetKind() {
	case linkpb.Failure_KIND_INVALID:
		return &stint.InvalidError{Field: string(f.GetField()), Value: string(f.GetValue()), Want: string(f.GetWant())}
	case linkpb.Failure_KIND_NOT_APPLIED:
		return notApplied(region, errors.New(text))
	case linkpb.Failure_KIND_UNAVAILABLE:
		return unavailable(region, errors.New(text))
	case linkpb.Failure_KIND_UNSPECIFIED:
	}
	return fmt.Errorf("region %s: %s", region, text)
}

// unavailable returns an error for a call that failed, but may have been applied.
func unavailable(region string, cause error) error {
	return fmt.Errorf("%w: region %s: %w", stint.ErrUnavailable, region, cause)
}

// notApplied returns an error for a call that failed and was not applied.
func notApplied(region string, cause error) error {
	return fmt.Errorf("%w: region %s: %w; %w", stint.ErrUnavailable, region, cause, stint.ErrNotApplied)
}
