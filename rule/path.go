package rule

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stintdev/stint"
)

// maxPattern is the most bytes that a path of a rule may have.
const maxPattern = 512

// pattern is a path of a rule, taken apart.
type pattern struct {
	text     string // as it is written, without a trailing slash
	segments []segment
	rest     bool // ends in **, which is not among the segments
	literals int  // segments that are not wild
}

// segment is what stands between two slashes: text in the form that [CleanPath]
// gives it, or * or {name}, which are any one segment.
type segment struct {
	text string
	wild bool
}

// parsePattern reads a path of a rule. The error is a [*stint.InvalidError].
func parsePattern(text string) (pattern, error) {
	refuse := func(want string) error { return &stint.InvalidError{Field: "path", Value: text, Want: want} }
	switch {
	case !strings.HasPrefix(text, "/"):
		return pattern{}, refuse("a slash first, as in /api/users")
	case len(text) > maxPattern:
		return pattern{}, refuse("at most " + strconv.Itoa(maxPattern) + " bytes")
	case !utf8.ValidString(text):
		return pattern{}, refuse("valid UTF-8, or bytes as escapes such as %FF")
	case strings.ContainsAny(text, "?#"):
		return pattern{}, refuse("no ? or #: rules do not look at queries and fragments; %3F and %23 are the characters")
	}
	if text == "/" {
		return pattern{text: text}, nil
	}
	p := pattern{text: strings.TrimSuffix(text, "/")}
	for left := p.text; left != ""; {
		if p.rest {
			return pattern{}, refuse("** only at the end; * is any one segment")
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
			return pattern{}, refuse("*, ** and {name} only as whole segments, as in /files/*; %2A, %7B and %7D are the characters")
		case part == "":
			return pattern{}, refuse("no empty segments: requests for //x are requests for /x")
		case clean == "":
			return pattern{}, refuse("no . or .. segments: requests have theirs resolved")
		case !validEscapes(part):
			return pattern{}, refuse("two hexadecimal digits after each %; %25 is the character")
		}
		p.segments = append(p.segments, segment{text: clean})
		p.literals++
	}
	return p, nil
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

// exact reports whether the pattern is one path.
func (p pattern) exact() bool { return !p.rest && p.literals == len(p.segments) }

// compare orders patterns from the most specific to the least: exact ones first,
// then those with more literal segments, then with more segments, and ** last.
func (p pattern) compare(q pattern) int {
	return cmp.Or(
		-compareBools(p.exact(), q.exact()),
		-cmp.Compare(p.literals, q.literals),
		-cmp.Compare(len(p.segments), len(q.segments)),
		compareBools(p.rest, q.rest),
	)
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// matches reports whether a clean path is one of the pattern's.
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

// cleanPath is CleanPath. Plain paths have one reading only.
func cleanPath(p string) (path string, plain bool) {
	if isPlain(p) {
		return p, true
	}
	p = withoutQuery(p)
	plain = true
	b := lazy{from: p}
	for i := 0; i < len(p); {
		if p[i] == '/' {
			i++
			continue
		}
		start := b.n
		b.add('/')
		for i < len(p) && p[i] != '/' {
			c, escaped := unescape(p[i:])
			if escaped {
				b.addEscaped(c)
				i += 3
			} else {
				c = p[i]
				b.add(c)
				i++
			}
			plain = plain && c != ';' && c != '\\' && c != '/'
		}
		switch size := b.n - start; {
		case size == 2 && b.at(start+1) == '.':
			b.n = start
		case size == 3 && b.at(start+1) == '.' && b.at(start+2) == '.':
			b.n = start
			b.drop()
		}
	}
	return b.path(), plain
}

func withoutQuery(p string) string {
	if i := strings.IndexAny(p, "?#"); i >= 0 {
		return p[:i]
	}
	return p
}

// readings returns all that a path may mean to servers, each clean and [CleanPath]
// first: some servers decode escaped slashes before they split segments, some read a
// backslash as a slash, and some cut parameters off segments, in any order, before
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

// decode returns the path with its escapes as [CleanPath] has them, and nothing else
// changed.
func decode(p string) string {
	p = "/" + withoutQuery(p)
	b := lazy{from: p}
	for i := 0; i < len(p); {
		if c, ok := unescape(p[i:]); ok {
			b.addEscaped(c)
			i += 3
		} else {
			b.add(p[i])
			i++
		}
	}
	return b.path()
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

// isPlain says of most paths that are clean and have one reading that they do, and
// quickly.
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

// special is what bytes may mean in a path.
var special = [256]byte{'/': separator, '.': dot, '%': other, '?': other, '#': other, ';': other, '\\': other}

const (
	ordinary = iota
	separator
	dot
	other
)

// unescape returns the byte that an escape at the start of s stands for.
func unescape(s string) (c byte, ok bool) {
	if len(s) < 3 || s[0] != '%' || !isHex(s[1]) || !isHex(s[2]) {
		return 0, false
	}
	return unhex(s[1])<<4 | unhex(s[2]), true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&7 + 9
}

// lazy is a path that is being written. It is the start of another one, for as
// long as they are the same.
type lazy struct {
	from string
	buf  []byte // nil while nothing differs
	n    int    // bytes written
}

func (b *lazy) at(i int) byte {
	if b.buf == nil {
		return b.from[i]
	}
	return b.buf[i]
}

func (b *lazy) add(c byte) {
	if b.buf == nil {
		if b.n < len(b.from) && b.from[b.n] == c {
			b.n++
			return
		}
		b.buf = append(make([]byte, 0, len(b.from)+1), b.from[:b.n]...)
	}
	b.buf = append(b.buf[:b.n], c)
	b.n++
}

// addEscaped adds a byte that was escaped. It stays so if it would mean something
// else otherwise: by itself, or as part of an escape with a % that had none.
func (b *lazy) addEscaped(c byte) {
	joins := isHex(c) && (b.at(b.n-1) == '%' || (isHex(b.at(b.n-1)) && b.at(b.n-2) == '%'))
	if joins || c == '/' || c == '?' || c == '#' || c == '%' {
		const hex = "0123456789ABCDEF"
		b.add('%')
		b.add(hex[c>>4])
		c = hex[c&15]
	}
	b.add(c)
}

// drop takes the last segment away.
func (b *lazy) drop() {
	for b.n > 0 {
		b.n--
		if b.at(b.n) == '/' {
			return
		}
	}
}

func (b *lazy) path() string {
	switch {
	case b.n == 0:
		return "/"
	case b.buf == nil:
		return b.from[:b.n]
	default:
		return string(b.buf[:b.n])
	}
}
