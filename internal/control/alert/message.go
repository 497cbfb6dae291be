package alert

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The types of messages.
const (
	TypeFiring   = "alert.firing"
	TypeStill    = "alert.still_firing"
	TypeResolved = "alert.resolved"
	TypeTest     = "test"
)

// Message is what receivers are told, and the body of webhooks with the format json.
type Message struct {
	ID        string    `json:"id"` // the same for all webhooks; see also HeaderDelivery
	Type      string    `json:"type"`
	At        time.Time `json:"at"`
	Alert     string    `json:"alert"`
	Kind      string    `json:"kind,omitempty"`
	Subject   string    `json:"subject,omitempty"`
	Cause     string    `json:"cause,omitempty"` // Cause.ID
	Severity  string    `json:"severity"`
	Text      string    `json:"text"`
	Note      string    `json:"note,omitempty"`
	Value     float64   `json:"value,omitempty"`
	Threshold float64   `json:"threshold,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Fired     time.Time `json:"fired_at,omitzero"`
	Resolved  time.Time `json:"resolved_at,omitzero"`

	key      string
	webhooks []string
}

// The headers of deliveries. An id is the same for all attempts to deliver a message to a webhook, so that a receiver
// can drop one that it has.
const (
	HeaderSignature = "Stint-Signature"
	HeaderDelivery  = "Stint-Delivery"
	HeaderAttempt   = "Stint-Attempt"
)

// Sign returns the signature of a body: the time in seconds, and the HMAC-SHA256 of that time, a dot and the body, with
// the secret as the key.
func Sign(secret string, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(t + "."))
	h.Write(body)
	return "t=" + t + ",v1=" + hex.EncodeToString(h.Sum(nil))
}

// body returns the message in the format of a webhook.
func (m *Message) body(format string) ([]byte, error) {
	switch format {
	case FormatSlack:
		return json.Marshal(map[string]string{"text": m.slack()})
	case FormatAlertmanager:
		return json.Marshal([]any{m.alertmanager()})
	default:
		return json.Marshal(m)
	}
}

// headline is the message in one line.
func (m *Message) headline() string {
	if m.Type == TypeTest {
		return m.Text
	}
	text := m.Alert + ": " + m.Text
	if m.Type == TypeResolved && !m.Fired.IsZero() {
		text = fmt.Sprintf("%s (it fired for %v)", text, m.Resolved.Sub(m.Fired).Round(time.Second))
	}
	return text
}

// slackText escapes what Slack would take for a link or a mention: clients choose some of the names.
var slackText = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

func (m *Message) slack() string {
	word := map[string]string{TypeFiring: "FIRING", TypeStill: "STILL FIRING", TypeResolved: "RESOLVED", TypeTest: "TEST"}[m.Type]
	text := "*" + word + "* " + slackText.Replace(m.headline())
	if m.Note != "" && m.Type != TypeResolved {
		text += "\n" + slackText.Replace(m.Note)
	}
	return text
}

// postable is an alert as version 2 of the API of Alertmanager takes it.
type postable struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"`
}

// alertmanager returns the alert. Its labels identify it, so they are the same when it is resolved.
func (m *Message) alertmanager() postable {
	p := postable{
		Labels:      map[string]string{"alertname": m.Alert, "severity": m.Severity, "source": "stint"},
		Annotations: map[string]string{"summary": m.Text}, StartsAt: m.Fired, EndsAt: m.At.Add(lease),
	}
	for name, value := range map[string]string{"kind": m.Kind, "subject": m.Subject} {
		if value != "" {
			p.Labels[name] = value
		}
	}
	if m.Note != "" {
		p.Annotations["description"] = m.Note
	}
	switch m.Type {
	case TypeResolved:
		p.EndsAt = m.Resolved
	case TypeTest:
		p.StartsAt, p.EndsAt = m.At, m.At.Add(time.Minute)
	}
	return p
}

// target is the URL of a webhook with its secret.
func (w *Webhook) target() (string, error) {
	if w.NeedsSecret() && w.Secret == "" {
		return "", errors.New("the webhook has no secret, and its url needs one")
	}
	text := strings.ReplaceAll(w.URL, secretHole, w.Secret)
	if strings.Contains(w.URL, ":"+secretHole+"@") {
		text = strings.ReplaceAll(w.URL, secretHole, url.QueryEscape(w.Secret))
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", errors.New("the url is not valid with the secret in it")
	}
	if w.Style() == FormatAlertmanager && strings.Trim(u.Path, "/") == "" {
		u.Path = "/api/v2/alerts"
	}
	return u.String(), nil
}
