package scan

import (
	"encoding/binary"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// MaxDepth is how deep JSON may be nested. Deeper JSON is broken.
	MaxDepth = 256
	// MaxName is how many bytes of a member's name are kept.
	MaxName = 128
)

// Visitor gets the tokens of a JSON text, in their order. Slices are valid during the
// call only.
type Visitor interface {
	// Begin is the start of an array or an object, and End its end.
	Begin(array bool)
	End()
	// Name is the name of a member. It is not whole if it is longer than MaxName.
	Name(name []byte, whole bool)
	// Text is a piece of a string, without escapes. The last one may be empty.
	Text(piece []byte, last bool)
	// Number is a number, rounded up: see [Ceil].
	Number(n int64)
	// Word is true, false or null, by its first letter.
	Word(first byte)
}

// The states of a JSON scanner: what it wants next, or is in.
const (
	value      uint8 = iota
	firstValue       // or the end of the array
	firstName        // or the end of the object
	name
	colon
	after // a value: a comma, or the end of what it is in
	inText
	inEscape
	inHex
	inNumber
	inWord
	done
	broken
)

// JSON reads one JSON text in pieces, by the grammar of RFC 8259, and keeps none of it.
// Like encoding/json it accepts strings that are not valid UTF-8.
type JSON struct {
	to     Visitor
	state  uint8
	isName bool // the string is a name
	depth  int
	arrays [MaxDepth / 64]uint64 // bit i: level i is an array

	nameBuf [MaxName]byte
	nameLen int
	cut     bool // the name is longer

	word   byte   // its first letter
	rest   string // of the word
	number number
	hex    [4]byte
	hexLen int
	high   rune // the first half of a surrogate pair, or 0

	offset, start int64
}

// NewJSON returns a scanner whose tokens go to a visitor.
func NewJSON(to Visitor) *JSON { return &JSON{to: to} }

// Reset begins a new text.
func (j *JSON) Reset() { *j = JSON{to: j.to} }

// Done reports whether the text is complete.
func (j *JSON) Done() bool { return j.state == done }

// Broken reports whether what was read is not the beginning of a JSON text, or is nested
// too deep. The rest is not looked at.
func (j *JSON) Broken() bool { return j.state == broken }

// Offset returns how many bytes were read. During a call of the visitor it is the place
// after the token, or after the first byte of an array or object.
func (j *JSON) Offset() int64 { return j.offset }

// Start returns where the current value begins.
func (j *JSON) Start() int64 { return j.start }

// Close ends the text, and reports whether it is complete.
func (j *JSON) Close() bool {
	if j.state == inNumber && j.depth == 0 {
		j.endNumber()
	}
	return j.Done()
}

// Write reads a piece.
func (j *JSON) Write(p []byte) {
	for len(p) > 0 && j.state != broken {
		n := 1
		switch j.state {
		case inText:
			n = j.text(p)
		case inNumber:
			if !j.number.add(p[0]) {
				j.endNumber()
				n = 0 // the byte is after the number
			}
		default:
			j.offset++
			j.one(p[0])
			p = p[1:]
			continue
		}
		j.offset += int64(n)
		p = p[n:]
	}
}

// one reads a byte outside of texts and numbers.
func (j *JSON) one(c byte) {
	switch j.state {
	case inEscape:
		j.escape(c)
		return
	case inHex:
		j.digit(c)
		return
	case inWord:
		j.letter(c)
		return
	}
	if c == ' ' || c == '\t' || c == '\r' || c == '\n' {
		return
	}
	switch j.state {
	case value, firstValue:
		j.begin(c)
	case firstName, name:
		switch {
		case c == '"':
			j.state, j.isName, j.nameLen, j.cut = inText, true, 0, false
		case c == '}' && j.state == firstName:
			j.end()
		default:
			j.state = broken
		}
	case colon:
		j.state = value
		if c != ':' {
			j.state = broken
		}
	case after:
		j.afterValue(c)
	default: // something after the text
		j.state = broken
	}
}

