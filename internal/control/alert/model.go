package alert

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// The kinds of alerts.
const (
	KindRule   = "rule"   // a rule denies more than a part of its requests
	KindClient = "client" // a client is denied more than so many times
	KindHealth = "health" // something is wrong with the nodes
	// KindRollout is that the rollout of a rule was taken back.
	KindRollout = "rollout"
)

// What an alert of the kind health is about.
const (
	StoreAway   = "store_away"   // a node gets no decisions from Redis
	NodeMissing = "node_missing" // a node has stopped reporting without saying that it leaves
	BoundPassed = "bound_passed" // more was admitted than the credit of regions allows
	Unhealthy   = "unhealthy"    // another health check of a node fails
)

// The formats of webhooks.
const (
	FormatJSON         = "json"
	FormatSlack        = "slack"
	FormatAlertmanager = "alertmanager"
)

// Kinds, Conditions, Severities, Formats and Clients are the words that definitions may have.
var (
	Kinds      = []string{KindRule, KindClient, KindHealth, KindRollout}
	Conditions = []string{StoreAway, NodeMissing, BoundPassed, Unhealthy}
	Severities = []string{"info", "warning", "critical"}
	Formats    = []string{FormatJSON, FormatSlack, FormatAlertmanager}
	Clients    = []string{"user", "tenant", "key", "ip"}
)

// Alert is a definition.
type Alert struct {
	Name     string   `json:"name" doc:"The name." example:"search-denies"`
	Kind     string   `json:"kind" enum:"rule,client,health,rollout" doc:"What it is about: rule, a rule denies more than a part of its requests; client, a client is denied more than so many times; health, something is wrong with the nodes; rollout, the rollout of a rule was taken back." example:"rule"`
	Enabled  *bool    `json:"enabled,omitempty" doc:"Whether it is evaluated. Default true." example:"true"`
	Severity string   `json:"severity,omitempty" enum:"info,warning,critical" doc:"How bad it is, for receivers. Default warning." example:"critical"`
	Text     string   `json:"text,omitempty" doc:"What to do about it, for people. It is part of each message." example:"see the runbook of search"`
	Webhooks []string `json:"webhooks,omitempty" nullable:"false" doc:"The webhooks that are told. Without any, it is only shown." example:"[\"oncall\"]"`
	// Repeat is how often a cause that fires is told of again, until it is acknowledged or resolved.
	Repeat rule.Duration `json:"repeat,omitempty" doc:"How often a cause that fires is told of again, from 1m to 720h, until it is acknowledged or resolved. Default 4h." example:"4h"`

	Rule        string        `json:"rule,omitempty" doc:"Only this rule. Of the kind rule, without it, each rule is a cause of its own." example:"search"`
	Percent     float64       `json:"percent,omitempty" doc:"Of the kind rule: it denies more than this part of its requests, in percent." example:"20"`
	For         rule.Duration `json:"for,omitempty" doc:"How long it has to last before the alert fires. Of the kind rule: whole minutes, each of which has to be above percent, from 1m to 60m, default 5m. Of the kind health: up to 24h, default 1m." example:"5m"`
	MinRequests int64         `json:"min_requests,omitempty" doc:"Of the kind rule: minutes with fewer requests do not count. Default 10." example:"10"`

	By      string        `json:"by,omitempty" enum:"user,tenant,key,ip" doc:"Of the kind client: which clients. Default user." example:"user"`
	Denials int64         `json:"denials,omitempty" doc:"Of the kind client: the client is denied more often than this." example:"1000"`
	Within  rule.Duration `json:"within,omitempty" doc:"Of the kind client: within this time, whole minutes from 1m to 60m. Default 10m." example:"10m"`

	When []string `json:"when,omitempty" nullable:"false" doc:"Of the kind health: which conditions: store_away, a node gets no decisions from Redis; node_missing, a node has stopped reporting without saying that it leaves; bound_passed, more was admitted than the credit of regions allows; unhealthy, another health check of a node fails. At least one. Default: all." example:"[\"store_away\",\"node_missing\"]"`
}

// The defaults.
const (
	defaultFor         = 5 * time.Minute
	defaultHealthFor   = time.Minute
	defaultWithin      = 10 * time.Minute
	defaultRepeat      = 4 * time.Hour
	defaultMinRequests = 10
	defaultRetry       = time.Hour
)

// On reports whether the alert is evaluated.
func (a *Alert) On() bool { return a.Enabled == nil || *a.Enabled }

// Level is the severity.
func (a *Alert) Level() string { return cmp.Or(a.Severity, "warning") }

// Lasts is how long a condition has to last.
func (a *Alert) Lasts() time.Duration {
	if a.Kind == KindHealth {
		return cmp.Or(time.Duration(a.For), defaultHealthFor)
	}
	return cmp.Or(time.Duration(a.For), defaultFor)
}

// Window is the time in which denials of clients are counted.
func (a *Alert) Window() time.Duration { return cmp.Or(time.Duration(a.Within), defaultWithin) }

// Least is the number of requests of a minute that counts.
func (a *Alert) Least() int64 { return cmp.Or(a.MinRequests, defaultMinRequests) }

// Clients is which clients are counted.
func (a *Alert) Clients() string { return cmp.Or(a.By, Clients[0]) }

// Again is how often a cause that fires is told of again.
func (a *Alert) Again() time.Duration { return cmp.Or(time.Duration(a.Repeat), defaultRepeat) }

// Watches reports whether an alert of the kind health is about a condition.
func (a *Alert) Watches(condition string) bool {
	return len(a.When) == 0 || slices.Contains(a.When, condition)
}

// Condition is when the alert fires, as a sentence without a subject.
func (a *Alert) Condition() string {
	switch a.Kind {
	case KindRule:
		return fmt.Sprintf("%s denies more than %g %% for %s", cmp.Or(a.Rule, "a rule"), a.Percent, rule.Duration(a.Lasts()))
	case KindClient:
		by := ""
		if a.Rule != "" {
			by = " by " + a.Rule
		}
		return fmt.Sprintf("a client (%s) is denied more than %d times%s in %s", a.Clients(), a.Denials, by, rule.Duration(a.Window()))
	case KindRollout:
		return "the rollout of " + cmp.Or(a.Rule, "a rule") + " is taken back"
	default:
		when := a.When
		if len(when) == 0 {
			when = Conditions
		}
		return fmt.Sprintf("%s for %s", strings.Join(when, ", "), rule.Duration(a.Lasts()))
	}
}

// Threshold is what the value of a cause has passed.
func (a *Alert) Threshold() float64 {
	switch a.Kind {
	case KindRule:
		return a.Percent
	case KindClient:
		return float64(a.Denials)
	default:
		return 0
	}
}

// Webhook is where messages are delivered.
type Webhook struct {
	Name   string `json:"name" doc:"The name." example:"oncall"`
	URL    string `json:"url" doc:"Where messages are posted, by http or https. {secret} in it stands for the secret, as in https://hooks.slack.com/services/{secret}. For Alertmanager its address is enough." example:"https://hooks.example.com/stint"`
	Format string `json:"format,omitempty" enum:"json,slack,alertmanager" doc:"What is posted: json, a message of this server; slack, a text as Slack and those that are compatible take it; alertmanager, alerts as version 2 of the API of Alertmanager takes them. Default json." example:"json"`
	// Secret is never read from the catalog: it is stored apart.
	Secret string `json:"secret,omitempty" doc:"A secret of at least 8 characters that signs messages, and that {secret} in url stands for. It is stored apart, and never shown: without it, the stored one stays." example:"whsec_0123456789abcdefghijklmnop"`
	// SecretSet is set by the catalog.
	SecretSet time.Time     `json:"secret_set,omitzero" doc:"When the secret was last set. Missing: there is none, and messages are not signed. Read-only: what is sent is ignored." example:"2026-01-31T12:00:00Z"`
	RetryFor  rule.Duration `json:"retry_for,omitempty" doc:"How long a message is tried again before it is a dead letter, from 1m to 72h. Default 1h." example:"1h"`
}

// Style is the format.
func (w *Webhook) Style() string { return cmp.Or(w.Format, FormatJSON) }

// Patience is how long a message is tried again.
func (w *Webhook) Patience() time.Duration { return cmp.Or(time.Duration(w.RetryFor), defaultRetry) }

// secretHole is what stands for the secret in URLs.
const secretHole = "{secret}"

// Known is what definitions may refer to. Nil lists are not known, and not checked.
type Known struct{ Rules, Webhooks []string }

const (
	maxText  = 1024
	maxHooks = 20
)

// Check adds the problems of an alert.
func (a *Alert) Check(p *strict.Report, path string, known Known) {
	at := func(field string) string { return strict.Member(path, field) }
	checkName(p, at("name"), a.Name)
	if a.Kind == "" {
		p.Add(at("kind"), "missing, want "+choice(Kinds), "")
	} else {
		checkWord(p, at("kind"), a.Kind, Kinds)
	}
	checkWord(p, at("severity"), a.Severity, Severities)
	checkText(p, at("text"), a.Text)
	if len(a.Webhooks) > maxHooks {
		p.Add(at("webhooks"), strconv.Itoa(len(a.Webhooks))+" webhooks, want at most "+strconv.Itoa(maxHooks), "")
	}
	for i, name := range a.Webhooks {
		switch field := strict.Item(at("webhooks"), i); {
		case slices.Contains(a.Webhooks[:i], name):
			p.Add(field, strict.Quote(name)+" is given twice", "")
		case known.Webhooks != nil && !slices.Contains(known.Webhooks, name):
			p.Refuse(field, name, "the name of a webhook", p.Closest(name, known.Webhooks))
		default:
			checkName(p, field, name)
		}
	}
	checkTime(p, at("repeat"), a.Repeat, time.Minute, 720*time.Hour, false)
	if a.Rule != "" {
		checkName(p, at("rule"), a.Rule)
	}
	if a.Rule != "" && known.Rules != nil && !slices.Contains(known.Rules, a.Rule) {
		p.Refuse(at("rule"), a.Rule, "the name of a rule", p.Closest(a.Rule, known.Rules))
	}
	a.checkKind(p, at)
}

// checkKind checks the fields that alerts of one kind have.
func (a *Alert) checkKind(p *strict.Report, at func(string) string) {
	for _, f := range []struct {
		name  string
		given bool
		of    []string
	}{
		{"rule", a.Rule != "", []string{KindRule, KindClient, KindRollout}},
		{"percent", a.Percent != 0, []string{KindRule}},
		{"for", a.For != 0, []string{KindRule, KindHealth}},
		{"min_requests", a.MinRequests != 0, []string{KindRule}},
		{"by", a.By != "", []string{KindClient}},
		{"denials", a.Denials != 0, []string{KindClient}},
		{"within", a.Within != 0, []string{KindClient}},
		{"when", len(a.When) > 0, []string{KindHealth}},
	} {
		if f.given && slices.Contains(Kinds, a.Kind) && !slices.Contains(f.of, a.Kind) {
			p.Add(at(f.name), "is for alerts of the kind "+strings.Join(f.of, " or ")+", and this one is of the kind "+a.Kind, "")
			return
		}
	}
	switch a.Kind {
	case KindRule:
		if !(a.Percent > 0 && a.Percent < 100) { // also NaN
			p.Refuse(at("percent"), strconv.FormatFloat(a.Percent, 'g', -1, 64), "a number above 0 and below 100", "")
		}
		checkTime(p, at("for"), a.For, time.Minute, time.Hour, true)
		if a.MinRequests < 0 {
			p.Refuse(at("min_requests"), strconv.FormatInt(a.MinRequests, 10), "1 or more, or none for the default", "")
		}
	case KindClient:
		checkWord(p, at("by"), a.By, Clients)
		if a.Denials < 1 {
			p.Refuse(at("denials"), strconv.FormatInt(a.Denials, 10), "1 or more: how often a client may be denied", "")
		}
		checkTime(p, at("within"), a.Within, time.Minute, time.Hour, true)
	case KindHealth:
		checkTime(p, at("for"), a.For, time.Second, 24*time.Hour, false)
		if a.When != nil && len(a.When) == 0 { // who switched all off did not mean all
			p.Add(at("when"), "is empty, want "+choice(Conditions)+"; without it, all", "")
		}
		for i, word := range a.When {
			if slices.Contains(a.When[:i], word) {
				p.Add(strict.Item(at("when"), i), strict.Quote(word)+" is given twice", "")
			}
			if word == "" || !slices.Contains(Conditions, word) {
				p.Refuse(strict.Item(at("when"), i), word, choice(Conditions), p.Closest(word, Conditions))
			}
		}
	}
}

