// Package layer holds stores around stores: each does one thing about a store
// that fails, stalls or is asked too much, and is a [stint.Store] itself. A layer
// is blind to what it wraps. The recommended stack, outermost first, as [New]
// builds it:
//
//	FailMode    when nothing can decide: let pass or deny, per ask
//	DenyCache   a denial that cannot have changed is not asked for again
//	Fallback    the store is out of reach: decide by this node's share of the limit
//	Breaker     the store fails or is slow: do not ask it for a while
//	Retry       a time limit for each call, and another attempt where that is safe
//	the store
//
// Why in this order. Retry is innermost, since only there it is known whether an
// attempt reached the store; its time limit is what a decision can cost. The
// breaker counts calls that failed after all attempts, not attempts, and its
// refusal is not worth a retry. The fallback answers for both, at once while the
// breaker is open. The deny cache is outside it: a flood against an exhausted
// limit stops there before anyone decides, and a denial of this node's own, which
// is as quick, is not remembered. FailMode is last: it answers only if no one else has, so it can be sure
// that no one counted. Any other order breaks one of these promises and is
// refused when it is built.
//
// What no layer does: decide against the store when the store has answered; send
// again a take that may have been applied; let a number that clients influence
// grow without bound; read a clock where a caller has given one.
package layer

import (
	"context"
	"errors"
	"fmt"

	"github.com/stintdev/stint"
)

// position is where a layer belongs, counted from the store.
type position int

const (
	atRetry position = iota + 1
	atBreaker
	atFallback
	atDenyCache
	atFailMode
)

var positionNames = [...]string{
	atRetry: "Retry", atBreaker: "Breaker", atFallback: "Fallback", atDenyCache: "DenyCache", atFailMode: "FailMode",
}

// placed is a layer that has a place in the order.
type placed interface{ position() position }

// check refuses what a layer may not be put around.
func check(at position, next stint.Store) error {
	if next == nil {
		return errors.New("layer: " + positionNames[at] + " around no store")
	}
	next = bare(next)
	if p, ok := next.(placed); ok && p.position() >= at {
		return fmt.Errorf("layer: %s around %s: %s", positionNames[at], positionNames[p.position()], reasons[at])
	}
	return nil
}

// bare returns a store without those who observe it.
func bare(s stint.Store) stint.Store {
	for {
		o, ok := s.(*observed)
		if !ok {
			return s
		}
		s = o.next
	}
}

// reasons say what breaks if a layer is further in than it should be.
var reasons = [...]string{
	atRetry:     "only next to the store is it known whether an attempt was applied",
	atBreaker:   "it would count answers that are not the store's",
	atFallback:  "a denial that is remembered would be taken for the store's, and what failed open would not fall back",
	atDenyCache: "what no one counted would be remembered",
	atFailMode:  "it would answer before others can",
}

// invalid is an error about an option.
func invalid(field string, value any, want string) error {
	return &stint.InvalidError{Field: "layer " + field, Value: fmt.Sprint(value), Want: want}
}

// out reports whether the error says that the store is out of reach.
func out(err error) bool {
	return err == errOpen || errors.Is(err, stint.ErrUnavailable) //nolint:errorlint // the first is the usual one while a breaker is open, and need not be searched
}

// left reports whether the caller does not want the answer any more, or its time is
// over. It gets none: else whoever leaves early enough would be let through.
func left(ctx context.Context) bool { return ctx.Err() != nil }

// canceled reports whether the caller has left before its time was over: that the
// store had not answered by then says nothing against it.
func canceled(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }
