package rls

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/internal/door/field"
)

// The protocol's messages are few and small. They are read and written here rather than by
// reflection, which would be half of what a request costs beyond its transport.

// readRequest reads an envoy.service.ratelimit.v3.RateLimitRequest, whose strings become
// parts of the text. A problem is stored in q.wrong.
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

// readString checks a field of the entry that is being read. The entries of its descriptor
// start at from.
func (q *request) readString(text string, from int, field string) string {
	if !utf8.ValidString(text) && q.wrong == "" {
		q.wrong = place(len(q.descriptors)) + ".entries[" + strconv.Itoa(len(q.entries)-from) + "]" + field + ": not valid UTF-8"
	}
	return text
}

// message is a protobuf message that is read field by field.
type message struct {
	rest   string
	field  uint64 // its number, and isNumber or isBytes
	bytes  string
	number uint64
	broken bool
}

// The wire types of known fields, above the bits of field numbers.
const (
	isNumber = 1 << 32
	isBytes  = 2 << 32
)

// next reads the next field. It returns false at the end, and if the message is broken.
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
		default: // no field that is known here
			n := protowire.ConsumeFieldValue(num, typ, []byte(m.rest))
			if m.broken = n < 0; !m.broken {
				m.rest = m.rest[n:]
			}
		}
	}
	return false
}

func (m *message) varint() (v uint64) {
	const maxBytes = 10 // of which the last has one bit
	for i := range min(len(m.rest), maxBytes) {
		c := m.rest[i]
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			m.rest = m.rest[i+1:]
			m.broken = m.broken || i == maxBytes-1 && c > 1
			return v
		}
	}
	m.broken = true
	return 0
}

// wrapped reads the field as a google.protobuf.UInt64Value or UInt32Value.
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

// answer is the response to Envoy.
type answer struct {
	code     int32
	statuses []descriptorStatus
	headers  []header // for the client
	over     string   // the value of Stint-Over, for the target; empty if there is none
	metadata []byte   // a google.protobuf.Struct; nil if there is none
	text     []byte   // a buffer for the encoded answer
}

type header struct{ key, value string }

// descriptorStatus is the part of an answer about one descriptor.
type descriptorStatus struct {
	code       int32
	limited    bool // if false, only code and remaining are sent
	remaining  uint32
	reset      int64 // seconds
	multiplier uint32
	name       string
	requests   uint32
	unit       int32
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
	b = protowire.AppendVarint(append(b, byte(num)<<3|byte(protowire.BytesType)), uint64(len(s)))
	return append(b, s...)
}

// appendMessage appends a message inside another one.
func appendMessage(b []byte, num protowire.Number, body func([]byte) []byte) []byte {
	b = append(b, byte(num)<<3|byte(protowire.BytesType), 0) // most lengths take one byte
	start := len(b)
	b = body(b)
	n := uint64(len(b) - start)
	if n >= 0x80 {
		b = slices.Insert(b, start, make([]byte, protowire.SizeVarint(n)-1)...)
	}
	protowire.AppendVarint(b[:start-1], n)
	return b
}

// append appends a RateLimitResponse.DescriptorStatus.
func (d *descriptorStatus) append(b []byte) []byte {
	b = appendVarint(b, 1, uint64(d.code))
	if d.limited {
		b = appendMessage(b, 2, d.appendLimit)
	}
	b = appendVarint(b, 3, uint64(d.remaining))
	if d.limited {
		b = appendMessage(b, 4, func(b []byte) []byte { return appendVarint(b, 1, uint64(d.reset)) })
	}
	return b
}

// appendLimit appends a RateLimitResponse.RateLimit.
func (d *descriptorStatus) appendLimit(b []byte) []byte {
	b = appendVarint(b, 1, uint64(d.requests))
	b = appendVarint(b, 2, uint64(d.unit))
	b = appendString(b, 3, d.name)
	if d.multiplier > 0 {
		b = appendMessage(b, 4, func(b []byte) []byte { return appendVarint(b, 1, uint64(d.multiplier)) })
	}
	return b
}

func (h *header) append(b []byte) []byte {
	return appendString(appendString(b, 1, h.key), 2, h.value)
}

// append appends an envoy.service.ratelimit.v3.RateLimitResponse.
func (a *answer) append(b []byte) []byte {
	b = appendVarint(b, 1, uint64(a.code))
	for i := range a.statuses {
		b = appendMessage(b, 2, a.statuses[i].append)
	}
	for i := range a.headers {
		b = appendMessage(b, 3, a.headers[i].append)
	}
	if a.over != "" {
		over := header{field.Over, a.over}
		b = appendMessage(b, 4, over.append)
	}
	if a.metadata != nil {
		b = appendMessage(b, 6, func(b []byte) []byte { return append(b, a.metadata...) })
	}
	return b
}
