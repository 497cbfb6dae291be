package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Errors of package database.
var (
	// ErrUnavailable means that the database cannot be reached, or does not answer.
	ErrUnavailable = database.ErrUnavailable
	// ErrMoved means that the file of the database was deleted or replaced.
	ErrMoved = database.ErrMoved
)

// NotFoundError means that there is no such record.
type NotFoundError struct{ Kind, ID string }

// Error implements error.
func (e *NotFoundError) Error() string {
	return fmt.Sprintf("there is no %s %s", e.Kind, strict.Quote(e.ID))
}

// ConflictError means that a record is not the version that its writer has seen: it has
// changed since, or exists already.
type ConflictError struct {
	Kind, ID string
	// Seen is the version that the writer has seen, and Found the stored one. Zero: none.
	Seen, Found int64
}

// Error implements error.
func (e *ConflictError) Error() string {
	if e.Seen == 0 {
		return fmt.Sprintf("there is a %s %s already, of version %d", e.Kind, strict.Quote(e.ID), e.Found)
	}
	if e.Found == 0 {
		return fmt.Sprintf("the %s %s has been deleted since it was read", e.Kind, strict.Quote(e.ID))
	}
	return fmt.Sprintf("the %s %s is of version %d now, not %d: it has changed since it was read", e.Kind, strict.Quote(e.ID), e.Found, e.Seen)
}

// unreadableError means that a row cannot be decoded.
type unreadableError struct {
	kind, id string
	err      error
}

// Error implements error.
func (e *unreadableError) Error() string {
	return fmt.Sprintf("the %s %s cannot be read, a newer version may have written it: %v", e.kind, strict.Quote(e.id), e.err)
}

// Status returns the HTTP status for an error of this package.
func Status(err error) int {
	var problems strict.Problems
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, ErrBadToken):
		return http.StatusUnauthorized
	case errors.As(err, new(*NotFoundError)):
		return http.StatusNotFound
	case errors.As(err, new(*ConflictError)), errors.Is(err, ErrInFlight):
		return http.StatusConflict
	case errors.As(err, &problems):
		return http.StatusUnprocessableEntity
	case errors.Is(err, ErrUnavailable), errors.Is(err, stint.ErrUnavailable), errors.Is(err, context.Canceled),
		errors.As(err, new(*HistoryError)), errors.As(err, new(*RefusingNodeError)):
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}
