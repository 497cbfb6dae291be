package stint

import (
	"strconv"
	"strings"
	"time"
)

// Charge names what a decision has charged, so that it can be changed afterwards: [Ask.Charge]. It is
// small, comparable, and has a text form that another process can read.
type Charge struct {
	// At is the instant of the charge, by the store's clock, in microseconds since the Unix epoch.
	At int64
	// Cost is how many units were charged.
	Cost int64
	// Reset is how long after At the counter would have recovered, in microseconds. It tells
	// what had been used before.
	Reset int64
	// Counter is the store's mark of the counter, by which it rejects charges of others. Zero: the charge
	// was made by another store, for the counter that the ask names.
	Counter uint32
	// Together says, in Adjust, that its change and all others with an ID that say so are one: the settlement of one
	// ticket. In a store that needs several calls for them, the first decides: if it was made before, all are
	// Repeated, and if that was with other amounts, none of them is made. It is not part of the text form.
	Together bool
	// Local says that it was charged to this process's share of the limit, while the
	// store was out of reach.
	Local bool
	// ID, if it is not empty, has a change applied once, however often it is sent within
	// [Once] or until the charge has recovered, if that is later.
	ID string
	// Keep, if it is not 0, is how long the ID is remembered at least, instead: what is not sent again for as
	// long as that takes less memory then. It is not part of the text form.
	Keep time.Duration
}

const (
	// Once is how long a store remembers the [Charge.ID] of a change at least. It is longer than a ticket of a
	// reservation is valid, also if the clocks of nodes differ.
	Once = 70 * time.Minute
	// MaxChargeID is the most bytes that a Charge.ID may have.
	MaxChargeID = 128
)

// Charge names what the decision has charged. If it has charged nothing, its Cost is 0.
func (d *Decision) Charge() Charge {
	if d.Cost <= 0 || (d.Basis != Counted && d.Basis != Leased && d.Basis != Local) {
		return Charge{}
	}
	return Charge{
		At: d.At, Cost: d.Cost, Reset: d.ResetAfter.Microseconds(), Counter: d.Counter, Local: d.Basis == Local,
	}
}

// Until returns when the counter would have recovered from the charge, in microseconds since the Unix
// epoch. From then on there is nothing left of it to give back.
func (c *Charge) Until() int64 { return c.At + c.Reset }

// KeptUntil returns, for stores, until when the ID of a change that is made now is remembered at least, in
// microseconds since the Unix epoch.
func (c *Charge) KeptUntil(now int64) int64 {
	if c.Keep > 0 {
		return now + c.Keep.Microseconds()
	}
	return max(c.Until(), now+Once.Microseconds())
}

// Amended returns the charge as it is after it was changed.
func (c Charge) Amended(by int64) Charge {
	c.Cost += by
	return c
}

const chargeWant = "the text of a charge, such as 1767225600000000.80.60000000.9f3a1c22"

// String returns the charge as [ParseCharge] reads it: when, how much, when it recovers, the store's
// mark of the counter, and, if there is one, the ID.
func (c Charge) String() string {
	b := strconv.AppendInt(nil, c.At, 10)
	b = strconv.AppendInt(append(b, '.'), c.Cost, 10)
	b = strconv.AppendInt(append(b, '.'), c.Reset, 10)
	b = strconv.AppendUint(append(b, '.'), uint64(c.Counter), 16)
	if c.Local {
		b = append(b, "l"...)
	}
	if c.ID != "" {
		b = append(append(b, '.'), c.ID...)
	}
	return string(b)
}

// ParseCharge reads what [Charge.String] returns.
func ParseCharge(text string) (Charge, error) {
	fields := strings.SplitN(text, ".", 5)
	if len(fields) < 4 {
		return Charge{}, invalid("charge", text, chargeWant)
	}
	var c Charge
	for i, p := range [...]*int64{&c.At, &c.Cost, &c.Reset} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil || strconv.FormatInt(n, 10) != fields[i] {
			return Charge{}, invalid("charge", text, chargeWant)
		}
		*p = n
	}
	mark, local := strings.CutSuffix(fields[3], "l")
	n, err := strconv.ParseUint(mark, 16, 32)
	if err != nil || strconv.FormatUint(n, 16) != mark {
		return Charge{}, invalid("charge", text, chargeWant)
	}
	c.Counter, c.Local = uint32(n), local
	if len(fields) == 5 {
		if c.ID = fields[4]; c.ID == "" {
			return Charge{}, invalid("charge", text, chargeWant)
		}
	}
	return c, c.Validate()
}

