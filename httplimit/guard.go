package httplimit

import (
	"net/http"
	"strings"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/door/field"
)

// guard removes from requests what a target would believe, and what only trusted proxies may
// say: headers that the engine's identity reads from them, and those that the gateway sets.
//
// Names are compared as CGI and WSGI do, which turn them into variables: letters in any case,
// and all that is neither letter nor digit is the same. Only the exact name is a trusted
// proxy's, or that of an API key; other spellings are no one's.
//
// It also removes headers by which a target would serve another method or path than the one that was decided.
type guard struct {
	identity.Headers
	overrides bool // such headers pass
}

// clean removes headers of a request. It also removes a token that was not accepted.
func (g *guard) clean(h http.Header, s *identity.Subject) {
	if s.BadToken {
		delete(h, "Authorization")
	}
	for name := range h {
		switch owned, exact := g.owner(name); {
		case !owned && !g.overridden(name), exact && (s.Trusted || name == g.Key):
		default:
			delete(h, name)
		}
	}
}

// cleanTrailer removes them from trailers, whoever has sent them: some services read trailers
// as headers, and no one honest sends these there.
func (g *guard) cleanTrailer(h http.Header) {
	for name := range h {
		if owned, _ := g.owner(name); owned || name == "Authorization" || g.overridden(name) {
			delete(h, name)
		}
	}
}

// owner reports whether a header is one of those that are guarded, and whether it has the
// exact name.
func (g *guard) owner(name string) (owned, exact bool) {
	const forwarded = "X-Forwarded-"
	if len(name) > len(forwarded) && folds(name[:len(forwarded)], forwarded) {
		return true, strings.HasPrefix(name, forwarded) && !strings.ContainsFunc(name[len(forwarded):], isOdd)
	}
	for _, guarded := range [...]string{g.Key, g.User, g.Tenant, g.Tier, g.Forwarded, "X-Real-Ip", "Forwarded", field.Decision, field.Over} {
		if folds(name, guarded) {
			return true, name == guarded
		}
	}
	return false, false
}

// overridden reports whether a header would change the method or the path, and must not.
func (g *guard) overridden(name string) bool {
	for _, override := range [...]string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Url", "X-Rewrite-Url"} {
		if folds(name, override) {
			return !g.overrides
		}
	}
	return false
}

// folds reports whether two names are the same variable in CGI.
func folds(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if fold(a[i]) != fold(b[i]) {
			return false
		}
	}
	return a != ""
}

func fold(c byte) byte {
	switch {
	case c >= 'A' && c <= 'Z':
		return c + 'a' - 'A'
	case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		return c
	}
	return '_'
}

func isOdd(r rune) bool { return r != '-' && (r >= 0x80 || fold(byte(r)) == '_') }
