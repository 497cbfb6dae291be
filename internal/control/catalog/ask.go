package catalog

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// AppliedLimit is a limit that applies to a request.
type AppliedLimit struct {
	Rule     string
	Priority int
	Group    string // of which the rule is the best; empty: it has none
	Action   rule.Action
	CountBy  []rule.Dimension
	Endpoint string // the path of the rule that matched; empty: it has none
	// Name is that of the limit. A rule that blocks or allows has none, and decides alone.
	Name   string
	Limit  string // or "unlimited"
	Source string // who says so: api_key, user, tier NAME, or rule
}

// LimitsOf returns the limits that apply to a request of a subject, by the priority and
// name of rules, as they would decide it. Of the subject User, Tenant, Key, Tier and IP
// are given, any of them; the resolver, which is that of decisions, adds the rest. What
// is not given the request does not have: a rule that counts by addresses does not apply
// without one. That the subject is exempt or banned makes no difference here.
func (c *Catalog) LimitsOf(ctx context.Context, rules *rule.Set, who *identity.Resolver, s identity.Subject, method, path string) ([]AppliedLimit, error) {
	a, err := c.attrs(ctx, who, s)
	if err != nil {
		return nil, err
	}
	a.Method, a.Path = rules.Method(method), path
	var out []AppliedLimit
	all := rules.Rules()
	for i, x := range rules.Explain(a) { // in the order of the rules
		if !x.Matched || x.BeatenBy != "" {
			continue
		}
		r := all[i]
		one := AppliedLimit{Rule: r.Name, Priority: r.Priority, Group: r.Group, Action: r.Action, CountBy: r.CountBy(), Endpoint: x.Endpoint}
		if len(x.Limits) == 0 {
			out = append(out, one)
		}
		for _, l := range x.Limits {
			one.Name, one.Limit, one.Source = l.Name, l.Limit, l.Source
			out = append(out, one)
		}
	}
	return out, nil
}

// attrs returns a subject as rules see it. A key that is not good any more still says
// whose it is.
func (c *Catalog) attrs(ctx context.Context, who *identity.Resolver, s identity.Subject) (*rule.Attrs, error) {
	// Without lists: those who are banned are not looked at any further.
	err := who.With(identity.Lists{}).Describe(ctx, c.options.Now(), &s)
	if err != nil && !errors.As(err, new(*identity.RefusedError)) {
		return nil, err
	}
	if s.UserError != nil {
		return nil, s.UserError
	}
	return &rule.Attrs{
		Trusted: true, IP: s.IP, Net: s.Net, User: s.User, Tenant: s.Tenant, APIKey: s.Key, Tier: s.Tier, Claims: s.Claims,
		KeyLimits: s.KeyLimits, UserLimits: s.UserLimits,
	}, nil
}

// Quota is a limit that requests of a subject may be counted by, and how it stands.
type Quota struct {
	Rule     string
	Action   rule.Action
	CountBy  []rule.Dimension
	Endpoint string // that is counted, if the rule counts by endpoints
	Name     string // of the limit
	Limit    string // or "unlimited"
	Source   string // who says so: api_key, user, tier NAME, or rule
	// Penalty says that this is no limit but the rule's penalty: Used are the violations
	// that count towards a ban, and while there is one Retry is how much longer.
	Penalty bool
	// Unknown is what is counted by and only a request tells. There is a counter for each
	// value, and what follows is not known.
	Unknown rule.Dimension

	Max, Used, Remaining int64
	// Reset is how long until all of it is back. Retry is how long until one unit would
	// pass, at the latest: zero if one would now, or [stint.Never].
	Reset, Retry time.Duration
	// Basis is what these rest on: whether the store has counted.
	Basis stint.Basis
}

// QuotaOf returns every limit that requests of a subject may be counted by, whatever
// their path, method and headers, and how each stands, by the priority and name of rules:
// also those that are shared with others. The subject and the resolver are as for
// [Catalog.LimitsOf], and the counters those of decisions. It takes nothing.
func (c *Catalog) QuotaOf(ctx context.Context, rules *rule.Set, who *identity.Resolver, store stint.Store, s identity.Subject) ([]Quota, error) {
	a, err := c.attrs(ctx, who, s)
	if err != nil {
		return nil, err
	}
	var out []Quota
	var asks []stint.Ask
	var of []int // the quota of each ask
	for _, q := range rules.Quotas(a) {
		one := Quota{
			Rule: q.Rule.Name, Action: q.Rule.Action, CountBy: q.Rule.CountBy(), Endpoint: q.Endpoint, Name: q.Name,
			Limit: q.Ask.Limit.String(), Source: q.Source, Penalty: q.Ask.Penalty != nil, Unknown: q.Unknown,
		}
		switch {
		case one.Penalty:
			one.Limit = q.Ask.Penalty.String()
		case q.Unlimited():
			one.Limit = "unlimited"
		}
		if q.Unknown == "" && !q.Unlimited() {
			asks, of = append(asks, q.Ask), append(of, len(out))
		}
		out = append(out, one)
	}
	const some = 128 // at once, so that others can come between
	for part := range slices.Chunk(asks, some) {
		ds := make([]stint.Decision, len(part))
		if err := store.Take(ctx, part, ds); err != nil {
			return nil, err
		}
		for _, d := range ds {
			q := &out[of[0]]
			of = of[1:]
			q.Max, q.Used, q.Remaining, q.Reset, q.Retry, q.Basis = d.Limit, d.Limit-d.Remaining, d.Remaining, d.ResetAfter, d.RetryAfter, d.Basis
			switch {
			case q.Penalty || d.Remaining > 0:
			case d.Limit == 0:
				q.Retry = stint.Never
			default:
				q.Retry = d.ResetAfter
			}
		}
	}
	return out, nil
}

