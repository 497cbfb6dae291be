package alert_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

func healthAlert() *alert.Alert {
	return &alert.Alert{Name: "store", Kind: alert.KindHealth, For: rule.Duration(30 * time.Second), Webhooks: []string{"ops"}}
}

// holds is that a condition holds.
func holds() alert.Seen {
	return alert.Seen{Known: true, Findings: []alert.Finding{{Subject: "redis", Text: "it is away"}}}
}

// TestStep plays what happens to one cause. Each line is a time, what was seen (+, - or ?, for not known) and what else is, and the
// phase and the messages after it.
func TestStep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, script string }{
		{"it has to last", `
			0s + -> pending
			20s - -> 
			25s + -> pending
			54s + -> pending
			55s + -> firing alert.firing`},
		{"it is over", `
			0s + -> pending
			30s + -> firing alert.firing
			40s + -> firing
			2m - -> resolved alert.resolved
			2m5s - -> resolved`},
		{"not known is not over", `
			0s + -> pending
			30s ? -> pending
			31s + -> firing alert.firing
			10m ? -> firing`},
		{"a minute between messages", `
			0s + -> pending
			30s + -> firing alert.firing
			40s - -> resolved
			50s + -> firing
			1m29s - -> resolved
			1m30s - -> resolved alert.resolved
			1m35s + -> pending
			2m5s + -> firing
			2m29s + -> firing
			2m30s + -> firing alert.firing`},
		{"what is over before anyone heard of it is not told", `
			0s + -> pending
			30s + -> firing alert.firing
			1m30s - -> resolved alert.resolved
			1m31s + -> pending
			2m1s + -> firing
			2m2s - -> resolved
			5m - -> resolved`},
		{"it is told again", `
			0s + -> pending
			30s + -> firing alert.firing
			3h59m + -> firing
			4h1m + -> firing alert.still_firing
			4h2m + -> firing
			8h1m + -> firing alert.still_firing`},
		{"not of what is acknowledged", `
			0s + -> pending
			30s + -> firing alert.firing
			1h + ack -> firing
			4h1m + -> firing
			5h - -> resolved alert.resolved
			5h1m + -> pending
			5h2m + -> firing alert.firing`},
		{"nothing while it is silenced", `
			0s + silence=1h -> pending
			30s + -> firing
			59m + -> firing
			1h + -> firing alert.firing
			2h + silence=3h -> firing
			2h10m - -> resolved
			3h1m - -> resolved alert.resolved`},
		{"a whole cause in silence", `
			0s + silence=1h -> pending
			30s + -> firing
			10m - -> resolved
			2h - -> resolved`},
		{"a silence of another alert", `
			0s + silence=1h other -> pending
			30s + -> firing alert.firing`},
		{"the alert is deleted", `
			0s + -> pending
			30s + -> firing alert.firing
			2m gone -> resolved alert.resolved`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var causes []*alert.Cause
			var silences []alert.Silence
			for line := range strings.Lines(strings.TrimSpace(c.script)) {
				given, want, _ := strings.Cut(strings.TrimSpace(line), "->")
				words := strings.Fields(given)
				after, err := time.ParseDuration(words[0])
				if err != nil {
					t.Fatal(err)
				}
				a, seen := healthAlert(), alert.Seen{Known: true}
				for i, w := range words[1:] {
					switch {
					case w == "+":
						seen = holds()
					case w == "?":
						seen = alert.Seen{}
					case w == "gone":
						a = nil
					case w == "ack":
						causes[0].AckedAt = noon.Add(after)
					case strings.HasPrefix(w, "silence="):
						until, err := time.ParseDuration(w[len("silence="):])
						if err != nil {
							t.Fatal(err)
						}
						s := alert.Silence{Alert: "store", Until: noon.Add(until)}
						if i+2 < len(words) && words[i+2] == "other" {
							s.Alert = "other"
						}
						silences = append(silences, s)
					}
				}
				var messages []alert.Message
				causes, messages = alert.Step(noon.Add(after), a, seen, causes, silences, nil)
				got := ""
				if len(causes) > 0 {
					got = causes[0].Phase
					if causes[0].Phase == alert.Resolved && causes[0].Fired.IsZero() {
						got, causes = "", nil // it is forgotten
					}
				}
				for _, m := range messages {
					got += " " + m.Type
				}
				if got != strings.TrimSpace(want) {
					t.Errorf("%s: got %q", strings.TrimSpace(line), got)
				}
			}
		})
	}
}

