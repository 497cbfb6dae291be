package alert

import (
	"cmp"
	"crypto/rand"
	"maps"
	"slices"
	"time"
)

// The phases of a cause.
const (
	Pending  = "pending"
	Firing   = "firing"
	Resolved = "resolved"
)

const (
	// between is the least time between two messages about one cause.
	between = time.Minute
	// renewal is how often Alertmanager is told that a cause still fires: it takes what it has not heard of for a while for
	// resolved. lease is how long it holds then.
	renewal, lease = 5 * time.Minute, 16 * time.Minute
	// MaxCauses is how many causes of one alert are followed at once.
	MaxCauses = 50
)

// Cause is what an alert has found: one that fires again later has another id.
type Cause struct {
	ID        string    `json:"id"`
	Alert     string    `json:"alert"`
	Subject   string    `json:"subject"` // the rule, the client or the node, and what is wrong with it
	Kind      string    `json:"kind"`
	Severity  string    `json:"severity"`
	Note      string    `json:"note,omitempty"` // Alert.Text
	Phase     string    `json:"phase"`
	Since     time.Time `json:"since"`
	Fired     time.Time `json:"fired,omitzero"`
	Resolved  time.Time `json:"resolved,omitzero"`
	Text      string    `json:"text"`
	Value     float64   `json:"value"`
	Threshold float64   `json:"threshold"`
	Webhooks  []string  `json:"webhooks,omitempty"`

	Told   string    `json:"told,omitempty"`    // the phase that receivers know: none, Firing or Resolved
	LastAt time.Time `json:"last_at,omitzero"`  // of the last message of any kind, also about an earlier cause of the same subject
	Again  time.Time `json:"again_at,omitzero"` // of the last message that people have seen
	Silent bool      `json:"silent,omitempty"`  // there would be a message, and a silence holds it back

	// These are kept apart: people change them, while the cause changes.
	AckedAt time.Time `json:"-"`
	AckedBy string    `json:"-"`
	AckNote string    `json:"-"`

	changed bool
}

// Key names what messages are kept in order by.
func (c *Cause) Key() string { return c.Alert + "\x1f" + c.Subject }

// Finding is that a condition holds.
type Finding struct {
	Subject string
	Text    string // what was found, as a sentence
	Value   float64
	Since   time.Time // since when; zero: since it was first found
	Ripe    bool      // it has lasted long enough, whatever Since says
}

// Silence holds back messages until a time.
type Silence struct {
	ID      string
	Alert   string // empty: all
	Subject string // empty: all
	Until   time.Time
	Reason  string
	At      time.Time
	By      string
}

// Holds reports whether there are no messages about a cause.
func (s *Silence) Holds(c *Cause, now time.Time) bool {
	return now.Before(s.Until) && (s.Alert == "" || s.Alert == c.Alert) && (s.Subject == "" || s.Subject == c.Subject)
}

// Seen is what was found for an alert.
type Seen struct {
	Known    bool // false: it is not known, and nothing changes
	Findings []Finding
	// Over returns what to say of a cause that is not found any more although its condition may still hold. Empty, or if it is nil: the
	// condition does not hold any more.
	Over func(subject string) string
}

// Step returns the causes of an alert after a look at its conditions, and the messages that are due. Causes are those
// before: at most one of each subject, the latest. Without an alert it was deleted or disabled, and its causes are resolved.
// The webhooks in renewed have to hear of a cause now and then, or take it for resolved.
func Step(now time.Time, a *Alert, seen Seen, causes []*Cause, silences []Silence, renewed map[string]bool) ([]*Cause, []Message) {
	if a == nil {
		seen = Seen{Known: true}
	}
	by := make(map[string]*Cause, len(causes))
	for _, c := range causes {
		by[c.Subject] = c
	}
	if seen.Known {
		holds := map[string]bool{}
		for _, f := range choose(seen.Findings, by) {
			holds[f.Subject] = true
			by[f.Subject] = found(now, a, f, by[f.Subject])
		}
		for subject, c := range by {
			if !holds[subject] && c.Phase != Resolved {
				c.over(now, a == nil, seen.Over)
			}
		}
	}
	var messages []Message
	out := make([]*Cause, 0, len(by))
	for _, subject := range slices.Sorted(maps.Keys(by)) {
		c := by[subject]
		out = append(out, c)
		messages = append(messages, c.due(now, a, silences, renewed)...)
	}
	return out, messages
}

