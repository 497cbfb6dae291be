package record_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/recordtest"
)

// TestDecision finds decisions by their ids, in two months, also those that began at the same instant, and none that is not
// there.
func TestDecision(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	events := recordtest.Events(300, now, 4*24*time.Hour) // from February on
	twin := recordtest.Denial(1, events[7].At)
	for i := range events {
		events[i].ID = engine.NewID(events[i].At)
	}
	twin.ID = engine.NewID(twin.At)
	each(t, now, func(t *testing.T, s *record.Store, _ *database.DB) {
		t.Helper()
		if _, ok, err := s.Decision(t.Context(), twin.ID); ok || err != nil { // there is no table yet
			t.Error(ok, err)
		}
		recordtest.Write(t, s, append(events[:len(events):len(events)], twin)...)
		for _, i := range rand.Perm(len(events))[:50] {
			if got, ok, err := s.Decision(t.Context(), events[i].ID); err != nil || !ok || !recordtest.Same(got, events[i]) {
				t.Errorf("%+v, %v, %v, want %+v", got, ok, err, events[i])
			}
		}
		if got, ok, err := s.Decision(t.Context(), twin.ID); err != nil || !ok || !recordtest.Same(got, twin) {
			t.Errorf("%+v, %v, %v, want %+v", got, ok, err, twin)
		}
		for _, id := range []engine.ID{{}, {0xff}, engine.NewID(events[7].At), engine.NewID(now.AddDate(1, 0, 0)), engine.NewID(now.AddDate(-7, 0, 0))} {
			if got, ok, err := s.Decision(t.Context(), id); ok || err != nil {
				t.Errorf("%v: %+v, %v", id, got, err)
			}
		}
	})
}

// TestAround looks for what stands for a decision that is not there, and for what is left of the record.
func TestAround(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	var events []record.Event
	for i, weight := range []int64{1, 40, 100, 7, 9} {
		e := recordtest.Denial(i, now.Add(time.Duration(i)*100*time.Millisecond))
		e.ID, e.Weight = engine.NewID(e.At), weight
		switch i {
		case 2:
			e.Outcome = engine.Allowed // a sample, which stands for no denial
		case 3:
			e.Outcome, e.Shadow = engine.Allowed, true
		case 4:
			e.At = now.Add(time.Second)
			e.ID = engine.NewID(e.At)
		}
		events = append(events, e)
	}
	each(t, now, func(t *testing.T, s *record.Store, _ *database.DB) {
		t.Helper()
		id := engine.NewID(now.Add(900 * time.Millisecond))
		if got, err := s.Around(t.Context(), id); err != nil || !got.Oldest.IsZero() || got.Dropped || len(got.StandIns) > 0 {
			t.Errorf("%+v, %v: nothing is recorded yet", got, err)
		}
		recordtest.Write(t, s, events...)
		old := recordtest.Denial(9, now.AddDate(0, -2, 0))
		recordtest.Write(t, s, old)
		got, err := s.Around(t.Context(), id)
		if err != nil || !got.Oldest.Equal(old.At) || got.Dropped || len(got.StandIns) != 2 || got.StandIns[0].ID != events[1].ID || got.StandIns[1].ID != events[3].ID {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
