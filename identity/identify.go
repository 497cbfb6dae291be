package identity

import (
	"cmp"
	"context"
	"time"
)

// identify reads all that the request presents, by all methods in order. The first that
// identifies the client is the subject; what agrees with it adds to it. If it returns an
// error, only the address and the ban of the subject matter.
func (r *Resolver) identify(ctx context.Context, q *Request, now time.Time, s *Subject) error {
	var conflict error
	for _, m := range r.methods {
		switch {
		case s.Source == ByIP:
			if err := r.try(ctx, m, q, now, s); err != nil {
				return err
			}
		case r.presents(m, q, s):
			agrees, err := r.another(ctx, m, q, now, s)
			if err != nil {
				return err
			}
			if !agrees && !r.firstWins {
				conflict = &RefusedError{Reason: Conflict}
			}
		}
	}
	if s.Source == ByIP && r.require {
		if s.BadToken {
			return &RefusedError{Reason: s.Unaccepted}
		}
		return &RefusedError{Reason: NoCredentials}
	}
	return conflict
}

// presents reports whether the request may present something by a method.
func (r *Resolver) presents(m Source, q *Request, s *Subject) bool {
	switch m {
	case ByKey:
		return len(q.Headers[r.keys.header]) > 0 || r.keys.bearer && len(q.Headers["Authorization"]) > 0
	case ByJWT:
		return len(q.Headers["Authorization"]) > 0
	case ByHeader:
		return s.Trusted
	case ByIP: // never among them
	}
	return false
}

// another reads what the request presents by one more method, and reports whether it agrees
// with the subject.
func (r *Resolver) another(ctx context.Context, m Source, q *Request, now time.Time, s *Subject) (agrees bool, err error) {
	other := Subject{IP: s.IP, Net: s.Net, Trusted: s.Trusted}
	if err := r.try(ctx, m, q, now, &other); err != nil {
		return false, err
	}
	s.Unaccepted, s.BadToken = cmp.Or(s.Unaccepted, other.Unaccepted), s.BadToken || other.BadToken
	return other.Source == ByIP || r.join(ctx, now, s, &other), nil
}

// try reads what the request presents by one method, if anything.
func (r *Resolver) try(ctx context.Context, m Source, q *Request, now time.Time, s *Subject) error {
	switch m {
	case ByKey:
		return r.byKey(ctx, q, now, s)
	case ByJWT:
		return r.byToken(ctx, q, now, s)
	case ByHeader:
		return r.headers.read(q, s)
	case ByIP: // never among them
	}
	return nil
}

// join adds another identity of the same request to the subject, if both agree: they name
// the same user and the same tenant, or one of them names none. Otherwise it reports false,
// and a ban of either is the subject's. They are compared as the directory completes them: a
// user may have a tenant that its token does not name.
func (r *Resolver) join(ctx context.Context, now time.Time, s, other *Subject) bool {
	own := *s
	r.complete(ctx, now, &own)
	full := *other
	r.complete(ctx, now, &full)
	if same(own.User, full.User) && same(own.Tenant, full.Tenant) {
		s.User, s.Tenant, s.Tier = cmp.Or(s.User, other.User), cmp.Or(s.Tenant, other.Tenant), cmp.Or(s.Tier, other.Tier)
		if other.Claims != nil {
			s.Claims = other.Claims
		}
		if other.Key != "" {
			s.Key, s.KeyLimits = other.Key, other.KeyLimits
		}
		s.Verified = s.Verified && other.Verified
		return true
	}
	s.Banned = cmp.Or(s.Banned, own.Banned, full.Banned)
	s.Others = append(s.Others, full)
	return false
}

func same(a, b string) bool { return a == "" || b == "" || a == b }

// addOwner adds the owner of a key to a subject that a caller has named otherwise, so that
// bans of both hold.
func (r *Resolver) addOwner(ctx context.Context, now time.Time, s *Subject, k *Key) {
	if same(s.User, k.User) && same(s.Tenant, k.Tenant) {
		return
	}
	owner := Subject{Key: k.ID, User: k.User, Tenant: k.Tenant, Tier: k.Tier, KeyLimits: k.Limits, Source: ByKey, IP: s.IP, Net: s.Net}
	r.complete(ctx, now, &owner)
	s.Banned = owner.Banned
	s.Others = append(s.Others, owner)
}

func (r *Resolver) byKey(ctx context.Context, q *Request, now time.Time, s *Subject) error {
	text, err := r.keys.find(q)
	if text == "" || err != nil {
		return err
	}
	k, err := r.keys.check(ctx, r.directory, text, s.Net, now)
	if err != nil {
		return err
	}
	s.Source, s.Verified = ByKey, true
	s.Key, s.User, s.Tenant, s.Tier, s.KeyLimits = k.ID, k.User, k.Tenant, k.Tier, k.Limits
	return nil
}

func (r *Resolver) byToken(ctx context.Context, q *Request, now time.Time, s *Subject) error {
	text, hidden, err := bearer(q)
	if err != nil || (text == "" && !hidden) || r.keys.owns(text) {
		return err
	}
	c, why := (*claims)(nil), TokenScheme
	if !hidden {
		c, why = r.tokens.verify(ctx, text, now)
	}
	if why != NoReason {
		if !r.tokens.ignoreBad {
			return &RefusedError{Reason: why}
		}
		s.Unaccepted, s.BadToken = why, true
		return nil
	}
	s.Source, s.Verified = ByJWT, true
	s.User, s.Tenant, s.Tier, s.Claims = c.user, c.tenant, c.tier, c.all
	return nil
}
