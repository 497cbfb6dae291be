package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/record"
)

// lines decodes the answer of a replay.
func (a *answer) lines() (out []admin.ReplayLine) {
	a.Helper()
	for text := range bytes.Lines(a.body) {
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			a.Fatalf("%v: %s", err, text)
		}
		d := openAPI()
		for _, wrong := range d.validate(d.at(d.operation("POST /replay"), "responses", "200", "content", "application/x-ndjson", "schema"), v, "$") {
			a.Error(wrong)
		}
		var line admin.ReplayLine
		if err := json.Unmarshal(text, &line); err != nil {
			a.Fatalf("%v: %s", err, text)
		}
		out = append(out, line)
	}
	return out
}

// replay replays what is recorded, and returns the report.
func (h *testAPI) replay(query string, q admin.ReplayRequest) admin.ReplayReport {
	h.Helper()
	lines := h.ask(http.MethodPost, "/replay"+query, q, "", h.viewer).want(http.StatusOK).lines()
	last := lines[len(lines)-1]
	if last.Report == nil {
		h.Fatalf("no report: %+v", last)
	}
	return *last.Report
}

const searchFifty = "[[rules]]\nname = \"search\"\nmatch = { paths = [\"/search\"] }\ncount_by = [\"user\"]\nlimits = [ { name = \"searches\", limit = \"%s\" } ]\n"

func TestReplay(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	events := requested(h, 600, "alice", "dora") // each one in two seconds
	for i := range events {
		events[i].IP = "198.51.100.9" // which is neither exempt nor banned
	}
	if err := h.record.Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	p := h.replay("", admin.ReplayRequest{Candidate: fmt.Sprintf(searchFifty, "10/minute fixed_window")})
	if p.Requests != 600 || p.Same || p.Live.Denied != 0 || p.Candidate == nil {
		t.Fatalf("%+v", p)
	}
	// alice has 200 a minute of her own, and dora what the rule says.
	if p.NewlyDenied < 190 || p.NewlyDenied > 220 || len(p.Subjects) != 2 || p.Subjects[0].Name != "user:dora" || p.Subjects[1].NewlyDenied != 0 || p.Rules[0].Name != "search" || len(p.Series) < 40 || p.Step == 0 {
		t.Errorf("%+v", p)
	}
	if p = h.replay("", admin.ReplayRequest{Candidate: "[[bans]]\nuser = \"alice\"\n"}); p.NewlyDenied != 300 || p.Subjects[0].Name != "user:alice" {
		t.Errorf("%+v", p)
	}
	text := string(h.ask(http.MethodGet, "/export?format=toml", nil, "", h.viewer).body)
	for name, q := range map[string]admin.ReplayRequest{"nothing": {Candidate: "# nothing\n"}, "all": {Candidate: onlyRules(text), Whole: true}} {
		if p = h.replay("", q); !p.Same || p.NewlyDenied+p.NewlyPassed != 0 {
			t.Errorf("%s: %+v\n%s", name, p, q.Candidate)
		}
	}
	if p = h.replay("", admin.ReplayRequest{Whole: true}); p.Same || p.Candidate == nil {
		t.Errorf("no rules: %+v", p)
	}
	if p = h.replay("", admin.ReplayRequest{}); p.Same || p.Candidate != nil {
		t.Errorf("no candidate: %+v", p)
	}
	now := h.clock.now().UTC()
	at := func(ago time.Duration) string { return url.QueryEscape(now.Add(-ago).Format(time.RFC3339Nano)) }
	if p = h.replay("?top=1&from="+at(10*time.Minute)+"&to="+at(5*time.Minute), admin.ReplayRequest{}); p.Requests < 290 || p.Requests > 310 || len(p.Subjects) != 1 {
		t.Errorf("%+v", p)
	}
	if p = h.replay("?from="+at(2*time.Hour)+"&to="+at(time.Hour), admin.ReplayRequest{}); p.Requests != 0 || p.Summary != "No requests were recorded in this time." {
		t.Errorf("%+v", p)
	}
}

// onlyRules returns the rules and tiers of an exported catalog.
func onlyRules(text string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(part, "[[rules]]") || strings.HasPrefix(part, "[[tiers]]") {
			b.WriteString(part + "\n\n")
		}
	}
	return b.String()
}

