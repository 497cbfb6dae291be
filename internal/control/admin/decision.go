package admin

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/internal/record/rollup"
	"github.com/stintdev/stint/rule"
)

// ExplainedDecision is a recorded decision, and all that is known about it.
type ExplainedDecision struct {
	Event    Event    `json:"event" doc:"The decision, as it was recorded."`
	Steps    []string `json:"steps" nullable:"false" doc:"The same in sentences: when and where it was made, who the client was, what was asked, and what was decided." example:"[\"It was denied with status 429.\"]"`
	Customer string   `json:"customer" doc:"What to tell the customer. It names no rules, users or addresses." example:"Your request GET /search on 31 January 2026 at 12:00:00 UTC was not served, because the limit of 100 requests per minute for your account had been reached. It could have been repeated 12 seconds later, at 12:00:12 UTC. It would be served now."`
	Unknown  []string `json:"unknown" nullable:"false" doc:"What the record does not keep, and what follows from that." example:"[\"Headers are not recorded.\"]"`

	CouldPass time.Time `json:"could_pass_at,omitzero" doc:"For a request that did not pass: when it could have passed, if no other had come. Missing, if never." example:"2026-01-31T12:00:12.5Z"`

	Now *Explanation `json:"now,omitempty" doc:"What would be decided about the same request now. Missing, if the record has too little of it. People who are restricted to tenants get neither its steps nor its rules."`

	Revision int64    `json:"rule_revision,omitempty" doc:"The revision that had last changed the rule when the decision was made. Missing, if it is not known." example:"42"`
	Changes  []Change `json:"changes" nullable:"false" doc:"What has changed since, of the rule, and of the tier, the tenant, the user and the API key of the client, newest first, at most 20 of each. People who are restricted to tenants get none."`

	Sharing *Sharing `json:"sharing,omitempty" doc:"Who used the same counter. Missing, if that is not known, or no counter decided."`
}

// Sharing is who used the counter of a decision in its window, as far as it is recorded.
type Sharing struct {
	CountBy  []string  `json:"count_by" nullable:"false" doc:"What has a counter of its own." example:"[\"tenant\"]"`
	From     time.Time `json:"from" doc:"The start of the time that is looked at: one window before the decision, or the start of its window." example:"2026-01-31T11:59:00Z"`
	To       time.Time `json:"to" doc:"Its end, with the decision." example:"2026-01-31T12:00:00.123456Z"`
	Own      Sharer    `json:"own" doc:"The client of the decision."`
	Others   []Sharer  `json:"others" nullable:"false" doc:"Other clients, the last to come first, at most 10."`
	More     int       `json:"more" doc:"The number of further clients." example:"3"`
	Complete bool      `json:"complete" doc:"False if there are more events than were read: the newest 1,000." example:"true"`
}

// Sharer is a client that used a counter.
type Sharer struct {
	User   string    `json:"user" doc:"The user. Empty, if unknown." example:"bob"`
	Tenant string    `json:"tenant" doc:"The tenant." example:"acme"`
	Key    string    `json:"key" doc:"The id of the API key." example:"4mqyx7bn2kcd6wvr"`
	IP     string    `json:"ip" doc:"The address, as it is recorded." example:"192.0.2.7"`
	Passed int64     `json:"passed" doc:"About how many requests passed: of those, a sample is recorded." example:"200"`
	Denied int64     `json:"denied" doc:"How many requests did not pass." example:"7"`
	Last   time.Time `json:"last,omitzero" doc:"When the last one came." example:"2026-01-31T12:00:00Z"`
}

const (
	maxSharers     = 10
	maxShared      = 1000 // events that are read for them
	maxChangesSeen = 20   // of a kind
)

