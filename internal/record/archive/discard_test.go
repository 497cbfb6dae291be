package archive_test

import (
	"testing"
	"time"

	"github.com/stintdev/stint/internal/record/archive"
)

// TestDiscard drops the months that are over, but for one to which an event comes meanwhile.
func TestDiscard(t *testing.T) {
	t.Parallel()
	s := newMonths(append(someEvents(january.Start(), 5), someEvents(february.Start(), 5)...)...)
	if err := archive.Discard(t.Context(), s, february.End().Add(-time.Second)); err != nil || len(s.all(january)) != 0 || len(s.all(february)) != 5 {
		t.Errorf("%v, and %d events are left", err, len(s.all()))
	}
	late := someEvents(february.Start(), 1)
	s.drop = func() { s.add(late...) }
	if err := archive.Discard(t.Context(), s, february.End()); err != nil || len(s.all(february)) != 6 {
		t.Errorf("%v, and %d events are left", err, len(s.all()))
	}
	if err := archive.Discard(t.Context(), s, february.End()); err != nil || len(s.all()) != 0 {
		t.Errorf("%v, and %d events are left", err, len(s.all()))
	}
}
