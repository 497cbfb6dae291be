package httplimit

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/field"
	"github.com/stintdev/stint/internal/door/settle"
)

// forwardAuth decides a request that a proxy describes in headers. The proxy is the
// peer: the engine's identity says whether it is trusted about the client's address.
func (a *api) forwardAuth(w http.ResponseWriter, r *http.Request) {
	denial, life, err := a.asked(r)
	if err != nil {
		badRequest(w, r, err)
		return
	}
	q := engine.Request{Headers: r.Header, Peer: peerOf(r)}
	if q.Method, q.Path, err = original(r); err != nil {
		badRequest(w, r, err)
		return
	}
	b := scratches.Get().(*scratch)
	defer b.release()
	v := &b.add().verdict
	held, failure := a.hold(r.Context(), &q, v, life > 0)
	switch {
	case denial != 0 && tooLong(failure): // it is no failure, which the proxy might let pass
		p := undecidedProblem(failure)
		p.Status = denial
		p.Write(w, r)
		return
	case failure != nil:
		a.failed(w, r, failure)
		return
	}
	a.Headers.Set(w.Header(), v)
	if v.Outcome.Passed() {
		if over := field.OverOf(v); over != "" {
			w.Header().Set(field.Over, over)
		}
		if v.Subject.BadToken { // for a proxy that can remove it
			w.Header().Set("X-Stint-Unaccepted", v.Subject.Unaccepted.String())
		}
		if held != nil && slices.ContainsFunc(v.Limits, settled) {
			// Without a ticket, if it would be too long, what was reserved stays charged.
			if ticket, err := a.Tickets.Seal(held, life); err == nil {
				w.Header().Set("Stint-Ticket", ticket)
			}
		}
		w.WriteHeader(http.StatusOK)
		return
	}
	p := ProblemOf(v)
	if denial != 0 && v.Status != http.StatusUnauthorized && v.Status != http.StatusForbidden {
		p.Status = denial
	}
	p.Write(w, r)
}

// hold decides a request, and returns what it reserves, if that is wanted.
func (a *api) hold(ctx context.Context, q *engine.Request, v *engine.Verdict, wanted bool) (held *engine.Reservation, err error) {
	if !wanted {
		return nil, a.Engine.DecideInto(ctx, q, v)
	}
	*v, held, err = a.Engine.Reserve(ctx, *q)
	return held, err
}

// settled reports whether there is something to settle under a limit: a cost that is known afterwards, or a place.
func settled(l engine.Limit) bool {
	meter, _ := l.Rule.Meter()
	return meter != "" || l.Penalty == nil && l.Limit.Algorithm == stint.Concurrency
}

// asked returns what the proxy asks for beside a decision. Denial is the status in place of those that it cannot pass
// on, or 0: nginx treats all but 401 and 403 as an error of its own. Life is how long a ticket is to be valid, or 0 for
// none.
func (a *api) asked(r *http.Request) (denial int, life time.Duration, err *inputError) {
	if r.URL.RawQuery == "" {
		return 0, 0, nil
	}
	number := func(name, want string, least, most int) (int, *inputError) {
		text := r.URL.Query().Get(name)
		n, bad := strconv.Atoi(text)
		if text != "" && (bad != nil || n < least || n > most) {
			return 0, &inputError{name, "want " + want + ", found " + strconv.Quote(text)}
		}
		return n, nil
	}
	if denial, err = number("status", "a status from 400 to 599, such as 403", 400, 599); err != nil {
		return 0, 0, err
	}
	const longest = int(settle.MaxLife / time.Second)
	seconds, err := number("ticket", "for how many seconds the ticket is valid, from 1 to "+strconv.Itoa(longest), 1, longest)
	if err == nil && seconds > 0 && a.Tickets == nil {
		err = &inputError{"ticket", "there are no tickets here"}
	}
	return denial, time.Duration(seconds) * time.Second, err
}

// original returns the method and the path of the request that the proxy asks about. It
// reads the headers of one convention, never of both: a proxy that sets those of one
// passes on those that the client has sent of the other.
func original(r *http.Request) (method, path string, err *inputError) {
	uri, methodHeader := "", ""
	for _, by := range [...]struct{ uri, method string }{
		{"X-Forwarded-Uri", "X-Forwarded-Method"},
		{"X-Original-Uri", "X-Original-Method"},
	} {
		switch lines := r.Header[by.uri]; {
		case len(lines) == 0 || (len(lines) == 1 && lines[0] == ""):
		case len(lines) > 1 || (uri != "" && uri != lines[0]):
			return "", "", &inputError{by.uri, "want one of X-Forwarded-Uri and X-Original-URI, once; the proxy should remove the other"}
		case uri == "":
			uri, methodHeader = lines[0], by.method
		}
	}
	if uri == "" {
		return "", "", &inputError{"X-Forwarded-Uri", "want the path of the request here or in X-Original-URI"}
	}
	if !strings.HasPrefix(uri, "/") {
		// A client may send a whole URL, and its proxy may pass that on unchanged.
		_, rest, _ := strings.Cut(uri, "://")
		uri = "/"
		if i := strings.IndexAny(rest, "/?#"); i >= 0 {
			uri += rest[i:]
		}
	}
	if method = r.Header.Get(methodHeader); method == "" {
		method = r.Method
	}
	return method, uri, nil
}
