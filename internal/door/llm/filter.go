package llm

import (
	"bytes"

	"github.com/stintdev/stint/internal/kit/scan"
)

// MaxHeld is how many bytes of an event a filter holds back. A larger event is passed on.
const MaxHeld = 16 << 10

// Filter removes from an OpenAI stream the event that reports usage, for a client that has
// not asked for it: an object with usage and without choices. Every other byte is passed on
// unchanged and in order; comments are, too, if they stand before that event.
//
// It holds back an event until it cannot be that one: usually until its first choice, else
// until its end, and at most MaxHeld bytes.
//
// It needs the stream without a Content-Encoding: who asks for usage in a client's name does
// not pass on the client's Accept-Encoding.
type Filter struct {
	events  *scan.Events
	json    *scan.JSON
	match   *scan.Match
	held    []byte
	open    bool // the event cannot be the one, and is passed on
	dropped bool // the last event was removed

	usage, other bool // what the event has
}

// The paths of an event.
var filterPaths = mustPaths(0, "usage", 1, "choices[*]", 2, "error")

// NewFilter returns a filter for one stream.
func NewFilter() *Filter {
	f := &Filter{}
	f.match = scan.NewMatch(filterPaths, f)
	f.json = scan.NewJSON(f.match)
	f.events = scan.NewEvents(f.data)
	return f
}

// Append adds what can be passed on of the stream, with its next piece, to dst.
func (f *Filter) Append(dst, p []byte) []byte {
	if n := f.events.Rest(p); n > 0 { // the LF of a blank line that was read up to its CR
		if !f.dropped && len(f.held) == 0 {
			dst = append(dst, p[:n]...)
		} else if len(f.held) > 0 {
			f.held = append(f.held, p[:n]...)
		}
		p = p[n:]
	}
	for len(p) > 0 {
		n, end := f.events.Read(p)
		dst = f.pass(dst, p[:n])
		p = p[n:]
		if end {
			dst = f.endEvent(dst)
		}
	}
	return dst
}

// pass adds a piece of an event to what is held, or to dst.
func (f *Filter) pass(dst, p []byte) []byte {
	f.dropped = false
	f.open = f.open || f.other || f.json.Broken() || len(f.held)+len(p) > MaxHeld
	if !f.open {
		f.held = append(f.held, p...)
		return dst
	}
	dst = append(append(dst, f.held...), p...)
	f.held = f.held[:0]
	return dst
}

// endEvent passes on what is held of an event that has ended, unless it is the one.
func (f *Filter) endEvent(dst []byte) []byte {
	if !f.open && f.isReport() {
		f.dropped = true
		dst = appendComments(dst, f.held)
	} else {
		dst = append(dst, f.held...)
	}
	f.held = f.held[:0]
	f.json.Reset()
	f.match.Reset()
	f.open, f.usage, f.other = false, false, false
	return dst
}

func (f *Filter) isReport() bool { return f.usage && !f.other && f.json.Close() }

// Flush ends the stream, and adds what is still held to dst.
func (f *Filter) Flush(dst []byte) []byte { return f.endEvent(dst) }

// Held returns how many bytes are held back.
func (f *Filter) Held() int { return len(f.held) }

func (f *Filter) data(p []byte) { f.json.Write(p) }

// Value implements [scan.Finder].
func (f *Filter) Value(path int, v scan.Value) {
	switch path {
	case 0:
		f.usage = v.Kind == scan.Object
	case 1:
		f.other = true
	case 2:
		f.other = f.other || v.Kind != scan.Null
	}
}

// Text implements [scan.Finder].
func (f *Filter) Text(int, []byte) {}

// appendComments adds the comments of an event to dst.
func appendComments(dst, event []byte) []byte {
	for len(event) > 0 {
		n := bytes.IndexAny(event, "\r\n")
		if n < 0 {
			n = len(event) - 1
		} else if event[n] == '\r' && n+1 < len(event) && event[n+1] == '\n' {
			n++
		}
		if event[0] == ':' {
			dst = append(dst, event[:n+1]...)
		}
		event = event[n+1:]
	}
	return dst
}
