package meter

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/stintdev/stint/internal/kit/scan"
)

// Reader gets what is found in the JSON of a body.
type Reader interface {
	scan.Finder
	// EndText is the end of a JSON text: of the body, or of an event's data.
	EndText(e Event)
}

// Event is a JSON text that has ended.
type Event struct {
	// Name is the name of the server-sent event, valid during the call only.
	Name []byte
	// Whole says that the text is JSON, and complete.
	Whole bool
	// Done says that the text is [DONE], which ends OpenAI's streams.
	Done bool
}

// format is what a body is.
type format uint8

const (
	unknown format = iota // its first byte will tell
	text                  // one JSON text
	events                // server-sent events, with a JSON text each
	opaque                // in an encoding that is not decoded
)

const doneMark = "[DONE]"

// Body reads the JSON of a body as it passes. The body is one JSON text, or server-sent
// events whose data are JSON texts. It is not safe for concurrent use.
type Body struct {
	to      Reader
	format  format
	decoder *Decoder // nil if the body is not encoded
	decoded int64
	json    *scan.JSON
	match   *scan.Match
	events  *scan.Events
	open    bool   // a text has begun
	start   []byte // the first bytes of an event's data
	size    int64  // of an event's data
	closed  bool
}

// NewBody returns a reader of the body of a response with this header.
func NewBody(h http.Header, paths *scan.Paths, to Reader) *Body {
	b := &Body{to: to, match: scan.NewMatch(paths, to), start: make([]byte, 0, len(doneMark))}
	b.json = scan.NewJSON(b.match)
	switch kind := strings.ToLower(h.Get("Content-Type")); {
	case strings.Contains(kind, "event-stream"):
		b.beginEvents()
	case strings.Contains(kind, "json"):
		b.format = text
	}
	switch encoding := strings.ToLower(strings.Join(h.Values("Content-Encoding"), ",")); encoding {
	case "", "identity":
	default:
		if b.decoder = NewDecoder(encoding, b.plain); b.decoder == nil {
			b.format = opaque
		}
	}
	return b
}

func (b *Body) beginEvents() {
	b.format = events
	b.events = scan.NewEvents(b.data)
}

// Why returns why the body could not be read, or Exact.
func (b *Body) Why() Why {
	switch {
	case b.format == opaque:
		return Encoded
	case b.decoder != nil:
		return b.decoder.Why()
	}
	return Exact
}

// Decoded returns how many bytes were read, after decoding.
func (b *Body) Decoded() int64 { return b.decoded }

// Streams reports whether the body is known to be server-sent events that are sent as they
// are read.
func (b *Body) Streams() bool { return b.format == events && b.decoder == nil }

// Position returns the reader of the events of a body that streams, for where it is.
func (b *Body) Position() *scan.Events { return b.events }

// Write reads a piece of the body.
func (b *Body) Write(p []byte) {
	switch {
	case b.format == opaque || b.closed:
	case b.decoder != nil:
		b.decoder.Write(p)
	default:
		b.plain(p)
	}
}

// Close ends the body, whole or not. An event at its end counts without the blank line, if
// its JSON is complete. Further calls do nothing.
func (b *Body) Close() {
	if b.closed {
		return
	}
	if b.decoder != nil {
		b.decoder.Close()
	}
	b.closed = true
	b.endText()
}

// plain reads a piece of the body, decoded.
func (b *Body) plain(p []byte) {
	b.decoded += int64(len(p))
	if b.format == unknown {
		if p = bytes.TrimLeft(p, " \t\r\n"); len(p) == 0 {
			return
		}
		b.format = text
		if p[0] != '{' && p[0] != '[' {
			b.beginEvents()
		}
	}
	if b.format == text {
		b.open = true
		b.json.Write(p)
		return
	}
	for len(p) > 0 {
		n, end := b.events.Read(p)
		p = p[n:]
		if end {
			b.endText()
		}
	}
}

// data reads a piece of an event's data.
func (b *Body) data(p []byte) {
	b.open = true
	b.start = append(b.start, p[:min(len(p), cap(b.start)-len(b.start))]...)
	b.size += int64(len(p))
	b.json.Write(p)
}

// endText ends a JSON text, if one has begun, and makes ready for the next.
func (b *Body) endText() {
	if !b.open {
		return
	}
	e := Event{Whole: b.json.Close(), Done: b.size == int64(len(doneMark)) && string(b.start) == doneMark}
	if b.events != nil {
		e.Name = b.events.Name()
	}
	b.to.EndText(e)
	b.json.Reset()
	b.match.Reset()
	b.open, b.start, b.size = false, b.start[:0], 0
}
