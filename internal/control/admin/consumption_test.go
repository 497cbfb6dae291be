package admin_test

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/record"
)

// used records what users of tenants have used: each a tenth of the one before.
func (h *testAPI) used(tenants ...string) {
	h.Helper()
	month := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n := int64(1000)
	var entries []record.Entry
	for i, tenant := range tenants {
		for _, rule := range []string{"", "tokens"} {
			entries = append(entries, record.Entry{
				Account: record.Account{Start: month.Add(time.Duration(i) * time.Hour), Rule: rule, Meter: "llm.total_tokens", Tenant: tenant, User: "alice", Key: "k1", Model: "gpt"},
				Units:   record.Units{Requests: 2, Reserved: 500, Used: n, GivenBack: max(500-n, 0), Overshoot: max(n-500, 0), Estimated: 1},
			})
		}
		n /= 10
	}
	if err := h.record.AddConsumption(h.Context(), "a batch", entries); err != nil {
		h.Fatal(err)
	}
}

// TestConsumption lists what was used, in pages, and exports it.
func TestConsumption(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	h.get("/consumption").want(http.StatusOK).says(`"items":[]`, `"next":""`)
	h.used("acme", "=SUM(A1)", "@zebra")
	const span = "from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&"
	var all []admin.Consumption
	for after, pages := "0", 0; after != ""; pages++ {
		var list admin.ConsumptionList
		h.get("/consumption?" + span + "by=tenant,month&limit=2&after=" + after).want(http.StatusOK).into(&list)
		all, after = append(all, list.Items...), list.Next
		if pages > 1 || list.From.IsZero() || list.To.Sub(list.From) != 31*24*time.Hour {
			t.Fatalf("%+v", list)
		}
	}
	acme := admin.Consumption{Period: "2026-01", Tenant: "acme", Meter: "llm.total_tokens", Requests: 2, Reserved: 500, Used: 1000, Overshoot: 500, Estimated: 1}
	if len(all) != 3 || all[0] != acme || all[2].Tenant != "@zebra" {
		t.Errorf("%+v", all)
	}
	for query, want := range map[string]string{
		"by=rule,user,key,model": "/alice/k1/gpt/tokens 1110",
		"":                       "//// 1110",
		"tenant=acme":            "//// 1000",
		"user=alice&key=k1&model=gpt&rule=tokens&meter=llm.total_tokens": "//// 1110",
		"meter=response_bytes":           "",
		"shadow=true":                    "",
		"tenant=%27%20OR%20%271%27=%271": "",
	} {
		var list admin.ConsumptionList
		h.get("/consumption?" + span + query).want(http.StatusOK).into(&list)
		var got []string
		for _, c := range list.Items {
			got = append(got, fmt.Sprintf("%s/%s/%s/%s/%s %d", c.Tenant, c.User, c.Key, c.Model, c.Rule, c.Used))
		}
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("%s: %s, want %s", query, s, want)
		}
	}
	for query, says := range map[string]string{
		"by=usr": "did you mean", "by=day,month": "only one of hour, day and month", "by=user,user": "only once", "by=,": "want one of user",
		"limit=1001": "from 1 to 1000", "after=x": "an integer", "after=-1": "from 0", "shadow=1": "true or false",
		"from=2020-01-01T00:00:00Z": "366 days", "by=" + strings.Repeat("u", 101): "at most 100",
	} {
		h.get("/consumption?" + query).want(http.StatusBadRequest).says(says)
	}

	a := h.get("/consumption/export?" + span).want(http.StatusOK)
	if got := a.Header.Get("Content-Type") + " " + a.Header.Get("Content-Disposition"); got != `text/csv; charset=utf-8; header=present attachment; filename="stint-usage_20260101_20260201.csv"` {
		t.Error(got)
	}
	rows, err := csv.NewReader(bytes.NewReader(a.body)).ReadAll()
	if err != nil || len(rows) != 4 || strings.Join(rows[1], " ") != "2026-01 acme     llm.total_tokens 2 500 1000 0 500 1" {
		t.Errorf("%v, %q", err, rows)
	}
	tenant := slices.Index(rows[0], "tenant")
	if rows[2][tenant] != "'=SUM(A1)" || rows[3][tenant] != "'@zebra" {
		t.Errorf("formulas: %q", rows)
	}
	h.get("/consumption/export?by=usr").want(http.StatusBadRequest).says("did you mean")
	h.get("/consumption/export?limit=100001").want(http.StatusBadRequest)
}
