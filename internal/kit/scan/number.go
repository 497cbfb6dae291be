package scan

import "strings"

// MaxNumber is the highest number that is read: higher ones are clamped to it. All stores
// count up to it exactly.
const MaxNumber = 1<<53 - 1

// Ceil reads a decimal number, as JSON writes them. A fraction is rounded up, a negative
// number is 0, and one above MaxNumber is MaxNumber. It reports whether s is a number;
// space around it is allowed. Nothing is lost to floating point.
func Ceil(s string) (int64, bool) {
	var n number
	for _, c := range []byte(strings.Trim(s, " \t")) {
		if !n.add(c) {
			return 0, false
		}
	}
	return n.ceil(), n.complete()
}

// The parts of a number.
const (
	beginning uint8 = iota
	sign
	zero // a leading one, after which there are no digits
	whole
	point
	fraction
	exponent
	exponentSign
	exponentDigits
)

// maxExponent is more than any digits that are kept can make up for.
const maxExponent = 1 << 20

// number reads a number in constant memory: its first 18 digits, and where the point is.
type number struct {
	part       uint8
	negative   bool
	downward   bool // the exponent is negative
	more       bool // there were digits after those that are kept, and not only zeros
	digits     uint64
	shift, exp int // the value is digits x 10^(shift+exp)
}

// add reads a byte, and reports whether it belongs to the number.
func (n *number) add(c byte) bool {
	isDigit := c >= '0' && c <= '9'
	next := n.part
	switch n.part {
	case beginning, sign:
		switch {
		case c == '-' && n.part == beginning:
			n.negative = true
			next = sign
		case c == '0':
			next = zero
		case isDigit:
			next = whole
		default:
			return false
		}
	case zero, whole:
		switch {
		case isDigit && n.part == whole:
		case c == '.':
			next = point
		case c == 'e' || c == 'E':
			next = exponent
		default:
			return false
		}
	case point, fraction:
		switch {
		case isDigit:
			next = fraction
		case n.part == fraction && (c == 'e' || c == 'E'):
			next = exponent
		default:
			return false
		}
	default:
		switch {
		case isDigit:
			next = exponentDigits
		case n.part == exponent && (c == '+' || c == '-'):
			n.downward = c == '-'
			next = exponentSign
		default:
			return false
		}
	}
	n.part = next
	if isDigit {
		n.digit(uint64(c - '0'))
	}
	return true
}

func (n *number) digit(d uint64) {
	const kept = 1e17 // one more digit fits
	switch {
	case n.part == exponentDigits:
		n.exp = min(n.exp*10+int(d), maxExponent)
	case n.digits < kept:
		n.digits = n.digits*10 + d
		if n.part == fraction && n.shift > -maxExponent {
			n.shift--
		}
	default:
		n.more = n.more || d > 0
		if n.part != fraction && n.shift < maxExponent {
			n.shift++
		}
	}
}

// complete reports whether the number may end here.
func (n *number) complete() bool {
	return n.part == zero || n.part == whole || n.part == fraction || n.part == exponentDigits
}

func (n *number) ceil() int64 {
	if n.negative || n.digits == 0 {
		return 0
	}
	exp := n.shift + n.exp
	if n.downward {
		exp = n.shift - n.exp
	}
	v, more := n.digits, n.more // if there is more, v is above MaxNumber
	for ; exp > 0 && v <= MaxNumber; exp-- {
		v *= 10
	}
	for ; exp < 0 && v > 0; exp++ {
		more = more || v%10 > 0
		v /= 10
	}
	if more {
		v++
	}
	return int64(min(v, MaxNumber))
}
