// Package stint is the vocabulary and the maths of the rate limiter: what a
// limit is, what a counter holds, and what the answer to "may one more pass?"
// is at any instant.
//
// It is the specification. [Limit.Take], [Limit.Adjust] and [Limit.Amend] are pure
// functions from a [State], a time and a cost to the next state and a [Decision];
// the conformance suite in package storetest holds every store to them, in memory
// or in Redis. The other packages share its types: [Key], [Ask], [Charge], [Store],
// and [Limiter] for programs that need no rules.
//
// # Invariants
//
//   - Integers only. Times are microseconds since the Unix epoch, and no
//     intermediate value exceeds 2^53-1, so a script language whose only number
//     is the double computes the same answers bit for bit.
//   - Rounding never favours the client.
//   - A state belongs to one algorithm and one window. It holds what was used, not
//     what is left, so a changed max or burst acts at once on the usage already
//     counted. Another window is another state.
//   - A state says itself when it has recovered ([State.Until]); from then on it
//     is the same as no state, and a store may drop it.
//   - [Decision.RetryAfter] is exact: the same ask passes at now+RetryAfter and
//     not one microsecond earlier, if nothing else comes and nothing is given back.
//   - A decision names its charge ([Decision.Charge]), and a charge that is changed
//     later leaves the counter as if its cost had been known then.
//
// # What it refuses to do
//
// It reads no clock, takes no lock, starts no goroutine and does no I/O, with
// three exceptions that say so: [Limiter.Wait] holds a timer, [Limiter.Hold] one
// that renews, and naming a time zone loads it. It imports the standard library only.
package stint

import (
	// A zone must be known on every node, also on one whose image carries no
	// zone database.
	_ "time/tzdata"
)