// Check adds the problems of a webhook. No message has a part of its URL or its secret.
func (w *Webhook) Check(p *strict.Report, path string) {
	at := func(field string) string { return strict.Member(path, field) }
	checkName(p, at("name"), w.Name)
	checkWord(p, at("format"), w.Format, Formats)
	checkTime(p, at("retry_for"), w.RetryFor, time.Minute, 72*time.Hour, false)
	const least, most = 8, 512
	if w.Secret != "" && (len(w.Secret) < least || len(w.Secret) > most || strings.ContainsFunc(w.Secret, func(r rune) bool { return r <= ' ' || r > '~' })) {
		p.Add(at("secret"), "want 8 to 512 letters, digits and signs of ASCII", "")
	}
	u, err := url.Parse(strings.ReplaceAll(w.URL, secretHole, "secret"))
	switch {
	case w.URL == "":
		p.Add(at("url"), "missing, want a URL such as https://hooks.example.com/stint", "")
		return
	case err != nil || len(w.URL) > 2048 || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Fragment != "":
		p.Add(at("url"), "want a URL with http or https and a host, such as https://hooks.example.com/stint", "")
		return
	}
	if _, set := u.User.Password(); set && !strings.Contains(w.URL, ":"+secretHole+"@") {
		p.Add(at("url"), "has a password, which everyone could read: want {secret} in its place, and the password as secret", "")
	}
	if strings.EqualFold(u.Hostname(), "hooks.slack.com") && !strings.Contains(w.URL, secretHole) {
		p.Add(at("url"), "the path of a webhook of Slack is a secret: want https://hooks.slack.com/services/{secret}, and what follows services/ as secret", "")
	}
}

// NeedsSecret reports whether the URL needs the secret.
func (w *Webhook) NeedsSecret() bool { return strings.Contains(w.URL, secretHole) }

// Place is the host of the URL, for people.
func (w *Webhook) Place() string {
	u, err := url.Parse(strings.ReplaceAll(w.URL, secretHole, "secret"))
	if err != nil {
		return ""
	}
	return u.Host
}

func choice(words []string) string { return "one of " + strings.Join(words, ", ") }

// checkWord checks a word that may be left out.
func checkWord(p *strict.Report, path, word string, words []string) {
	if word != "" && !slices.Contains(words, word) {
		p.Refuse(path, word, choice(words), p.Closest(word, words))
	}
}

func checkName(p *strict.Report, path, name string) {
	if name == "" || len(name) > 255 || !identity.ValidID(name) {
		p.Refuse(path, name, "a name of at most 255 bytes without control characters", "")
	}
}

func checkText(p *strict.Report, path, text string) {
	if len(text) > maxText || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		p.Refuse(path, text, "at most "+strconv.Itoa(maxText)+" bytes of UTF-8 without control characters", "")
	}
}

// checkTime checks a time that may be left out.
func checkTime(p *strict.Report, path string, d rule.Duration, least, most time.Duration, minutes bool) {
	is := time.Duration(d)
	want := "from " + rule.Duration(least).String() + " to " + rule.Duration(most).String()
	if minutes {
		want = "whole minutes, " + want
	}
	if is != 0 && (is < least || is > most || minutes && is%time.Minute != 0) {
		p.Refuse(path, d.String(), want, "")
	}
}
