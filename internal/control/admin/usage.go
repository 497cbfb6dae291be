package admin

import (
	"context"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/quiet"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Usage is the usage of all limits of a subject.
type Usage struct {
	At    time.Time `json:"at" doc:"The time of the response." example:"2026-01-31T12:00:00Z"`
	Items []Quota   `json:"items" nullable:"false" doc:"The limits, ordered by the priority and the name of their rules."`
}

// Quota is a limit of a subject, and its usage.
type Quota struct {
	Rule       string           `json:"rule" doc:"The rule." example:"search"`
	Action     rule.Action      `json:"action" doc:"The action of the rule." example:"reject"`
	CountBy    []rule.Dimension `json:"count_by" nullable:"false" doc:"What the rule counts by." example:"[\"user\"]"`
	Endpoint   string           `json:"endpoint,omitempty" doc:"The path, if the rule counts by endpoint." example:"/search"`
	Name       string           `json:"name" doc:"The name of the limit." example:"per-minute"`
	Limit      string           `json:"limit" doc:"The limit, or unlimited." example:"100/1m"`
	Source     string           `json:"source" doc:"Where the limit comes from: api_key, user, tier NAME, or rule." example:"tier pro"`
	Penalty    bool             `json:"penalty" doc:"True for the penalty of the rule: used is then the number of violations that count towards a ban, and retry_after the rest of a ban." example:"false"`
	Shadow     bool             `json:"shadow" doc:"True if the rule is only tried out on this subject, and denies nothing." example:"false"`
	Unknown    rule.Dimension   `json:"unknown,omitempty" doc:"What the rule counts by that only a request can tell. The numbers are then unknown." example:"header:X-Project"`
	Max        int64            `json:"max" doc:"The size of the limit." example:"100"`
	Used       int64            `json:"used" doc:"The units used." example:"12"`
	Remaining  int64            `json:"remaining" doc:"The units left." example:"88"`
	ResetAfter float64          `json:"reset_after" doc:"Seconds until all units are back." example:"42.5"`
	RetryAfter *float64         `json:"retry_after" doc:"Seconds until one unit would pass, at the latest; null: never." example:"0"`
	Basis      string           `json:"basis" doc:"What the numbers are based on: counted, or a substitute." example:"counted"`
	Algorithm  string           `json:"algorithm,omitempty" doc:"The algorithm." example:"token_bucket"`
	Refill     float64          `json:"refill_per_second,omitempty" doc:"For a bucket: units that come back per second." example:"1.6667"`
}

// ResetSubject says which counters to reset.
type ResetSubject struct {
	Rule string `json:"rule,omitempty" doc:"Only reset counters of this rule." example:"search"`
}

// addUsage adds the operations that show and reset counters.
func (a *API) addUsage() {
	addQuery(a, operation{
		ID: "getUsage", Method: http.MethodGet, Path: "/subjects/{kind}/{id}/usage", Tag: tagSubjects, Scoped: true,
		Summary: "Get usage", Description: "Returns every limit that applies to requests of the subject, including those that it shares with others, and how much of each is used. It counts nothing.",
	}, catalog.Viewer, func(ctx context.Context, in *SubjectPath) (Usage, error) {
		s, err := in.addressed()
		if err == nil {
			err = a.owns(ctx, s)
		}
		if err != nil {
			return Usage{}, err
		}
		return a.usage(ctx, s)
	})

	add(a, operation{
		ID: "streamUsage", Method: http.MethodGet, Path: "/subjects/{kind}/{id}/live", Tag: tagSubjects, Scoped: true,
		Summary: "Stream usage", Description: "Streams the response of GET /subjects/{kind}/{id}/usage, once a second.",
		Answer: streamDoc("An event usage is sent every second, with the response of GET /subjects/{kind}/{id}/usage."), Produces: eventStream,
	}, catalog.Viewer, func(ctx context.Context, in *SubjectPath) (*streamed, error) {
		s, err := in.addressed()
		if err == nil {
			err = a.owns(ctx, s)
		}
		if err != nil {
			return nil, err
		}
		h, leave := a.streams.hub("usage "+s.kind+":"+s.id, func(ctx context.Context) ([]item, int64) {
			usage, err := a.usage(ctx, s)
			if err != nil {
				return nil, 0 // it may work the next time
			}
			return newItems("usage", usage, nil), 0
		})
		return a.stream(ctx, h, newMailbox(1, nil), leave)
	})

	add(a, operation{
		ID: "resetSubject", Method: http.MethodPost, Path: "/subjects/{kind}/{id}/reset", Tag: tagSubjects, Status: http.StatusNoContent, Scoped: true,
		Summary: "Reset counters", Description: "Resets the counters of the subject, its violations, and the bans that followed from them. Counters that it shares with others stay.",
	}, catalog.Operator, func(ctx context.Context, in *struct {
		SubjectPath
		Body *ResetSubject
	},
	) (*struct{}, error) {
		s, err := in.addressed()
		if err == nil {
			err = a.owns(ctx, s)
		}
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
		if err := a.LogReset(ctx, s.kind+":"+s.id, name); err != nil {
			return nil, err
		}
		return &struct{}{}, a.options.Engine.Reset(ctx, s.who, name)
	})
}

// LogReset logs, before it happens, that the person of the request resets counters of a
// subject, such as user:alice: in the change log, if there is one, and in the log of the
// server.
func (a *API) LogReset(ctx context.Context, subject, rule string) error {
	subject = keyText.ReplaceAllString(subject, "$1")
	if a.options.Catalog != nil {
		if err := a.options.Catalog.LogReset(catalog.Apart(ctx), actor(ctx), subject, rule); err != nil {
			return err
		}
	}
	a.log.LogAttrs(quiet.Every(ctx), slog.LevelInfo, "admin: counters are reset", slog.String("actor", actor(ctx)), slog.String("subject", subject), slog.String("rule", rule))
	return nil
}

// keyText matches the text of an API key in place of its id. Its secret must not be logged.
var keyText = regexp.MustCompile(`(\bkey:[0-9A-Za-z]+_[0-9A-Za-z]+)_[0-9A-Za-z]{16,}`)

// usage returns the usage of all limits of a subject.
func (a *API) usage(ctx context.Context, s *subject) (Usage, error) {
	// Any catalog will do: the resolver knows the users.
	all, err := a.options.Tokens.QuotaOf(ctx, a.options.Engine.Rules(), a.options.Resolver(), a.options.Store, s.who)
	if err != nil {
		return Usage{}, err
	}
	return Usage{a.now().UTC(), converted(all, quotaOf)}, nil
}

func quotaOf(q *catalog.Quota) Quota {
	out := Quota{
		Rule: q.Rule, Action: q.Action, CountBy: append([]rule.Dimension{}, q.CountBy...), Endpoint: q.Endpoint, Name: q.Name, Limit: q.Limit, Source: q.Source,
		Penalty: q.Penalty, Shadow: q.Shadow, Unknown: q.Unknown, Max: q.Max, Used: q.Used, Remaining: q.Remaining,
		ResetAfter: q.Reset.Seconds(), RetryAfter: wait(q.Retry), Basis: q.Basis.String(),
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
