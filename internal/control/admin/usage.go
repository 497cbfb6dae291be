package admin

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Usage is how all limits of a subject stand.
type Usage struct {
	At    time.Time `json:"at" doc:"When." example:"2026-01-31T12:00:00Z"`
	Items []Quota   `json:"items" nullable:"false" doc:"The limits, by the priority and the names of their rules."`
}

// Quota is a limit that requests of a subject may be counted by, and how it stands.
type Quota struct {
	Rule       string           `json:"rule" doc:"The rule." example:"search"`
	Action     rule.Action      `json:"action" doc:"What it does when the limit is used up." example:"reject"`
	CountBy    []rule.Dimension `json:"count_by" nullable:"false" doc:"What it counts by." example:"[\"user\"]"`
	Endpoint   string           `json:"endpoint,omitempty" doc:"The path that is counted, if it counts by endpoints." example:"/search"`
	Name       string           `json:"name" doc:"The name of the limit." example:"per-minute"`
	Limit      string           `json:"limit" doc:"What it is, or unlimited." example:"100/1m"`
	Source     string           `json:"source" doc:"Who says so: api_key, user, tier NAME, or rule." example:"tier pro"`
	Penalty    bool             `json:"penalty" doc:"It is no limit but the rule's penalty: used are the violations that count towards a ban, and while there is one, retry_after is how much longer." example:"false"`
	Unknown    rule.Dimension   `json:"unknown,omitempty" doc:"What is counted by and only a request tells. Then the numbers are not known." example:"header:X-Project"`
	Max        int64            `json:"max" doc:"How much there is." example:"100"`
	Used       int64            `json:"used" doc:"How much is used." example:"12"`
	Remaining  int64            `json:"remaining" doc:"How much is left." example:"88"`
	ResetAfter float64          `json:"reset_after" doc:"In how many seconds all of it is back." example:"42.5"`
	RetryAfter *float64         `json:"retry_after" doc:"In how many seconds, at the latest, one unit would pass; null: never." example:"0"`
	Basis      string           `json:"basis" doc:"What the numbers rest on: counted, or what stands in for that." example:"counted"`
	Algorithm  string           `json:"algorithm,omitempty" doc:"How it counts." example:"token_bucket"`
	Refill     float64          `json:"refill_per_second,omitempty" doc:"Of a bucket: how many units come back in a second." example:"1.6667"`
}

// ResetSubject says what is to be forgotten.
type ResetSubject struct {
	Rule string `json:"rule,omitempty" doc:"Only what is counted by this rule." example:"search"`
}

// addUsage adds the operations that show and reset counters.
func (a *API) addUsage() {
	add(a, operation{
		ID: "getUsage", Method: http.MethodGet, Path: "/subjects/{kind}/{id}/usage", Tag: tagSubjects,
		Summary: "How its limits stand", Description: "Returns every limit that its requests may be counted by, also those that are shared with others, and how each stands. It takes nothing.",
	}, catalog.Viewer, func(ctx context.Context, in *SubjectPath) (*struct{ Body Usage }, error) {
		s, err := in.addressed()
		if err != nil {
			return nil, err
		}
		u, err := a.usage(ctx, s)
		return &struct{ Body Usage }{u}, err
	})

	add(a, operation{
		ID: "streamUsage", Method: http.MethodGet, Path: "/subjects/{kind}/{id}/live", Tag: tagSubjects,
		Summary: "How its limits stand, each second", Description: "Streams what GET /subjects/{kind}/{id}/usage returns, each second.",
		Answer: streamDoc("An event usage, each second, is as GET /subjects/{kind}/{id}/usage returns it."), Produces: eventStream,
	}, catalog.Viewer, func(ctx context.Context, in *SubjectPath) (*streamed, error) {
		s, err := in.addressed()
		if err != nil {
			return nil, err
		}
		h, leave := a.usageHub(s)
		return a.stream(ctx, h, newMailbox(1, nil), leave)
	})

	add(a, operation{
		ID: "resetSubject", Method: http.MethodPost, Path: "/subjects/{kind}/{id}/reset", Tag: tagSubjects, Status: http.StatusNoContent,
		Summary: "Forget what it has used", Description: "Forgets what it has used, its violations, and the bans that came of them. What is counted for it together with others stays.",
	}, catalog.Operator, func(ctx context.Context, in *struct {
		SubjectPath
		Body *ResetSubject
	},
	) (*struct{}, error) {
		s, err := in.addressed()
		if err != nil {
			return nil, err
		}
		name := ""
		if in.Body != nil && in.Body.Rule != "" {
			name = in.Body.Rule
			if !slices.ContainsFunc(a.options.Engine.Rules().Rules(), func(r *rule.Compiled) bool { return r.Name == name }) {
				return nil, blame(http.StatusUnprocessableEntity, "rule", "there is no rule "+strict.Quote(name), "")
			}
		}
		return &struct{}{}, a.options.Engine.Reset(ctx, s.who, name)
	})
}

