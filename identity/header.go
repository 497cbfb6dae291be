package identity

import (
	"unicode"
	"unicode/utf8"
)

// trustedHeaders are the names of headers in which a trusted proxy identifies the client.
type trustedHeaders struct{ user, tenant, tier string }

func (h *trustedHeaders) read(q *Request, s *Subject) error {
	if !s.Trusted {
		return nil
	}
	var values [3]string
	for i, name := range [...]string{h.user, h.tenant, h.tier} {
		lines := q.Headers[name]
		if name == "" || len(lines) == 0 || (len(lines) == 1 && lines[0] == "") {
			continue
		}
		if len(lines) > 1 { // of two lines, one may be the client's
			return &RefusedError{Reason: Ambiguous}
		}
		if !ValidID(lines[0]) {
			s.Unaccepted = HeaderInvalid
			return nil
		}
		values[i] = lines[0]
	}
	if values[0] == "" && values[1] == "" {
		return nil // a tier alone does not identify anyone
	}
	s.Source = ByHeader
	s.User, s.Tenant, s.Tier = values[0], values[1], values[2]
	return nil
}

// longestID is the most bytes of a user, tenant or tier.
const longestID = 255

const wantID = "1 to 255 bytes of UTF-8 without control characters"

// ValidID reports whether a client may be counted by this name: 1 to 255 bytes of UTF-8
// without control characters. The replacement character is not allowed, because it
// stands for any invalid name.
func ValidID(id string) bool {
	for _, c := range id {
		if c == utf8.RuneError || unicode.IsControl(c) {
			return false
		}
	}
	return id != "" && len(id) <= longestID
}
