package admin_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/rule"
)

// TestCandidates compares a limit with its candidate by what was recorded, and puts it in its place.
func TestCandidates(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	h.do(http.MethodPost, "/rules/search/promote", nil).want(http.StatusUnprocessableEntity).says("nothing that could take its place")
	h.do(http.MethodPost, "/rules/unknown/promote", nil).want(http.StatusNotFound)
	h.do(http.MethodGet, "/rules/unknown/candidates", nil).want(http.StatusNotFound)

	r := searchRule()
	r.Limits[0].Candidate = "50/minute"
	h.do(http.MethodPut, "/rules/search", r, "If-Match", "*").want(http.StatusOK)
	h.clock.advance(time.Hour)
	events := requested(h, 60, "alice", "bob", "carol")
	for i := range events {
		e := &events[i]
		e.At = e.At.Add(-2 * time.Minute)
		switch e.User {
		case "alice":
			e.Shadow = true
		case "bob":
			e.Outcome, e.Shadow = engine.Denied, i < 30
		}
	}
	writeAll(h, events)
	var c admin.Candidates
	h.ask(http.MethodGet, "/rules/search/candidates", nil, "", h.viewer).want(http.StatusOK).into(&c)
	if c.More != 20 || c.Less != 10 || c.By != "" || len(c.Limits) != 1 || c.Limits[0] != (admin.CandidateLimit{Name: "searches", Limit: "100/minute", Candidate: "50/minute"}) {
		t.Errorf("%+v", c)
	}
	if len(c.Clients) != 2 || c.Clients[0] != (admin.CandidateClient{Client: "user:alice", More: 20}) || c.Clients[1] != (admin.CandidateClient{Client: "user:bob", Less: 10}) {
		t.Errorf("%+v", c.Clients)
	}

	h.ask(http.MethodPost, "/rules/search/promote", nil, "", h.viewer).want(http.StatusForbidden)
	h.do(http.MethodPost, "/rules/search/promote?dry_run=true", nil).want(http.StatusOK)
	h.get("/rules/search").says(`"candidate":"50/minute"`)
	h.do(http.MethodPost, "/rules/search/promote", nil).want(http.StatusOK)
	if text := string(h.get("/rules/search").body); strings.Contains(text, "candidate") || !strings.Contains(text, `"limit":"50/minute","counter":2`) {
		t.Error(text)
	}
	h.ask(http.MethodGet, "/rules/search/candidates", nil, "", h.viewer).want(http.StatusOK).into(&c)
	if c.More != 0 || len(c.Limits) != 0 {
		t.Errorf("counted from before the change: %+v", c)
	}
}

// TestReplaced puts a rule in the place of another.
func TestReplaced(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	next := searchRule()
	next.Name, next.Replaces, next.Limits = "search-2", "search", []rule.Limit{{Name: "searches", Limit: "70/minute"}}
	h.do(http.MethodPost, "/rules", next).want(http.StatusCreated)
	second := next
	second.Name = "search-3"
	h.do(http.MethodPost, "/rules", second).want(http.StatusUnprocessableEntity).says("may already be replaced")
	h.do(http.MethodDelete, "/rules/search", nil, "If-Match", "*").want(http.StatusUnprocessableEntity).says("replaces")
	h.do(http.MethodPost, "/rules/search/promote", nil).want(http.StatusOK)
	h.do(http.MethodGet, "/rules/search", nil).want(http.StatusNotFound)
	if text := string(h.get("/rules/search-2").body); strings.Contains(text, "replaces") {
		t.Error(text)
	}
}
