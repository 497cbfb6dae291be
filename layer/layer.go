// Package layer wraps stores. Each layer handles one problem of a store that fails, stalls or is
// overloaded, and is a [stint.Store] itself. A layer does not depend on what it wraps. The recommended
// stack, outermost first, as [New] builds it:
//
//	FailMode    allows or denies, per ask, what could not be counted
//	Lease       takes units ahead and spends them in memory, for asks that allow it
//	DenyCache   remembers denials that cannot have changed, for equal takes
//	Fallback    decides with this node's share of the limit if the store cannot be reached
//	Split       divides the counters that are too busy for one server
//	Breaker     stops calling a store that fails or is slow
//	Retry       limits the time of each call, and retries where that is safe
//	the store
//
// The order matters. Retry is innermost, since only there is it known whether an attempt reached the
// store. The breaker counts calls that failed after all attempts, not single attempts, and its errors
// are not retried. Split is outside of it, so that a breaker is that of the server of a part, and what it
// rejects goes to other parts. The fallback handles the errors of both, and decides at once while the breaker is
// open. The deny cache is outside of it, so a flood against an exhausted limit ends there. It does not
// remember denials by the fallback, which is as fast. Leases are outside of that, since what is leased needs
// no other layer. FailMode is outermost, and decides what no store
// has counted. [Check] rejects any other order. Your own layers have a [Place] too; see the example of
// [Layer].
//
// No layer overrides a decision of the store, repeats a take that may have been applied, keeps a number
// of entries that clients can grow without bound, or reads a clock where the caller has provided one.
package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/stintdev/stint"
)

// Place is the position of a layer, counted from the store. A layer can only wrap what has a lower
// place. The gaps between the places of this package are for your own layers.
type Place int

// The places of this package's layers. A store that is not a layer has place 0.
const (
	PlaceRetry     Place = 100
	PlaceBreaker   Place = 200
	PlaceSplit     Place = 250
	PlaceFallback  Place = 300
	PlaceDenyCache Place = 400
	PlaceLease     Place = 450
	PlaceFailMode  Place = 500
)

// Layer is a store that wraps another.
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

// Check returns an error if a layer with this place must not wrap the store. Constructors of layers
// call it.
func Check(place Place, next stint.Store) error {
	if next == nil {
		return fmt.Errorf("layer: %v around no store", place)
	}
	if inner := PlaceOf(next); inner >= place {
		return fmt.Errorf("layer: %v around %v: %s", place, inner, cmp.Or(places[place].reason, "it belongs further inside"))
	}
	return nil
}

// places has the names of this package's places, and what breaks if a layer is too far outside.
var places = map[Place]struct{ name, reason string }{
	PlaceRetry:     {"Retry", "only next to the store is it known whether an attempt was applied"},
	PlaceBreaker:   {"Breaker", "it would count results that are not the store's"},
	PlaceSplit:     {"Split", "others would see parts of a counter, and not the counter"},
	PlaceFallback:  {"Fallback", "a remembered denial would look like the store's, and what failed open would not fall back"},
	PlaceDenyCache: {"DenyCache", "denials that were not counted would be remembered"},
	PlaceLease:     {"Lease", "it would take ahead what could not be counted"},
	PlaceFailMode:  {"FailMode", "it would decide before other layers can"},
}

// String returns the name of the layer that has the place, or the number.
func (p Place) String() string {
	if at, ok := places[p]; ok {
		return at.name
	}
	return "place " + strconv.Itoa(int(p))
}

// invalid returns an error about an option.
func invalid(field string, value any, want string) error {
	return &stint.InvalidError{Field: "layer " + field, Value: fmt.Sprint(value), Want: want}
}

// unreachable reports whether the error says that the store cannot be reached.
func unreachable(err error) bool {
	return err == errOpen || errors.Is(err, stint.ErrUnavailable) //nolint:errorlint // fast path: the usual error while a breaker is open
}

// canceled reports whether the caller has cancelled the call, which says nothing about the store.
func canceled(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }
