package scan

import "bytes"

// MaxEventName is how many bytes of an event's name are kept.
const MaxEventName = 64

// Where an event stream is in a line.
const (
	lineStart uint8 = iota
	fieldName
	fieldSpace // after the colon, where one space is left out
	fieldValue
)

// The fields of an event. Others are ignored, and so are comments.
const (
	otherField uint8 = iota
	dataField
	eventField
)

const byteOrderMark = "\uFEFF"

// Events reads server-sent events in pieces, by the rules of the WHATWG, and keeps only
// the event's name. Lines may end in LF, CRLF or CR, and may be of any length.
type Events struct {
	data  func([]byte)
	where uint8
	field uint8
	mark  int  // how much of a byte order mark was read; -1 after the beginning
	cr    bool // the last byte was a CR: an LF after it belongs to it
	ended bool // the last byte but an LF ended an event
	lines int  // of data

	fieldBuf [len("event")]byte
	fieldLen int // can be more than fits
	name     [MaxEventName]byte
	nameLen  int
}

// NewEvents returns a reader that passes on the data of events in pieces, which are valid
// during the call only. Between two lines of data it passes on a line feed.
func NewEvents(data func([]byte)) *Events { return &Events{data: data} }

// Read reads p up to the end of an event: the blank line, with its line end as far as it is
// in p. It returns how many bytes it read, and whether this was an end. What follows a CR
// that ended an event, if it is an LF, is read by [Events.Rest].
func (e *Events) Read(p []byte) (n int, end bool) {
	if e.ended {
		e.ended, e.lines, e.nameLen = false, 0, 0
	}
	for n < len(p) && e.mark >= 0 {
		n += e.skipMark(p[n])
	}
	n += e.Rest(p[n:])
	for n < len(p) {
		e.cr = false
		length := lineEnd(p[n:])
		if length > 0 {
			e.piece(p[n : n+length])
			n += length
		}
		if n == len(p) {
			return n, false
		}
		e.cr = p[n] == '\r'
		n++
		if e.endLine() {
			e.ended = true
			return n + e.Rest(p[n:]), true
		}
		n += e.Rest(p[n:])
	}
	return n, false
}

// Rest reads the LF of a CRLF whose CR was read before, and returns 1, or 0 if there is none.
func (e *Events) Rest(p []byte) int {
	if !e.cr || len(p) == 0 {
		return 0
	}
	e.cr = false
	if p[0] == '\n' {
		return 1
	}
	return 0
}

// Lines returns how many lines of data the event has. An event without any is not one: its
// name is ignored.
func (e *Events) Lines() int { return e.lines }

// Name returns the first MaxEventName bytes of the event's name. It is valid until the
// next Read.
func (e *Events) Name() []byte { return e.name[:e.nameLen] }

// Between reports whether what was read ends between two events, or at the beginning.
func (e *Events) Between() bool {
	return e.ended || (e.where == lineStart && e.lines == 0 && e.nameLen == 0 && e.mark <= 0)
}

// LineStart reports whether what was read ends at the beginning of a line, and an LF would
// be a blank line: it is not after a CR.
func (e *Events) LineStart() bool { return e.where == lineStart && e.mark <= 0 && !e.cr }

// skipMark reads a byte of a byte order mark, and returns 1, or ends the beginning.
func (e *Events) skipMark(c byte) int {
	if c == byteOrderMark[e.mark] {
		if e.mark++; e.mark == len(byteOrderMark) {
			e.mark = -1
		}
		return 1
	}
	if e.mark > 0 { // it was the beginning of an unknown field
		e.where, e.fieldLen = fieldName, len(e.fieldBuf)+1
	}
	e.mark = -1
	return 0
}

// lineEnd returns the index of the first CR or LF, or the length.
func lineEnd(p []byte) int {
	if n := bytes.IndexByte(p, '\n'); n >= 0 {
		p = p[:n]
	}
	if n := bytes.IndexByte(p, '\r'); n >= 0 {
		return n
	}
	return len(p)
}

// piece reads a part of a line.
func (e *Events) piece(p []byte) {
	if e.where == lineStart {
		e.where, e.fieldLen = fieldName, 0
	}
	if e.where == fieldName {
		n := bytes.IndexByte(p, ':')
		if n < 0 {
			e.addName(p)
			return
		}
		e.addName(p[:n])
		e.beginField()
		p = p[n+1:]
		e.where = fieldSpace
	}
	if e.where == fieldSpace && len(p) > 0 {
		e.where = fieldValue
		if p[0] == ' ' {
			p = p[1:]
		}
	}
	if len(p) == 0 {
		return
	}
	switch e.field {
	case dataField:
		e.data(p)
	case eventField:
		e.nameLen += copy(e.name[e.nameLen:], p)
	}
}

func (e *Events) addName(p []byte) {
	if e.fieldLen < len(e.fieldBuf) {
		copy(e.fieldBuf[e.fieldLen:], p)
	}
	e.fieldLen = min(e.fieldLen+len(p), len(e.fieldBuf)+1)
}

// beginField looks at the name of a field.
func (e *Events) beginField() {
	e.field = otherField
	if e.fieldLen > len(e.fieldBuf) {
		return
	}
	switch string(e.fieldBuf[:e.fieldLen]) {
	case "data":
		e.field = dataField
		if e.lines++; e.lines > 1 {
			e.data(lineFeed)
		}
	case "event":
		e.field, e.nameLen = eventField, 0
	}
}

var lineFeed = []byte{'\n'}

// endLine ends a line, and reports whether it was blank.
func (e *Events) endLine() bool {
	where := e.where
	e.where = lineStart
	if where == fieldName { // a field without a colon has no value
		e.beginField()
	}
	return where == lineStart
}
