package admin

import (
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/internal/control/catalog"
)

// CreatedWebhook is a webhook, with the secret that was made for it.
type CreatedWebhook struct {
	Record[alert.Webhook]
	Secret string `json:"secret,omitempty" doc:"The secret that was made for it, because none was given. It is shown only once." example:"whsec_0123456789abcdefghijklmnop"`
}

// NewSecret is a secret to set.
type NewSecret struct {
	Secret string `json:"secret,omitempty" doc:"The new secret, of at least 8 characters. Missing: one is made." example:"whsec_0123456789abcdefghijklmnop"`
}

// Alerts and webhooks.
var (
	alerts = &resource[alert.Alert, alert.Alert, Record[alert.Alert]]{
		path: "alerts", one: "alert", tag: tagAlerts, example: "search-denies", key: "name", patch: object{"percent": 30},
		table: func(c *catalog.Catalog) *catalog.Table[alert.Alert] { return c.Alerts },
		filed: func(d *catalog.Document) []alert.Alert { return d.Alerts },
		id:    func(v *alert.Alert) string { return v.Name },
		wire:  same[alert.Alert], put: assign[alert.Alert], show: plain[alert.Alert], writer: catalog.Administrator,
	}
	webhooks = &resource[alert.Webhook, alert.Webhook, Record[alert.Webhook]]{
		path: "webhooks", one: "webhook", tag: tagAlerts, example: "oncall", key: "name", patch: object{"retry_for": "2h"},
		table: func(c *catalog.Catalog) *catalog.Table[alert.Webhook] { return c.Webhooks },
		filed: func(d *catalog.Document) []alert.Webhook { return d.Webhooks },
		id:    func(v *alert.Webhook) string { return v.Name },
		wire:  withoutSecret, put: assign[alert.Webhook], show: plain[alert.Webhook], writer: catalog.Administrator,
	}
)

// withoutSecret returns a webhook as it is shown.
func withoutSecret(w *alert.Webhook) alert.Webhook {
	out := *w
	out.Secret = ""
	return out
}

// fixed returns the kinds of objects that the person of the request may not change, also not together with others.
func fixed(ctx context.Context) []string {
	if p := personOf(ctx); p.Role.Includes(catalog.Administrator) {
		return nil
	}
	return []string{alerts.one, webhooks.one}
}

// makeSecret returns a secret that signs messages.
func makeSecret() string { return "whsec_" + rand.Text() }

func (a *API) addAlerts() {
	addWhole(a, alerts, unfiltered)

	addList(a, webhooks, unfiltered)
	create := webhooks.op(http.MethodPost, "", "createWebhook", "Create a webhook", "Creates a webhook. For one with the format json and without a secret, a secret is made, which is shown only once.", http.StatusConflict)
	create.Status = http.StatusCreated
	add(a, create, catalog.Administrator, func(ctx context.Context, in *struct {
		DryRun
		Body alert.Webhook
	},
	) (*Made[CreatedWebhook], error) {
		c, err := a.writing(in.DryRun)
		if err != nil {
			return nil, err
		}
		w, made := in.Body, ""
		if w.Secret == "" && (w.Style() == alert.FormatJSON && !w.NeedsSecret()) {
			made = makeSecret()
			w.Secret = made
		}
		version, err := c.Webhooks.Create(ctx, actor(ctx), w)
		if err != nil {
			return nil, err
		}
		if a.written(ctx, in.DryRun); in.DryRun.DryRun {
			made = "" // which would not be valid
		}
		r := webhooks.kept(ctx, a, in.DryRun, &w, version, catalog.Record[alert.Webhook]{})
		return &Made[CreatedWebhook]{Recorded[CreatedWebhook]{etag(r.Version), changed(in.DryRun, CreatedWebhook{r, made})}, webhooks.location(r.ID)}, nil
	})
	addReplacing(a, webhooks)
	addReading(a, webhooks)
	addPatching(a, webhooks)

	add(a, webhooks.op(http.MethodPost, "/{id}/secret", "setWebhookSecret", "Set the secret of a webhook", "Replaces the secret of a webhook, at once. If one is made, it is shown only once.", http.StatusConflict, http.StatusUnprocessableEntity),
		catalog.Administrator, func(ctx context.Context, in *struct {
			ByID
			DryRun
			Body *NewSecret
		},
		) (*Recorded[CreatedWebhook], error) {
			secret, made := "", ""
			if in.Body != nil {
				secret = in.Body.Secret
			}
			if secret == "" {
				made = makeSecret()
				secret = made
			}
			r, err := webhooks.replace(ctx, a, in.DryRun, in.ID, anyVersion, func(w *alert.Webhook) error { w.Secret = secret; return nil })
			if err != nil {
				return nil, err
			}
			if in.DryRun.DryRun {
				made = ""
			}
			return &Recorded[CreatedWebhook]{r.ETag, changed(in.DryRun, CreatedWebhook{r.Body, made})}, nil
		})

	add(a, webhooks.op(http.MethodPost, "/{id}/test", "testWebhook", "Test a webhook", "Queues a message that says that it is a test, and returns its delivery, which tells how it goes."),
		catalog.Operator, func(ctx context.Context, in *ByID) (*struct{ Body Delivery }, error) {
			if _, err := webhooks.get(ctx, a, in.ID); err != nil {
				return nil, err
			}
			id, err := a.options.Alerts.Test(ctx, in.ID, actor(ctx))
			if err != nil {
				return nil, err
			}
			a.wake()
			d, err := a.options.Alerts.Delivery(ctx, id)
			return &struct{ Body Delivery }{deliveryOf(&d)}, err
		})
}

