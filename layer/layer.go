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
// is as quick, is not remembered. FailMode is last: it has the last word on what no
// store has counted. Any other order breaks one of these promises and is rejected when
// it is built ([Check]). A layer of your own has a [Place] too; the example of [Layer]
// shows one.
//
// What no layer does: decide against the store when the store has answered; send
// again a take that may have been applied; let a number that clients influence
// grow without bound; read a clock where a caller has given one.
package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/stintdev/stint"
)

// Place is where a layer stands, counted from the store: a layer goes around what has a
// lower place, and around nothing else. There is room between the places of this
// package for layers of others.
type Place int

// The places of this package's layers. A store that is no layer has place 0.
const (
	PlaceRetry     Place = 100
	PlaceBreaker   Place = 200
	PlaceFallback  Place = 300
	PlaceDenyCache Place = 400
	PlaceFailMode  Place = 500
)

// Layer is a store around a store.
type Layer interface {
	stint.Store
	Place() Place
}

// PlaceOf returns the place of a store: that of its outermost layer, or 0 if it has none.
func PlaceOf(s stint.Store) Place {
	if l, ok := s.(Layer); ok {
		return l.Place()
	}
	return 0
}

// Check reports why a layer of the place may not go around a store. The constructor of a
// layer calls it.
func Check(place Place, next stint.Store) error {
	if next == nil {
		return fmt.Errorf("layer: %v around no store", place)
	}
	if inner := PlaceOf(next); inner >= place {
		return fmt.Errorf("layer: %v around %v: %s", place, inner, cmp.Or(places[place].reason, "its place is further in"))
	}
	return nil
}

// places names the places of this package, and says what breaks if a layer is further out
// than it should be.
var places = map[Place]struct{ name, reason string }{
	PlaceRetry:     {"Retry", "only next to the store is it known whether an attempt was applied"},
	PlaceBreaker:   {"Breaker", "it would count answers that are not the store's"},
	PlaceFallback:  {"Fallback", "a denial that is remembered would be taken for the store's, and what failed open would not fall back"},
	PlaceDenyCache: {"DenyCache", "what no one counted would be remembered"},
	PlaceFailMode:  {"FailMode", "it would answer before others can"},
}

// String returns the name of the layer that has the place, or the number.
func (p Place) String() string {
	if at, ok := places[p]; ok {
		return at.name
	}
	return "place " + strconv.Itoa(int(p))
}

// invalid is an error about an option.
func invalid(field string, value any, want string) error {
	return &stint.InvalidError{Field: "layer " + field, Value: fmt.Sprint(value), Want: want}
}

// unreachable reports whether the error says that the store is out of reach.
func unreachable(err error) bool {
	return err == errOpen || errors.Is(err, stint.ErrUnavailable) //nolint:errorlint // the first is the usual one while a breaker is open, and need not be searched
}

// canceled reports whether the caller has left before its time was over: that the
// store had not answered by then says nothing against it.
func canceled(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }
