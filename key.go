package stint

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxKeyPart is the most bytes that a key's subject or name may have.
const MaxKeyPart = 4096

// Key names one counter: who is counted and what is counted.
type Key struct {
	Subject string // "user:42", "ip:192.0.2.1"; not empty
	Name    string // rule, limit, and whatever else is counted by
}

// Limit returns the part of Name that names rule and limit: all before the second colon. What follows is
// what is counted by, which clients may make up.
func (k *Key) Limit() string {
	if rule, rest, ok := strings.Cut(k.Name, ":"); ok {
		if i := strings.IndexByte(rest, ':'); i >= 0 {
			return k.Name[:len(rule)+1+i]
		}
	}
	return k.Name
}

// Validate reports what is wrong with the key.
func (k Key) Validate() error {
	if err := validSubject(k.Subject); err != nil {
		return err
	}
	return validPart("name", k.Name)
}

func validSubject(s string) error {
	if s == "" {
		return invalid("subject", "", "at least one character, such as user:42")
	}
	return validPart("subject", s)
}

func validPart(field, s string) error {
	if len(s) > MaxKeyPart {
		return invalid(field, s, "at most "+strconv.Itoa(MaxKeyPart)+" bytes, not "+strconv.Itoa(len(s)))
	}
	if !utf8.ValidString(s) {
		return invalid(field, s, "valid UTF-8")
	}
	return nil
}

// String returns the key's one encoding, {subject}:name, as [Key.Append]
// writes it.
func (k Key) String() string { return string(k.Append(nil)) }

// Append appends the key's encoding to b. Different keys have different
// encodings, whatever their bytes; the subject alone stands in braces, so a
// Redis Cluster keeps all counters of a subject in one slot; the result is
// printable UTF-8 without spaces. A part of more than 128 bytes is replaced by
// its SHA-256.
func (k Key) Append(b []byte) []byte {
	b = append(b, '{')
	b = appendPart(b, k.Subject)
	b = append(b, '}', ':')
	return appendPart(b, k.Name)
}

func appendPart(b []byte, s string) []byte {
	const longest = 128
	if len(s) > longest {
		sum := sha256.Sum256([]byte(s))
		return base64.RawURLEncoding.AppendEncode(append(b, '#'), sum[:])
	}
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			// RuneError of size 1 is a byte that belongs to no rune.
			if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
				b = append(b, s[i:i+n]...)
				i += n
				continue
			}
		}
		if c <= ' ' || c >= 0x7f || c == '%' || c == '{' || c == '}' || (c == '#' && i == 0) {
			const hex = "0123456789ABCDEF"
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
		i++
	}
	return b
}
