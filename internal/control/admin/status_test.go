package admin_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	var s admin.Status
	h.get("/status").want(http.StatusOK).into(&s)
	if s.Version != "test" || s.Mode != "database" || s.Health.Status != "ok" || time.Since(s.Now).Abs() > time.Minute {
		t.Errorf("%+v", s)
	}
	h.get("/settings").want(http.StatusForbidden)
	var settings admin.SettingList
	h.ask(http.MethodGet, "/settings", nil, "", h.admin).want(http.StatusOK).into(&settings)
	if len(settings.Items) != 1 || settings.Items[0].Name != "server.address" {
		t.Errorf("%+v", settings)
	}
}

// TestNodes has another node that is behind, and one with an invalid state.
func TestNodes(t *testing.T) {
	t.Parallel()
	state := json.RawMessage(`{"status":"degraded","checks":[{"name":"store","status":"away"}],"counters":"redis","store":"away","breaker":"open","requests_per_second":12.5}`)
	h := newTestAPI(t, func(o *admin.Options) {
		status := o.Status
		o.Status = func() admin.Status {
			s := status()
			s.Revision = 1 << 40 // newer than what is told
			return s
		}
	})
	for name, text := range map[string]json.RawMessage{"other": state, "strange": json.RawMessage(`{"status":1}`), "silent": nil} {
		n, err := h.catalog.NewNode(catalog.NodeOptions{Name: name, Version: "2", Poll: time.Hour, Log: slog.New(slog.DiscardHandler), State: func() json.RawMessage { return text }})
		if err == nil {
			_, err = n.First(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		n.Start(t.Context(), nil)
		defer n.Stop(t.Context())
	}
	var list admin.NodeList
	wait.For(t, "four nodes", func() bool {
		list = admin.NodeList{}
		h.get("/nodes").want(http.StatusOK).into(&list)
		return len(list.Items) == 4
	})
	by := map[string]admin.Node{}
	for _, n := range list.Items {
		by[n.Name] = n
	}
	if n := by["node-1"]; !n.Self || !n.Behind || n.State == nil || n.State.Status != "ok" || n.State.Breaker != "none" || n.Seen.IsZero() {
		t.Errorf("%+v", n)
	}
	if n := by["other"]; n.Self || !n.Behind || n.State == nil || n.State.Status != "degraded" || len(n.State.Checks) != 1 || n.State.Requests != 12.5 {
		t.Errorf("%+v", n)
	}
	if by["strange"].State != nil || by["silent"].State != nil {
		t.Errorf("%+v", list)
	}

	file := newFileAPI(t, catalog.Document{})
	list = admin.NodeList{}
	file.get("/nodes").want(http.StatusOK).into(&list)
	if len(list.Items) != 1 || !list.Items[0].Self || list.Items[0].Name != "node-1" || list.Items[0].State == nil {
		t.Errorf("%+v", list)
	}
	if h := newFileAPI(t, catalog.Document{}, func(o *admin.Options) { o.Live, o.Status, o.NodeState, o.Settings = nil, nil, nil, nil }); true {
		h.get("/live").want(http.StatusConflict)
		h.get("/live/stream").want(http.StatusConflict)
		h.get("/events/follow").want(http.StatusConflict)
		h.ask(http.MethodGet, "/settings", nil, "", h.admin).want(http.StatusOK).says(`"items":[]`)
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	r := searchRule()
	h.do(http.MethodPost, "/rules", r).want(http.StatusCreated)
	r.Limits[0].Limit = "50/minute"
	h.do(http.MethodPut, "/rules/search", r, "If-Match", "*").want(http.StatusOK)
	var made admin.CreatedKey
	h.do(http.MethodPost, "/keys", `{"name":"mobile app"}`).want(http.StatusCreated).into(&made)

	var list admin.ChangeList
	h.get("/changes?kind=rule&id=search").want(http.StatusOK).into(&list)
	if len(list.Items) != 2 || list.Items[0].Action != "update" || list.Items[1].Action != "create" || list.Items[0].Actor != "otto" ||
		len(list.Items[0].Fields) != 1 || list.Items[0].Before == nil || list.Items[1].Before != nil {
		t.Fatalf("%+v", list)
	}
	update := list.Items[0].Revision
	h.get("/changes?limit=1").want(http.StatusOK).into(&list)
	if len(list.Items) != 1 || list.Next == "" || list.Items[0].Kind != "api_key" || strings.Contains(string(list.Items[0].After), "sha256") {
		t.Errorf("%+v", list)
	}
	next := list.Next
	h.get("/changes?limit=1&before=" + next).want(http.StatusOK).into(&list)
	if len(list.Items) != 1 || list.Items[0].Revision != update {
		t.Errorf("%+v", list)
	}
	h.get("/changes?actor=nobody").want(http.StatusOK).says(`"items":[]`)

	// A dry run changes nothing.
	revert := "/changes/" + strconv.FormatInt(update, 10) + "/revert"
	var d catalog.Diff
	a := h.do(http.MethodPost, revert+"?dry_run=true", nil).want(http.StatusOK).into(&d)
	if a.Header.Get("Stint-Dry-Run") != "true" || len(d.Items) != 1 || d.Items[0].ID != "search" {
		t.Errorf("%+v", d)
	}
	h.get("/rules/search").want(http.StatusOK).says("50/minute")
	h.do(http.MethodPost, revert, `{"kind":"rule","id":"search"}`).want(http.StatusOK)
	h.get("/rules/search").want(http.StatusOK).says("100/minute")

	// What has changed since is a conflict, unless it is forced.
	r.Limits[0].Limit = "70/minute"
	h.do(http.MethodPut, "/rules/search", r, "If-Match", "*").want(http.StatusOK)
	if p := h.do(http.MethodPost, revert, nil).want(http.StatusConflict).problem(); p.Version == 0 {
		t.Errorf("%+v", p)
	}
	h.do(http.MethodPost, revert, `{"force":true}`).want(http.StatusOK)
	h.get("/rules/search").want(http.StatusOK).says("100/minute")

	// A key that was deleted works again.
	h.do(http.MethodDelete, "/keys/"+made.ID, nil, "If-Match", "*").want(http.StatusNoContent)
	h.get("/changes?limit=1").want(http.StatusOK).into(&list)
	h.do(http.MethodPost, "/changes/"+strconv.FormatInt(list.Items[0].Revision, 10)+"/revert", nil).want(http.StatusOK)
	var x admin.Explanation
	h.ask(http.MethodPost, "/explain", admin.ExplainRequest{APIKey: made.Text}, "", h.viewer).want(http.StatusOK).into(&x)
	if x.Subject.Key != made.ID || !x.Allowed {
		t.Errorf("%+v", x)
	}

	h.do(http.MethodPost, "/changes/999/revert", nil).want(http.StatusNotFound)
	h.do(http.MethodPost, "/changes/x/revert", nil).want(http.StatusBadRequest)
	h.do(http.MethodPost, revert, `{"kind":"rule"}`).want(http.StatusUnprocessableEntity)
	h.do(http.MethodPost, revert, `{"forced":true}`).want(http.StatusUnprocessableEntity).says("did you mean")
	h.ask(http.MethodPost, revert, nil, "", h.viewer).want(http.StatusForbidden)
	h.get("/changes?kind=rules").want(http.StatusBadRequest).says("did you mean")
	h.get("/changes?id=search").want(http.StatusBadRequest).says("kind")
	h.get("/changes?before=x").want(http.StatusBadRequest).says("a revision")
	h.get("/changes?actor=" + escape("' OR 1=1 --")).want(http.StatusOK).says(`"items":[]`)

	file := newFileAPI(t, catalog.Document{File: rule.File{Rules: []rule.Rule{searchRule()}}})
	file.get("/changes").want(http.StatusConflict).says("no change log")
	file.do(http.MethodPost, "/changes/1/revert", nil).want(http.StatusConflict).says("stint.toml")
}
