package rule_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stintdev/stint/rule"
)

var begin = time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC) // summer time ends in Europe that night

func rollout() *rule.Rollout {
	return &rule.Rollout{Steps: []rule.Percent{1_00, 10_00, 50_00, 100_00}, Every: rule.Duration(time.Hour), Start: rule.Time{Time: begin}, BackIf: 2_00}
}

// TestRolloutShare has steps change at their instants: whatever zone a clock shows, and whether or not clocks there go back.
func TestRolloutShare(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	o := rollout()
	for _, c := range []struct {
		at   time.Duration
		want rule.Percent
		step int
	}{
		{-1000 * time.Hour, 0, -1},
		{-1, 0, -1},
		{0, 1_00, 0},
		{time.Hour - 1, 1_00, 0},
		{time.Hour, 10_00, 1},
		{3*time.Hour - 1, 50_00, 2},
		{3 * time.Hour, 100_00, 3},
		{100_000 * time.Hour, 100_00, 3},
	} {
		for _, now := range []time.Time{begin.Add(c.at), begin.Add(c.at).In(berlin)} {
			if share, step := o.Share(now), o.Step(now); share != c.want || step != c.step {
				t.Errorf("at %v: %v, step %d; want %v, %d", now, share, step, c.want, c.step)
			}
		}
	}
	if o.Share(time.Time{}) != rule.All {
		t.Error("without a time, not all steps are done")
	}
	if got := o.Begins(2); !got.Equal(begin.Add(2 * time.Hour)) {
		t.Error(got)
	}
}

// TestRolloutStopped stops rollouts and has them go on.
func TestRolloutStopped(t *testing.T) {
	t.Parallel()
	at := begin.Add(90 * time.Minute) // the second step
	later := begin.Add(48 * time.Hour)
	for name, c := range map[string]struct {
		stopped       *rule.Rollout
		share, resume rule.Percent
	}{
		"taken back":               {rollout().Stop(at, 0, "why"), 0, 10_00},
		"at a step":                {rollout().Stop(at, 50_00, ""), 50_00, 50_00},
		"for all":                  {rollout().Stop(at, rule.All, ""), rule.All, rule.All},
		"before it began":          {rollout().Stop(begin.Add(-time.Hour), 0, ""), 0, 1_00},
		"not":                      {rollout(), rule.All, rule.All},
		"at none of its own steps": {rollout().Stop(at, 7_00, ""), 7_00, 10_00},
	} {
		if got := c.stopped.Share(later); got != c.share {
			t.Errorf("%s: %v; want %v", name, got, c.share)
		}
		on := c.stopped.Resume(later)
		if got := on.Share(later); got != c.resume || on.Stopped != nil {
			t.Errorf("%s: goes on with %v; want %v", name, got, c.resume)
		}
	}
	early := rollout().Stop(begin.Add(-2*time.Hour), 0, "").Resume(begin.Add(-time.Hour))
	if !early.Start.Equal(begin) {
		t.Errorf("one that has not begun begins at %v", early.Start)
	}
}

// TestRolloutContinue replaces rollouts by others.
func TestRolloutContinue(t *testing.T) {
	t.Parallel()
	now := begin.Add(30 * time.Hour)
	unnamed := rollout() // as in a file that is applied again
	unnamed.Start = rule.Time{}
	stopped := rollout().Stop(begin.Add(time.Hour), 0, "denied")
	if got := unnamed.Continue(nil, now); !got.Start.Equal(now) || got.Stopped != nil {
		t.Errorf("a new one: %+v", got)
	}
	for name, o := range map[string]*rule.Rollout{"without a start": unnamed, "with the same start": rollout()} {
		if got := o.Continue(rollout(), now); !got.Start.Equal(begin) || got.Stopped != nil {
			t.Errorf("again, %s: %+v", name, got)
		}
		if got := o.Continue(stopped, now); !got.Start.Equal(begin) || got.Stopped == nil || got.Stopped.Reason != "denied" {
			t.Errorf("again, %s, of one that was taken back: %+v", name, got)
		}
	}
	if got := stopped.Resume(now).Continue(stopped, now); got.Stopped != nil {
		t.Errorf("one that goes on: %+v", got)
	}
	other := rollout()
	other.Start, other.Steps = rule.Time{}, other.Steps[1:]
	if got := other.Continue(stopped, now); !got.Start.Equal(now) || got.Stopped != nil {
		t.Errorf("one with other steps: %+v", got)
	}
}

func TestBackIf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		backIf           rule.BackIf
		requests, denied int64
		want             bool
	}{
		{2_00, 1000, 20, false},
		{2_00, 1000, 21, true},
		{2_00, rule.LeastRequests, 1, true},
		{2_00, rule.LeastRequests - 1, rule.LeastRequests - 1, false},
		{2_00, 0, 0, false},
		{0, 1000, 1000, false},
		{1, 1_000_000_000_000, 100_000_001, true},
		{1, 1_000_000_000_000, 100_000_000, false},
	} {
		if got := c.backIf.Passed(c.requests, c.denied); got != c.want {
			t.Errorf("%v, %d of %d: %v", c.backIf, c.denied, c.requests, got)
		}
	}
	var b rule.BackIf
	if err := json.Unmarshal([]byte(`"denied>0.5%"`), &b); err != nil || b.String() != "denied > 0.5%" {
		t.Error(b, err)
	}
}

// TestCheckStarts wants a start of each rollout that is not in a database, and says one.
func TestCheckStarts(t *testing.T) {
	t.Parallel()
	f := rule.File{Rules: []rule.Rule{partly("a", 0), partly("b", 0)}}
	f.Rules[0].Rollout, f.Rules[1].Rollout = rollout(), rollout()
	f.Rules[1].Rollout.Start = rule.Time{}
	problems := f.CheckStarts(begin)
	if len(problems) != 1 || problems[0].Path != "rules[1].rollout.start" || problems[0].Message != "missing, and without a database nodes cannot agree on it: want when the first step begins, such as 2026-10-24T22:00:00Z" {
		t.Error(problems)
	}
}