// TestFlapping has causes come and go at random, with alerts, silences and acknowledgements that change meanwhile: there is never more
// than one message a minute about one, and in the end everyone knows how it is.
func TestFlapping(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		rows := map[string]*alert.Cause{} // as in the store: by id
		var silences []alert.Silence
		last, told := map[string]time.Time{}, map[string]string{}
		now := noon
		a := healthAlert()
		a.Repeat = rule.Duration(time.Minute)
		look := func(seen alert.Seen) {
			latest := map[string]*alert.Cause{}
			for _, c := range rows {
				if before := latest[c.Subject]; before == nil || before.Phase == alert.Resolved && (c.Phase != alert.Resolved || c.Resolved.After(before.Resolved)) {
					latest[c.Subject] = c
				}
			}
			causes, messages := alert.Step(now, a, seen, slices.Collect(maps.Values(latest)), silences, map[string]bool{"ops": seed%2 == 0})
			for _, m := range messages {
				if before, ok := last[m.Subject]; ok && now.Sub(before) < time.Minute {
					t.Fatalf("seed %d: two messages about %s within %v", seed, m.Subject, now.Sub(before))
				}
				last[m.Subject], told[m.Subject] = now, m.Type
			}
			for _, c := range causes {
				if rows[c.ID] = c; c.Phase == alert.Resolved && c.Fired.IsZero() {
					delete(rows, c.ID)
				}
			}
		}
		for range 500 {
			now = now.Add(time.Duration(1+r.IntN(20)) * time.Second)
			a.For = rule.Duration(time.Duration(1+r.IntN(30)) * time.Second)
			seen := alert.Seen{Known: r.IntN(10) > 0}
			for _, subject := range []string{"a", "b", "c"} {
				if r.IntN(3) > 0 {
					seen.Findings = append(seen.Findings, alert.Finding{Subject: subject, Text: "x", Ripe: r.IntN(4) == 0})
				}
			}
			if r.IntN(50) == 0 {
				silences = []alert.Silence{{Until: now.Add(time.Duration(r.IntN(300)) * time.Second)}}
			}
			for _, c := range rows {
				if r.IntN(100) == 0 {
					c.AckedAt = now
				}
			}
			look(seen)
		}
		for range 40 {
			now = now.Add(20 * time.Second)
			look(alert.Seen{Known: true})
		}
		for subject, what := range told {
			if what != alert.TypeResolved {
				t.Errorf("seed %d: %s is over, and the last message about it is %s", seed, subject, what)
			}
		}
	}
}

// TestMany has more causes than are followed.
func TestMany(t *testing.T) {
	t.Parallel()
	a := &alert.Alert{Name: "greedy", Kind: alert.KindClient, Denials: 1}
	seen := func(from, to int) alert.Seen {
		s := alert.Seen{Known: true}
		for i := from; i < to; i++ {
			s.Findings = append(s.Findings, alert.Finding{Subject: fmt.Sprintf("user:%03d", i), Value: float64(i), Ripe: true})
		}
		return s
	}
	causes, messages := alert.Step(noon, a, seen(0, 200), nil, nil, nil)
	if len(causes) != alert.MaxCauses || len(messages) != alert.MaxCauses || causes[0].Subject != "user:150" {
		t.Fatalf("%d causes, %d messages, the first is %+v", len(causes), len(messages), causes[0])
	}
	// Those that are followed stay, whoever comes.
	causes, messages = alert.Step(noon.Add(time.Second), a, seen(150, 400), causes, nil, nil)
	if len(causes) != alert.MaxCauses || len(messages) != 0 || causes[0].Subject != "user:150" {
		t.Errorf("%d causes, %d messages, the first is %+v", len(causes), len(messages), causes[0])
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	known := alert.Known{Rules: []string{"search", "login"}, Webhooks: []string{"oncall"}}
	for _, c := range []struct {
		a    alert.Alert
		want string // parts of the problems, by |; empty: none
	}{
		{alert.Alert{Name: "a", Kind: "rule", Percent: 20, Rule: "search", Webhooks: []string{"oncall"}}, ""},
		{alert.Alert{Name: "a", Kind: "client", Denials: 5}, ""},
		{alert.Alert{Name: "a", Kind: "health"}, ""},
		{alert.Alert{Kind: "rule", Percent: 20}, "a.name: "},
		{alert.Alert{Name: "a"}, "a.kind: missing, want one of rule, client, health, rollout"},
		{alert.Alert{Name: "a", Kind: "rules", Percent: 20}, `a.kind: "rules": want one of rule, client, health, rollout; did you mean "rule"?`},
		{alert.Alert{Name: "a", Kind: "rule"}, `a.percent: "0": want a number above 0 and below 100`},
		{alert.Alert{Name: "a", Kind: "rule", Percent: 20, Rule: "serach"}, `a.rule: "serach": want the name of a rule; did you mean "search"?`},
		{alert.Alert{Name: "a", Kind: "rule", Percent: 20, Webhooks: []string{"onkall"}}, `a.webhooks[0]: "onkall": want the name of a webhook; did you mean "oncall"?`},
		{alert.Alert{Name: "a", Kind: "rule", Percent: 20, For: rule.Duration(90 * time.Second)}, "a.for: \"90s\": want whole minutes, from 1m to 1h"},
		{alert.Alert{Name: "a", Kind: "rule", Percent: 20, Denials: 7}, "a.denials: is for alerts of the kind client, and this one is of the kind rule"},
		{alert.Alert{Name: "a", Kind: "client"}, "a.denials: "},
		{alert.Alert{Name: "a", Kind: "client", Denials: 1, By: "usr"}, `did you mean "user"?`},
		{alert.Alert{Name: "a", Kind: "client", Denials: 1, Within: rule.Duration(2 * time.Hour)}, "a.within: "},
		{alert.Alert{Name: "a", Kind: "health", When: []string{"stroe_away"}}, `a.when[0]: "stroe_away": want one of`},
		{alert.Alert{Name: "a", Kind: "health", When: []string{}}, "a.when: is empty, want one of store_away, node_missing, bound_passed, unhealthy; without it, all"},
		{alert.Alert{Name: "a", Kind: "health", Severity: "bad", Repeat: rule.Duration(time.Second)}, "a.severity: |a.repeat: "},
	} {
		var p strict.Report
		c.a.Check(&p, "a", known)
		text := ""
		for _, one := range p.Problems {
			text += one.String() + "\n"
		}
		if c.want == "" && text != "" {
			t.Errorf("%+v: %s", c.a, text)
		}
		for part := range strings.SplitSeq(c.want, "|") {
			if !strings.Contains(text, part) {
				t.Errorf("%+v: want %q in\n%s", c.a, part, text)
			}
		}
	}
	for _, c := range []struct {
		w    alert.Webhook
		want string
	}{
		{alert.Webhook{Name: "w", URL: "https://hooks.example.com/x"}, ""},
		{alert.Webhook{Name: "w", URL: "https://hooks.slack.com/services/{secret}", Format: "slack", Secret: "T0/B0/XXXX"}, ""},
		{alert.Webhook{Name: "w", URL: "http://user:{secret}@alertmanager:9093", Format: "alertmanager"}, ""},
		{alert.Webhook{Name: "w"}, "w.url: missing"},
		{alert.Webhook{Name: "w", URL: "ftp://x"}, "w.url: want a URL with http or https"},
		{alert.Webhook{Name: "w", URL: "https://u:hunter22@x"}, "w.url: has a password"},
		{alert.Webhook{Name: "w", URL: "https://hooks.slack.com/services/T0/B0/XXXX"}, "w.url: the path of a webhook of Slack is a secret"},
		{alert.Webhook{Name: "w", URL: "https://x", Format: "slak"}, `did you mean "slack"?`},
		{alert.Webhook{Name: "w", URL: "https://x", Secret: "hunter2"}, "w.secret: want 8 to 512"},
	} {
		var p strict.Report
		c.w.Check(&p, "w")
		text := p.Problems.Error()
		if c.want == "" && len(p.Problems) > 0 || !strings.Contains(text, c.want) {
			t.Errorf("%+v: %s, want %q", c.w, text, c.want)
		}
		for _, secret := range []string{"hunter2", "XXXX"} {
			if strings.Contains(text, secret) {
				t.Errorf("%+v: the problem has the secret: %s", c.w, text)
			}
		}
	}
}
