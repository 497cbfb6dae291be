package httplimit

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/door/field"
)

// Options are the settings of a middleware. Engine is required.
type Options struct {
	Engine  *engine.Engine
	Headers HeaderSet // default X, IETF and ID
	// Cost returns what a request costs, in place of what rules say; 0 leaves it to them.
	Cost func(*http.Request) int64
	// Subject returns who is asking, if the program knows: any of User, Tenant, Key, Tier
	// and IP. If it is nil or returns nil, the engine's identity finds out.
	Subject func(*http.Request) *identity.Subject
	// OnError answers a request that could not be decided, because its context has
	// ended, the directory could not look up its key, a counter is broken, or its path is
	// too long. The handler is not called. Default: a problem with status 414 if the path
	// is too long, 503 if a retry may succeed, and otherwise 500, which does not say why.
	OnError func(w http.ResponseWriter, r *http.Request, err error)
}

// New returns a middleware that decides each request once, before the handler sees it.
// The handler gets the server's own ResponseWriter, with the headers of the verdict
// already set, and finds the verdict with [VerdictOf]. A token that was not accepted, and did
// not lead to a rejection, is not among the headers that it gets. If the request is over a limit of a
// mark rule, Stint-Over is.
//
// If rules that apply have a meter, or limits of concurrency, the handler gets a ResponseWriter
// that does the same and counts. When the handler has returned or panicked, and a connection that
// it has hijacked is closed, places are released, and costs corrected to what was measured, in
// the background: see [engine.Engine.Settled].
func New(o Options) (func(http.Handler) http.Handler, error) {
	if o.Engine == nil {
		return nil, invalid("Engine", "nil", "what engine.New returns")
	}
	if o.OnError == nil {
		o.OnError = undecided
	}
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic("httplimit: nil handler") // as net/http does, rather than with the first request
		}
		return &middleware{Options: o, next: next}
	}, nil
}

func invalid(field, value, want string) error {
	return &stint.InvalidError{Field: field, Value: value, Want: want}
}

// notDecided is the answer if deciding failed. It does not say why: errors may hold what
// clients should not see.
var notDecided = Problem{Status: http.StatusInternalServerError, Detail: "The limits of this request could not be checked."}

// tooLong reports whether a request was not decided because its path is too long.
func tooLong(err error) bool {
	_, ok := errors.AsType[*engine.PathError](err)
	return ok
}

// undecided is the default of OnError.
func undecided(w http.ResponseWriter, r *http.Request, err error) {
	if unavailable(err) {
		None.Set(w.Header(), &notNow)
	}
	undecidedProblem(err).Write(w, r)
}

// unavailable reports whether a retry may succeed.
func unavailable(err error) bool {
	return errors.Is(err, stint.ErrUnavailable) || errors.Is(err, identity.ErrDirectory)
}

// notNow stands for the verdict then.
var notNow = engine.Verdict{Outcome: engine.Unavailable, Status: http.StatusServiceUnavailable, RetryAfter: time.Second}

func undecidedProblem(err error) Problem {
	if long, ok := errors.AsType[*engine.PathError](err); ok {
		return Problem{Status: http.StatusRequestURITooLong, Detail: "The path of the request is longer than " + strconv.Itoa(long.Most) + " bytes."}
	}
	if !unavailable(err) {
		return notDecided
	}
	p := ProblemOf(&notNow)
	p.DecisionID = "" // nothing was decided
	if errors.Is(err, identity.ErrDirectory) {
		p.Detail = "The limits of this request cannot be checked at the moment. Try again in 1 s."
	}
	return p
}

type middleware struct {
	Options
	next http.Handler
}

func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := &field.Decided{Context: r.Context()}
	q := engine.Request{Method: r.Method, Path: r.URL.EscapedPath(), Headers: r.Header, Peer: peerOf(r)}
	if m.Cost != nil {
		q.Cost = m.Cost(r)
	}
	if m.Subject != nil {
		q.Subject = m.Subject(r)
	}
	serving, err := m.Engine.Serve(ctx.Context, &q, &ctx.Verdict)
	if err != nil {
		m.OnError(w, r, err)
		return
	}
	if !ctx.Verdict.Outcome.Passed() {
		Deny(w, r, m.Headers, &ctx.Verdict)
		return
	}
	m.Headers.Set(w.Header(), &ctx.Verdict)
	r = r.WithContext(ctx)
	over := field.OverOf(&ctx.Verdict)
	if _, told := r.Header[field.Over]; told || over != "" || ctx.Verdict.Subject.BadToken {
		r.Header = r.Header.Clone()
		r.Header.Del(field.Over) // of the client
		if over != "" {
			r.Header.Set(field.Over, over)
		}
		if ctx.Verdict.Subject.BadToken {
			r.Header.Del("Authorization")
		}
	}
	if serving != nil {
		serveUntilEnd(w, r, serving, nil, func(w http.ResponseWriter, r *http.Request) {
			m.next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), servedKey{}, w.(*served))))
		})
		return
	}
	m.next.ServeHTTP(w, r)
}

// peerOf returns the address of the other end of the connection. It is invalid if there
// is none, as with a Unix socket.
func peerOf(r *http.Request) netip.Addr {
	if a, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return a.Addr()
	}
	a, _ := netip.ParseAddr(r.RemoteAddr) // some middlewares leave the port out
	return a
}

// VerdictOf returns the verdict on the request of this context, or nil if the request
// has not passed a middleware.
func VerdictOf(ctx context.Context) *engine.Verdict {
	return field.VerdictOf(ctx)
}