// choose returns the findings to follow: of too many, those that are followed already, and then those with the highest values.
func choose(all []Finding, by map[string]*Cause) []Finding {
	if len(all) <= MaxCauses {
		return all
	}
	active := func(f *Finding) int {
		if c := by[f.Subject]; c != nil && c.Phase != Resolved {
			return 0
		}
		return 1
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(x, y Finding) int {
		return cmp.Or(cmp.Compare(active(&x), active(&y)), cmp.Compare(y.Value, x.Value), cmp.Compare(x.Subject, y.Subject))
	})
	return all[:MaxCauses]
}

// found returns the cause of a finding.
func found(now time.Time, a *Alert, f Finding, c *Cause) *Cause {
	switch {
	case c == nil:
		c = &Cause{ID: rand.Text(), Alert: a.Name, Subject: f.Subject, Phase: Pending, Since: now}
	case c.Phase == Resolved && c.Told == Firing:
		c.Phase, c.Resolved = Firing, time.Time{} // no one has heard that it was over
	case c.Phase == Resolved:
		c = &Cause{ID: rand.Text(), Alert: a.Name, Subject: f.Subject, Phase: Pending, Since: now, LastAt: c.LastAt}
	}
	if !f.Since.IsZero() && f.Since.Before(c.Since) {
		c.Since = f.Since
	}
	c.Kind, c.Severity, c.Note, c.Text, c.Value, c.Threshold, c.changed = a.Kind, a.Level(), a.Text, f.Text, f.Value, a.Threshold(), true
	if c.Phase == Pending && (f.Ripe || a.Kind == KindHealth && now.Sub(c.Since) >= a.Lasts()) {
		c.Phase, c.Fired = Firing, now
	}
	if c.Told != Firing { // who was told that it fires is also told that it is over
		c.Webhooks = slices.Clone(a.Webhooks)
	}
	return c
}

// over ends a cause. One that has not fired was none.
func (c *Cause) over(now time.Time, gone bool, why func(subject string) string) {
	if gone {
		c.Text = "the alert was deleted or disabled"
	} else if why != nil {
		if text := why(c.Subject); text != "" {
			c.Text += "; " + text
		}
	}
	c.Phase, c.Resolved, c.changed = Resolved, now, true
}

// due returns the messages about a cause that are due.
func (c *Cause) due(now time.Time, a *Alert, silences []Silence, renewed map[string]bool) []Message {
	var what string
	to, people := c.Webhooks, true
	switch {
	case now.Sub(c.LastAt) < between && !c.LastAt.IsZero() && !now.Before(c.LastAt):
		return nil
	case c.Phase == Firing && c.Told != Firing:
		what = TypeFiring
	case c.Phase == Resolved && c.Told == Firing:
		what = TypeResolved
	case c.Phase == Firing && a != nil && c.AckedAt.IsZero() && now.Sub(c.Again) >= a.Again():
		what = TypeStill
	case c.Phase == Firing && now.Sub(c.LastAt) >= renewal:
		what, people = TypeStill, false
		to = slices.DeleteFunc(slices.Clone(to), func(name string) bool { return !renewed[name] })
		if len(to) == 0 {
			return nil
		}
	default:
		return nil
	}
	silent := slices.ContainsFunc(silences, func(s Silence) bool { return s.Holds(c, now) })
	if c.Silent != silent {
		c.Silent, c.changed = silent, true
	}
	if silent {
		return nil
	}
	m := Message{
		ID: rand.Text(), Type: what, At: now, Cause: c.ID, Alert: c.Alert, Subject: c.Subject, Kind: c.Kind, Severity: c.Severity, Text: c.Text, Note: c.Note,
		Value: c.Value, Threshold: c.Threshold, Since: c.Since, Fired: c.Fired, Resolved: c.Resolved, key: c.Key(), webhooks: to,
	}
	c.LastAt, c.changed = now, true
	if people {
		c.Again, c.Told = now, c.Phase
	}
	return []Message{m}
}
