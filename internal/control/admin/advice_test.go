package admin_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/fitting"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/test/testdatabase"
	"github.com/stintdev/stint/rule"
)

// asked returns requests of 40 users and of an attacker to two paths, within 20 minutes until now.
func asked(h *testAPI) (out []record.Event) {
	h.Helper()
	begin := h.clock.now().UTC().Truncate(time.Minute).Add(-21 * time.Minute)
	add := func(user, path string, at time.Duration) {
		e := record.Event{
			At: begin.Add(at), Outcome: engine.Allowed, User: user, IP: "192.0.2.1", Method: http.MethodGet, Path: path, Cost: 1, Weight: 1, Node: "node-1",
		}
		if path == "/search" {
			e.Rule, e.Endpoint, e.Max = "search", "/search", 100
		}
		binary.BigEndian.PutUint64(e.ID[:], uint64(len(out))+1)
		out = append(out, e)
	}
	for i := range 20 {
		for u := range 40 {
			add(fmt.Sprint("u", u), "/search", time.Duration(i)*time.Minute+time.Duration(u)*time.Millisecond)
		}
		for n := range 30 {
			add("mallory", "/search", time.Duration(i)*time.Minute+time.Duration(n)*time.Second)
		}
		for u := range 20 {
			add(fmt.Sprint("u", u), "/items/12345", time.Duration(i)*time.Minute+30*time.Second)
		}
	}
	return out
}

// TestAdvice asks for advice about what was recorded, in both databases.
func TestAdvice(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(testing.TB) string{
		"SQLite":     func(testing.TB) string { return "" },
		"PostgreSQL": testdatabase.Postgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestAPIAt(t, url(t))
			seed(h)
			ask := func(path string, into any) {
				t.Helper()
				h.ask(http.MethodGet, path, nil, "", h.viewer).want(http.StatusOK).into(into)
			}
			var empty fitting.Advice
			ask("/rules/search/advice", &empty)
			if empty.Verdict != fitting.TooLittle || empty.Suggestion != nil || empty.Clients != 0 {
				t.Errorf("%+v", empty)
			}
			writeAll(h, asked(h))
			var x fitting.Advice
			ask("/rules/search/advice?clients=20", &x)
			s := x.Suggestion
			if x.Rule != "search" || x.Verdict != fitting.Fits || x.Requests != 1400 || x.Clients != 41 || x.Limits[0].P50 != 2 || x.Limits[0].Max < 30 || s == nil {
				t.Fatalf("%+v", x)
			}
			if s.Rule.Limits[0].Limit != "2/1m" || s.Clients != 1 || s.Denied < 500 || s.Top[0].Subject != "user:mallory" || !strings.Contains(s.TOML, `limit = "2/1m"`) {
				t.Errorf("%+v", s)
			}
			h.do(http.MethodPut, "/rules/search", s.Rule, "If-Match", "*").want(http.StatusOK)
			ask("/rules/search/advice", &x)
			if x.Verdict != fitting.BindsMany || x.Denies.Clients != 1 || x.Suggestion.Clients != 0 {
				t.Errorf("%+v", x)
			}

			var e fitting.Advice
			ask("/advice/endpoint?path=/items/{id}", &e)
			if e.Endpoint != "/items/{id}" || e.Requests != 400 || e.Clients != 20 || e.CountBy[0] != "user" || e.Suggestion == nil || e.Suggestion.Rule.Name != "items-id" {
				t.Errorf("%+v", e)
			}
			h.do(http.MethodPost, "/rules?dry_run=true", e.Suggestion.Rule).want(http.StatusCreated)
			ask("/advice/endpoint?path=/items/{id}&by=ip", &e)
			if e.Clients != 1 || e.CountBy[0] != "ip" {
				t.Errorf("%+v", e)
			}

			var all fitting.Overview
			ask("/advice?clients=20", &all)
			if all.Requests != 1800 || len(all.Rules) != 2 || all.Rules[0].Verdict != fitting.TooLittle || all.Rules[1].Verdict != fitting.Fits || len(all.Endpoints) != 1 || all.Endpoints[0].Endpoint != "/items/{id}" {
				t.Errorf("%+v", all)
			}
		})
	}
}

func TestAdviceRefused(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	h.do(http.MethodPost, "/rules", rule.Rule{Name: "office", Match: rule.Match{Paths: []string{"/office"}}, Action: rule.Block}).want(http.StatusCreated)
	for path, want := range map[string]struct {
		status int
		says   string
	}{
		"/rules/serch/advice":               {http.StatusNotFound, `there is no rule \"serch\"; did you mean \"search\"?`},
		"/rules/nothing-like-it/advice":     {http.StatusNotFound, `there is no rule \"nothing-like-it\"`},
		"/rules/office/advice":              {http.StatusConflict, `the rule \"office\" has no limits: its action is block`},
		"/rules/search/advice?clients=0":    {http.StatusBadRequest, `clients: \"0\": want a number from 2 to 1000000000`},
		"/rules/search/advice?clients=many": {http.StatusBadRequest, `"field":"clients"`},
		"/rules/search/advice?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z": {http.StatusBadRequest, `from: \"2026-02-01T00:00:00Z\": want a time before to`},
		"/rules/search/advice?from=2020-02-01T00:00:00Z":                         {http.StatusBadRequest, "at most 366 days before to"},
		"/advice?since=1h":                    {http.StatusBadRequest, "unknown parameter"},
		"/advice/endpoint":                    {http.StatusBadRequest, "path: missing"},
		"/advice/endpoint?path=items":         {http.StatusBadRequest, `"field":"path"`},
		"/advice/endpoint?path=/items&by=usr": {http.StatusBadRequest, `did you mean \"user\"?`},
	} {
		h.ask(http.MethodGet, path, nil, "", h.viewer).want(want.status).says(want.says)
	}
	f := newFileAPI(t, catalog.Document{File: rule.File{Rules: []rule.Rule{searchRule()}}})
	f.ask(http.MethodGet, "/rules/search/advice", nil, "", configToken).want(http.StatusConflict).says("decisions are not recorded")
}

// TestAdviceAtOnce has more ask than are advised at once.
func TestAdviceAtOnce(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	leave := admin.Advise(h.api)
	h.ask(http.MethodGet, "/advice", nil, "", h.viewer).want(http.StatusServiceUnavailable).says("which is the maximum")
	leave()
	h.ask(http.MethodGet, "/advice", nil, "", h.viewer).want(http.StatusOK)
}
