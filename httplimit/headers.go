package httplimit

import (
	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/door/field"
)

// HeaderSet says which headers tell a client about its limits. The zero value is
// X, IETF and ID. Its method Set sets them:
//
//	func (s HeaderSet) Set(h http.Header, v *engine.Verdict)
type HeaderSet = field.Set

const (
	// X is X-RateLimit-Limit, -Remaining and -Reset, of the binding limit, and
	// X-RateLimit-Cost if the request does not cost 1.
	X = field.X
	// IETF is RateLimit-Policy and RateLimit, of all limits, as
	// draft-ietf-httpapi-ratelimit-headers-11 has them.
	IETF = field.IETF
	// None is none of them. A denied request still gets Retry-After.
	None = field.None
	// ID is Stint-Decision, the id of the decision, whether a limit applied or not.
	ID = field.ID
)

// ParseHeaderSets parses names of sets: "x", "ietf", "id", or "none" alone. No names are the
// default.
func ParseHeaderSets(names []string) (HeaderSet, error) {
	var s HeaderSet
	for _, name := range names {
		one, ok := map[string]HeaderSet{"x": X, "ietf": IETF, "id": ID, "none": None}[name]
		if s |= one; !ok || (s&None != 0 && s != None) {
			return 0, &stint.InvalidError{Field: "headers", Value: name, Want: `one or more of "x", "ietf" and "id", or "none" alone`}
		}
	}
	return s, nil
}
