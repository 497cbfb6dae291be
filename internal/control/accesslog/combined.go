package accesslog

import (
	"bytes"
	"errors"
	"strconv"
	"time"
)

// parseCombined parses a line of the combined or common format, of which a virtual host may be the first word:
//
//	192.0.2.1 - alice [31/Jan/2026:12:00:00 +0000] "GET /search?q=a HTTP/1.1" 200 1234 "referer" "agent"
func (r *Reader) parseCombined(line []byte) error {
	begin, end, err := r.findTime(line)
	if err != nil {
		return err
	}
	p := &r.line
	p.at, p.coarse = r.at, r.coarse
	head := line[:begin]
	p.address, head = word(head)
	if _, ok := r.address(p.address); !ok {
		if second, rest := word(head); second != nil {
			if _, ok := r.address(second); ok { // after a virtual host
				p.address, head = second, rest
			}
		}
	}
	_, user := word(head) // after the identity of the client, which nobody sends
	if p.user = bytes.TrimSpace(user); bytes.IndexByte(p.user, '\\') >= 0 {
		p.user = unescaped(p.user)
	}
	rest := bytes.TrimLeft(line[end:], " ")
	if len(rest) == 0 || rest[0] != '"' {
		return errors.New(`no request in quotes after the time: want the combined format, such as 192.0.2.1 - - [31/Jan/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 12`)
	}
	request, rest, ok := quoted(rest[1:])
	if !ok {
		return errors.New("the request has no end: the line may be cut off")
	}
	status, _ := word(rest)
	if p.status, err = strconv.Atoi(string(status)); err != nil {
		return errors.New("no status after the request")
	}
	p.method, request = word(request)
	p.uri, _ = word(request)
	return nil
}

// word returns the first word, and the rest.
func word(text []byte) (first, rest []byte) {
	text = bytes.TrimLeft(text, " ")
	if i := bytes.IndexByte(text, ' '); i >= 0 {
		return text[:i], text[i+1:]
	}
	return text, nil
}

// findTime finds the time in brackets, which follows the name of the user, which may have brackets, too.
func (r *Reader) findTime(line []byte) (begin, end int, err error) {
	const most = 8
	at := 0
	for range most {
		i := bytes.IndexByte(line[at:], '[')
		if i < 0 {
			break
		}
		begin = at + i
		size := bytes.IndexByte(line[begin:], ']')
		if size < 0 {
			break
		}
		if r.parseTime(line[begin+1 : begin+size]) {
			return begin, begin + size + 1, nil
		}
		at = begin + 1
	}
	return 0, 0, errors.New("no time in brackets, such as [31/Jan/2026:12:00:00 +0000]")
}

// quoted returns a text up to its closing quote, without escapes, and the rest.
func quoted(text []byte) (inner, rest []byte, ok bool) {
	escaped := false
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			escaped = true
			i++
		case '"':
			if inner = text[:i]; escaped {
				inner = unescaped(inner)
			}
			return inner, text[i+1:], true
		}
	}
	return nil, nil, false
}

// unescaped replaces \xHH and the like.
func unescaped(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			out = append(out, text[i])
			continue
		}
		i++
		if text[i] == 'x' && i+2 < len(text) {
			if n, err := strconv.ParseUint(string(text[i+1:i+3]), 16, 8); err == nil {
				out = append(out, byte(n))
				i += 2
				continue
			}
		}
		out = append(out, text[i])
	}
	return out
}

// layouts are those of times, and whether they have only whole seconds.
var layouts = []string{
	"02/Jan/2006:15:04:05 -0700", time.RFC3339Nano, "2006-01-02T15:04:05.999999999-0700", "2006-01-02 15:04:05.999999999 -0700",
	"2006-01-02 15:04:05.999999999Z07:00", "02/Jan/2006:15:04:05.999999999 -0700",
}

// parseTime parses a time with its zone, or a number of seconds, milliseconds, microseconds or nanoseconds since 1970. Many lines in a
// row have the same.
func (r *Reader) parseTime(text []byte) bool {
	if len(text) > len(r.stamp) || len(text) < len("1700000000") {
		return false
	}
	if string(r.stamp[:r.stamps]) == string(text) {
		return true
	}
	at, coarse, ok := timeOf(string(text))
	if !ok || at.Year() < 1990 || at.Year() > 2200 {
		return false
	}
	r.stamps = copy(r.stamp[:], text)
	r.at, r.coarse = at.UTC().Round(0), coarse
	return true
}

func timeOf(text string) (at time.Time, coarse, ok bool) {
	if whole, err := strconv.ParseInt(text, 10, 64); err == nil {
		switch {
		case whole < 1e11:
			return time.Unix(whole, 0), true, true
		case whole < 1e14:
			return time.UnixMilli(whole), false, true
		case whole < 1e17:
			return time.UnixMicro(whole), false, true
		default:
			return time.Unix(0, whole), false, true
		}
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds > 0 && seconds < 1e11 {
		return time.UnixMicro(int64(seconds*1e6 + 0.5)), false, true
	}
	for i, layout := range layouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at, i == 0 || at.Nanosecond() == 0 && !bytes.ContainsAny([]byte(text), "."), true
		}
	}
	return at, false, false
}