// wake has messages delivered soon.
func (a *API) wake() {
	if a.options.Wake != nil {
		a.options.Wake()
	}
}

// Cause is what an alert has found.
type Cause struct {
	ID        string    `json:"id" doc:"The id. One that fires again later has another." example:"4MQYX7BN2KCD6WVR3TQZ5HJA8E"`
	Alert     string    `json:"alert" doc:"The alert." example:"search-denies"`
	Subject   string    `json:"subject" doc:"What it is about: the rule, the client, or the condition and the node." example:"search"`
	Kind      string    `json:"kind" enum:"rule,client,health" doc:"The kind of the alert." example:"rule"`
	Severity  string    `json:"severity" enum:"info,warning,critical" doc:"The severity of the alert." example:"warning"`
	Phase     string    `json:"phase" enum:"pending,firing,resolved" doc:"Pending: it has not lasted long enough yet." example:"firing"`
	Text      string    `json:"text" doc:"What was found, as a sentence." example:"the rule search denied 34 % of 1200 requests in the last minute"`
	Note      string    `json:"note,omitempty" doc:"What to do about it: the text of the alert." example:"see the runbook of search"`
	Value     float64   `json:"value" doc:"The percentage of denials, or the number of them. 0 for the kind health." example:"34"`
	Threshold float64   `json:"threshold" doc:"The value that was passed." example:"20"`
	Since     time.Time `json:"since" doc:"Since when the condition holds." example:"2026-01-31T12:00:00Z"`
	Fired     time.Time `json:"fired_at,omitzero" doc:"When it fired." example:"2026-01-31T12:05:00Z"`
	Resolved  time.Time `json:"resolved_at,omitzero" doc:"When it was resolved." example:"2026-01-31T12:40:00Z"`
	Told      time.Time `json:"told_at,omitzero" doc:"When a message about it was last sent. Never, if it is missing." example:"2026-01-31T12:05:00Z"`
	Silenced  bool      `json:"silenced" doc:"Whether a silence holds back messages about it." example:"false"`
	Acked     time.Time `json:"acknowledged_at,omitzero" doc:"When someone said that they take care of it." example:"2026-01-31T12:10:00Z"`
	AckedBy   string    `json:"acknowledged_by,omitempty" doc:"Who said so." example:"alice"`
	AckNote   string    `json:"acknowledged_note,omitempty" doc:"What they said." example:"the importer runs"`
	Webhooks  []string  `json:"webhooks" nullable:"false" doc:"The webhooks that are told." example:"[\"oncall\"]"`
}

// Evaluation is how the evaluation of alerts goes.
type Evaluation struct {
	Last    time.Time `json:"last,omitzero" doc:"When all alerts were last evaluated. Never, if it is missing." example:"2026-01-31T12:41:00Z"`
	Problem string    `json:"problem,omitempty" doc:"Why some alerts cannot be evaluated." example:"the alert \"greedy\" cannot be evaluated: decisions are not recorded"`
	Firing  int       `json:"firing" doc:"How many causes fire." example:"1"`
	Waiting int       `json:"waiting" doc:"How many messages wait to be delivered." example:"0"`
	Dead    int       `json:"dead" doc:"How many messages were given up." example:"0"`
}

