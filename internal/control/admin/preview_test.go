package admin_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/internal/record"
)

// requested returns requests of users to /search, one per second until now, oldest first.
func requested(h *testAPI, n int, users ...string) []record.Event {
	h.Helper()
	now := h.clock.now().UTC().Truncate(time.Microsecond)
	out := make([]record.Event, n)
	for i := range out {
		out[i] = record.Event{
			At: now.Add(-time.Duration(n-i) * time.Second), Outcome: engine.Allowed, User: users[i%len(users)],
			IP: "192.0.2.1", Rule: "search", Endpoint: "/search", Method: http.MethodGet, Cost: 1, Max: 100, Weight: 1, Node: "node-1",
		}
		binary.BigEndian.PutUint64(out[i].ID[:], uint64(i)+1)
	}
	return out
}

func TestPreview(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	if err := h.record.Write(t.Context(), requested(h, 600, "alice", "bob")); err != nil {
		t.Fatal(err)
	}
	preview := func(query, limit string) (p sim.Preview) {
		t.Helper()
		r := searchRule()
		r.Limits[0].Limit = limit
		h.ask(http.MethodPost, "/rules/preview?replacing=search"+query, r, "", h.viewer).want(http.StatusOK).into(&p)
		return p
	}
	if p := preview("", "100/minute"); p.Events != 600 || p.Requests != 600 || p.Matched != 600 || p.WouldRefuse != 0 || p.Subjects != 2 {
		t.Errorf("%+v", p)
	}
	p := preview("", "10/minute fixed_window")
	if p.WouldRefuse < 350 || p.WouldRefuse > 420 || len(p.Top) != 2 || len(p.Series) == 0 {
		t.Errorf("%+v", p)
	}
	if p := preview("&since_seconds=60", "10/minute"); p.Events < 50 || p.Events > 60 || p.To.Sub(p.From) != time.Minute {
		t.Errorf("%+v", p)
	}
	bad := searchRule()
	bad.Limits[0].Limit = "lots"
	h.ask(http.MethodPost, "/rules/preview?replacing=search", bad, "", h.viewer).want(http.StatusUnprocessableEntity).says(`"field":"limits[0].limit"`)
	h.ask(http.MethodPost, "/rules/preview?replacing=unknown", searchRule(), "", h.viewer).want(http.StatusNotFound)
	for _, since := range []string{"0", "-1", "1e9", "NaN", "Inf", "x"} {
		h.ask(http.MethodPost, fmt.Sprintf("/rules/preview?since_seconds=%s", since), searchRule(), "", h.viewer).want(http.StatusBadRequest)
	}
}

// TestPreviewOfMany has more events than a preview replays.
func TestPreviewOfMany(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	seed(h)
	events := requested(h, 20_500, "alice")
	for i := range events { // within the hour
		events[i].At = events[len(events)-1].At.Add(-time.Duration(len(events)-1-i) * time.Millisecond)
	}
	if err := h.record.Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	var p sim.Preview
	a := h.ask(http.MethodPost, "/rules/preview?replacing=search", searchRule(), "", h.viewer).want(http.StatusOK).says("There were more than 20000 events")
	a.into(&p)
	if p.Events != 20_000 || !p.From.Equal(events[500].At) {
		t.Errorf("%d since %v, want since %v", p.Events, p.From, events[500].At)
	}
}