// MarshalText implements [encoding.TextMarshaler].
func (c Charge) MarshalText() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return []byte(c.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (c *Charge) UnmarshalText(text []byte) error {
	v, err := ParseCharge(string(text))
	if err == nil {
		*c = v
	}
	return err
}

// Validate reports what is wrong with the charge, as an [*InvalidError].
func (c *Charge) Validate() error {
	switch {
	case c.Cost < 1 || c.Cost > maxInt:
		return invalid("charge", c.String(), "a cost from 1 to "+strconv.FormatInt(maxInt, 10)+", of a take that was allowed")
	case c.At < 1 || c.At > maxTime:
		return invalid("charge", c.String(), "a time in microseconds since the Unix epoch")
	case c.Reset < 0 || c.Reset > maxInt:
		return invalid("charge", c.String(), "the microseconds to its recovery")
	case len(c.ID) > MaxChargeID:
		return invalid("charge", c.String(), "an ID of at most "+strconv.Itoa(MaxChargeID)+" bytes")
	case c.Keep < 0 || c.Keep > Once:
		return invalid("charge", c.Keep.String(), "a time to keep its ID from 0 to "+Once.String())
	}
	return validPart("charge", c.ID)
}

// ValidateFor reports, for stores, whether the charge is not one of the counter that has this mark,
// made by now.
func (c *Charge) ValidateFor(counter uint32, now int64) error {
	switch {
	case c.Counter != counter && c.Counter != 0:
		return invalid("charge", c.String(), "a charge of this counter: same key, algorithm and window")
	case c.At > now+MaxPlaces:
		return invalid("charge", c.String(), "a time that is not in the future")
	}
	return nil
}

// Amend changes a charge that was made before, by more (by > 0) or less (by < 0), as if its cost had
// been known then. At every later instant a window or a log shows exactly what it would show then, and
// a bucket never less. What has recovered since, or was forgotten by a reset, gives nothing back. The
// decision describes the counter afterwards.
//
// Of concurrency, less releases, and a change by 0 renews: what the charge holds is held from now on, and
// the decision names the new charge. If nothing is held any more, the decision's Cost is 0.
func (l Limit) Amend(s State, now time.Time, c Charge, by int64) (State, Decision) {
	var p Plan
	if l.compile(&p) != nil {
		return s, Decision{RetryAfter: Never}
	}
	return p.AmendState(s, micros(now), c, by)
}

// AmendState is [Limit.Amend] of the plan's limit. The time is in microseconds since the Unix epoch.
func (p *Plan) AmendState(s State, now int64, charge Charge, by int64) (State, Decision) {
	t := clamp(now, maxTime)
	if charge.At <= s.Past.at(t).Reset {
		return p.TakeState(s, now, 0)
	}
	p.advance(&s.Counter, &s.Log, t)
	by = max(-charge.Cost, min(by, maxInt))
	held := int64(0)
	switch p.limit.Algorithm {
	case FixedWindow:
		fixedAmend(&s.Counter, charge.At, by)
	case SlidingWindow:
		p.slidingAmend(&s.Counter, charge.At, by)
	case TokenBucket, LeakyBucket:
		p.bucketAmend(&s, t, &charge, by)
	case Concurrency:
		if by == 0 {
			held = p.renew(&s, t, &charge)
			break
		}
		p.logAmend(&s, t, charge.At, by)
	case SlidingLog:
		p.logAmend(&s, t, charge.At, by)
	}
	d := p.describe(&s, t)
	if held > 0 {
		d.At, d.Cost = s.At, held
	}
	return s, d
}