func (a *API) addDecisions() {
	type input struct {
		ID string `path:"id" maxLength:"64" doc:"The id of the decision, as in the header Stint-Decision and in decision_id." example:"0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00"`
	}
	const missing = " If the record does not have it, the detail of the 404 says when it was made, as its id tells, and why it may be missing."
	addQuery(a, operation{
		ID: "explainDecision", Method: http.MethodGet, Path: "/decisions/{id}", Tag: tagRecord, Scoped: true,
		Summary:     "Explain a recorded decision",
		Description: "Returns what was decided about a request and why, who else used the same counter, what has changed since, and what would be decided now." + missing,
		Problems:    []int{http.StatusConflict}, Timeout: 30 * time.Second,
	}, catalog.Viewer, func(ctx context.Context, in *input) (ExplainedDecision, error) {
		p := personOf(ctx)
		e, s, err := a.decision(ctx, in.ID, func(e *record.Event) bool { return !p.scoped() || p.Covers(e.Tenant) })
		if err != nil {
			return ExplainedDecision{}, err
		}
		return a.story(ctx, s, &e)
	})

	addQuery(a, operation{
		ID: "explainMyDecision", Method: http.MethodGet, Path: "/me/decisions/{id}", Tag: tagMe, Scoped: true,
		Summary: "Explain a decision about oneself", Description: "Returns what was decided about a request of the user, and when it could have passed." + missing,
		Problems: []int{http.StatusConflict},
	}, catalog.OfUser, func(ctx context.Context, in *input) (MyDecision, error) {
		user := personOf(ctx).User
		e, _, err := a.decision(ctx, in.ID, func(e *record.Event) bool { return e.User == user })
		if err != nil {
			return MyDecision{}, err
		}
		changes, _, err := a.since(ctx, &e)
		if err != nil {
			return MyDecision{}, err
		}
		now, err := a.decideAgain(ctx, &e, changes)
		return MyDecision{
			ID: e.ID.String(), Time: e.At, Method: e.Method, Path: e.Path, Outcome: e.Outcome.String(), Max: e.Max,
			CouldPass: couldPass(&e), Customer: a.customer(&e, now, changes),
		}, err
	})
}

// MyDecision is a decision about a request of a user, for that user.
type MyDecision struct {
	ID        string    `json:"decision_id" doc:"The id of the decision." example:"0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00"`
	Time      time.Time `json:"time" doc:"When the decision was made." example:"2026-01-31T12:00:00.123456Z"`
	Method    string    `json:"method" doc:"The method." example:"GET"`
	Path      string    `json:"path" doc:"The path, or what is recorded of it." example:"/v1/search/books"`
	Outcome   string    `json:"outcome" enum:"allowed,throttled,exempt,denied,banned,blocked,unauthorized,unavailable" doc:"The outcome." example:"denied"`
	Max       int64     `json:"limit_value" doc:"The size of the limit that decided. 0: there was none." example:"100"`
	CouldPass time.Time `json:"could_pass_at,omitzero" doc:"For a request that did not pass: when it could have passed, if no other had come. Missing, if never." example:"2026-01-31T12:00:12.5Z"`
	Customer  string    `json:"customer" doc:"The same in plain words." example:"Your request GET /v1/search/books was served."`
}

// decision returns a recorded decision that the person of the request may see, or a problem that says why there is none.
// Who may not see it gets the same as if it was not recorded.
func (a *API) decision(ctx context.Context, text string, visible func(*record.Event) bool) (record.Event, *rollup.Store, error) {
	id, err := record.ParseID(strings.ToLower(strings.TrimSpace(text)))
	if err != nil {
		return record.Event{}, nil, blame(http.StatusBadRequest, "id", strict.Quote(text)+": want the id of a decision, such as 0199a3c4-7b1e-7c55-9a41-3f2b7a6c1d00", "")
	}
	s, err := a.record()
	if err != nil {
		return record.Event{}, nil, err
	}
	e, ok, err := s.Decision(ctx, id)
	if err == nil && ok && visible(&e) {
		return e, s, nil
	}
	if err != nil {
		return record.Event{}, nil, err
	}
	around, err := s.Around(ctx, id)
	if err != nil {
		return record.Event{}, nil, err
	}
	around.StandIns = slices.DeleteFunc(around.StandIns, func(e record.Event) bool { return !visible(&e) })
	return record.Event{}, nil, fail(http.StatusNotFound, notRecorded(id, &around, a.options.Unsampled, a.now()))
}

