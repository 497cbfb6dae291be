package layer

import (
	"github.com/stintdev/stint"
)

// Options are the options of all layers of a stack.
type Options struct {
	Retry    RetryOptions
	Breaker  BreakerOptions
	Fallback *FallbackOptions // nil: none
	Deny     DenyCacheOptions
	Lease    LeaseOptions
	Fail     FailModeOptions
	// Observer, if not nil, is notified of calls to the store and to each layer: "store",
	// "retry", "breaker", "fallback", "denycache" and "failmode", the outermost. See [Meter].
	Observer Observer
}

// New wraps a store in the recommended layers. Closing the result closes the store.
func New(store stint.Store, o Options) (stint.Store, error) {
	s, err := store, error(nil)
	add := func(name string, f func(stint.Store) (stint.Store, error)) {
		if err == nil {
			s, err = f(s)
		}
		if err == nil && o.Observer != nil {
			s, err = Observe(s, name, o.Observer)
		}
	}
	add("store", func(s stint.Store) (stint.Store, error) { return s, nil })
	add("retry", func(s stint.Store) (stint.Store, error) { return Retry(s, o.Retry) })
	add("breaker", func(s stint.Store) (stint.Store, error) { return Breaker(s, o.Breaker) })
	if err == nil {
		s, err = Split(s) // not observed: the breaker sees the calls for parts, and the fallback those for counters
	}
	if o.Fallback != nil {
		of := *o.Fallback
		if of.Server == nil {
			of.Server = o.Breaker.Server
		}
		add("fallback", func(s stint.Store) (stint.Store, error) { return Fallback(s, of) })
	}
	add("denycache", func(s stint.Store) (stint.Store, error) { return DenyCache(s, o.Deny) })
	// Leases have a meter of their own. To observe them would take as long as to lease.
	if err == nil {
		of := o.Lease
		if of.Replicas == nil && o.Fallback != nil {
			of.Replicas = o.Fallback.Replicas
		}
		s, err = Lease(s, of)
	}
	add("failmode", func(s stint.Store) (stint.Store, error) { return FailMode(s, o.Fail) })
	if err != nil {
		return nil, err
	}
	return s, nil
}
