package identity

import (
	"fmt"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
)

// RefusedError means that a request must be rejected, in HTTP with 401. It contains no
// secret and may be shown.
type RefusedError struct {
	Reason Reason
	// Key is the id of a key whose secret was right, but which is no longer valid.
	Key string
	// RetryAfter is when to try again, if the reason is KeyFailures: in HTTP with 429.
	RetryAfter time.Duration
}

func (e *RefusedError) Error() string {
	if e.Key != "" {
		return "identity: key " + e.Key + ": " + e.Reason.Text()
	}
	return "identity: " + e.Reason.Text()
}

// Reason is why a credential was not accepted. There are few, so that metrics can count
// each.
type Reason uint8

// The reasons.
const (
	NoReason Reason = iota
	NoCredentials
	Ambiguous
	Conflict
	KeyInvalid
	KeyDisabled
	KeyExpired
	KeyRevoked
	KeyUncheckable
	KeyFailures
	TokenScheme
	TokenTooLong
	TokenMalformed
	TokenAlgorithm
	TokenUnknownKey
	TokenNoKeys
	TokenSignature
	TokenExpired
	TokenNotYetValid
	TokenIssuer
	TokenAudience
	TokenClaims
	HeaderInvalid
)

var reasons = [...]struct{ name, text string }{
	NoReason:         {"", "accepted"},
	NoCredentials:    {"no_credentials", "an API key or a token is required"},
	Ambiguous:        {"ambiguous", "the credentials were sent more than once"},
	Conflict:         {"conflict", "the credentials are of different users or tenants"},
	KeyInvalid:       {"key_invalid", "the API key is not valid"},
	KeyDisabled:      {"key_disabled", "the API key is disabled"},
	KeyExpired:       {"key_expired", "the API key has expired"},
	KeyRevoked:       {"key_revoked", "the API key was revoked"},
	KeyUncheckable:   {"key_uncheckable", "the API key was hashed with a pepper, and none is set"},
	KeyFailures:      {"key_failures", "too many API keys that are not valid came from this address"},
	TokenScheme:      {"token_scheme", "the token was not sent as Authorization: Bearer TOKEN"},
	TokenTooLong:     {"token_too_long", "the token is longer than 8 KiB"},
	TokenMalformed:   {"token_malformed", "the token is not a JWT"},
	TokenAlgorithm:   {"token_algorithm", "no key has the token's algorithm"},
	TokenUnknownKey:  {"token_unknown_key", "the token's key is unknown"},
	TokenNoKeys:      {"token_no_keys", "the keys of tokens have not been fetched yet"},
	TokenSignature:   {"token_signature", "the token's signature is not valid"},
	TokenExpired:     {"token_expired", "the token has expired"},
	TokenNotYetValid: {"token_not_yet_valid", "the token is not valid yet"},
	TokenIssuer:      {"token_issuer", "the token is from another issuer"},
	TokenAudience:    {"token_audience", "the token is for another audience"},
	TokenClaims:      {"token_claims", "a claim of the token is missing or invalid"},
	HeaderInvalid:    {"header_invalid", "a trusted header was sent twice or is invalid"},
}

// reasonError is a reason as an error.
type reasonError Reason

func (e reasonError) Error() string { return Reason(e).Text() }

// String returns the reason's name, such as "token_expired". That of [NoReason] is
// empty.
func (r Reason) String() string {
	if int(r) >= len(reasons) {
		return "reason(" + strconv.Itoa(int(r)) + ")"
	}
	return reasons[r].name
}

// Text returns the reason in words, such as "the token has expired".
func (r Reason) Text() string {
	if int(r) >= len(reasons) {
		return r.String()
	}
	return reasons[r].text
}

// problems are all problems of options.
type problems []error

func (p *problems) add(field string, value any, want string) {
	*p = append(*p, &stint.InvalidError{Field: "identity " + field, Value: fmt.Sprint(value), Want: want})
}

// header returns the canonical name of a header. It may be empty.
func (p *problems) header(field, name string) string {
	if !consists(name, base62+"-_") {
		p.add(field, name, "a header's name: letters, digits, - and _")
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// consists reports whether there are no other letters in s.
func consists(s, letters string) bool { return strings.Trim(s, letters) == "" }

// nameOf returns the i-th of the names.
func nameOf[T ~uint8](names []string, i T) string {
	if int(i) >= len(names) {
		return "unknown(" + strconv.Itoa(int(i)) + ")"
	}
	return names[i]
}

// parseName finds the text among the names.
func parseName[T ~uint8](field string, names []string, text []byte, out *T) error {
	for i, name := range names {
		if name == string(text) {
			*out = T(i)
			return nil
		}
	}
	return &stint.InvalidError{Field: "identity " + field, Value: string(text), Want: strings.Join(names, " or ")}
}
