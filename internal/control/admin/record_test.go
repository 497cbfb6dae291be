package admin_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
)

// keep records decisions a second apart, rolls them up, and returns the time of the first.
func (h *testAPI) keep(n int, change func(i int, e *record.Event)) (start time.Time) {
	h.Helper()
	start = h.clock.now().Add(-2 * time.Hour).Truncate(time.Minute).UTC()
	var events []record.Event
	for i := range n {
		e := record.Event{
			At: start.Add(time.Duration(i) * time.Second), Outcome: engine.Denied, User: "alice", Tenant: "acme", Key: "k3jq8w2n", Tier: "free", IP: "192.0.2.1",
			Rule: "search", Limit: "searches", Endpoint: "/search", Method: "GET", Used: 100, Max: 100, Cost: 1, Status: 429,
			RetryAfter: 12 * time.Second, Latency: 80 * time.Microsecond, Region: "eu", Node: "node-1", Weight: 1,
		}
		e.ID = engine.NewID(e.At)
		change(i, &e)
		events = append(events, e)
	}
	for some := range slices.Chunk(events, 1000) {
		if err := h.record.Write(h.Context(), some); err != nil {
			h.Fatal(err)
		}
	}
	for {
		done, err := h.record.Run(h.Context())
		if err != nil {
			h.Fatal(err)
		}
		if done == 0 {
			return start
		}
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	from := h.keep(250, func(i int, e *record.Event) {
		switch i % 5 {
		case 1:
			e.User, e.Outcome, e.RetryAfter = "bob", engine.Banned, stint.Never
		case 2:
			e.Outcome, e.Shadow = engine.Allowed, true
		}
	})
	var all []admin.Event
	for after := ""; ; {
		var page admin.EventList
		h.get("/events?limit=100&after=" + after).want(http.StatusOK).into(&page)
		all = append(all, page.Items...)
		if after = page.Next; after == "" {
			break
		}
	}
	if len(all) != 250 || !slices.IsSortedFunc(all, func(a, b admin.Event) int { return b.Time.Compare(a.Time) }) {
		t.Errorf("%d events", len(all))
	}
	var one admin.EventList
	h.get("/events?limit=1&user=bob").want(http.StatusOK).into(&one)
	e := one.Items[0]
	want := admin.Event{
		ID: e.ID, Time: e.Time, Outcome: "banned", User: "bob", Tenant: "acme", Key: "k3jq8w2n", Tier: "free", IP: "192.0.2.1", Rule: "search", Limit: "searches",
		Endpoint: "/search", Method: "GET", Used: 100, Max: 100, Cost: 1, Status: 429, RetryAfter: -1, Latency: 80, Region: "eu", Node: "node-1", Weight: 1,
	}
	if !reflect.DeepEqual(e, want) || e.ID == "" {
		t.Errorf("%+v, want %+v", e, want)
	}

	for query, n := range map[string]int{
		"":                    250,
		"user=bob":            50,
		"outcome=banned":      50,
		"shadow=true":         50,
		"shadow=false":        200,
		"ip=::ffff:192.0.2.1": 250,
		"rule=other":          0,
		"key=k3jq8w2n&method=GET&region=eu&node=node-1&endpoint=/search&tenant=acme": 250,
		"from=" + from.Add(100*time.Second).Format(time.RFC3339):                     150,
		"to=" + from.Add(100*time.Second).Format(time.RFC3339):                       100,
		// What a client sends is never a part of what is asked.
		"user=" + url.QueryEscape(`' OR '1'='1`):                        0,
		"rule=" + url.QueryEscape(`search'; DROP TABLE stint_rules;--`): 0,
		"node=" + url.QueryEscape(`%`):                                  0,
	} {
		var list admin.EventList
		if h.get("/events?limit=1000&" + query).want(http.StatusOK).into(&list); len(list.Items) != n {
			t.Errorf("%s: %d events, want %d", query, len(list.Items), n)
		}
	}
	for query, says := range map[string]string{
		"limit=1001":                       "from 1 to 1000",
		"limit=0":                          "from 1 to 1000",
		"limit=x":                          "an integer",
		"outcome=denid":                    "did you mean",
		"shadow=1":                         "true, false",
		"user=a&user=b":                    "2 times",
		"usr=a":                            "did you mean",
		"user=%00":                         "control characters",
		"user=" + strings.Repeat("a", 513): "at most 512",
		"after=x":                          "want the cursor that the last page returned",
		"after=1.%27":                      "want the cursor that the last page returned",
		"from=yesterday":                   "is not a time",
		"from=2031-01-01T00:00:00Z":        "before to",
		"from=2020-01-01T00:00:00Z":        "366 days",
	} {
		h.get("/events?" + query).want(http.StatusBadRequest).says(says)
	}
}

func TestSeries(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	from := h.keep(300, func(i int, e *record.Event) {
		if i%3 == 0 {
			e.Outcome, e.Weight = engine.Allowed, 10
		}
		if i >= 200 {
			e.User = "bob"
		}
	})
	var s admin.SeriesList
	h.get("/series?by=outcome&step_seconds=60&from=" + from.Format(time.RFC3339)).want(http.StatusOK).into(&s)
	if s.Step != 60 || !s.From.Equal(from) || len(s.Items) != 2 || s.Items[0].Name != "allowed" || s.Items[1].Name != "denied" || len(s.Items[0].Points) < 120 {
		t.Fatalf("%v %v %d", s.Step, s.From, len(s.Items))
	}
	if p := s.Items[0].Points[0]; !p.Start.Equal(from) || p.Total != 200 || p.Events != 20 || p.P50 < 76 || p.P50 > 84 {
		t.Errorf("%+v", p)
	}
	h.get("/series").want(http.StatusOK).into(&s)
	if len(s.Items) != 1 || s.Step != 300 && s.Step < 60 {
		t.Errorf("%+v", s.Step)
	}
	h.get("/series?rule=nothing").want(http.StatusOK).says(`"items":[]`)
	h.get("/series?step_seconds=61").want(http.StatusBadRequest).says("step_seconds", "whole minutes")
	h.get("/series?by=user").want(http.StatusBadRequest).says("want one of outcome")

	var top admin.Top
	h.get("/top").want(http.StatusOK).into(&top)
	if len(top.Items) != 2 || top.Items[0] != (admin.Refusals{Name: "alice", Denied: 133, Refused: 133}) || top.Items[1].Denied != 67 {
		t.Errorf("%+v", top)
	}
	h.get("/top?by=rule").want(http.StatusOK).into(&top)
	if len(top.Items) != 1 || top.Items[0] != (admin.Refusals{Name: "search", Denied: 200, Refused: 200}) {
		t.Errorf("%+v", top)
	}
	h.get("/top?by=tier").want(http.StatusBadRequest)
	var v admin.ViolationList
	h.get("/violations?user=bob").want(http.StatusOK).into(&v)
	if len(v.Items) != 1 || v.Items[0] != (admin.Violation{User: "bob", Rule: "search", Denied: 67}) {
		t.Errorf("%+v", v)
	}
	var c admin.Clients
	h.get("/clients").want(http.StatusOK).into(&c)
	if c != (admin.Clients{By: "user", Clients: 2, Exact: true}) {
		t.Errorf("%+v", c)
	}
	h.get("/clients?by=ip&rule=nothing").want(http.StatusOK).into(&c)
	if c != (admin.Clients{By: "ip", Exact: true}) {
		t.Errorf("%+v", c)
	}
}

// TestNoRecord queries an API without a record.
func TestNoRecord(t *testing.T) {
	t.Parallel()
	h := newFileAPI(t, catalog.Document{})
	for _, path := range []string{"/events", "/events/export", "/series", "/top", "/violations", "/clients", "/consumption", "/consumption/export"} {
		if p := h.get(path).want(http.StatusConflict).problem(); p.Detail != "decisions are not recorded: set server.database" {
			t.Errorf("%s: %+v", path, p)
		}
	}
}

// TestExport reads an export.
func TestExport(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	const n = 1234
	formula := "=HYPERLINK(\"http://example.com\",\"a, b\")\r\nnext"
	from := h.keep(n, func(i int, e *record.Event) {
		switch i {
		case n - 1:
			e.User, e.Tenant, e.Rule, e.Endpoint, e.RetryAfter = formula, "+1", "@x", "-", stint.Never
		case n - 2:
			e.User = "O'Brien, \"Bob\""
		}
	})
	export := func(format, query string) (*answer, string) {
		t.Helper()
		a := h.get("/events/export?format=" + format + "&" + query).want(http.StatusOK)
		return a, a.Header.Get("Content-Disposition")
	}
	to := from.Add(time.Hour)
	span := "from=" + from.Format(time.RFC3339) + "&to=" + to.Format(time.RFC3339)

	a, name := export("csv", span)
	if want := fmt.Sprintf(`attachment; filename="stint-events_%s_%s.csv"`, from.Format("20060102T150405Z"), to.Format("20060102T150405Z")); name != want {
		t.Errorf("%s, want %s", name, want)
	}
	rows, err := csv.NewReader(bytes.NewReader(a.body)).ReadAll()
	if err != nil || len(rows) != n+1 || !bytes.Contains(a.body, []byte(",weight,source,unaccepted,settled\r\n")) {
		t.Fatalf("%v, %d rows", err, len(rows))
	}
	cell := func(row int, column string) string { return rows[row][slices.Index(rows[0], column)] }
	for column, want := range map[string]string{
		"user_id": "'" + strings.ReplaceAll(formula, "\r\n", "\n"), "tenant_id": "'+1", "rule": "'@x", "endpoint": "'-",
		"retry_after_us": "-1", "outcome": "denied", "shadow": "false", "limit_value": "100",
		"time": from.Add((n - 1) * time.Second).Format(time.RFC3339Nano),
	} {
		if got := cell(1, column); got != want {
			t.Errorf("%s: %q, want %q", column, got, want)
		}
	}
	if got := cell(2, "user_id"); got != "O'Brien, \"Bob\"" {
		t.Errorf("%q", got)
	}

	a, _ = export("ndjson", span+"&limit=1100")
	lines := bytes.Split(bytes.TrimSpace(a.body), []byte("\n"))
	var e admin.Event
	if err := json.Unmarshal(lines[0], &e); err != nil || len(lines) != 1100 || e.User != formula || e.RetryAfter != -1 {
		t.Errorf("%v, %d lines, %+v", err, len(lines), e)
	}

	a, _ = export("parquet", "tenant="+url.QueryEscape("+1"))
	read := 0
	for e, err := range archive.Read(bytes.NewReader(a.body), int64(len(a.body))) {
		if read++; err != nil || e.User != formula {
			t.Errorf("%v %+v", err, e)
		}
	}
	if read != 1 {
		t.Errorf("%d are in the file", read)
	}
	if a, _ = export("csv", "user=nobody"); bytes.Count(a.body, []byte("\n")) != 1 {
		t.Errorf("without events: %q", a.body)
	}

	for query, says := range map[string]string{
		"format=xlsx":               "csv, parquet, ndjson",
		"limit=1000001":             "1000000",
		"after=x":                   "unknown parameter",
		"from=2031-01-01T00:00:00Z": "before to",
	} {
		a := h.get("/events/export?" + query).want(http.StatusBadRequest).says(says)
		if a.Header.Get("Content-Disposition") != "" {
			t.Error("a problem is a file")
		}
	}
}

// TestExportsAtOnce has clients that do not read their exports, and one client too many.
func TestExportsAtOnce(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.keep(10, func(int, *record.Event) {})
	stuck := make(chan struct{})
	var ends []chan struct{}
	for range 4 {
		w := newWriter()
		w.stuck = stuck
		ends = append(ends, h.watch(t.Context(), "/events/export", w, h.viewer))
		<-w.headed // it has its place
	}
	h.get("/events/export").want(http.StatusServiceUnavailable).says("4 exports")
	close(stuck)
	for _, ended := range ends {
		<-ended
	}
	h.get("/events/export").want(http.StatusOK)
}

// TestExportBreaks stops the database during an export: an incomplete export must not look
// complete.
func TestExportBreaks(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.keep(1100, func(_ int, e *record.Event) { e.Endpoint = strings.Repeat("x", 500) })
	w := &breaking{ResponseRecorder: httptest.NewRecorder(), before: func() { h.catalog.Close() }}
	defer func() {
		if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // it is that very one
			t.Errorf("it ends with %v", p)
		}
	}()
	h.api.ServeHTTP(w, h.request(http.MethodGet, "/events/export?format=ndjson", nil, "", h.viewer))
}

// breaking calls a function before the first byte is written.
type breaking struct {
	*httptest.ResponseRecorder
	before func()
}

func (w *breaking) Write(p []byte) (int, error) {
	if w.before != nil {
		w.before()
		w.before = nil
	}
	return w.ResponseRecorder.Write(p)
}
