package stint_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

// TestBounds checks periods in zones whose clocks do odd things.
func TestBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ window, now, start, end string }{
		{"1m", "2026-05-10T12:34:56Z", "2026-05-10T12:34:00Z", "2026-05-10T12:35:00Z"},
		{"day", "2026-05-10T00:00:00Z", "2026-05-10T00:00:00Z", "2026-05-11T00:00:00Z"},
		{"day", "2026-05-09T23:59:59.999999Z", "2026-05-09T00:00:00Z", "2026-05-10T00:00:00Z"},
		{"day anchor=08:00", "2026-05-10T07:59:59Z", "2026-05-09T08:00:00Z", "2026-05-10T08:00:00Z"},
		// Half an hour's change, at Lord Howe.
		{"day tz=Australia/Lord_Howe", "2026-10-04T12:00:00+11:00", "2026-10-04T00:00:00+10:30", "2026-10-05T00:00:00+11:00"},
		// The hour that the anchor names is skipped: the day begins where it was.
		{"day tz=Europe/Berlin anchor=02:30", "2026-03-29T12:00:00+02:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"},
		// The hour that the anchor names comes twice: the day begins at the first.
		{"day tz=Europe/Berlin anchor=02:30", "2026-10-25T02:30:00+01:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"},
		// Midnight comes twice, in Havana.
		{"day tz=America/Havana", "2026-11-01T00:30:00-05:00", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		// Midnight is skipped, in Cairo.
		{"day tz=Africa/Cairo", "2026-04-24T01:00:00+03:00", "2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"},
		// The 30th of December 2011 was skipped whole, in Apia.
		{"day tz=Pacific/Apia", "2011-12-29T23:00:00-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"day tz=Pacific/Apia", "2011-12-31T00:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		{"week", "2026-05-10T12:00:00Z", "2026-05-04T00:00:00Z", "2026-05-11T00:00:00Z"},
		{"week anchor=sunday", "2026-05-10T12:00:00Z", "2026-05-10T00:00:00Z", "2026-05-17T00:00:00Z"},
		{"week anchor=saturday", "2026-01-01T00:00:00Z", "2025-12-27T00:00:00Z", "2026-01-03T00:00:00Z"},
		{"month", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"month anchor=31", "2028-02-29T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z"},
		{"month anchor=31", "2027-03-01T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z"},
		{"month anchor=15", "2026-01-14T23:59:59Z", "2025-12-15T00:00:00Z", "2026-01-15T00:00:00Z"},
		{"month tz=America/New_York", "2026-03-01T04:59:59Z", "2026-02-01T00:00:00-05:00", "2026-03-01T00:00:00-05:00"},
		{"year", "2026-12-31T23:59:59Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"year anchor=02-29", "2027-06-01T00:00:00Z", "2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"year tz=Europe/London anchor=04-06", "2027-04-05T23:30:00+01:00", "2026-04-06T00:00:00+01:00", "2027-04-06T00:00:00+01:00"},
	} {
		date := func(s string) time.Time {
			d, err := time.Parse(time.RFC3339Nano, s)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		start, end := window(t, c.window).Bounds(date(c.now))
		if !start.Equal(date(c.start)) || !end.Equal(date(c.end)) {
			t.Errorf("%s at %s: from %v to %v; want %s to %s", c.window, c.now, start.UTC(), end.UTC(), c.start, c.end)
		}
	}
}

// TestBoundsTile checks that periods follow each other without gap or overlap,
// in any zone, at any time.
func TestBoundsTile(t *testing.T) {
	t.Parallel()
	zones := []string{
		"UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "America/Havana", "Africa/Cairo", "Africa/Casablanca",
		"Asia/Kathmandu", "Asia/Tehran", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Chatham", "Antarctica/Troll",
	}
	units := []string{
		"day", "day anchor=02:30", "day anchor=23:59", "week", "week anchor=wednesday",
		"month", "month anchor=29", "month anchor=31", "year", "year anchor=02-29", "year anchor=12-31",
	}
	rapid.Check(t, func(t *rapid.T) {
		w, err := stint.ParseWindow(rapid.SampledFrom(units).Draw(t, "unit") + " tz=" + rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		now := time.UnixMicro(rapid.Int64Range(0, 5_000_000_000_000_000).Draw(t, "now"))
		start, end := w.Bounds(now)
		if start.After(now) || !end.After(now) {
			t.Fatalf("%v: %v is not in %v to %v", w, now, start, end)
		}
		if s, e := w.Bounds(start); !s.Equal(start) || !e.Equal(end) {
			t.Fatalf("%v: at its start, %v to %v is %v to %v", w, start, end, s, e)
		}
		if s, e := w.Bounds(end.Add(-time.Microsecond)); !s.Equal(start) || !e.Equal(end) {
			t.Fatalf("%v: at its end, %v to %v is %v to %v", w, start, end, s, e)
		}
		if s, _ := w.Bounds(end); !s.Equal(end) {
			t.Fatalf("%v: after %v to %v comes one from %v", w, start, end, s)
		}
	})
}

// TestZonesCompare checks that a zone read twice is the same zone.
func TestZonesCompare(t *testing.T) {
	t.Parallel()
	if a, b := parse(t, "5/day tz=Asia/Tokyo"), parse(t, "5/day tz=Asia/Tokyo"); a != b {
		t.Errorf("%v is not %v", a, b)
	}
	if a, b := parse(t, "5/day tz=Asia/Tokyo"), parse(t, "5/day tz=Asia/Seoul"); a == b {
		t.Errorf("%v is %v", a, b)
	}
}
