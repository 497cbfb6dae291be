package engine_test

import (
	"testing"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/rule"
	"github.com/stintdev/stint/storetest"
)

// TestNotable has on the receipt whether the event of the request is one that recorders always keep, also if another node
// settles the ticket.
func TestNotable(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	store := newStore(t, clock.Now)
	first, second := start(t, tokens, engine.Options{Store: store, Now: clock.Now}), start(t, tokens, engine.Options{Store: store, Now: clock.Now})
	tickets := newTickets(t, clock.Now, "a")
	uses := map[rule.Meter]int64{"llm.output_tokens": 400}
	for i, want := range []bool{false, true} { // the trial would deny the second
		q := from("alice", "POST", "/")
		q.Usage = uses
		text, err := tickets.Seal(reserve(t, first, q), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		r, err := tickets.Open(text)
		if err != nil {
			t.Fatal(err)
		}
		if receipt, err := second.Commit(t.Context(), r, engine.Usage{Meters: uses}); err != nil || receipt.Notable != want {
			t.Errorf("request %d: notable is %t, %v", i, receipt.Notable, err)
		}
	}
}
