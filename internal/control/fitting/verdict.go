package fitting

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/recorded"
	"github.com/stintdev/stint/internal/control/sim"
	"github.com/stintdev/stint/rule"
)

// shared reports whether clients share the counters: then a verdict is about requests, since there are no clients to tell apart.
func (a *adviser) shared() bool {
	return !slices.ContainsFunc(a.o.Rule.CountBy, func(d rule.Dimension) bool {
		word, _, _ := strings.Cut(string(d), ":")
		return slices.Contains([]string{"user", "tenant", "api_key", "ip", "header", "claim"}, word)
	})
}

// read is for how long events follow each other without a gap.
func (a *adviser) read() time.Duration {
	if a.o.Stretch > 0 {
		return a.o.Stretch
	}
	return a.last.Sub(a.first)
}

// longest returns the longest window that was measured.
func (a *adviser) longest() (longest time.Duration) {
	for _, l := range a.limits {
		from, to := l.shape.Window.Bounds(a.first)
		longest = max(longest, to.Sub(from))
	}
	return longest
}

// judge says what the limits are to their clients.
func (a *adviser) judge() {
	out := &a.out
	few := a.o.Unsampled || out.Requests < max(leastRequests, out.Unclear) || !a.shared() && out.Clients < leastClients
	if out.Denies == nil {
		if few {
			out.Verdict = TooLittle
		}
		return
	}
	denied, of := out.Denies.Clients, out.Clients
	if a.shared() {
		denied, of = out.Denies.Denied, out.Requests
	}
	unused := len(a.limits) == len(a.o.Rule.Limits)
	for _, l := range a.limits {
		unused = unused && l.use.Max > 0 && l.use.Max <= l.shape.Max/far
	}
	switch {
	case few:
		out.Verdict = TooLittle
	case 2*denied >= of:
		out.Verdict = BindsEveryone
	case denied > of/a.o.OneIn:
		out.Verdict = BindsMany
	case !unused:
		out.Verdict = Fits
	case a.read() < a.longest():
		out.Verdict = TooLittle // more may be used in a whole window
	default:
		out.Verdict = NeverBinds
	}
}

func (a *adviser) note(format string, args ...any) {
	a.out.Notes = append(a.out.Notes, fmt.Sprintf(format, args...))
}

// say puts the advice in words, with its limitations.
func (a *adviser) say(now *sim.Preview) {
	out := &a.out
	out.Summary = a.summary()
	say := func(applies bool, format string, args ...any) {
		if applies {
			a.note(format, args...)
		}
	}
	say(a.o.Unsampled, "Requests that passed are not recorded, so it is not known how much clients use: record a sample of them.")
	say(!a.o.Unsampled && out.Requests > 0 && !a.shared() && out.Clients < a.o.OneIn, "Fewer than %d clients were seen, so the suggested limits deny none of them. If some of them ask for too much, let one client in fewer be denied.", a.o.OneIn)
	say(out.Requests > 0 && a.read() < a.longest(), "Requests were read of %v only, and the longest window is %v: clients may use more in a whole one.", a.read().Round(time.Second), stint.Every(a.longest()))
	say(a.sampled && a.o.endpoint != "", "No limit of a second is suggested, because it is not known how many requests came at once.")
	names := []string{}
	for _, t := range a.o.Tiers {
		if a.apart[t.Name] {
			names = append(names, t.Name)
		}
	}
	say(len(names) > 0, "Clients of these tiers are left out, because they have values of their own: %s.", strings.Join(names, ", "))
	var left []string
	for _, l := range a.o.Rule.Limits {
		if v, err := l.Value(); err == nil && (v.Algorithm == stint.LeakyBucket || v.Algorithm == stint.Concurrency) {
			left = append(left, l.Name)
		}
	}
	say(len(left) > 0, "No other value is suggested for a leaky_bucket or for concurrency: %s.", strings.Join(left, ", "))
	for _, l := range a.limits {
		say(l.fit == 0 && out.Clients > 0, "No value of the limit %s would let pass what clients use.", l.use.Name)
	}
	say(a.o.Rule.Cost.Meter != "", "What requests have used in the end does not count here, only what they had reserved.")
	say(out.Denies != nil && now.RefusedNow > 0, "Requests that were denied at the time count, too: %s.", recorded.Requests(now.RefusedNow))
	out.Notes = append(out.Notes, now.Notes...)
}

// summary says what the limits are to their clients, and what those that are suggested would be.
func (a *adviser) summary() string {
	out := &a.out
	seen := fmt.Sprintf("%s of %s", recorded.Requests(out.Requests), recorded.Count(out.Clients, "client"))
	if a.shared() {
		seen = recorded.Requests(out.Requests)
	}
	var text string
	switch out.Verdict {
	case TooLittle:
		text = "Too little traffic to tell: " + seen + "."
	case NeverBinds:
		text = fmt.Sprintf("The limits never bind: in %s, no client has used more than 1/%d of them.", seen, far)
	case Fits:
		text = "The limits fit: they would have denied " + a.part(out.Denies) + "."
	case BindsMany:
		text = fmt.Sprintf("The limits would have denied %s, which is more than one in %d.", a.part(out.Denies), a.o.OneIn)
	case BindsEveryone:
		text = "The limits bind everyone: they would have denied " + a.part(out.Denies) + "."
	default:
		text = "There were " + seen + "."
	}
	if s := out.Suggestion; s != nil {
		text += " The suggested ones would have denied " + a.part(&s.Denials) + "."
	}
	return text
}

// part says how many requests and clients were denied.
func (a *adviser) part(d *Denials) string {
	if a.shared() {
		return fmt.Sprintf("%d of %s", d.Denied, recorded.Requests(a.out.Requests))
	}
	text := fmt.Sprintf("%d of %s", d.Clients, recorded.Count(a.out.Clients, "client"))
	if d.Denied > 0 {
		text += " (" + recorded.Requests(d.Denied) + ")"
	}
	return text
}
