package rls

import (
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stintdev/stint/grpclimit/descriptor"
)

// The protocol's messages are few and small, and are read and written here rather than
// by reflection: half of what a request costs beyond its transport would be that.

// readRequest reads an envoy.service.ratelimit.v3.RateLimitRequest. What is wrong with
// it is kept in it. All strings are parts of one text.
func (q *request) readRequest(text string) {
	m := message{rest: text}
	for m.next() {
		switch m.field {
		case 1 | isBytes:
			q.domain = m.bytes
			if !utf8.ValidString(q.domain) {
				q.wrong = "domain: not valid UTF-8"
			}
		case 2 | isBytes:
			if len(q.descriptors) == maxDescriptors {
				q.wrong = tooManyDescriptors
				return
			}
			q.readDescriptor(m.bytes)
		case 3 | isNumber:
			q.hits = uint32(m.number)
		}
	}
	if m.broken && q.wrong == "" {
		q.wrong = "request: not a message"
	}
}

func (q *request) readDescriptor(text string) {
	d := asked{from: len(q.entries)}
	m := message{rest: text}
	for m.next() {
		switch m.field {
		case 1 | isBytes:
			if len(q.entries)-d.from == maxEntries {
				q.wrong = place(len(q.descriptors)) + tooManyEntries
				m.rest = ""
				break
			}
			e := message{rest: m.bytes}
			var entry descriptor.Entry
			for e.next() {
				switch e.field {
				case 1 | isBytes:
					entry.Key = q.readString(e.bytes, d.from, ".key")
				case 2 | isBytes:
					entry.Value = q.readString(e.bytes, d.from, ".value")
				}
			}
			q.entries = append(q.entries, entry)
			m.broken = m.broken || e.broken
		case 2 | isBytes:
			d.override = true
			l := message{rest: m.bytes}
			for l.next() {
				switch l.field {
				case 1 | isNumber:
					d.requests = uint32(l.number)
				case 2 | isNumber:
					d.unit = int32(l.number)
				case 3 | isBytes:
					d.multiplier = uint32(l.wrapped())
				}
			}
			m.broken = m.broken || l.broken
		case 3 | isBytes:
			d.own, d.hits = true, m.wrapped()
		case 4 | isNumber:
			d.negative = m.number != 0
		}
	}
	if m.broken && q.wrong == "" {
		q.wrong = place(len(q.descriptors)) + ": not a message"
	}
	d.to = len(q.entries)
	q.descriptors = append(q.descriptors, d)
}

// readString returns a string of the entry that is read, of a descriptor whose entries
// begin there.
func (q *request) readString(text string, from int, of string) string {
	if !utf8.ValidString(text) && q.wrong == "" {
		q.wrong = place(len(q.descriptors)) + ".entries[" + strconv.Itoa(len(q.entries)-from) + "]" + of + ": not valid UTF-8"
	}
	return text
}

// message is read field by field.
type message struct {
	rest   string
	field  uint64 // its number, and how it is written
	bytes  string
	number uint64
	broken bool
}

// How fields are written that are of interest here. Numbers of fields have fewer bits.
const (
	isNumber = 1 << 32
	isBytes  = 2 << 32
)

// next reads the next field. It returns false at the end, and if there is no reading on.
func (m *message) next() bool {
	for m.rest != "" && !m.broken {
		tag := m.varint()
		num := protowire.Number(tag >> 3)
		if tag>>3 > uint64(protowire.MaxValidNumber) || num < protowire.MinValidNumber {
			m.broken = true
			return false
		}
		switch typ := protowire.Type(tag & 7); typ {
		case protowire.VarintType:
			m.field, m.number = uint64(num)|isNumber, m.varint()
			return !m.broken
		case protowire.BytesType:
			n := m.varint()
			if m.broken || n > uint64(len(m.rest)) {
				m.broken = true
				return false
			}
			m.field, m.bytes, m.rest = uint64(num)|isBytes, m.rest[:n], m.rest[n:]
			return true
		default: // nothing that is known here
			n := protowire.ConsumeFieldValue(num, typ, []byte(m.rest))
			if m.broken = n < 0; !m.broken {
				m.rest = m.rest[n:]
			}
		}
	}
	return false
}

