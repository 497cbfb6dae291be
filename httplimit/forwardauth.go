package httplimit

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/stintdev/stint/engine"
)

// forwardAuth decides a request that a proxy describes in headers. The proxy is the
// peer: the engine's identity says whether it is trusted about the client's address.
func (a *api) forwardAuth(w http.ResponseWriter, r *http.Request) {
	denial, err := statusOfDenials(r)
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
	if err := a.Engine.DecideInto(r.Context(), &q, v); err != nil {
		if denial != 0 && tooLong(err) { // it is no failure, which the proxy might let pass
			p := undecidedProblem(err)
			p.Status = denial
			p.Write(w, r)
			return
		}
		a.failed(w, r, err)
		return
	}
	a.Headers.Set(w.Header(), v)
	if v.Outcome.Passed() {
		if v.Subject.BadToken { // for a proxy that can remove it
			w.Header().Set("X-Stint-Unaccepted", v.Subject.Unaccepted.String())
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

// statusOfDenials returns the status that the proxy asks for in place of those that it
// cannot pass on, or 0: nginx treats all but 401 and 403 as an error of its own.
func statusOfDenials(r *http.Request) (int, *inputError) {
	if r.URL.RawQuery == "" {
		return 0, nil
	}
	text := r.URL.Query().Get("status")
	status, err := strconv.Atoi(text)
	if text != "" && (err != nil || status < 400 || status > 599) {
		return 0, &inputError{"status", "want a status from 400 to 599, such as 403, found " + strconv.Quote(text)}
	}
	return status, nil
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
