package layer

import (
	"github.com/stintdev/stint"
)

// Options are those of all layers of a stack.
type Options struct {
	Retry    RetryOptions
	Breaker  BreakerOptions
	Fallback *FallbackOptions // nil: none
	Deny     DenyCacheOptions
	Fail     FailModeOptions
	// Observer, if there is one, is told of calls to the store, as "store", and
	// of calls to the whole, as "stack".
	Observer Observer
}

// New puts the recommended layers around a store. Closing the result closes the
// store.
func New(store stint.Store, o Options) (stint.Store, error) {
	s, err := store, error(nil)
	add := func(f func(stint.Store) (stint.Store, error)) {
		if err == nil {
			s, err = f(s)
		}
	}
	observe := func(name string) {
		if o.Observer != nil {
			add(func(s stint.Store) (stint.Store, error) { return Observe(s, name, o.Observer) })
		}
	}
	observe("store")
	add(func(s stint.Store) (stint.Store, error) { return Retry(s, o.Retry) })
	add(func(s stint.Store) (stint.Store, error) { return Breaker(s, o.Breaker) })
	if o.Fallback != nil {
		add(func(s stint.Store) (stint.Store, error) { return Fallback(s, *o.Fallback) })
	}
	add(func(s stint.Store) (stint.Store, error) { return DenyCache(s, o.Deny) })
	add(func(s stint.Store) (stint.Store, error) { return FailMode(s, o.Fail) })
	observe("stack")
	if err != nil {
		return nil, err
	}
	return s, nil
}
