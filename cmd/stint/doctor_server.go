package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
)

// server checks a running server.
func (d *doctor) server(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	a, err := d.open(d.terminal)
	if err != nil {
		d.failed("api", err)
		return
	}
	defer a.close()
	var session admin.Session
	if err := a.do(ctx, call{path: "/session", into: &session}); err != nil {
		d.failed("api", err)
		return
	}
	d.note("api", findOK, fmt.Sprintf("%s answers; the token belongs to %s and has the role %s", a.base, session.Name, session.Role), "")
	const soon = 24 * time.Hour
	if end := session.Token; !end.IsZero() && end.Sub(now()) < soon {
		d.note("api.token", findWarn, fmt.Sprintf("the token expires at %s", cell(session.Token)), "stint tokens create, to create one that is valid for longer")
	}
	var s admin.Status
	before := now()
	if err := a.do(ctx, call{path: "/status", into: &s}); err != nil {
		d.failed("api", err)
		return
	}
	about := s.Now.Sub(before).Abs()
	d.clocks("api.clock", "the clocks of the server and this machine", about-now().Sub(before), about)
	if mine := versionOf().Version; s.Version != mine {
		d.note("api.version", findWarn, fmt.Sprintf("the server has version %s, and this program %s", s.Version, mine), "the same version on both sides")
	} else {
		d.note("api.version", findOK, "the server and this program have version "+s.Version, "")
	}
	if !d.named {
		return // its health is known
	}
	d.health(&s.Health)
	nodes, err := items[admin.Node](ctx, a, "/nodes", nil)
	if err != nil {
		d.failed("nodes", err)
		return
	}
	for _, n := range nodes {
		health := findOK
		if n.State != nil {
			health = n.State.Status
		}
		d.node(catalog.NodeInfo{Name: n.Name, Revision: n.Revision, Problem: n.Problem, Version: n.Version}, n.Behind, health)
	}
}

// health adds the health of a running server.
func (d *doctor) health(h *daemon.Health) {
	for _, c := range h.Checks {
		if status, ok := map[string]string{"degraded": findWarn, "not_ready": findFail}[c.Status]; ok {
			d.note("health."+c.Name, status, c.Detail, "the log of the server")
		}
	}
	if h.Status == findOK {
		d.note("health", findOK, "all parts of the server are healthy", "")
	}
}

// failed adds that a call of the server failed.
func (d *doctor) failed(check string, err error) {
	a := advice{}
	errors.As(err, &a)
	status := findFail
	if !d.named && (hasStatus(err, http.StatusUnauthorized) || hasStatus(err, http.StatusForbidden)) {
		status = findWarn // the user did not ask for this server
	}
	d.note(check, status, err.Error(), a.try)
}