// usage returns how the limits of a subject stand.
func (a *API) usage(ctx context.Context, s *subject) (Usage, error) {
	// The catalog of tokens knows nothing of users: the resolver does.
	all, err := a.options.Tokens.QuotaOf(ctx, a.options.Engine.Rules(), a.options.Resolver(), a.options.Store, s.who)
	if err != nil {
		return Usage{}, err
	}
	u := Usage{At: a.now().UTC(), Items: make([]Quota, len(all))}
	for i := range all {
		u.Items[i] = quotaOf(&all[i])
	}
	return u, nil
}

func quotaOf(q *catalog.Quota) Quota {
	out := Quota{
		Rule: q.Rule, Action: q.Action, CountBy: q.CountBy, Endpoint: q.Endpoint, Name: q.Name, Limit: q.Limit, Source: q.Source,
		Penalty: q.Penalty, Unknown: q.Unknown, Max: q.Max, Used: q.Used, Remaining: q.Remaining,
		ResetAfter: q.Reset.Seconds(), RetryAfter: wait(q.Retry), Basis: q.Basis.String(),
	}
	if out.CountBy == nil {
		out.CountBy = []rule.Dimension{}
	}
	if q.Penalty {
		out.Name = "penalty"
		return out
	}
	limit, err := stint.ParseLimit(q.Limit)
	if err != nil {
		return out // unlimited
	}
	out.Algorithm = limit.Algorithm.String()
	if length := limit.Window.Length(); length > 0 && (limit.Algorithm == stint.TokenBucket || limit.Algorithm == stint.LeakyBucket) {
		out.Refill = float64(limit.Max) / length.Seconds()
	}
	return out
}

// wait returns seconds, or nil for never.
func wait(d time.Duration) *float64 {
	if d == stint.Never {
		return nil
	}
	seconds := d.Seconds()
	return &seconds
}

// usageSource tells how the limits of a subject stand.
type usageSource struct {
	a *API
	s *subject
}

func (u usageSource) next(ctx context.Context) ([]item, int64) {
	usage, err := u.a.usage(ctx, u.s)
	if err != nil {
		return nil, 0 // it may work the next time; meanwhile there is nothing to tell
	}
	i, err := newItem("usage", usage)
	if err != nil {
		return nil, 0
	}
	return []item{i}, 0
}

func (usageSource) close() {}

// usageHub returns the hub of a subject, which is to be left again.
func (a *API) usageHub(s *subject) (h *hub, leave func()) {
	id := s.kind + ":" + s.id
	all := &a.streams
	all.mu.Lock()
	defer all.mu.Unlock()
	h = all.usage[id]
	if h == nil {
		h = &hub{every: lookEvery, latest: true, open: func() source { return usageSource{a, s} }}
		all.usage[id] = h
	}
	h.users++
	return h, func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(all.usage, id)
		}
	}
}
