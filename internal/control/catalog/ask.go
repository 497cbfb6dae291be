package catalog

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// attrs returns a subject as rules see it. A key that is expired or revoked still tells its
// user and tenant.
func (c *Catalog) attrs(ctx context.Context, who *identity.Resolver, s identity.Subject) (*rule.Attrs, error) {
	// Without lists, since the rest of a banned subject would not be filled in.
	err := who.With(identity.Lists{}).Describe(ctx, c.options.Now(), &s)
	if err != nil && !errors.As(err, new(*identity.RefusedError)) {
		return nil, err
	}
	if s.UserError != nil {
		return nil, s.UserError
	}
	return &rule.Attrs{
		Trusted: true, IP: s.IP, Net: s.Net, User: s.User, Tenant: s.Tenant, APIKey: s.Key, Tier: s.Tier, Claims: s.Claims,
		KeyLimits: s.KeyLimits, UserLimits: s.UserLimits, Now: c.options.Now(),
	}, nil
}

// Quota is a limit that applies to a subject, and its current usage.
type Quota struct {
	Rule     string
	Action   rule.Action
	CountBy  []rule.Dimension
	Endpoint string // of the counter, if the rule counts by endpoint
	Name     string // of the limit
	Limit    string // or "unlimited"
	Source   string // where the value comes from: api_key, user, tier NAME, or rule
	// Penalty says that this is the rule's penalty rather than a limit: Used is the number
	// of violations that count towards a ban, and during a ban Retry is how long it lasts.
	Penalty bool
	// Shadow says that the rule is only tried out on the subject: it denies nothing.
	Shadow bool
	// Unknown is a dimension that only a request has, such as a header. There is a counter
	// for each of its values, so the fields below are zero.
	Unknown rule.Dimension

	Max, Used, Remaining int64
	// Reset is how long until nothing is used. Retry is how long at most until one unit is
	// allowed: zero if one is now, or [stint.Never].
	Reset, Retry time.Duration
	// Basis is what the numbers are based on: whether the store has counted.
	Basis stint.Basis
}

// QuotaOf returns every limit that may apply to a request of a subject, whatever its path,
// method and headers, with its current usage, by the priority and name of rules. Limits
// that the subject shares with others are included. Of the subject, any of User, Tenant,
// Key, Tier and IP are given; the resolver, which is that of decisions, fills in the rest. A
// rule that counts by something that the subject lacks does not apply. Nothing is charged.
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
			Limit: q.Ask.Limit.String(), Source: q.Source, Penalty: q.Ask.Penalty != nil, Unknown: q.Unknown, Shadow: q.Shadow,
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
	const maxAsks = 128 // in one call, so that other callers need not wait for long
	for part := range slices.Chunk(asks, maxAsks) {
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

// UserStatus is a user and the user's requests, as far as they have been written.
type UserStatus struct {
	Record[User]
	Upgraded         time.Time // when the tier last changed; zero: never
	Today, ThisMonth int64     // of UTC
	Total            int64
	Exceeded         int64     // of Total, those that a limit denied
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
	case errors.Is(err, sql.ErrNoRows): // it was deleted meanwhile
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

// KeyStatus is an API key and its requests, as far as they have been written.
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

// KeyUse is the use of an API key, as far as it has been written.
type KeyUse struct {
	Total int64
	Last  time.Time
}

// KeyUses returns the use of API keys by id. Those that were never used are not in it.
func (c *Catalog) KeyUses(ctx context.Context, ids []string) (out map[string]KeyUse, err error) {
	defer func() { err = withCause(ctx, err) }()
	out = map[string]KeyUse{}
	where, args := among(ids)
	if len(args) == 0 {
		return out, nil
	}
	rows, err := c.reading.QueryContext(ctx, "SELECT id, total, last_used FROM stint_key_usage "+where, args...)
	if err != nil {
		return nil, c.wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var use KeyUse
		var last stamp
		if err := rows.Scan(&id, &use.Total, &last); err != nil {
			return nil, c.wrap(err)
		}
		use.Last = last.Time
		out[id] = use
	}
	return out, c.wrap(rows.Err())
}