// story returns all that is known about a decision.
func (a *API) story(ctx context.Context, s *rollup.Store, e *record.Event) (out ExplainedDecision, err error) {
	out = ExplainedDecision{Event: NewEvent(e), Steps: stepsThen(e), CouldPass: couldPass(e)}
	if out.Changes, out.Revision, err = a.since(ctx, e); err != nil {
		return out, err
	}
	x, err := a.decideAgain(ctx, e, out.Changes)
	if err != nil {
		return out, err
	}
	out.Now = x
	r := a.ruleNamed(e.Rule)
	if out.Sharing, err = a.sharing(ctx, s, e, r, x); err != nil {
		return out, err
	}
	out.Customer = a.customer(e, x, out.Changes)
	out.Unknown = a.notKept(e, r, out.Sharing)
	if p := personOf(ctx); p.scoped() {
		out.Changes, out.Revision = []Change{}, 0
		if x != nil { // they name rules and networks of others
			x.Rules, x.Steps = []ExplainedRule{}, []string{}
		}
	}
	return out, nil
}

// couldPass returns when a request that did not pass could have passed; zero: never, or it passed.
func couldPass(e *record.Event) time.Time {
	if e.Outcome.Passed() || e.RetryAfter <= 0 || e.RetryAfter == stint.Never {
		return time.Time{}
	}
	return e.At.Add(e.RetryAfter)
}

