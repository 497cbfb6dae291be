package record_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// TestMinutes counts who is denied, while it is on.
func TestMinutes(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	m, err := record.NewMinutes(record.TruncateIP, nil)
	if err != nil {
		t.Fatal(err)
	}
	deny := func(at time.Time, user, rule string, outcome engine.Outcome) {
		m.Record(context.Background(), &engine.Event{At: at, User: user, Rule: rule, Outcome: outcome, IP: netip.MustParseAddr("192.0.2.7")})
	}
	deny(noon, "before", "search", engine.Denied)
	m.Turn(true)
	for i := range 5 {
		deny(noon.Add(time.Duration(i)*time.Minute), "alice", "search", engine.Denied)
	}
	deny(noon, "alice", "login", engine.Denied)
	deny(noon, "bob", "search", engine.Denied)
	deny(noon, "bob", "search", engine.Allowed)
	m.Record(context.Background(), &engine.Event{At: noon, User: "bob", Rule: "search", Outcome: engine.Allowed, Shadow: true}) // it passed
	for _, c := range []struct {
		minutes  int
		by, rule string
		than     int64
		want     string
	}{
		{5, "user", "", 0, "[{alice 6} {bob 1}]"},
		{5, "user", "", 1, "[{alice 6}]"},
		{2, "user", "search", 0, "[{alice 2} {bob 1}]"},
		{5, "user", "login", 0, "[{alice 1}]"},
		{5, "ip", "", 0, "[{192.0.2.0/24 7}]"},
		{5, "tenant", "", 0, "[]"},
	} {
		if got := fmt.Sprint(m.DeniedMore(noon, noon.Add(time.Duration(c.minutes)*time.Minute), c.by, c.rule, c.than)); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
	for i := range 5000 { // more than are counted
		deny(noon.Add(10*time.Minute), fmt.Sprintf("user-%d", i), "search", engine.Denied)
	}
	if got := len(m.DeniedMore(noon.Add(10*time.Minute), noon.Add(11*time.Minute), "user", "", 0)); got == 0 || got > 2000 {
		t.Errorf("%d clients are counted", got)
	}
	deny(noon.Add(64*time.Minute), "later", "search", engine.Denied) // in the place of noon
	if got := fmt.Sprint(m.DeniedMore(noon, noon.Add(time.Minute), "user", "", 0)); got != "[]" {
		t.Errorf("what is over an hour old is kept: %s", got)
	}
	m.Turn(false)
	if got := m.DeniedMore(noon, noon.Add(70*time.Minute), "user", "", 0); len(got) != 0 {
		t.Errorf("it is off, and has %v", got)
	}
}