// begin reads the first byte of a value.
func (j *JSON) begin(c byte) {
	j.start = j.offset - 1
	switch {
	case c == '{' || c == '[':
		if j.depth == MaxDepth {
			j.state = broken
			return
		}
		j.state = firstName
		j.arrays[j.depth/64] &^= 1 << (j.depth % 64)
		if c == '[' {
			j.state = firstValue
			j.arrays[j.depth/64] |= 1 << (j.depth % 64)
		}
		j.depth++
		j.to.Begin(c == '[')
	case c == ']' && j.state == firstValue:
		j.end()
	case c == '"':
		j.state, j.isName = inText, false
	case c == '-' || (c >= '0' && c <= '9'):
		j.state, j.number = inNumber, number{}
		j.number.add(c)
	case c == 't':
		j.state, j.word, j.rest = inWord, c, "rue"
	case c == 'f':
		j.state, j.word, j.rest = inWord, c, "alse"
	case c == 'n':
		j.state, j.word, j.rest = inWord, c, "ull"
	default:
		j.state = broken
	}
}

// inArray reports whether the innermost level is an array.
func (j *JSON) inArray() bool {
	top := j.depth - 1
	return j.arrays[top/64]&(1<<(top%64)) != 0
}

func (j *JSON) afterValue(c byte) {
	switch array := j.inArray(); {
	case c == ',' && array:
		j.state = value
	case c == ',':
		j.state = name
	case (c == ']' && array) || (c == '}' && !array):
		j.end()
	default:
		j.state = broken
	}
}

// end ends an array or an object.
func (j *JSON) end() {
	j.depth--
	j.complete()
	j.to.End()
}

// complete is called after every value.
func (j *JSON) complete() {
	j.state = after
	if j.depth == 0 {
		j.state = done
	}
}

func (j *JSON) endNumber() {
	if !j.number.complete() {
		j.state = broken
		return
	}
	j.complete()
	j.to.Number(j.number.ceil())
}

func (j *JSON) letter(c byte) {
	if c != j.rest[0] {
		j.state = broken
		return
	}
	if j.rest = j.rest[1:]; j.rest == "" {
		j.complete()
		j.to.Word(j.word)
	}
}

// text reads a string up to its end or to an escape, and returns how many bytes it read.
func (j *JSON) text(p []byte) int {
	n := 0
	for n < len(p) && p[n] != '"' && p[n] != '\\' && p[n] >= ' ' {
		n++
	}
	if n > 0 {
		j.emit(p[:n])
	}
	if n == len(p) {
		return n
	}
	switch p[n] {
	case '"':
		j.offset += int64(n) + 1 // for the visitor
		j.endText()
		j.offset -= int64(n) + 1
	case '\\':
		j.state = inEscape
	default:
		j.state = broken
	}
	return n + 1
}

func (j *JSON) endText() {
	j.loneHalf()
	if j.isName {
		j.state = colon
		j.to.Name(j.nameBuf[:j.nameLen], !j.cut)
		return
	}
	j.complete()
	j.to.Text(nil, true)
}

// emit passes on a piece of a string or of a name.
func (j *JSON) emit(p []byte) {
	j.loneHalf()
	if !j.isName {
		j.to.Text(p, false)
		return
	}
	n := copy(j.nameBuf[j.nameLen:], p)
	j.nameLen += n
	j.cut = j.cut || n < len(p)
}

// loneHalf replaces the first half of a surrogate pair that has no second one.
func (j *JSON) loneHalf() {
	if j.high != 0 {
		j.high = 0
		j.emit([]byte(string(utf8.RuneError)))
	}
}

func (j *JSON) escape(c byte) {
	j.state = inText
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		j.state, j.hexLen = inHex, 0
		return
	default:
		j.state = broken
		return
	}
	j.emit([]byte{c})
}

// digit reads a digit of \uXXXX.
func (j *JSON) digit(c byte) {
	switch {
	case c >= '0' && c <= '9':
		c -= '0'
	case c >= 'a' && c <= 'f':
		c -= 'a' - 10
	case c >= 'A' && c <= 'F':
		c -= 'A' - 10
	default:
		j.state = broken
		return
	}
	j.hex[j.hexLen] = c
	if j.hexLen++; j.hexLen < len(j.hex) {
		return
	}
	j.state = inText
	h := binary.BigEndian.Uint32(j.hex[:])
	j.unit(rune(h>>24<<12 | h>>16&0xff<<8 | h>>8&0xff<<4 | h&0xff))
}

// unit passes on a code unit of UTF-16.
func (j *JSON) unit(r rune) {
	if pair := utf16.DecodeRune(j.high, r); j.high != 0 && pair != utf8.RuneError {
		j.high, r = 0, pair
	}
	j.loneHalf()
	if utf16.IsSurrogate(r) && r < 0xdc00 {
		j.high = r
		return
	}
	j.emit(utf8.AppendRune(nil, r)) // half a pair becomes the replacement character
}
