package httplimit

import (
	"encoding/json"
	"net/http"
)

// Echo returns a handler that answers each request with the request itself, in JSON. It
// is a target to try a gateway with.
func Echo() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		_ = out.Encode(struct { // the client may be gone
			Method  string      `json:"method"`
			Host    string      `json:"host"`
			Path    string      `json:"path"`
			Query   string      `json:"query,omitempty"`
			Proto   string      `json:"proto"`
			Remote  string      `json:"remote"`
			Headers http.Header `json:"headers"`
		}{r.Method, r.Host, r.URL.EscapedPath(), r.URL.RawQuery, r.Proto, r.RemoteAddr, r.Header})
	})
}
