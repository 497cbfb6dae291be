package rule

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxPattern is how many bytes a path of a rule may have.
const maxPattern = 512

// pattern is a path of a rule, parsed.
type pattern struct {
	text     string // as written, without a trailing slash
	segments []segment
	rest     bool // ends in **, which is not among the segments
	literals int  // how many segments are not wild
}

// segment is the text between two slashes, in the form of [CleanPath], or * or {name},
// which match any one segment.
type segment struct {
	text string
	wild bool
}

// parsePattern parses a path of a rule, or says what would be right.
func parsePattern(text string) (p pattern, want string) {
	switch {
	case !strings.HasPrefix(text, "/"):
		return p, "a slash first, as in /api/users"
	case len(text) > maxPattern:
		return p, "at most " + strconv.Itoa(maxPattern) + " bytes"
	case !utf8.ValidString(text):
		return p, "valid UTF-8, or bytes as escapes such as %FF"
	case strings.ContainsAny(text, "?#"):
		return p, "no ? or #: rules do not look at queries and fragments; %3F and %23 are the characters"
	}
	if text == "/" {
		return pattern{text: text}, ""
	}
	p = pattern{text: strings.TrimSuffix(text, "/")}
	for left := p.text; left != ""; {
		if p.rest {
			return p, "** only at the end; * is any one segment"
		}
		part, after := cutSegment(left)
		clean := CleanPath(left[:1+len(part)])[1:]
		left = after
		switch {
		case part == "**":
			p.rest = true
			continue
		case part == "*" || isParam(part):
			p.segments = append(p.segments, segment{wild: true})
			continue
		case strings.ContainsAny(part, "*{}"):
			return p, "*, ** and {name} only as whole segments, as in /files/*; %2A, %7B and %7D are the characters"
		case part == "":
			return p, "no empty segments: requests for //x are requests for /x"
		case clean == "":
			return p, "no . or .. segments: requests have theirs resolved"
		case !validEscapes(part):
			return p, "two hexadecimal digits after each %; %25 is the character"
		}
		p.segments = append(p.segments, segment{text: clean})
		p.literals++
	}
	return p, ""
}

// isParam reports whether a segment is a {name}.
func isParam(s string) bool {
	return len(s) > 2 && s[0] == '{' && s[len(s)-1] == '}' && !strings.ContainsAny(s[1:len(s)-1], "*{}")
}

func validEscapes(s string) bool {
	for i := range len(s) {
		if s[i] == '%' {
			if _, ok := unescape(s[i:]); !ok {
				return false
			}
		}
	}
	return true
}

// exact reports whether the pattern matches one path only.
func (p pattern) exact() bool { return !p.rest && p.literals == len(p.segments) }

