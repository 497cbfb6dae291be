package rule

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode"
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

// folded returns the pattern for paths whose case was folded.
func (p pattern) folded() pattern {
	p.segments = slices.Clone(p.segments)
	for i := range p.segments {
		p.segments[i].text = FoldCase(p.segments[i].text)
	}
	return p
}

// FoldCase returns one spelling for all texts that differ only in case, as
// [strings.EqualFold] says, except that bytes which are not UTF-8 stay as they are.
func FoldCase(s string) string {
	for i := range len(s) {
		if c := s[i]; 'A' <= c && c <= 'Z' || c >= utf8.RuneSelf {
			return string(appendFolded(make([]byte, 0, len(s)), s))
		}
	}
	return s
}

func appendFolded(b []byte, s string) []byte {
	for i := 0; i < len(s); {
		r, size := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(s[i:])
		}
		if r == utf8.RuneError && size == 1 {
			b = append(b, s[i])
		} else {
			b = utf8.AppendRune(b, foldRune(r))
		}
		i += size
	}
	return b
}

// foldRune returns the smallest of the letters that differ only in case, or its lower case
// if that is ASCII.
func foldRune(r rune) rune {
	least := r
	if r >= utf8.RuneSelf { // the smallest of an ASCII letter is ASCII
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			least = min(least, other)
		}
	}
	if 'A' <= least && least <= 'Z' {
		least += 'a' - 'A'
	}
	return least
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
// their case, whatever [File.Case] says.
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

// cleanPath is CleanPath. It also returns the marks in the path. Without any, the path has
// only one reading.
func cleanPath(p string) (path string, found marks) {
	if isPlain(p) {
		return p, 0
	}
	var buf [256]byte // most paths fit
	b := decode(buf[:0], p)
	found = marksIn(b)
	b = rewrite(b[:0], b, reading{})
	if n := len(b); n <= len(p) && p[:n] == string(b) {
		return p[:n], found // saves the allocation
	}
	return string(b), found
}

// decode appends a path to b, with a slash before it, without a query, and with escapes
// decoded like [CleanPath] does. Doing that twice changes nothing.
func decode(b []byte, p string) []byte {
	for _, c := range [...]byte{'?', '#'} { // faster than strings.IndexAny
		if i := strings.IndexByte(p, c); i >= 0 {
			p = p[:i]
		}
	}
	b = append(slices.Grow(b, 1+len(p)), '/')
	for {
		i := strings.IndexByte(p, '%')
		if i < 0 {
			return append(b, p...)
		}
		b = append(b, p[:i]...)
		if c, ok := unescape(p[i:]); ok {
			b = appendEscaped(b, c)
			p = p[i+len(slashEscape):]
		} else {
			b = append(b, '%')
			p = p[i+1:]
		}
	}
}

// slashEscape is an escaped slash in a decoded path.
const slashEscape = "%2F"

// marks are what servers disagree about in a path.
type marks uint8

const (
	escapedSlash marks = 1 << iota // some servers decode it before they split segments
	backslash                      // some read it as a slash
	semicolon                      // some cut parameters off segments
	slash                          // which all agree about
)

// markOf says which mark a byte of a decoded path is, or may begin.
var markOf = [256]marks{'%': escapedSlash, '\\': backslash, ';': semicolon, '/': slash}

// marksIn returns the marks in a decoded path.
func marksIn(p []byte) (found marks) {
	if bytes.Contains(p, []byte(slashEscape)) {
		found |= escapedSlash
	}
	if bytes.IndexByte(p, '\\') >= 0 {
		found |= backslash
	}
	if bytes.IndexByte(p, ';') >= 0 {
		found |= semicolon
	}
	return found
}

// find returns where one of the marks is in a decoded path, from i on, or its length.
func (m marks) find(p []byte, i int) int {
	for ; i < len(p); i++ {
		if markOf[p[i]]&m != 0 && (p[i] != '%' || bytes.HasPrefix(p[i:], []byte(slashEscape))) {
			break
		}
	}
	return i
}

// reading is a way to read a path: which marks are slashes before parameters are cut off,
// if they are, and which after that.
type reading struct {
	before, after marks
	cut           bool
}