// CauseList is a page of causes.
type CauseList struct {
	Items      []Cause    `json:"items" nullable:"false" doc:"The causes, the latest first."`
	Next       string     `json:"next" doc:"The value of before for the next page. Empty on the last page." example:""`
	Evaluation Evaluation `json:"evaluation" doc:"How the evaluation of alerts goes."`
}

// Acknowledgement says that someone takes care of a cause.
type Acknowledgement struct {
	Note string `json:"note,omitempty" doc:"For others." example:"the importer runs"`
}

// Silence holds back messages.
type Silence struct {
	ID      string       `json:"id" doc:"The id." example:"4MQYX7BN2KCD6WVR3TQZ5HJA8E"`
	Alert   string       `json:"alert,omitempty" doc:"Only of this alert. Missing: of all." example:"search-denies"`
	Subject string       `json:"subject,omitempty" doc:"Only about this subject of the alert. Missing: about all." example:"search"`
	Until   catalog.Time `json:"until" doc:"When it ends, at most in 30 days." example:"2026-01-31T18:00:00Z"`
	Reason  string       `json:"reason,omitempty" doc:"Why." example:"a load test"`
	Created time.Time    `json:"created_at" doc:"When it was created." example:"2026-01-31T12:00:00Z"`
	By      string       `json:"created_by" doc:"Who created it." example:"alice"`
}

// SilenceList is all silences.
type SilenceList struct {
	Items []Silence `json:"items" nullable:"false" doc:"The silences that have not ended, the first to end first."`
}

// NewSilence is a silence to create.
type NewSilence struct {
	Alert   string       `json:"alert,omitempty" doc:"Only of this alert. Missing: of all." example:"search-denies"`
	Subject string       `json:"subject,omitempty" doc:"Only about this subject of the alert. Missing: about all." example:"search"`
	Until   catalog.Time `json:"until,omitzero" doc:"When it ends, at most in 30 days. Either this or for_seconds is required." example:"2026-01-31T18:00:00Z"`
	For     float64      `json:"for_seconds,omitempty" doc:"How long it lasts, instead of until." example:"3600"`
	Reason  string       `json:"reason,omitempty" doc:"Why." example:"a load test"`
}

func causeOf(c *alert.Cause, silences []alert.Silence, now time.Time) Cause {
	return Cause{
		c.ID, c.Alert, c.Subject, c.Kind, c.Severity, c.Phase, c.Text, c.Note, c.Value, c.Threshold, c.Since, c.Fired, c.Resolved, c.LastAt,
		slices.ContainsFunc(silences, func(s alert.Silence) bool { return s.Holds(c, now) }), c.AckedAt, c.AckedBy, c.AckNote, append([]string{}, c.Webhooks...),
	}
}

func silenceOf(s *alert.Silence) Silence {
	return Silence{s.ID, s.Alert, s.Subject, catalog.Time{Time: s.Until}, s.Reason, s.At, s.By}
}

