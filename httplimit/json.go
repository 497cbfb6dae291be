package httplimit

import (
	"bytes"
	"encoding/json"
	"net/textproto"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stintdev/stint/internal/door/settle"
)

// scanner reads JSON of a known shape, strictly: unknown and repeated fields, other types
// and invalid UTF-8 are errors. The code that calls it bounds the depth, so input cannot
// be nested deeper.
type scanner struct {
	data []byte
	i    int
}

// inputError is a problem in the input of a client, and where it is.
type inputError struct{ path, says string }

func (e *inputError) Error() string {
	if e.path == "" {
		return e.says
	}
	return e.path + ": " + e.says
}

// within adds the name of the enclosing value to the path.
func (e *inputError) within(outer string) *inputError {
	if e.path != "" && e.path[0] != '[' {
		outer += "."
	}
	e.path = outer + e.path
	return e
}

// wrong returns an error about the value that begins at start.
func (s *scanner) wrong(start int, want string) *inputError {
	const maxShown = 40
	found := s.data[min(start, len(s.data)):]
	if end := bytes.IndexAny(found, ",]}\n"); end > 0 {
		found = found[:end]
	}
	text := string(bytes.ToValidUTF8(found[:min(len(found), maxShown)], []byte("?")))
	switch {
	case text == "":
		text = "the end"
	case len(found) > maxShown:
		text += "..."
	}
	return &inputError{says: "want " + want + ", found " + text}
}

// next skips space and returns the byte after it, or 0 at the end.
func (s *scanner) next() byte {
	for ; s.i < len(s.data); s.i++ {
		switch c := s.data[s.i]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// skip skips space and the byte c, and reports whether c was next.
func (s *scanner) skip(c byte) bool {
	if s.next() != c {
		return false
	}
	s.i++
	return true
}

// document reads the whole input.
func (s *scanner) document(read func() *inputError) *inputError {
	if err := read(); err != nil {
		return err
	}
	if s.next(); s.i < len(s.data) {
		return s.wrong(s.i, "nothing after the object")
	}
	return nil
}

// members reads an object, and calls member to read each value.
func (s *scanner) members(member func(name []byte) *inputError) *inputError {
	if !s.skip('{') {
		return s.wrong(s.i, "an object")
	}
	for first := true; !s.skip('}'); first = false {
		if !first && !s.skip(',') {
			return s.wrong(s.i, "a comma or the end of the object")
		}
		s.next()
		start := s.i
		name, err := s.text()
		if err != nil {
			return s.wrong(start, "a name in quotes")
		}
		if !s.skip(':') {
			return s.wrong(s.i, "a colon").within(string(name))
		}
		s.next()
		if err := member(name); err != nil {
			return err
		}
	}
	return nil
}

// object reads an object with these fields, of which there are at most 16, and calls
// field to read each value, with the index of its name.
func (s *scanner) object(names []string, field func(i int) *inputError) *inputError {
	var seen uint16
	return s.members(func(name []byte) *inputError {
		for i, n := range names {
			if string(name) != n {
				continue
			}
			if seen&(1<<i) != 0 {
				return &inputError{n, "want it only once"}
			}
			seen |= 1 << i
			if err := field(i); err != nil {
				return err.within(n)
			}
			return nil
		}
		const maxShown = 64
		return &inputError{
			strconv.Quote(string(name[:min(len(name), maxShown)])),
			"unknown field, want " + strings.Join(names, ", "),
		}
	})
}

// array reads an array of at most limit elements, and calls element to read each.
func (s *scanner) array(limit int, element func() *inputError) *inputError {
	if !s.skip('[') {
		return s.wrong(s.i, "an array")
	}
	for n := 0; !s.skip(']'); n++ {
		if n > 0 && !s.skip(',') {
			return s.wrong(s.i, "a comma or the end of the array")
		}
		if n == limit {
			return &inputError{says: "want at most " + strconv.Itoa(limit) + " elements"}
		}
		s.next()
		if err := element(); err != nil {
			return err.within("[" + strconv.Itoa(n) + "]")
		}
	}
	return nil
}

// text reads a string. The result may share memory with the input.
func (s *scanner) text() ([]byte, *inputError) {
	start := s.i
	if s.i >= len(s.data) || s.data[s.i] != '"' {
		return nil, s.wrong(start, "a string")
	}
	s.i++
	rest, ascii := s.data[s.i:], true
	for n, c := range rest {
		switch {
		case c == '"':
			s.i += n + 1
			if !ascii && !utf8.Valid(rest[:n]) {
				return nil, s.wrong(start, "valid UTF-8")
			}
			return rest[:n], nil
		case c == '\\':
			return s.escaped(start)
		case c < ' ':
			return nil, s.wrong(start, "control characters in a string to be escaped")
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, s.wrong(start, "a closing quote")
}

// escaped reads a string that has escapes.
func (s *scanner) escaped(start int) ([]byte, *inputError) {
	end := start + 1
	for ; end < len(s.data) && s.data[end] != '"'; end++ {
		switch c := s.data[end]; {
		case c == '\\':
			end++
		case c < ' ':
			return nil, s.wrong(start, "control characters in a string to be escaped")
		}
	}
	if end >= len(s.data) {
		return nil, s.wrong(start, "a closing quote")
	}
	raw := s.data[start : end+1]
	s.i = end + 1
	if !utf8.Valid(raw) {
		return nil, s.wrong(start, "valid UTF-8")
	}
	var text string
	err := json.Unmarshal(raw, &text)
	// The decoder replaces half of a surrogate pair instead of rejecting it.
	written := bytes.Count(raw, []byte("\uFFFD")) + bytes.Count(bytes.ToLower(raw), []byte(`\ufffd`))
	if err != nil || strings.Count(text, "\uFFFD") > written {
		return nil, s.wrong(start, "a valid escape")
	}
	return []byte(text), nil
}

// cost reads a whole number of at least least.
func (s *scanner) cost(least int64) (int64, *inputError) {
	start := s.i
	for s.i < len(s.data) && (s.data[s.i] >= '0' && s.data[s.i] <= '9' || strings.IndexByte("+-.eE", s.data[s.i]) >= 0) {
		s.i++
	}
	digits := s.data[start:s.i]
	n, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil || n < least || n > settle.MaxCost || (len(digits) > 1 && digits[0] < '1') { // a sign or a leading zero
		return 0, s.wrong(start, "a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(settle.MaxCost, 10))
	}
	return n, nil
}

func (s *scanner) boolean() (bool, *inputError) {
	for _, word := range [...]string{"true", "false"} {
		if bytes.HasPrefix(s.data[s.i:], []byte(word)) {
			s.i += len(word)
			return word == "true", nil
		}
	}
	return false, s.wrong(s.i, "true or false")
}

// headers reads an object of headers: each value is a string, or an array of strings.
func (s *scanner) headers() (map[string][]string, *inputError) {
	h := map[string][]string{}
	return h, s.members(func(raw []byte) *inputError {
		name := textproto.CanonicalMIMEHeaderKey(string(raw))
		if _, twice := h[name]; twice {
			return &inputError{name, "want it only once; give several values as an array"}
		}
		var values []string
		one := func() *inputError {
			text, err := s.text()
			values = append(values, string(text))
			return err
		}
		read := one
		if s.next() == '[' {
			const maxValues = 1000
			read = func() *inputError { return s.array(maxValues, one) }
		}
		if err := read(); err != nil {
			return err.within(name)
		}
		h[name] = values
		return nil
	})
}