// ViolationQuery says whose violations to count.
type ViolationQuery struct {
	Rule string // empty: of any
	User string // empty: every one
	// From and To are a time range. Violations are counted by the hour: the hours that
	// From and To are in count as a whole, but that of To not if it begins then.
	From, To time.Time
	Limit    int // at most so many users, from 1 to 1000; default 100
}

// Violation is how often limits have denied requests of a user.
type Violation struct {
	User   string
	Denied int64
}

// Violations returns users by how often limits have denied their requests, the most
// often first. What was denied in the last seconds may not be written yet.
func (c *Catalog) Violations(ctx context.Context, q ViolationQuery) ([]Violation, error) {
	if q.Limit == 0 {
		q.Limit = 100
	}
	var report strict.Report
	if q.Limit < 1 || q.Limit > 1000 {
		report.Add("limit", strconv.Itoa(q.Limit)+": want from 1 to 1000", "")
	}
	if !q.From.Before(q.To) {
		report.Add("to", q.To.UTC().Format(time.RFC3339)+": want a time after from, which is "+q.From.UTC().Format(time.RFC3339), "")
	}
	where, args := []string{"hour >= $1", "hour < $2"}, []any{hourOf(q.From), hourOf(q.To.Add(time.Hour - 1))}
	for _, f := range []struct{ path, column, value string }{{"rule", "rule", q.Rule}, {"user", "user_id", q.User}} {
		if f.value == "" {
			continue
		}
		if !identity.ValidID(f.value) {
			report.Refuse(f.path, f.value, "1 to 255 bytes of UTF-8 without control characters", "")
		}
		args = append(args, f.value)
		where = append(where, f.column+" = $"+strconv.Itoa(len(args)))
	}
	if err := report.Problems.Err(); err != nil {
		return nil, err
	}
	args = append(args, q.Limit)
	rows, err := c.reading.QueryContext(ctx, "SELECT user_id, CAST(SUM(denied) AS BIGINT) FROM stint_violations WHERE "+
		strings.Join(where, " AND ")+" GROUP BY user_id ORDER BY 2 DESC, user_id LIMIT $"+strconv.Itoa(len(args)), args...)
	if err != nil {
		return nil, c.wrap(err)
	}
	defer rows.Close()
	var out []Violation
	for rows.Next() {
		var v Violation
		if err := rows.Scan(&v.User, &v.Denied); err != nil {
			return nil, c.wrap(err)
		}
		out = append(out, v)
	}
	return out, c.wrap(rows.Err())
}

// hourOf returns the hour that a time is in, counted from 1970.
func hourOf(t time.Time) int64 {
	seconds := t.Unix()
	if seconds < 0 {
		seconds -= secondsOfHour - 1
	}
	return seconds / secondsOfHour
}

// UserStatus is a user, and what requests the user has made, as far as that is written.
type UserStatus struct {
	Record[User]
	Upgraded         time.Time // when the tier last became another; zero: never
	Today, ThisMonth int64     // of UTC
	Total            int64
	Exceeded         int64     // of all, those that a limit has denied
	LastSeen         time.Time // zero: never
}

// UserStatus returns a user of the catalog, or a [NotFoundError].
func (c *Catalog) UserStatus(ctx context.Context, id string) (s UserStatus, err error) {
	if s.Record, err = c.Users.Get(ctx, id); err != nil {
		return s, err
	}
	var upgraded, seen stamp
	var day, month int64
	err = c.reading.QueryRowContext(ctx, `SELECT u.upgraded_at, coalesce(g.day, 0), coalesce(g.today, 0), coalesce(g.month, 0),
		coalesce(g.this_month, 0), coalesce(g.total, 0), coalesce(g.exceeded, 0), g.last_seen
		FROM stint_users u LEFT JOIN stint_user_usage g ON g.id = u.id WHERE u.id = $1`, id).
		Scan(&upgraded, &day, &s.Today, &month, &s.ThisMonth, &s.Total, &s.Exceeded, &seen)
	switch {
	case errors.Is(err, sql.ErrNoRows): // it has gone meanwhile
		return UserStatus{}, &NotFoundError{kindUser, id}
	case err != nil:
		return UserStatus{}, c.wrap(err)
	}
	s.Upgraded, s.LastSeen = upgraded.Time, seen.Time
	today := c.options.Now().Unix() / secondsOfDay
	if day != today {
		s.Today = 0
	}
	if month != monthOf(today) {
		s.ThisMonth = 0
	}
	return s, nil
}

// KeyStatus is an API key, and what requests have come with it, as far as that is
// written.
type KeyStatus struct {
	Record[APIKey]
	Total    int64
	LastUsed time.Time // zero: never
}

// KeyStatus returns an API key of the catalog, or a [NotFoundError].
func (c *Catalog) KeyStatus(ctx context.Context, id string) (s KeyStatus, err error) {
	if s.Record, err = c.APIKeys.Get(ctx, id); err != nil {
		return s, err
	}
	var used stamp
	err = c.reading.QueryRowContext(ctx, "SELECT total, last_used FROM stint_key_usage WHERE id = $1", id).Scan(&s.Total, &used)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return KeyStatus{}, c.wrap(err)
	}
	s.LastUsed = used.Time
	return s, nil
}
