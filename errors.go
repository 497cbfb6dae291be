package stint

import (
	"errors"
	"strconv"
)

// ErrUnavailable is wrapped by a store's error when the store could not be
// reached or did not answer in time. It is all that failing open or closed
// looks at.
var ErrUnavailable = errors.New("stint: store unavailable")

// ErrNotApplied is wrapped, beside [ErrUnavailable], by the error of a store that
// knows that the call has changed nothing. It may be made again.
var ErrNotApplied = errors.New("stint: nothing was changed")

// ErrClosed is wrapped by a store's error after its Close.
var ErrClosed = errors.New("stint: store closed")

// InvalidError says which field of a limit, key or ask is wrong, what it held
// and what would be right.
type InvalidError struct {
	Field string // "max", "window", "burst", "cost", "subject", ...
	Value string
	Want  string
}

func (e *InvalidError) Error() string {
	const most = 64 // a value may be megabytes of a client's making
	v := e.Value
	if len(v) > most {
		v = v[:most] + "..."
	}
	return "stint: " + e.Field + " " + strconv.Quote(v) + ": want " + e.Want
}

func invalid(field, value, want string) error {
	return &InvalidError{Field: field, Value: value, Want: want}
}
