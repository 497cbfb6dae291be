package record

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stintdev/stint/rule"
)

// Paths says how paths are stored.
type Paths uint8

const (
	// RedactPath stores a path as the pattern of the rule names its parts, and what else looks like
	// an id or a secret as {id}.
	RedactPath Paths = iota
	// KeepPath stores the path, as rules match it.
	KeepPath
	// NoPath stores none.
	NoPath
)

func (p Paths) check() error {
	if p > NoPath {
		return invalid("Paths", strconv.Itoa(int(p)), "RedactPath, KeepPath or NoPath")
	}
	return nil
}

const (
	// longestPath is how many bytes of a path are stored.
	longestPath = 256
	// pathMore ends a path of which the rest was cut off. It means the same in a path of a rule.
	pathMore = "/**"
	// pathID stands for a segment that looks like an id or a secret.
	pathID = "{id}"
)

// appendPath appends the path of a request as rules match it, without its query, and cut after a segment if it is too long.
// It appends nothing if there is no path, or if none is stored.
func (p Paths) appendPath(b []byte, path string) []byte {
	if path == "" || p == NoPath {
		return b
	}
	path = rule.CleanPath(path)
	if len(path) <= longestPath {
		return append(b, path...)
	}
	end := strings.LastIndexByte(path[:longestPath-len(pathMore)+1], '/')
	return append(append(b, path[:end]...), pathMore...)
}

// appendStored appends what is stored of a path that appendPath has returned: it reads the pattern that has matched
// along with the path.
func (p Paths) appendStored(b, path []byte, pattern string) []byte {
	if p != RedactPath || len(path) < 2 {
		return append(b, path...)
	}
	room := len(b) + longestPath
	for rest := path; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n] != '/' {
			n++
		}
		segment := rest[1:n]
		rest = rest[n:]
		var named string
		if len(pattern) > 1 {
			named = pattern[1:]
			if i := strings.IndexByte(named, '/'); i >= 0 {
				named, pattern = named[:i], named[i:]
			} else {
				pattern = ""
			}
		}
		kept := len(b)
		b = append(b, '/')
		switch {
		case len(named) > 2 && named[0] == '{':
			b = append(b, named...)
		case named != string(segment) && secret(segment):
			b = append(b, pathID...)
		default:
			b = append(b, segment...)
		}
		if named == "**" {
			pattern = "" // it stands for all that follow
		}
		// A name may be longer than what it stands for.
		if len(b)+len(pathMore) > room && (len(rest) > 0 || len(b) > room) {
			return append(b[:kept], pathMore...)
		}
	}
	return b
}

// EndpointOf returns a name for all paths that differ in ids only: what [RedactPath] keeps of a path if no rule names its parts, and
// {id} for short numbers, too, which are no secrets.
func EndpointOf(path string) string {
	var kept, stored [longestPath]byte
	parts := strings.Split(string(RedactPath.appendStored(stored[:0], RedactPath.appendPath(kept[:0], path), "")), "/")
	for i, part := range parts {
		if part != "" && strings.Trim(part, "0123456789") == "" {
			parts[i] = pathID
		}
	}
	return strings.Join(parts, "/")
}

// secret reports whether a segment of a path looks like an id or a secret: five digits or more; eight hexadecimal ones of
// which one is a digit, as in UUIDs; a mail address; letters mixed with digits, as in tokens; and all that is long. It may be wrong
// either way, and errs towards what is not stored.
func secret(s []byte) bool {
	const long, token, number, hex = 64, 12, 5, 8
	if len(s) > long {
		return true
	}
	var all, word kinds // of the segment, and of its last letters and digits in a row
	for i, c := range s {
		kind := kindOf[c]
		if kind == 0 {
			if c == '@' && i > 0 && i < len(s)-1 {
				return true
			}
			word = kinds{}
			continue
		}
		all.add(kind)
		word.add(kind)
		if word.size >= token && word.tokens() {
			return true
		}
	}
	switch {
	case all.hex == all.size && all.digits > 0 && all.size >= hex:
		return true // and dashes
	case all.digits == all.size && all.size >= number:
		return true // and a plus sign or dots
	}
	return all.size >= token && all.digits > 1 && all.turns*2 >= all.size
}

// kinds counts letters and digits by their kind.
type kinds struct {
	size, digits, hex, turns int
	last                     byte
}

const (
	kindLower = 1 + iota
	kindUpper
	kindDigit
	kindHex = 8 // a letter that is a hexadecimal digit
)

// kindOf has the kinds of letters and digits of ASCII.
var kindOf = func() (all [utf8.RuneSelf * 2]byte) {
	for c := range byte(utf8.RuneSelf) {
		switch {
		case '0' <= c && c <= '9':
			all[c] = kindDigit | kindHex
		case 'a' <= c && c <= 'z':
			all[c] = kindLower
		case 'A' <= c && c <= 'Z':
			all[c] = kindUpper
		}
		if 'a' <= c|0x20 && c|0x20 <= 'f' {
			all[c] |= kindHex
		}
	}
	return all
}()

func (k *kinds) add(kind byte) {
	k.size++
	if kind&kindHex != 0 {
		k.hex++
	}
	if kind &^= kindHex; kind == kindDigit {
		k.digits++
	}
	if kind != k.last && k.last != 0 {
		k.turns++
	}
	k.last = kind
}

// tokens reports whether a word is too mixed to be one of a language.
func (k *kinds) tokens() bool { return k.digits > 1 || k.digits > 0 && k.turns*2 >= k.size }

// samePath is what databases have for a path that is also the endpoint.
const samePath = "="

// storedPath returns the path as databases have it.
func (e *Event) storedPath() string {
	if e.Path == e.Endpoint && e.Path != "" {
		return samePath
	}
	return e.Path
}

// PathColumn is the path of an event in SQL.
const PathColumn = "CASE path WHEN '" + samePath + "' THEN endpoint ELSE coalesce(path, '') END"
