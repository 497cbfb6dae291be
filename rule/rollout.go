package rule

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Rollout brings a rule into force in steps, each for a larger part of clients. How far it is depends on nothing but the rule
// and the time, so all nodes agree on it.
type Rollout struct {
	Steps []Percent `json:"steps"`
	Every Duration  `json:"every"` // how long a step lasts
	// Start is when the first step begins; before, the rule is tried out on all clients. The catalog sets it when the rule is
	// stored without one.
	Start Time `json:"start,omitzero"`
	// BackIf is which part of requests the rule has to deny in a minute for the rollout to be taken back. Zero: it never is.
	BackIf BackIf `json:"back_if,omitzero"`
	// Stopped, if not nil, is how the rollout has ended before its last step.
	Stopped *Stopped `json:"stopped,omitempty"`
}

// Stopped is that a rollout does not go on.
type Stopped struct {
	At Time `json:"at"`
	// Share is the part of clients for whom the rule stays in force. Zero: for none, it is tried out on all.
	Share  Percent `json:"share,omitzero"`
	Reason string  `json:"reason,omitempty"`
}

// BackIf is a part of requests, written like denied > 2%.
type BackIf Percent

// MarshalText implements [encoding.TextMarshaler].
func (b BackIf) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// String returns the condition as it is written.
func (b BackIf) String() string { return "denied > " + Percent(b).String() }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (b *BackIf) UnmarshalText(text []byte) error {
	words := strings.Fields(strings.Replace(string(text), ">", " > ", 1))
	if len(words) == 3 && words[0] == "denied" && words[1] == ">" && (*Percent)(b).UnmarshalText([]byte(words[2])) == nil && Percent(*b) < All {
		return nil
	}
	return fmt.Errorf("%.64q is not a condition, want one such as \"denied > 2%%\", with a percentage below 100%% that has at most two decimals", text)
}

// LeastRequests is how many requests of the clients for whom a rule is in force a minute must have to count for
// [Rollout.BackIf].
const LeastRequests = 20

// Passed reports whether so many requests of a minute pass the condition. There may be none.
func (b BackIf) Passed(requests, denied int64) bool {
	return b != 0 && requests >= LeastRequests && float64(denied)*float64(All) > float64(b)*float64(requests)
}

// Share returns for which part of clients the rule is in force at a time. The zero time is after the last step.
func (o *Rollout) Share(now time.Time) Percent {
	if o.Stopped != nil {
		return o.Stopped.Share
	}
	if step := o.Step(now); step >= 0 {
		return o.Steps[step]
	}
	return 0
}

// Step returns the step that it is the time for, whether or not the rollout was stopped: -1 before the first.
func (o *Rollout) Step(now time.Time) int {
	last := len(o.Steps) - 1
	since := now.Sub(o.Start.Time)
	switch {
	case now.IsZero():
		return last
	case since < 0:
		return -1
	default:
		return int(min(since/time.Duration(o.Every), time.Duration(last)))
	}
}

// Begins returns when a step begins.
func (o *Rollout) Begins(step int) time.Time {
	return o.Start.Add(time.Duration(step) * time.Duration(o.Every))
}

// Stop returns the rollout as it is when it is stopped at a part of clients.
func (o *Rollout) Stop(now time.Time, share Percent, reason string) *Rollout {
	next := *o
	next.Stopped = &Stopped{Time{now.UTC()}, share, reason}
	return &next
}

// Resume returns the rollout as it goes on: at the beginning of the step with the part at which it was stopped or, if it was taken
// back, of the step at which it was then.
func (o *Rollout) Resume(now time.Time) *Rollout {
	next := *o
	if next.Stopped = nil; o.Stopped == nil {
		return &next
	}
	step := slices.Index(o.Steps, o.Stopped.Share)
	if step < 0 {
		step = o.Step(o.Stopped.At.Time)
	}
	if start := now.UTC().Add(-time.Duration(max(step, 0)) * time.Duration(o.Every)); step >= 0 || start.After(o.Start.Time) {
		next.Start = Time{start}
	}
	return &next
}

// Continue returns a rollout that was given in place of another one. If it has the same steps and no other start, it is the same
// rollout, which goes on as it does: it does not begin again because a file was applied again, nor go on if it was stopped. Another one
// that has no start begins now.
func (o *Rollout) Continue(before *Rollout, now time.Time) *Rollout {
	next := *o
	same := before != nil && slices.Equal(o.Steps, before.Steps) && o.Every == before.Every && (o.Start.IsZero() || o.Start.Equal(before.Start.Time))
	if same {
		next.Start = before.Start
		next.Stopped = cmp.Or(o.Stopped, before.Stopped)
	}
	if next.Start.IsZero() {
		next.Start = Time{now.UTC().Truncate(time.Second)}
	}
	return &next
}

