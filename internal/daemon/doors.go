package daemon

import (
	"net/http"

	"github.com/stintdev/stint/httplimit"
)

// api returns the handler of the decision API.
func (d *Daemon) api() (http.Handler, error) {
	decisions, err := httplimit.API(httplimit.APIOptions{
		Engine: d.engine, Store: d.store, Headers: d.config.headers(), OnError: d.undecided,
	})
	if err != nil {
		return nil, err
	}
	m := http.NewServeMux()
	m.Handle("/", decisions)
	d.serveHealth(m)
	if d.envoy != nil {
		d.envoy.serveHTTP(m)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/check" { // the common case does not need the mux
			decisions.ServeHTTP(w, r)
		} else {
			m.ServeHTTP(w, r)
		}
	}), nil
}

// undecided responds to a call that failed, and logs why, unless the client is gone.
func (d *Daemon) undecided(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		d.log.ErrorContext(r.Context(), "call failed", "path", r.URL.Path, "error", err.Error())
	}
	httplimit.Problem{Status: http.StatusInternalServerError, Detail: "The request could not be decided because of an internal error."}.Write(w, r)
}
