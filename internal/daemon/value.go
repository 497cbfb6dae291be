package daemon

import (
	"strings"
	"time"

	"github.com/stintdev/stint/rule"
)

// The URLs of counters and of a database in memory.
const (
	inMemory         = "memory:"
	inMemoryDatabase = "sqlite::memory:"
)

const redacted = "[redacted]"

// URL is a URL that may contain a password, which is masked when it is printed or
// marshaled. Convert it to a string to use it.
type URL string

// String returns the URL with its user info and its query masked.
func (u URL) String() string {
	scheme, rest, ok := strings.Cut(string(u), "://")
	if !ok {
		return string(u)
	}
	place, query, hasQuery := strings.Cut(rest, "?")
	switch at := strings.LastIndexByte(place, '@'); {
	case strings.Contains(query, "@"): // a password that is not escaped
		return scheme + "://" + redacted
	case at >= 0:
		place = redacted + place[at:]
	}
	if hasQuery {
		place += "?" + redacted
	}
	return scheme + "://" + place
}

// GoString returns what String does.
func (u URL) GoString() string { return u.String() }

// MarshalText implements [encoding.TextMarshaler].
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// Header is a header, as name=value. The value, which may be a token, is masked when it is
// printed or marshaled. Convert it to a string to use it.
type Header string

// String returns the header with its value masked.
func (h Header) String() string {
	if name, _, ok := strings.Cut(string(h), "="); ok {
		return name + "=" + redacted
	}
	return redacted
}

// GoString returns what String does.
func (h Header) GoString() string { return h.String() }

// MarshalText implements [encoding.TextMarshaler].
func (h Header) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// Duration is a [rule.Duration] that may be 0.
type Duration time.Duration

// String returns the duration in the format of the config file.
func (d Duration) String() string {
	if d == 0 {
		return "0"
	}
	return rule.Duration(d).String()
}

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	if s := string(text); s == "0" || s == "0s" {
		*d = 0
		return nil
	}
	return (*rule.Duration)(d).UnmarshalText(text)
}
