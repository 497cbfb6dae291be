package storetest_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/storetest"
)

func TestSpec(t *testing.T) {
	t.Parallel()
	open := func(_ testing.TB, now func() time.Time) stint.Store { return storetest.Spec(now) }
	storetest.Run(t, open)
	t.Run("across subjects", func(t *testing.T) { storetest.AcrossSubjects(t, open) })
}

// TestScripts checks that every algorithm has a script for every behaviour.
func TestScripts(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range storetest.Scripts() {
		names = append(names, s.Name)
	}
	for _, a := range stint.Algorithms() {
		for _, behaviour := range []string{
			"admission", "boundary", "burst", "partial-refill", "cost", "cost-above-capacity", "peek",
			"refund", "charge", "amend", "backwards-time", "changed-limit", "recovery",
		} {
			if want := a.String() + "-" + behaviour + ".txt"; !slices.Contains(names, want) {
				t.Errorf("no script %s", want)
			}
		}
	}
}

// TestBadScript checks that what is wrong with a script is said, with its line.
func TestBadScript(t *testing.T) {
	t.Parallel()
	const limit = "limit 5/1s\n"
	for _, c := range []struct{ text, says string }{
		{"", "no steps"},
		{limit, "no steps"},
		{"at 0s take alice -> allow", "x.txt:1: no limit above"},
		{limit + "whenever", `x.txt:2: "whenever": want start, limit, penalty or at`},
		{limit + "limit 0/1s", "max"},
		{"start yesterday", "yesterday"},
		{limit + "at 0s take alice -> allow\nstart 2026-01-01T00:00:00Z", "before the first step"},
		{limit + "at noon take alice -> allow", `time "noon"`},
		{limit + "at 0s take", "want: at TIME VERB SUBJECT"},
		{limit + "at 0s steal alice", "want take, peek"},
		{limit + "at 0s take alice", "needs an expectation"},
		{limit + "at 0s take alice some -> allow", `"some": want a cost`},
		{limit + "at 0s take alice xx -> allow", `"xx"`},
		{limit + "at 0s take alice on hour -> allow", `no limit "hour"`},
		{limit + "at 0s take alice -> maybe", `"maybe": want allow, deny`},
		{limit + "at 0s take alice -> allow left=3", `"left": want one of`},
		{limit + "at 0s take alice -> deny by hour", `"hour": this step does not use that limit`},
		{limit + "limit hour: 9/1h\nat 0s take alice -> allow remaining=3", "name the limit, as in limit.remaining"},
	} {
		_, err := storetest.ParseScript("x.txt", c.text)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v; want an error that says %q", c.text, err, c.says)
		}
	}
}

// TestRewrite changes asks on their way to a store, and not those of the caller.
func TestRewrite(t *testing.T) {
	t.Parallel()
	s := storetest.Rewrite(storetest.Spec(storetest.NewClock().Now), func(a *stint.Ask) { a.Limit.Max, a.Plan = 2, nil })
	asks := []stint.Ask{{Key: stint.Key{Subject: "alice", Name: "n"}, Limit: stint.Limit{Algorithm: stint.FixedWindow, Max: 9, Window: stint.Every(time.Hour)}, Cost: 1}}
	for _, call := range []func(context.Context, stint.Store, []stint.Ask) ([]stint.Decision, error){storetest.Take, storetest.Adjust} {
		if ds, err := call(t.Context(), s, asks); err != nil || ds[0].Limit != 2 || asks[0].Limit.Max != 9 {
			t.Errorf("%+v, %v; asked for %+v", ds, err, asks[0])
		}
	}
	if err := s.Reset(t.Context(), asks); err != nil || asks[0].Limit.Max != 9 {
		t.Errorf("%v; asked for %+v", err, asks[0])
	}
}
