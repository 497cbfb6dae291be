package record_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/record"
)

// TestLiveUnits shows the units that were used in the last 10 seconds, by rule, and no more rules than it can.
func TestLiveUnits(t *testing.T) {
	t.Parallel()
	now := settledAt
	l, err := record.NewLive(record.LiveOptions{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	show := func() string {
		var out []string
		for _, u := range l.Snapshot().Units {
			out = append(out, fmt.Sprintf("%s %s %g", u.Rule, u.Meter, u.Used))
		}
		return strings.Join(out[:min(len(out), 3)], ", ")
	}
	trial := settled("trial", tokens, 1, 90)
	trial.Shadow = true
	r := receiptOf("gpt", settled("requests", "", 1, 1), settled("tokens", tokens, 100, 70), settled("tokens", tokens, 100, 70), settled("bytes", "response_bytes", 1, 500), trial)
	l.Reserved("tokens", tokens, 1000)
	l.Settled(r, false)
	l.Settled(r, true) // cancelled
	l.Settled(&engine.Receipt{Repeated: true, Limits: r.Limits}, false)
	now = now.Add(5 * time.Second)
	l.Settled(r, false)
	now = now.Add(5 * time.Second)
	l.Settled(r, false)
	now = now.Add(time.Second / 2)
	if got, want := show(), "bytes response_bytes 105.26315789473684, tokens llm.total_tokens 14.736842105263158"; got != want { // of 9.5 s, so the first are gone
		t.Errorf("%s, want %s", got, want)
	}
	for i := range 1000 {
		l.Settled(receiptOf("", settled(fmt.Sprint("rule", i), tokens, 1, 1)), false)
	}
	if got := l.Snapshot().Units; len(got) != 50 || got[1].Rule != "other" {
		t.Errorf("%d rules: %+v", len(got), got)
	}
	now = now.Add(time.Minute)
	if got := show(); got != "" {
		t.Errorf("a minute later: %s", got)
	}
}
