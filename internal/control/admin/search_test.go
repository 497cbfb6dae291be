package admin_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/recordtest"
)

// found returns what a search has found, by kind.
func (h *testAPI) found(q string) string {
	h.Helper()
	var all admin.FoundAll
	h.get("/search?q=" + escape(q)).want(http.StatusOK).into(&all)
	var out []string
	for _, g := range all.Groups {
		for _, i := range g.Items {
			text := g.Kind + " " + i.ID
			if g.Kind != i.Kind {
				text = g.Kind + " " + i.Kind + " " + i.ID
			}
			out = append(out, text)
			if seen := !i.LastSeen.IsZero(); i.Known && seen {
				h.Errorf("%+v", i)
			}
		}
		if g.More {
			out = append(out, "...")
		}
	}
	return strings.Join(out, ", ")
}

func TestSearch(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, h *testAPI) {
		t.Helper()
		key, text := h.people()
		h.do(http.MethodPut, "/subjects/ip/192.0.2.0%2F24/ban", nil).want(http.StatusOK)
		// Some have only been seen in traffic.
		var events []record.Event
		for i, who := range [][3]string{{"alice", "", "192.0.2.1"}, {"alma", "", ""}, {"", "albany", "192.0.2.2"}, {"al_", "", "2001:db8::7"}} {
			at := h.clock.now().Add(-2 * time.Minute)
			id := engine.NewID(at)
			id[15] = byte(i)
			events = append(events, record.Event{ID: id, At: at.UTC(), Outcome: engine.Allowed, User: who[0], Tenant: who[1], IP: who[2], Weight: 1})
		}
		recordtest.Write(t, h.record, events...)
		if _, err := h.record.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for q, want := range map[string]string{
			"al":            "user alan, user alice, seen user al_, seen user alma, seen tenant albany",
			"AL_":           "seen user al_",
			"alice":         "user alice",
			"acme":          "tenant acme",
			"inc":           "tenant acme",
			"mobile":        "key " + key.ID,
			key.ID:          "key " + key.ID,
			text:            "key " + key.ID,
			"earc":          "rule search",
			"pr":            "tier pro",
			"192.0.2.":      "ip 192.0.2.1, ip 192.0.2.2, ban ip:192.0.2.0/24",
			"192.0.2.1":     "ip 192.0.2.1",
			"192.0.2.0/24":  "ip 192.0.2.0/24, ban ip:192.0.2.0/24",
			"2001:DB8::0:7": "ip 2001:db8::7",
			"%":             "",
			"' OR 1=1 --":   "",
			"\u202eé\u0300": "",
		} {
			if got := h.found(q); got != want {
				t.Errorf("%q: %s, want %s", q, got, want)
			}
		}
		for i := range 12 {
			h.do(http.MethodPost, "/users", catalog.User{ID: fmt.Sprintf("team-%02d", i)}).want(http.StatusCreated)
		}
		if got := h.found("team"); strings.Count(got, "user team-") != 10 || !strings.HasSuffix(got, "...") {
			t.Errorf("%s", got)
		}
		for _, bad := range []string{"", "q=", "q=" + strings.Repeat("a", 513), "q=a%00", "q=a%0Ab", "q=%FF", "q=a&limit=101"} {
			h.get("/search?" + bad).want(http.StatusBadRequest)
		}
		if strings.Contains(h.log.String(), text[len(text)-20:]) {
			t.Error("the log has the secret of a key")
		}
	})
}

func TestSearchFile(t *testing.T) {
	t.Parallel()
	d := exampleDocument()
	h := newFileAPI(t, d)
	for _, r := range d.Rules {
		if got := h.found(strings.ToUpper(r.Name[1:])); !strings.Contains(got, "rule "+r.Name) {
			t.Errorf("%s: %s", r.Name, got)
		}
	}
	for _, u := range d.Users {
		if got := h.found(u.ID); !strings.Contains(got, "user "+u.ID) {
			t.Errorf("%s: %s", u.ID, got)
		}
	}
	if got := h.found("198.51.100.9"); !strings.HasPrefix(got, "ip 198.51.100.9") {
		t.Errorf("%s", got)
	}
}
