package memstore

import (
	"math/bits"
	"math/rand/v2"
)

// id is a counter's fingerprint. The top bit of hi is free for the lock.
type id struct{ lo, hi uint64 }

// hasher hashes strings to 128 bits, in two halves with independent secrets. It masks the words of a
// string with the secrets, multiplies them in pairs, and folds the two words of each product into
// one. For keys of usual length it takes at most half the time of hash/maphash.
type hasher struct{ lo, hi secrets }

type secrets [6]uint64

func newHasher() (h hasher) {
	for i := range h.lo {
		h.lo[i], h.hi[i] = rand.Uint64(), rand.Uint64() // cannot be predicted
	}
	return h
}

// of hashes a string. Every byte is in some word, and the length is hashed too.
func (h *hasher) of(s string) id {
	n := uint64(len(s))
	lo, hi := n*h.lo[4], n*h.hi[4]
	var a, b uint64
	switch end := len(s); {
	case end > 8:
		for len(s) > 32 {
			a, b = word(s, 0), word(s, 8)
			lo, hi = fold(a^lo, b^h.lo[5]), fold(a^hi, b^h.hi[5])
			s = s[16:]
		}
		if end = len(s); end > 16 {
			a, b = word(s, end-16), word(s, end-8)
			lo += fold(a^h.lo[2], b^h.lo[3])
			hi += fold(a^h.hi[2], b^h.hi[3])
			a, b = word(s, 0), word(s, 8)
		} else {
			a, b = word(s, 0), word(s, end-8)
		}
	case end >= 4:
		a, b = half(s, 0), half(s, end-4)
	case end > 0:
		a = uint64(s[0]) | uint64(s[end/2])<<8 | uint64(s[end-1])<<16
	}
	return id{lo: lo + fold(a^h.lo[0], b^h.lo[1]), hi: hi + fold(a^h.hi[0], b^h.hi[1])}
}

// with returns the fingerprint of a counter from the hashes of its subject and name. The hashes of
// numbered subjects may be evenly spaced, which would fill some groups of a table and leave others
// empty. Multiplying each half by the other spreads them. Only the top bit is lost, since
// multiplication by an odd number is invertible.
func (subject id) with(name id, kind uint64) id {
	lo, hi := subject.lo+name.lo+kind, subject.hi+name.hi
	hi = hi * (2*lo + 1) &^ held
	lo *= hi>>31 | 1
	return id{lo: lo, hi: max(hi, 1)} // zero means a free cell
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// word and half read eight and four bytes. The compiler makes one instruction of each.

func word(s string, i int) uint64 {
	_ = s[i+7]
	return uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24 |
		uint64(s[i+4])<<32 | uint64(s[i+5])<<40 | uint64(s[i+6])<<48 | uint64(s[i+7])<<56
}

func half(s string, i int) uint64 {
	_ = s[i+3]
	return uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24
}