func (m *message) varint() (v uint64) {
	const most = 10 // bytes, of which the last has one bit
	for i := range min(len(m.rest), most) {
		c := m.rest[i]
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			m.rest = m.rest[i+1:]
			m.broken = m.broken || i == most-1 && c > 1
			return v
		}
	}
	m.broken = true
	return 0
}

// wrapped reads a google.protobuf.UInt64Value, or one of 32 bits, in a field.
func (m *message) wrapped() (v uint64) {
	inner := message{rest: m.bytes}
	for inner.next() {
		if inner.field == 1|isNumber {
			v = inner.number
		}
	}
	m.broken = m.broken || inner.broken
	return v
}

// answer is what Envoy is told.
type answer struct {
	code     int32
	statuses []told
	headers  []header
	metadata []byte // of a google.protobuf.Struct; nil: there is none
}

type header struct{ key, value string }

// told is what it is told of a descriptor.
type told struct {
	code       int32
	limited    bool // or else it has no more than the code and what remains
	remaining  uint32
	reset      int64 // seconds
	multiplier uint32
	name       string
	requests   uint32
	unit       int32
}

func sizeField(n int) int { return 1 + protowire.SizeBytes(n) } // whose tag is below 16

func sizeVarint(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func sizeString(s string) int {
	if s == "" {
		return 0
	}
	return sizeField(len(s))
}

func appendVarint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(append(b, byte(num)<<3), v)
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return append(appendLength(b, num, len(s)), s...)
}

func appendLength(b []byte, num protowire.Number, n int) []byte {
	return protowire.AppendVarint(append(b, byte(num)<<3|byte(protowire.BytesType)), uint64(n))
}

func (t *told) sizeLimit() int {
	n := sizeVarint(uint64(t.requests)) + sizeVarint(uint64(t.unit)) + sizeString(t.name)
	if t.multiplier > 0 {
		n += sizeField(sizeVarint(uint64(t.multiplier)))
	}
	return n
}

func (t *told) size() int {
	n := sizeVarint(uint64(t.code)) + sizeVarint(uint64(t.remaining))
	if t.limited {
		n += sizeField(t.sizeLimit()) + sizeField(sizeVarint(uint64(t.reset)))
	}
	return n
}

func (t *told) append(b []byte) []byte {
	b = appendVarint(b, 1, uint64(t.code))
	if t.limited {
		b = appendLength(b, 2, t.sizeLimit())
		b = appendVarint(b, 1, uint64(t.requests))
		b = appendVarint(b, 2, uint64(t.unit))
		b = appendString(b, 3, t.name)
		if t.multiplier > 0 {
			b = appendLength(b, 4, sizeVarint(uint64(t.multiplier)))
			b = appendVarint(b, 1, uint64(t.multiplier))
		}
	}
	b = appendVarint(b, 3, uint64(t.remaining))
	if t.limited {
		b = appendLength(b, 4, sizeVarint(uint64(t.reset)))
		b = appendVarint(b, 1, uint64(t.reset))
	}
	return b
}

func (h *header) size() int { return sizeString(h.key) + sizeString(h.value) }

// size is the size of an envoy.service.ratelimit.v3.RateLimitResponse.
func (a *answer) size() int {
	n := sizeVarint(uint64(a.code))
	for i := range a.statuses {
		n += sizeField(a.statuses[i].size())
	}
	for i := range a.headers {
		n += sizeField(a.headers[i].size())
	}
	if a.metadata != nil {
		n += sizeField(len(a.metadata))
	}
	return n
}

func (a *answer) append(b []byte) []byte {
	b = appendVarint(b, 1, uint64(a.code))
	for i := range a.statuses {
		t := &a.statuses[i]
		b = t.append(appendLength(b, 2, t.size()))
	}
	for i := range a.headers {
		h := &a.headers[i]
		b = appendLength(b, 3, h.size())
		b = appendString(b, 1, h.key)
		b = appendString(b, 2, h.value)
	}
	if a.metadata != nil {
		b = append(appendLength(b, 6, len(a.metadata)), a.metadata...)
	}
	return b
}
