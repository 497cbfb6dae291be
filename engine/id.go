package engine

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"time"
)

// ID names a decision. It is a UUID of version 7: those that were made later sort
// behind.
type ID [16]byte

func newID(now time.Time) (id ID) {
	binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16|rand.Uint64()&0xfff|0x7000)
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()&^(3<<62)|2<<62)
	return id
}

// String returns the ID as UUIDs are written.
func (id ID) String() string {
	text, _ := id.MarshalText()
	return string(text)
}

// MarshalText implements [encoding.TextMarshaler].
func (id ID) MarshalText() ([]byte, error) {
	b := make([]byte, 0, 36)
	for i, end := range [...]int{4, 6, 8, 10, 16} {
		if i > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, id[[...]int{0, 4, 6, 8, 10}[i]:end])
	}
	return b, nil
}