// ruleNamed returns a rule that is in use; nil: there is none with that name.
func (a *API) ruleNamed(name string) *rule.Compiled {
	for _, r := range a.options.Engine.Rules().Rules() {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// wholePath returns the path of a recorded request, if the record has all of it.
func wholePath(e *record.Event) (path string, ok bool) {
	path = cmp.Or(e.Path, e.Endpoint)
	return path, path != "" && !strings.ContainsAny(path, "{*")
}

// decideAgain explains what would be decided about a recorded request now; nil if too little of it is recorded. The tier is
// that of then, unless what may have given it to the client has changed since.
func (a *API) decideAgain(ctx context.Context, e *record.Event, since []Change) (*Explanation, error) {
	path, ok := wholePath(e)
	if !ok || e.Outcome == engine.Unauthorized {
		return nil, nil
	}
	in := ExplainRequest{User: e.User, Tenant: e.Tenant, APIKey: e.Key, Tier: e.Tier}
	if slices.ContainsFunc(since, func(c Change) bool { return c.Kind == "user" || c.Kind == "tenant" || c.Kind == "api_key" }) {
		in.Tier = ""
	}
	q := engine.Request{Method: cmp.Or(e.Method, http.MethodGet), Path: path, Headers: map[string][]string{}}
	q.Peer, _ = netip.ParseAddr(e.IP) // it may not be recorded whole
	q.Subject = &identity.Subject{User: in.User, Tenant: in.Tenant, Key: in.APIKey, Tier: in.Tier, IP: q.Peer}
	x, err := a.options.Engine.Explain(ctx, q)
	if err != nil {
		return nil, err
	}
	return new(explained(&in, &q, &x)), nil
}

// limitNow returns the limit of a decision, as it is now for the same client.
func limitNow(e *record.Event, now *Explanation) (l stint.Limit, ok bool) {
	if now == nil {
		return l, false
	}
	for _, r := range now.Rules {
		for _, known := range r.Limits {
			if r.Rule == e.Rule && known.Name == e.Limit {
				l, err := stint.ParseLimit(known.Limit)
				return l, err == nil
			}
		}
	}
	return l, false
}

// since returns what has changed since a decision, the newest first, and which revision of the rule decided it, or 0.
func (a *API) since(ctx context.Context, e *record.Event) (out []Change, revision int64, err error) {
	out = []Change{}
	if a.options.Catalog == nil {
		return out, 0, nil
	}
	for _, of := range [...]struct{ kind, id string }{{"rule", e.Rule}, {"tier", e.Tier}, {"tenant", e.Tenant}, {"user", e.User}, {"api_key", e.Key}} {
		if of.id == "" {
			continue
		}
		items, _, err := a.options.Catalog.Changes(ctx, catalog.ChangeQuery{Kind: of.kind, ID: of.id, From: e.At, Limit: maxChangesSeen})
		if err != nil {
			return nil, 0, err
		}
		out = append(out, converted(items, changeOf)...)
	}
	slices.SortStableFunc(out, func(x, y Change) int {
		return cmp.Or(cmp.Compare(y.Revision, x.Revision), cmp.Compare(y.Place, x.Place))
	})
	if e.Rule == "" {
		return out, 0, nil
	}
	last, _, err := a.options.Catalog.Changes(ctx, catalog.ChangeQuery{Kind: "rule", ID: e.Rule, To: e.At, Limit: 1})
	if len(last) > 0 {
		revision = last[0].Revision
	}
	return out, revision, err
}

// sharing returns who used the counter of a decision; nil: it is not known.
func (a *API) sharing(ctx context.Context, s *rollup.Store, e *record.Event, r *rule.Compiled, now *Explanation) (*Sharing, error) {
	l, ok := limitNow(e, now)
	if r == nil || !ok {
		return nil, nil
	}
	q := record.EventQuery{Rule: e.Rule, Limit: maxShared, Range: query.Range{From: e.At.Add(-l.Window.Length()), To: e.At.Add(time.Microsecond)}}
	if start, _ := l.Window.Bounds(e.At); l.Algorithm == stint.FixedWindow || l.Window.Length() == 0 {
		q.From = start
	}
	out := &Sharing{From: q.From, To: e.At, Others: []Sharer{}}
	for _, d := range r.CountBy() {
		out.CountBy = append(out.CountBy, string(d))
		field, value := map[rule.Dimension]*string{
			"global": new(string), "tenant": &q.Tenant, "user": &q.User, "api_key": &q.Key, "ip": &q.IP, "endpoint": &q.Endpoint, "method": &q.Method,
		}[d], map[rule.Dimension]string{
			"tenant": e.Tenant, "user": e.User, "api_key": e.Key, "ip": e.IP, "endpoint": e.Endpoint, "method": e.Method,
		}[d]
		if field == nil {
			return nil, nil // of a header or a claim
		}
		*field = value
	}
	if p := personOf(ctx); p.scoped() {
		q.Tenant = e.Tenant
	}
	if !query.Valid(q.From) {
		return nil, nil
	}
	events, next, err := s.Find(ctx, q)
	if err != nil {
		return nil, err
	}
	out.Complete = next == (record.Cursor{})
	all := map[Sharer]*Sharer{}
	var order []*Sharer
	self := Sharer{User: e.User, Tenant: e.Tenant, Key: e.Key, IP: e.IP}
	for i := range events {
		client := Sharer{User: events[i].User, Tenant: events[i].Tenant, Key: events[i].Key, IP: events[i].IP}
		one := all[client]
		if one == nil {
			one = new(client)
			one.Last = events[i].At
			all[client] = one
			if client != self {
				order = append(order, one)
			}
		}
		if events[i].Outcome.Passed() {
			one.Passed += events[i].Weight
		} else {
			one.Denied += events[i].Weight
		}
	}
	if out.Own = self; all[self] != nil {
		out.Own = *all[self]
	}
	for _, one := range order[:min(len(order), maxSharers)] {
		out.Others = append(out.Others, *one)
	}
	out.More = len(order) - len(out.Others)
	return out, nil
}
