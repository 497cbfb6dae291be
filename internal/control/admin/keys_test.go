package admin_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
)

// TestKeyLastUsed has two nodes count the uses of a key: the last one is shown, whoever wrote it.
func TestKeyLastUsed(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, h *testAPI) {
		t.Helper()
		key, _ := h.people()
		if _, _, _, err := h.catalog.CreateKey(t.Context(), "test", catalog.APIKey{Name: "unused"}); err != nil {
			t.Fatal(err)
		}
		last := h.clock.now().UTC().Truncate(time.Microsecond)
		for _, ago := range []time.Duration{0, time.Hour} { // the second node writes later, of an earlier use
			node := h.catalog.NewUsage(catalog.UsageOptions{})
			node.Record(t.Context(), &engine.Event{At: last.Add(-ago), User: "alice", Key: key.ID, Outcome: engine.Allowed})
			if err := node.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var list admin.RecordList[admin.KeyRecord]
		h.get("/keys").want(http.StatusOK).into(&list)
		var one admin.KeyRecord
		h.get("/keys/" + key.ID).want(http.StatusOK).into(&one)
		for _, k := range append(list.Items, one) {
			switch used := k.ID == key.ID; {
			case used && (!k.LastUsed.Equal(last) || k.Total != 2):
				t.Errorf("%s was last used at %v, %d times, want %v, twice", k.Value.Name, k.LastUsed, k.Total, last)
			case !used && (!k.LastUsed.IsZero() || k.Total != 0):
				t.Errorf("%s: %v, %d", k.Value.Name, k.LastUsed, k.Total)
			}
		}
		if len(list.Items) != 2 {
			t.Errorf("%d keys", len(list.Items))
		}
	})
}

// TestDryRunIsNoWrite checks that neither the change log nor the log of the server has dry runs.
func TestDryRunIsNoWrite(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	before := h.log.String()
	h.do(http.MethodPost, "/users?dry_run=true", catalog.User{ID: "alice"}).want(http.StatusCreated)
	h.do(http.MethodPost, "/users?dry_run=true", `{"id": 1}`).want(http.StatusUnprocessableEntity)
	h.do(http.MethodPost, "/apply?dry_run=true", catalog.Document{Users: []catalog.User{{ID: "bob"}}}).want(http.StatusOK)
	if after := h.log.String(); after != before {
		t.Errorf("the log has %s", after[len(before):])
	}
	var list admin.RevisionList
	if h.get("/revisions?kind=user").want(http.StatusOK).into(&list); len(list.Items) != 0 {
		t.Errorf("%+v", list.Items)
	}
	h.do(http.MethodPost, "/users", catalog.User{ID: "alice"}).want(http.StatusCreated)
	h.do(http.MethodPost, "/subjects/user/alice/reset", nil).want(http.StatusNoContent)
	h.get("/revisions?limit=1").want(http.StatusOK).into(&list)
	if len(list.Items) != 1 || list.Items[0].Changes[0].Kind != "counters" || list.Items[0].Changes[0].ID != "user:alice" || list.Items[0].Actor != "otto" || list.Next == "" {
		t.Errorf("%+v", list)
	}
	h.get("/revisions?limit=201").want(http.StatusBadRequest)
	h.get("/revisions?from=yesterday").want(http.StatusBadRequest)
	h.get("/revisions?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z").want(http.StatusBadRequest)
	newFileAPI(t, exampleDocument()).get("/revisions").want(http.StatusConflict)
}

// TestLoggedKinds asks for the changes of each kind that the change log has.
func TestLoggedKinds(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	for _, kind := range catalog.LoggedKinds {
		h.get("/changes?kind=" + kind).want(http.StatusOK)
		h.get("/revisions?kind=" + kind).want(http.StatusOK)
	}
	h.get("/revisions?kind=nonsense").want(http.StatusBadRequest)
}
