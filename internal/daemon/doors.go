package daemon

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
)

// api returns the handler of the decision API.
func (d *Daemon) api() (http.Handler, error) {
	decisions, err := httplimit.API(httplimit.APIOptions{
		Engine: d.engine, Store: d.store, Headers: d.config.headers(), OnError: d.undecided, Tickets: d.tickets.tickets,
		Operators: d.operators.api.Operators, OnReset: d.logReset,
	})
	if err != nil {
		return nil, err
	}
	m, guarded := http.NewServeMux(), d.guarded(decisions)
	m.Handle("/", guarded)
	m.Handle("DELETE /v1/usage", decisions) // which is for operators, with tokens of their own
	d.serveHealth(m)
	if d.envoy != nil {
		h := d.envoy.service.Handler()
		m.Handle("POST /json", d.guarded(h))
		m.Handle("/v1/descriptors", d.guarded(h))
		m.Handle("DELETE /v1/descriptors", h) // likewise
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/check" { // the common case does not need the mux
			guarded.ServeHTTP(w, r)
		} else {
			m.ServeHTTP(w, r)
		}
	}), nil
}

// logReset logs who resets the counters of a subject.
func (d *Daemon) logReset(ctx context.Context, who identity.Subject, rule string) error {
	var names []string
	for _, n := range []struct{ kind, id string }{{"user", who.User}, {"tenant", who.Tenant}, {"key", who.Key}} {
		if n.id != "" {
			names = append(names, n.kind+":"+n.id)
		}
	}
	if who.IP.IsValid() {
		names = append(names, "ip:"+who.IP.String())
	}
	return d.logged(ctx, strings.Join(names, " "), rule)
}

// logDescriptorReset logs who resets the counter of a descriptor.
func (d *Daemon) logDescriptorReset(ctx context.Context, domain string, entries []descriptor.Entry) error {
	subject := "descriptor:" + domain
	for _, e := range entries {
		subject += " " + e.Key + "=" + e.Value
	}
	if err := d.logged(ctx, subject, ""); err != nil {
		return status.Error(codes.Unavailable, "the reset cannot be logged: the database cannot be reached")
	}
	return nil
}

// logged logs a reset. Without a log entry there is no reset.
func (d *Daemon) logged(ctx context.Context, subject, rule string) error {
	err := d.operators.api.LogReset(ctx, subject, rule)
	if err == nil {
		return nil
	}
	d.log.WarnContext(ctx, "counters were not reset, because that cannot be logged", "error", err.Error())
	return fmt.Errorf("%w: %w", stint.ErrUnavailable, err)
}

// undecided responds to a call that failed, and logs why, unless the client is gone.
func (d *Daemon) undecided(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		d.log.ErrorContext(r.Context(), "call failed", "path", r.URL.Path, "error", err.Error())
	}
	httplimit.Problem{Status: http.StatusInternalServerError, Detail: "The request could not be decided because of an internal error."}.Write(w, r)
}