// marks returns the marks that the reading is about.
func (r reading) marks() marks {
	if r.cut {
		return r.before | r.after | semicolon
	}
	return r.before | r.after
}

// rewrite appends the clean path that a reading makes of a decoded one to b, which may be
// the start of p. It looks at each byte once.
func rewrite(b, p []byte, as reading) []byte {
	stops := as.marks() | slash
	for i := 0; i < len(p); {
		// Here is a slash, or a mark that is read as one.
		if p[i] == '%' {
			i += len(slashEscape)
		} else {
			i++
		}
		start, from := len(b), i
		i = stops.find(p, i)
		b = append(append(b, '/'), p[from:i]...)
		if i < len(p) && p[i] == ';' {
			i = (as.before | slash).find(p, i)
		}
		switch last := b[start+1:]; {
		case len(last) == 0, len(last) == 1 && last[0] == '.':
			b = b[:start]
		case len(last) == 2 && last[0] == '.' && last[1] == '.':
			b = b[:max(bytes.LastIndexByte(b[:start], '/'), 0)]
		}
	}
	if len(b) == 0 {
		b = append(b, '/')
	}
	return b
}

// readings returns all paths that servers may take a path for, each clean, and first what
// [CleanPath] returns. Some servers decode escaped slashes before they split segments, some
// read a backslash as a slash, and some cut parameters off segments, in any order, before
// they resolve dot segments, or after that and then resolve them again.
//
// Without dot segments there are at most 13: who cuts parameters off may read each of two
// marks as a slash before, after, or not at all. With them there are at most twice as many.
func readings(p string) []string {
	path, found := cleanPath(p)
	return otherReadings(p, path, found)
}

// otherReadings is readings, for a path that was cleaned already.
func otherReadings(p, path string, found marks) []string {
	all := []string{path}
	if found == 0 {
		return all
	}
	decoded := decode(nil, p)
	scratch := make([]byte, 0, len(decoded))
	add := func(p []byte, as reading) {
		if as.marks()&^found != 0 {
			return
		}
		scratch = rewrite(scratch[:0], p, as)
		if !slices.ContainsFunc(all, func(path string) bool { return path == string(scratch) }) {
			all = append(all, string(scratch))
		}
	}
	if hasDots(decoded) {
		// No rewrite brings back what another removed, so each is done at most once.
		for i := 0; i < len(all); i++ { //nolint:intrange // it grows
			p := []byte(all[i])
			add(p, reading{before: escapedSlash})
			add(p, reading{before: backslash})
			add(p, reading{cut: true})
		}
	}
	for _, slashes := range [...]marks{escapedSlash, backslash, escapedSlash | backslash} {
		add(decoded, reading{before: slashes})
	}
	for _, before := range [...]marks{0, escapedSlash, backslash, escapedSlash | backslash} {
		for _, after := range [...]marks{0, escapedSlash, backslash, escapedSlash | backslash} {
			if before&after == 0 {
				add(decoded, reading{before, after, true})
			}
		}
	}
	return all
}

// hasDots reports whether a decoded path has dot segments in any reading.
func hasDots(p []byte) bool {
	for from := 0; ; {
		i := bytes.IndexByte(p[from:], '.')
		if i < 0 {
			return false
		}
		i += from
		from = i + 1
		begins := p[i-1] == '/' || p[i-1] == '\\' || bytes.HasSuffix(p[:i], []byte(slashEscape)) // p begins with a slash
		rest := bytes.TrimPrefix(p[from:], []byte("."))
		if begins && (len(rest) == 0 || (slash|escapedSlash|backslash|semicolon).find(rest, 0) == 0) {
			return true
		}
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
	dot
	separator
	other
)

// unescape returns the byte that an escape at the start of s stands for.
func unescape(s string) (c byte, ok bool) {
	if len(s) < 3 || s[0] != '%' || !isHex(s[1]) || !isHex(s[2]) {
		return 0, false
	}
	return digit(s[1])<<4 | digit(s[2]), true
}

// digit returns the value of a hexadecimal digit.
func digit(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^('a'-'A') - 'A' + 10
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
