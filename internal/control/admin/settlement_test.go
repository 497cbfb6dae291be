package admin_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/archive"
)

// TestSettledEvents tells with an event what became of its reservation, in every format.
func TestSettledEvents(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	var settled []record.Settlement
	h.keep(3, func(i int, e *record.Event) {
		if e.Outcome = engine.Allowed; i == 0 {
			return // never settled
		}
		s := record.Settlement{Event: e.ID, Rule: "tokens", Meter: "llm.total_tokens", At: e.At.Add(time.Second), Reserved: 100, Used: 40, Model: "gpt"}
		if i == 2 {
			s.Used, s.Estimated = 150, true
			trial := s
			trial.Rule, trial.Shadow, trial.Cancelled = "trial", true, true
			settled = append(settled, trial)
		}
		settled = append(settled, s)
	})
	if err := h.record.AddSettlements(t.Context(), settled); err != nil {
		t.Fatal(err)
	}
	a := h.get("/events").want(http.StatusOK)
	var list admin.EventList
	a.into(&list)
	if len(list.Items) != 3 || bytes.Count(a.body, []byte(`"settled"`)) != 2 {
		t.Fatalf("%s", a.body)
	}
	more := admin.Settlement{
		Rule: "tokens", Meter: "llm.total_tokens", At: list.Items[0].Time.Add(time.Second), Reserved: 100, Used: 150, Overshoot: 50, Model: "gpt", Estimated: true,
	}
	trial, less := more, more
	trial.Rule, trial.Shadow, trial.Cancelled = "trial", true, true
	less.At, less.Used, less.GivenBack, less.Overshoot, less.Estimated = list.Items[1].Time.Add(time.Second), 40, 60, 0, false
	for i, want := range [][]admin.Settlement{{more, trial}, {less}, nil} {
		if got := list.Items[i].Settled; !reflect.DeepEqual(got, want) {
			t.Errorf("event %d: %+v, want %+v", i, got, want)
		}
	}

	a = h.get("/events/export?format=csv").want(http.StatusOK)
	rows, err := csv.NewReader(bytes.NewReader(a.body)).ReadAll()
	if err != nil || len(rows) != 4 {
		t.Fatalf("%v, %d rows", err, len(rows))
	}
	last := len(rows[0]) - 1
	if rows[0][last] != "settled" || !strings.HasPrefix(rows[2][last], `[{"rule":"tokens",`) || !strings.Contains(rows[2][last], `"given_back":60,`) || rows[3][last] != "" {
		t.Errorf("%q", rows)
	}
	a = h.get("/events/export?format=parquet").want(http.StatusOK)
	n := 0
	for e, err := range archive.Read(bytes.NewReader(a.body), int64(len(a.body))) {
		if err != nil {
			t.Fatal(err)
		}
		n += len(e.Settled)
	}
	if n != len(settled) {
		t.Errorf("%d settlements are in the file, want %d", n, len(settled))
	}
}

// TestFollowSettled follows decisions, and is told what becomes of a reservation.
func TestFollowSettled(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	l := h.listen(h.serve(), "/events/follow?user=bob")
	now := h.clock.now()
	for _, user := range []string{"alice", "bob"} {
		e := engine.Event{ID: engine.NewID(now), At: now, Outcome: engine.Throttled, User: user}
		h.tap.Record(t.Context(), &e)
		h.tap.Settled(&engine.Receipt{ID: e.ID, Limits: []engine.Settled{{Rule: "tokens", Meter: "llm.total_tokens", Reserved: 100, Used: 70}}}, false)
	}
	for _, want := range []string{"decision 0", "settled 70"} {
		s := l.next()
		var e admin.Event
		if err := json.Unmarshal([]byte(s.data), &e); err != nil || e.User != "bob" {
			t.Fatalf("%v: %+v", err, s)
		}
		var used int64
		for _, x := range e.Settled {
			used += x.Used
		}
		if got := fmt.Sprint(s.name, " ", used); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