// TestReplayOfBadCandidates has the place of each problem.
func TestReplayOfBadCandidates(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	for text, want := range map[string]admin.FieldProblem{
		fmt.Sprintf(searchFifty, "lots"): {Field: "candidate.rules[0].limits[0].limit", Line: 5, Column: 41},
		"\n[[rules]\n":                   {Field: "candidate", Line: 2},
		"[[rules]]\nnaem = \"search\"\n": {Field: "candidate.rules[0].naem", Line: 2, Column: 1},
		"[server]\n":                     {Field: "candidate.server", Line: 1},
		"[[bans]]\nip = \"nowhere\"\n":   {Field: "candidate.bans[0].ip", Line: 2},
		"[[tiers]]\nname = \"pro\"\nlimits = { nothing = \"1/1m\" }\n": {Field: "candidate.tiers[0].limits.nothing", Line: 3},
	} {
		p := h.ask(http.MethodPost, "/replay", admin.ReplayRequest{Candidate: text}, "", h.viewer).want(http.StatusUnprocessableEntity).problem()
		if len(p.Errors) == 0 {
			t.Errorf("%q: %+v", text, p)
			continue
		}
		if got := p.Errors[0]; got.Field != want.Field || got.Line != want.Line || want.Column > 0 && got.Column != want.Column {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
	for _, query := range []string{"?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "?from=2020-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", "?from=x", "?top=0", "?top=101"} {
		h.ask(http.MethodPost, "/replay"+query, admin.ReplayRequest{}, "", h.viewer).want(http.StatusBadRequest)
	}
	h.ask(http.MethodPost, "/replay", admin.ReplayRequest{Candidate: strings.Repeat(" ", 4<<20)}, "", h.viewer).want(http.StatusRequestEntityTooLarge)
	file := newFileAPI(t, exampleDocument())
	file.ask(http.MethodPost, "/replay", admin.ReplayRequest{}, "", file.viewer).want(http.StatusConflict).says("not recorded")
}

// TestReplayOfMany has more events than a replay reads.
func TestReplayOfMany(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	const n = 12_000
	events := spread(h, n, func(int) string { return "/search" })
	for i := range events {
		events[i].IP = "198.51.100.9"
	}
	writeAll(h, events)
	now := h.clock.now().UTC()
	p := h.replay("?from="+url.QueryEscape(now.Add(-61*time.Minute).Format(time.RFC3339)), admin.ReplayRequest{Candidate: "[[rules]]\nname = \"search\"\naction = \"block\"\nmatch = { paths = [\"/search\"] }\n"})
	if p.Recorded != n || p.Events > 2*4000 || p.Events < 1000 || !strings.Contains(p.Summary, "read evenly from the whole time") {
		t.Errorf("%+v", p)
	}
	if p.Requests < n*9/10 || p.Requests > n*11/10 || p.Candidate.Denied != p.Requests {
		t.Errorf("%+v", p)
	}
	for _, at := range p.Series[2 : len(p.Series)-1] {
		if at.Requests == 0 {
			t.Errorf("nothing at %v", at.Start)
		}
	}
}

// TestReplayProgress follows a replay over a connection, leaves in its midst, and has too many run at once.
func TestReplayProgress(t *testing.T) { //nolint:paralleltest // it changes how often a replay says how far it is
	defer admin.TellAlways()()
	h := newTestAPI(t)
	seed(h)
	if err := h.record.Write(t.Context(), requested(h, 1500, "alice", "bob")); err != nil {
		t.Fatal(err)
	}
	all := h.ask(http.MethodPost, "/replay", admin.ReplayRequest{}, "", h.viewer).want(http.StatusOK).lines()
	steps := map[string]int{}
	for _, line := range all[:len(all)-1] {
		if line.Progress == nil || line.Progress.Done > line.Progress.Of {
			t.Fatalf("%+v", line)
		}
		steps[line.Progress.Step]++
	}
	if steps["reading"] == 0 || steps["replaying"] < 1000 || all[len(all)-1].Report == nil {
		t.Errorf("%v %+v", steps, all[len(all)-1])
	}

	// The first line tells who is gone, or that the server stops.
	end := func(then func()) []admin.ReplayLine {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := &first{ResponseRecorder: httptest.NewRecorder(), then: cancel}
		if then != nil {
			w.then = then
		}
		h.api.ServeHTTP(w, h.request(http.MethodPost, "/replay", "{}", "", h.viewer).WithContext(ctx))
		return (&answer{h.TB, w.Result(), w.Body.Bytes()}).lines()
	}
	if lines := end(nil); len(lines) > 3 || lines[len(lines)-1].Progress == nil {
		t.Errorf("a client has left, and got %d lines", len(lines))
	}
	leave := admin.OccupyReplays(h.api)
	h.ask(http.MethodPost, "/replay", admin.ReplayRequest{}, "", h.viewer).want(http.StatusServiceUnavailable).says("2 replays running")
	leave() // those that have ended, too, have left their places
	h.ask(http.MethodPost, "/replay", admin.ReplayRequest{}, "", h.viewer).want(http.StatusOK)
	lines := end(h.api.Close)
	if last := lines[len(lines)-1]; last.Problem == nil || last.Problem.Status != http.StatusServiceUnavailable || !strings.Contains(last.Problem.Detail, "shutting down") {
		t.Errorf("%+v", last)
	}
}

// first calls a function at the first write.
type first struct {
	*httptest.ResponseRecorder
	then func()
}

func (w *first) Write(p []byte) (int, error) {
	if w.then != nil {
		w.then()
		w.then = nil
	}
	return w.ResponseRecorder.Write(p)
}

// TestReplayTime has a replay take too long: before anything was sent it is an answer of its own, and afterwards the last line.
func TestReplayTime(t *testing.T) { //nolint:paralleltest // it changes how long a replay may take
	defer admin.LimitReplays(time.Nanosecond)()
	h := newTestAPI(t)
	seed(h)
	h.keep(3, func(int, *record.Event) {})
	h.ask(http.MethodPost, "/replay", admin.ReplayRequest{}, "", h.viewer).want(http.StatusServiceUnavailable).says("choose a shorter time")
}