// compare orders patterns from the most specific to the least: exact ones first,
// then those with more literal segments, then with more segments, and ** last.
func (p pattern) compare(q pattern) int {
	return cmp.Or(
		cmp.Compare(number(q.exact()), number(p.exact())),
		cmp.Compare(q.literals, p.literals),
		cmp.Compare(len(q.segments), len(p.segments)),
		cmp.Compare(number(p.rest), number(q.rest)),
	)
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// matches reports whether a clean path matches the pattern.
func (p pattern) matches(path string) bool {
	path = strings.TrimSuffix(path, "/")
	for _, s := range p.segments {
		if path == "" {
			return false
		}
		part, rest := cutSegment(path)
		if !s.wild && part != s.text {
			return false
		}
		path = rest
	}
	return path == "" || p.rest
}

// cutSegment takes a path apart: a slash, the first segment, and the rest.
func cutSegment(path string) (segment, rest string) {
	if i := strings.IndexByte(path[1:], '/'); i >= 0 {
		return path[1 : 1+i], path[1+i:]
	}
	return path[1:], ""
}

// covers reports whether p matches every path that q matches.
func (p pattern) covers(q pattern) bool {
	n := len(p.segments)
	if len(q.segments) < n || (!p.rest && (q.rest || len(q.segments) > n)) {
		return false
	}
	for i, s := range p.segments {
		if !s.wild && s != q.segments[i] {
			return false
		}
	}
	return true
}

// CleanPath returns one form for all spellings of a path that mean the same to every
// server. The path begins with a slash, has single slashes between segments and none
// at the end. Dot segments are resolved, escaped or not. Escapes are decoded once,
// except those of / ? # and %, which would change their meaning, and invalid ones:
// %252F is an escaped percent sign. A query or fragment is cut off. Letters keep
// their case.
//
// An escaped slash, a backslash and a semicolon stay, though some servers give them
// a meaning: [Set.Match] considers every reading.
//
// The path may have any length, because a cut path could get past a rule. The time is
// linear, and memory is needed only if the path is not clean.
func CleanPath(p string) string {
	path, _ := cleanPath(p)
	return path
}

// cleanPath is CleanPath. It also reports whether the path is plain, which means that it has
// only one reading.
func cleanPath(p string) (path string, plain bool) {
	if isPlain(p) {
		return p, true
	}
	p = withoutQuery(p)
	plain = true
	var buf [256]byte // most paths fit
	b := buf[:0]
	for i := 0; i < len(p); {
		if p[i] == '/' {
			i++
			continue
		}
		start := len(b)
		b = append(b, '/')
		for i < len(p) && p[i] != '/' {
			c, escaped := unescape(p[i:])
			if escaped {
				b = appendEscaped(b, c)
				i += 3
			} else {
				c = p[i]
				b = append(b, c)
				i++
			}
			plain = plain && c != ';' && c != '\\' && c != '/'
		}
		switch string(b[start:]) {
		case "/.":
			b = b[:start]
		case "/..":
			b = b[:max(bytes.LastIndexByte(b[:start], '/'), 0)]
		}
	}
	switch n := len(b); {
	case n == 0:
		return "/", plain
	case n <= len(p) && p[:n] == string(b):
		return p[:n], plain // saves the allocation
	default:
		return string(b), plain
	}
}

func withoutQuery(p string) string {
	if i := strings.IndexAny(p, "?#"); i >= 0 {
		return p[:i]
	}
	return p
}

// readings returns all paths that servers may take a path for, each clean, and first what
// [CleanPath] returns. Some servers decode escaped slashes before they split segments, some
// read a backslash as a slash, and some cut parameters off segments, in any order, before
// they resolve dot segments, or after that and then resolve them again.
func readings(p string) []string {
	all := rewritten(CleanPath(p), CleanPath)
	for _, r := range rewritten(decode(p), func(p string) string { return p }) {
		if r = CleanPath(r); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// rewritten returns the path after any sequence of these rewrites. No rewrite brings
// back what another removed, so each is done at most once, and there are at most 16
// results.
func rewritten(path string, then func(string) string) []string {
	all := []string{path}
	for i := 0; i < len(all); i++ {
		for _, next := range [...]string{
			strings.ReplaceAll(all[i], "%2F", "/"),
			strings.ReplaceAll(all[i], `\`, "/"),
			withoutParameters(all[i]),
		} {
			if next == all[i] {
				continue
			}
			if next = then(next); !slices.Contains(all, next) {
				all = append(all, next)
			}
		}
	}
	return all
}

// decode decodes escapes like [CleanPath], and changes nothing else.
func decode(p string) string {
	p = "/" + withoutQuery(p)
	b := make([]byte, 0, len(p))
	for i := 0; i < len(p); {
		if c, ok := unescape(p[i:]); ok {
			b = appendEscaped(b, c)
			i += 3
		} else {
			b = append(b, p[i])
			i++
		}
	}
	return string(b)
}

// withoutParameters returns the path with each segment up to its first semicolon.
func withoutParameters(path string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(path, ";")
		if !found && b.Len() == 0 {
			return path
		}
		b.WriteString(before)
		slash := strings.IndexByte(after, '/')
		if slash < 0 {
			return b.String()
		}
		path = after[slash:]
	}
}

// isPlain reports whether the path is clearly clean and has only one reading. It is fast, and
// false for some such paths.
func isPlain(p string) bool {
	if p == "" || p[0] != '/' {
		return false
	}
	slash := false
	for i := range len(p) {
		switch special[p[i]] {
		case ordinary:
			slash = false
		case separator:
			if slash {
				return false
			}
			slash = true
		case dot:
			if slash {
				return false
			}
		default:
			return false
		}
	}
	return !slash || len(p) == 1
}

// special says what bytes may mean in a path.
var special = [256]byte{'/': separator, '.': dot, '%': other, '?': other, '#': other, ';': other, '\\': other}

const (
	ordinary = iota
	separator
	dot
	other
)

// unescape returns the byte that an escape at the start of s stands for.
func unescape(s string) (c byte, ok bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	n, err := strconv.ParseUint(s[1:3], 16, 8)
	return byte(n), err == nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// appendEscaped appends a byte that was escaped. It stays escaped if it would mean
// something else otherwise: by itself, or as part of an escape with a % that had none.
func appendEscaped(b []byte, c byte) []byte {
	n := len(b)
	joins := isHex(c) && (b[n-1] == '%' || (isHex(b[n-1]) && b[n-2] == '%'))
	if joins || c == '/' || c == '?' || c == '#' || c == '%' {
		const hex = "0123456789ABCDEF"
		return append(b, '%', hex[c>>4], hex[c&15])
	}
	return append(b, c)
}