func (a *API) addCauses() {
	store := a.options.Alerts
	op := func(method, path, id, summary, description string) operation {
		return operation{ID: id, Method: method, Path: path, Tag: tagAlerts, Summary: summary, Description: description, ExampleID: "4MQYX7BN2KCD6WVR3TQZ5HJA8E"}
	}
	one := func(ctx context.Context, id string) (Cause, error) {
		c, err := store.Cause(ctx, id)
		if err != nil {
			return Cause{}, err
		}
		silences, err := store.Silences(ctx)
		if err != nil {
			return Cause{}, err
		}
		now, err := store.Time(ctx)
		return causeOf(c, silences, now), err
	}
	addQuery(a, op(http.MethodGet, "/causes", "listCauses", "List what alerts have found", "Returns the causes of alerts that are pending or fire, or those of one phase, the latest first. Causes that are resolved are kept for 30 days, at most 1,000."),
		catalog.Viewer, func(ctx context.Context, in *struct {
			Phase  string `query:"phase" enum:"pending,firing,resolved" doc:"Only those of this phase." example:"resolved"`
			Before string `query:"before" maxLength:"128" doc:"The next of the previous page." example:""`
			Limit  int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"100"`
		},
		) (CauseList, error) {
			found, next, err := store.Causes(ctx, alert.Query{State: in.Phase, Before: in.Before, Limit: in.Limit})
			if err != nil {
				return CauseList{}, asParameters(err)
			}
			silences, err := store.Silences(ctx)
			if err != nil {
				return CauseList{}, err
			}
			s, err := store.State(ctx)
			if err != nil {
				return CauseList{}, err
			}
			return CauseList{
				converted(found, func(c **alert.Cause) Cause { return causeOf(*c, silences, s.Now) }), next,
				Evaluation{s.Evaluated, s.Problem, s.Firing, s.Waiting, s.Dead},
			}, nil
		})
	addQuery(a, op(http.MethodGet, "/causes/{id}", "getCause", "Get what an alert has found", "Returns one cause."),
		catalog.Viewer, func(ctx context.Context, in *ByID) (Cause, error) { return one(ctx, in.ID) })
	addQuery(a, op(http.MethodPost, "/causes/{id}/acknowledge", "acknowledgeCause", "Acknowledge", "Says that you take care of a cause: it is not told of again until it is resolved. Others see who, and the note."),
		catalog.Operator, func(ctx context.Context, in *struct {
			ByID
			Body *Acknowledgement
		},
		) (Cause, error) {
			note := ""
			if in.Body != nil {
				note = in.Body.Note
			}
			if err := store.Acknowledge(ctx, in.ID, actor(ctx), note); err != nil {
				return Cause{}, err
			}
			return one(ctx, in.ID)
		})
	addQuery(a, op(http.MethodDelete, "/causes/{id}/acknowledge", "unacknowledgeCause", "Take back an acknowledgement", "The cause is told of again, as often as its alert says."),
		catalog.Operator, func(ctx context.Context, in *ByID) (Cause, error) {
			if err := store.Acknowledge(ctx, in.ID, "", ""); err != nil {
				return Cause{}, err
			}
			return one(ctx, in.ID)
		})

	addQuery(a, op(http.MethodGet, "/silences", "listSilences", "List silences", "Returns the silences that have not ended."),
		catalog.Viewer, func(ctx context.Context, _ *struct{}) (SilenceList, error) {
			all, err := store.Silences(ctx)
			return SilenceList{converted(all, silenceOf)}, err
		})
	silence := op(http.MethodPost, "/silences", "createSilence", "Silence alerts", "Holds back messages until a time. Alerts still fire and are shown; those that still fire when it ends are told then.")
	silence.Status = http.StatusCreated
	addQuery(a, silence, catalog.Operator, func(ctx context.Context, in *struct{ Body NewSilence }) (Silence, error) {
		n := &in.Body
		until := n.Until.Time
		switch {
		case n.For != 0 && !until.IsZero():
			return Silence{}, blame(http.StatusUnprocessableEntity, "for_seconds", "is given together with until, want one of them", "")
		case n.For != 0 && !(n.For >= 1 && n.For <= 30*24*3600):
			return Silence{}, blame(http.StatusUnprocessableEntity, "for_seconds", strconv.FormatFloat(n.For, 'g', -1, 64)+": want 1 second to 30 days", "")
		case n.For != 0:
			now, err := store.Time(ctx)
			if err != nil {
				return Silence{}, err
			}
			until = now.Add(time.Duration(n.For * float64(time.Second)))
		}
		made, err := store.Silence(ctx, alert.Silence{Alert: n.Alert, Subject: n.Subject, Until: until, Reason: n.Reason, By: actor(ctx)})
		return silenceOf(&made), err
	})
	add(a, op(http.MethodDelete, "/silences/{id}", "deleteSilence", "End a silence", "Ends a silence: what still fires is told."),
		catalog.Operator, func(ctx context.Context, in *ByID) (*struct{}, error) {
			return &struct{}{}, store.Unsilence(ctx, in.ID)
		})
}

// Delivery is a message to a webhook.
type Delivery struct {
	ID       string    `json:"id" doc:"The id, which receivers get in the header Stint-Delivery. It is the same for all attempts." example:"4MQYX7BN2KCD6WVR3TQZ5HJA8E"`
	Webhook  string    `json:"webhook" doc:"The webhook." example:"oncall"`
	State    string    `json:"state" enum:"waiting,delivered,dead" doc:"Whether it waits for an attempt, was delivered, or was given up." example:"delivered"`
	Type     string    `json:"type" enum:"alert.firing,alert.still_firing,alert.resolved,test" doc:"What the message says." example:"alert.firing"`
	Alert    string    `json:"alert" doc:"The alert. For a test: test." example:"search-denies"`
	Subject  string    `json:"subject,omitempty" doc:"What it is about." example:"search"`
	Text     string    `json:"text" doc:"The text of the message." example:"the rule search denied 34 % of 1200 requests in the last minute"`
	Attempts int       `json:"attempts" doc:"How many attempts there were." example:"1"`
	Status   int       `json:"status,omitempty" doc:"The HTTP status of the last answer. Missing, if there was none." example:"200"`
	Problem  string    `json:"problem,omitempty" doc:"Why the last attempt failed." example:"it answers 503"`
	Created  time.Time `json:"created_at" doc:"When the message was made." example:"2026-01-31T12:05:00Z"`
	NextTry  time.Time `json:"next_at,omitzero" doc:"While it waits: when it is tried." example:"2026-01-31T12:05:04Z"`
	Done     time.Time `json:"done_at,omitzero" doc:"When it was delivered or given up." example:"2026-01-31T12:05:01Z"`
}

// DeliveryList is a page of deliveries.
type DeliveryList struct {
	Items []Delivery `json:"items" nullable:"false" doc:"The deliveries, the latest first."`
	Next  string     `json:"next" doc:"The value of before for the next page. Empty on the last page." example:""`
}

func deliveryOf(d *alert.Delivery) Delivery {
	m := &d.Message
	out := Delivery{d.ID, d.Webhook, d.State, m.Type, m.Alert, m.Subject, m.Text, d.Attempts, d.Status, d.Problem, d.Created, time.Time{}, d.Done}
	if d.State == alert.Waiting {
		out.NextTry = d.Next
	}
	return out
}

func (a *API) addDeliveries() {
	store := a.options.Alerts
	op := func(method, path, id, summary, description string) operation {
		return operation{ID: id, Method: method, Path: path, Tag: tagAlerts, Summary: summary, Description: description, ExampleID: "4MQYX7BN2KCD6WVR3TQZ5HJA8E"}
	}
	addQuery(a, op(http.MethodGet, "/deliveries", "listDeliveries", "List deliveries", "Returns messages to webhooks, the latest first: those that wait, those that were delivered, and dead letters. Of each webhook 1,000 of each are kept, for 30 days."),
		catalog.Viewer, func(ctx context.Context, in *struct {
			Webhook string `query:"webhook" maxLength:"255" doc:"Only to this webhook." example:"oncall"`
			State   string `query:"state" enum:"waiting,delivered,dead" doc:"Only in this state." example:"dead"`
			Before  string `query:"before" maxLength:"64" doc:"The next of the previous page." example:""`
			Limit   int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"100"`
		},
		) (DeliveryList, error) {
			all, next, err := store.Deliveries(ctx, alert.Query{Webhook: in.Webhook, State: in.State, Before: in.Before, Limit: in.Limit})
			return DeliveryList{converted(all, deliveryOf), next}, asParameters(err)
		})
	addQuery(a, op(http.MethodGet, "/deliveries/{id}", "getDelivery", "Get a delivery", "Returns one message to a webhook."),
		catalog.Viewer, func(ctx context.Context, in *ByID) (Delivery, error) {
			d, err := store.Delivery(ctx, in.ID)
			return deliveryOf(&d), err
		})
	retry := op(http.MethodPost, "/deliveries/{id}/retry", "retryDelivery", "Try a dead letter again", "Tries a message that was given up again, for as long as a new one. After a newer message about the same cause was delivered that is refused: receivers would take the old one for how it is.")
	retry.Problems = []int{http.StatusConflict}
	addQuery(a, retry, catalog.Operator, func(ctx context.Context, in *ByID) (Delivery, error) {
		if err := store.Retry(ctx, in.ID); err != nil {
			return Delivery{}, err
		}
		a.wake()
		d, err := store.Delivery(ctx, in.ID)
		return deliveryOf(&d), err
	})
}
