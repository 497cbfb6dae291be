package engine

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"time"
)

// ID identifies a decision. It is a UUID of version 7, so IDs sort by time.
type ID [16]byte

// NewID returns an ID for a decision at the given time. The 12 bits after the milliseconds are their
// fraction, and 62 bits are random.
func NewID(now time.Time) (id ID) {
	micros := uint64(now.UnixMicro())
	millis, fraction := micros/1000, micros%1000<<12/1000
	binary.BigEndian.PutUint64(id[:8], millis<<16|0x7000|fraction)
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()&^(3<<62)|2<<62)
	return id
}

// FirstID returns the lowest ID for a decision at the given time or later.
func FirstID(at time.Time) (id ID) {
	id = NewID(at)
	clear(id[8:])
	return id
}

// Time returns the time of the decision, in whole microseconds of UTC.
func (id ID) Time() time.Time {
	n := binary.BigEndian.Uint64(id[:8])
	millis, fraction := n>>16, n&0xfff
	return time.UnixMicro(int64(millis*1000 + (fraction*1000+0xfff)>>12)).UTC()
}

// String returns the ID in the usual form of a UUID.
func (id ID) String() string {
	var room [36]byte
	text, _ := id.AppendText(room[:0])
	return string(text)
}

// MarshalText implements [encoding.TextMarshaler].
func (id ID) MarshalText() ([]byte, error) { return id.AppendText(make([]byte, 0, 36)) }

// AppendText implements [encoding.TextAppender]. The error is always nil.
func (id ID) AppendText(b []byte) ([]byte, error) {
	const digits = "0123456789abcdef"
	n := len(b)
	b = append(b, "00000000-0000-0000-0000-000000000000"...)
	text := b[n:]
	for i, at := range [len(id)]uint8{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34} {
		text[at], text[at+1] = digits[id[i]>>4], digits[id[i]&15]
	}
	return b, nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (id *ID) UnmarshalText(text []byte) (err error) {
	var read ID
	digits := bytes.ReplaceAll(text, []byte("-"), nil)
	if len(digits) == hex.EncodedLen(len(read)) {
		_, err = hex.Decode(read[:], digits)
	}
	if err != nil || read.String() != string(text) {
		return fmt.Errorf("id %q: want a UUID", text)
	}
	*id = read
	return nil
}
