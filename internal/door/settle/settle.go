// Package settle carries out the calls about reservations, reserve, commit, cancel and extend, for the doors of HTTP and
// gRPC. It has the bounds of what callers may send, so that both accept the same.
//
// It reads nothing and writes nothing: each door has its own messages. It keeps nothing between calls: a ticket has all
// that is needed.
package settle

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
)

// Bounds of what callers send.
const (
	Life    = 10 * time.Minute // how long a ticket is valid, unless the call says it
	MaxLife = engine.MaxLife
	// MaxMeters is how many meters a usage has.
	MaxMeters = 16
	// MaxCost is the highest cost of a request: all stores count up to it exactly.
	MaxCost = 1<<53 - 1
	// MaxModel is how many bytes the name of a language model has.
	MaxModel = 128

	maxMethod = 32
)

// What the fields of a request want, for errors.
const (
	WantMethod  = "a method in upper case, such as GET"
	WantPath    = "a path that begins with a slash, such as /search"
	WantAddress = "an address, such as 192.0.2.1 or 2001:db8::1"
	WantID      = "at most 255 bytes without control characters"
	WantModel   = "at most 128 bytes without control characters"
	WantMeter   = "a meter, such as llm.total_tokens or response_bytes"
)

// ValidModel reports whether this can be the name of a language model, or is empty.
func ValidModel(name string) bool {
	return name == "" || len(name) <= MaxModel && identity.ValidID(name)
}

// ValidMethod reports whether a text can be the method of a request.
func ValidMethod(text string) bool {
	return text != "" && len(text) <= maxMethod && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") == ""
}

// Desk is where reservations are made and settled.
type Desk struct {
	Engine  *engine.Engine
	Tickets *engine.Tickets
}

// Reserve decides a request, and returns a ticket for what it reserves, which is valid for that long. The ticket is empty
// if there is nothing to settle.
func (d *Desk) Reserve(ctx context.Context, q engine.Request, life time.Duration) (v engine.Verdict, ticket string, err error) {
	v, r, err := d.Engine.Reserve(ctx, q)
	if err != nil || r == nil {
		return v, "", err
	}
	if ticket, err = d.Tickets.Seal(r, life); err != nil {
		// No one could settle it. If this fails, it stays charged, as every reservation that is not settled.
		_, _ = d.Engine.Cancel(context.WithoutCancel(ctx), r)
	}
	return v, ticket, err
}

// Commit settles a reservation by what was used.
func (d *Desk) Commit(ctx context.Context, ticket string, used engine.Usage) (out engine.Receipt, err error) {
	err = d.with(ticket, func(r *engine.Reservation) (err error) {
		out, err = d.Engine.Commit(ctx, r, used)
		return err
	})
	return out, err
}

// Cancel gives a reservation back.
func (d *Desk) Cancel(ctx context.Context, ticket string) (out engine.Receipt, err error) {
	err = d.with(ticket, func(r *engine.Reservation) (err error) {
		out, err = d.Engine.Cancel(ctx, r)
		return err
	})
	return out, err
}

// Extend reserves more, and returns the ticket to use from then on, whether that was allowed or not, and how long it is valid:
// for that long, or as long as the ticket before, if that is longer.
func (d *Desk) Extend(ctx context.Context, ticket string, more engine.Usage, life time.Duration) (out engine.Extension, next string, left time.Duration, err error) {
	err = d.with(ticket, func(r *engine.Reservation) (err error) {
		if err = d.Tickets.Extendable(r); err != nil {
			return err
		}
		if out, err = d.Engine.Extend(ctx, r, more); err != nil {
			return err
		}
		next, err = d.Tickets.Seal(r, life)
		left = d.Tickets.Left(r)
		return err
	})
	return out, next, left, err
}

// with opens a ticket, and does something with its reservation.
func (d *Desk) with(ticket string, do func(*engine.Reservation) error) error {
	r, err := d.Tickets.Open(ticket)
	if err != nil {
		return err
	}
	err = do(r)
	if bad := new(stint.InvalidError); errors.As(err, &bad) && bad.Field == "charge" {
		return &engine.TicketError{Problem: "what it reserved is not counted here, but in the memory of another node or of an earlier process"}
	}
	return err
}

// IsInput reports whether a call failed because of its input.
func IsInput(err error) bool {
	return errors.As(err, new(*engine.PathError)) || errors.As(err, new(*engine.TicketError)) || errors.As(err, new(*stint.InvalidError))
}
