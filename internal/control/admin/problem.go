package admin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Problem is an error response, as in RFC 9457.
type Problem struct {
	Type   string `json:"type" doc:"Always about:blank." example:"about:blank"`
	Title  string `json:"title" doc:"The name of the status." example:"Precondition Failed"`
	Status int    `json:"status" doc:"The HTTP status." example:"412"`
	Detail string `json:"detail" doc:"What is wrong, for people." example:"the rule \"search\" is of version 14 now, not 12: it has changed since it was read"`
	// Version is the current version of the object.
	Version int64          `json:"version,omitempty" doc:"For 409 and 412: the current version." example:"14"`
	Errors  []FieldProblem `json:"errors,omitempty" doc:"The fields that are invalid, if any."`

	header http.Header
}

// FieldProblem is a problem with one field or parameter.
type FieldProblem struct {
	Field   string `json:"field,omitempty" doc:"The path in the body, or the name of the parameter. Missing, if it is about the whole." example:"limits[0].limit"`
	Message string `json:"message" doc:"What is wrong." example:"\"10/fortnight\" is not a limit"`
	Hint    string `json:"hint,omitempty" doc:"A suggestion." example:"did you mean \"10/day\"?"`
	Line    int    `json:"line,omitempty" doc:"The line in the body, or in the text of a candidate, from 1." example:"3"`
	Column  int    `json:"column,omitempty" doc:"The column, in characters, from 1." example:"7"`
}

// Error implements error.
func (p *Problem) Error() string { return p.Detail }

// with sets a header of the response.
func (p *Problem) with(name, value string) *Problem {
	if p.header == nil {
		p.header = http.Header{}
	}
	p.header.Set(name, value)
	return p
}

// fail returns a problem with a status and a detail.
func fail(status int, detail string) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}

// blame returns a problem with one field.
func blame(status int, field, message, hint string) *Problem {
	return blameAll(status, strict.Problems{{Path: field, Message: message, Hint: hint}})
}

// blameAll returns a problem with at least one field.
func blameAll(status int, problems strict.Problems) *Problem {
	first := problems[0]
	first.File = ""
	detail := first.String()
	if len(problems) > 1 {
		detail += " (and more)"
	}
	p := fail(status, detail)
	p.Errors = fieldProblems(problems)
	return p
}

func fieldProblems(problems strict.Problems) []FieldProblem {
	return converted(problems, func(p *strict.Problem) FieldProblem { return FieldProblem{p.Path, p.Message, p.Hint, p.Line, p.Column} })
}

// errInside is the problem for internal errors: clients get no details.
var errInside = fail(http.StatusInternalServerError, "an internal error: see the log of the server")

// problemOf converts an error to a problem.
func (a *API) problemOf(r *http.Request, err error) *Problem {
	var (
		told     *Problem
		conflict *catalog.ConflictError
		problems strict.Problems
		large    *http.MaxBytesError
		history  *catalog.HistoryError
		refusing *catalog.RefusingNodeError
	)
	switch {
	case errors.As(err, &told):
		return told
	case errors.As(err, &large):
		return fail(http.StatusRequestEntityTooLarge, "the body is larger than "+bytesOf(large.Limit))
	case errors.As(err, &problems) && len(problems) > 0:
		return blameAll(http.StatusUnprocessableEntity, problems)
	case errors.As(err, &conflict):
		status := http.StatusConflict
		if conflict.Seen != 0 && r.Header.Get("If-Match") != "" {
			status = http.StatusPreconditionFailed
		}
		p := fail(status, err.Error())
		p.Version = conflict.Found
		return p
	case errors.Is(err, catalog.ErrInFlight):
		return fail(http.StatusConflict, "a request with the same Idempotency-Key is being carried out: try again").with("Retry-After", "1")
	case errors.As(err, &history):
		return fail(http.StatusServiceUnavailable, "nothing was changed: "+history.Error())
	case errors.As(err, &refusing):
		return fail(http.StatusServiceUnavailable, "nothing was changed: "+refusing.Error())
	case errors.Is(err, catalog.ErrMoved):
		return fail(http.StatusServiceUnavailable, catalog.ErrMoved.Error()+": nothing was stored; the log of the server names the file").with("Retry-After", "1")
	case errors.Is(err, context.DeadlineExceeded):
		return fail(http.StatusServiceUnavailable, "the operation took too long: try again").with("Retry-After", "1")
	}
	switch status := catalog.Status(err); status {
	case http.StatusInternalServerError:
		a.log.LogAttrs(r.Context(), slog.LevelError, "admin: request failed",
			slog.String("operation", r.Pattern), slog.Any("error", err))
		return errInside
	case http.StatusServiceUnavailable:
		if r.Context().Err() == nil {
			a.log.LogAttrs(r.Context(), slog.LevelWarn, "admin: request could not be answered",
				slog.String("operation", r.Pattern), slog.Any("error", err))
		}
		return fail(status, "the database cannot be reached: try again").with("Retry-After", "1")
	default:
		return fail(status, err.Error())
	}
}

// problem responds with an error.
func (a *API) problem(w http.ResponseWriter, r *http.Request, err error) (status int) {
	p := a.problemOf(r, err)
	for name, values := range p.header {
		w.Header()[name] = values
	}
	writeJSON(w, p.Status, "application/problem+json", p)
	return p.Status
}

// writeJSON responds with JSON. A client that is gone is not an error.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v)
	if err != nil { // NaN or infinity, which problems do not have
		status, contentType = errInside.Status, "application/problem+json"
		body, _ = json.Marshal(errInside)
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