func (o *Rollout) clone() *Rollout {
	if o == nil {
		return nil
	}
	next := *o
	next.Steps = slices.Clone(o.Steps)
	if o.Stopped != nil {
		next.Stopped = new(*o.Stopped)
	}
	return &next
}

// Rollout returns the rollout of the rule, which must not be changed, or nil.
func (r *Compiled) Rollout() *Rollout {
	if r.share == nil {
		return nil
	}
	return r.share.rollout
}

// The bounds of a rollout.
const (
	maxSteps = 50
	minEvery = time.Minute
)

// checkRollout checks in which steps a rule comes into force.
func (c *checker) checkRollout(r *checked) {
	const path = "rollout"
	o := r.Rollout
	if o == nil {
		return
	}
	if r.Enforce != 0 {
		c.Add(path, "the rule is in force for "+r.Enforce.String()+" of clients (enforce): want one of the two", "")
	}
	if err := r.checkParts(); err != nil {
		c.Add(path, "want none: "+err.Error(), "")
	}
	switch n := len(o.Steps); {
	case n == 0:
		c.Add(path+".steps", `missing, want parts of clients such as ["1%", "10%", "50%", "100%"]`, "")
	case n > maxSteps:
		c.Add(path+".steps", "has "+strconv.Itoa(n)+" steps, want at most "+strconv.Itoa(maxSteps), "")
	}
	for i, p := range o.Steps[:min(len(o.Steps), maxSteps)] {
		switch at := strict.Item(path+".steps", i); {
		case p <= 0 || p > All:
			c.Refuse(at, p.String(), "a percentage above 0% and at most 100%", "")
		case i > 0 && p <= o.Steps[i-1]:
			c.Refuse(at, p.String(), "more than the step before, "+o.Steps[i-1].String(), "")
		}
	}
	switch every := time.Duration(o.Every); {
	case every == 0:
		c.Add(path+".every", "missing, want how long a step lasts, such as 1h", "")
	case every < minEvery || every > stint.MaxWindow:
		c.Refuse(path+".every", o.Every.String(), "from "+Duration(minEvery).String()+" to "+Duration(stint.MaxWindow).String(), "")
	}
	if o.BackIf < 0 || o.BackIf >= BackIf(All) {
		c.Refuse(path+".back_if", o.BackIf.String(), "a percentage above 0% and below 100%", "")
	}
	if s := o.Stopped; s != nil {
		if s.At.IsZero() {
			c.Add(path+".stopped.at", "missing, want when the rollout was stopped, such as 2026-12-31T23:59:59Z", "")
		}
		if s.Share < 0 || s.Share > All {
			c.Refuse(path+".stopped.share", s.Share.String(), "at most 100%, or none if it was taken back", "")
		}
		c.checkText(path+".stopped.reason", s.Reason)
	}
}

// CheckStarts returns a problem for each rollout that does not say when it starts. Only the catalog can say it for all nodes, so rules
// that are not in it have to say it themselves.
func (f *File) CheckStarts(now time.Time) (out Problems) {
	for i := range f.Rules {
		if o := f.Rules[i].Rollout; o != nil && o.Start.IsZero() {
			out = append(out, Problem{Path: strict.Item("rules", i) + ".rollout.start", Message: "missing, and without a database nodes cannot agree on it: want when the first step begins, such as " +
				now.UTC().Truncate(time.Second).Format(time.RFC3339)})
		}
	}
	return out
}

// say says in which steps the rule comes into force.
func (o *Rollout) say() string {
	const others = "always the same ones, and is only tried out on the others"
	var parts []string
	for _, p := range o.Steps[:min(len(o.Steps), maxSteps)] {
		parts = append(parts, p.String())
	}
	steps := join(parts, "and")
	if s := o.Stopped; s != nil {
		text := "its rollout was stopped, and it is in force for " + s.Share.String() + " of clients, " + others
		if s.Share == 0 {
			text = "its rollout was taken back, and it is only tried out"
		}
		if s.Reason != "" {
			text += " (" + printable(s.Reason) + ")"
		}
		return text
	}
	text := "it comes into force for " + steps + " of clients, " + others
	text += "; each step lasts " + amount(time.Duration(o.Every))
	if !o.Start.IsZero() {
		text += ", and the first begins at " + o.Start.UTC().Format(time.RFC3339)
	}
	if o.BackIf != 0 {
		text += "; it is taken back if it denies more than " + Percent(o.BackIf).String() + " of their requests in a minute"
	}
	return text
}
