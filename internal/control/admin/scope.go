package admin

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/rule"
)

// Who has a token or a session for some tenants only is a guest here: an operation is closed to guests unless it says
// Scoped, and then checks what it is about. What is not theirs does not exist for them, so they get the response for
// what does not exist. They never change what limits them: rules, tiers, overrides, exemptions.

// scoped reports whether the person is restricted to tenants.
func (p *person) scoped() bool { return len(p.Tenants) > 0 }

// errScoped is the error of operations that are closed to people who are restricted to tenants.
func errScoped(p *person) error {
	return fail(http.StatusForbidden, "this is about all tenants, and "+strconv.Quote(p.Name)+" is restricted to "+tenantsOf(p))
}

// tenantsOf lists the tenants of a person who is restricted to them.
func tenantsOf(p *person) string {
	const most = 5
	if len(p.Tenants) > most {
		return strings.Join(p.Tenants[:most], ", ") + " and " + strconv.Itoa(len(p.Tenants)-most) + " more"
	}
	return strings.Join(p.Tenants, ", ")
}

// narrow makes a query for a tenant one that the person of the request may ask.
func narrow(ctx context.Context, tenant *string) error {
	switch p := new(personOf(ctx)); {
	case !p.scoped() || p.Covers(*tenant):
		return nil
	case *tenant == "" && len(p.Tenants) == 1:
		*tenant = p.Tenants[0]
		return nil
	case *tenant == "":
		return blame(http.StatusBadRequest, "tenant", "missing, want one of "+tenantsOf(p), "")
	default:
		return fail(http.StatusForbidden, "tenant: "+strict.Quote(*tenant)+" is another, want one of "+tenantsOf(p))
	}
}

// narrowSums is narrow for sums, in which one name stands for all tenants that were not counted one by one.
func narrowSums(ctx context.Context, tenant *string) error {
	err := narrow(ctx, tenant)
	if p := personOf(ctx); err == nil && p.scoped() && *tenant == record.Other {
		return fail(http.StatusForbidden, "tenant: "+strict.Quote(record.Other)+" stands for many tenants here")
	}
	return err
}

// owns returns an error unless the person of the request may see a subject.
func (a *API) owns(ctx context.Context, s *subject) error {
	p := personOf(ctx)
	if !p.scoped() {
		return nil
	}
	switch s.kind {
	case "user":
		_, err := users.mine(ctx, a, s.id)
		return err
	case "key":
		_, err := keys.mine(ctx, a, s.id)
		return err
	case "tenant":
		if p.Covers(s.id) {
			return nil
		}
		return &catalog.NotFoundError{Kind: s.kind, ID: s.id}
	default:
		return errScoped(&p)
	}
}

// ownsClient is owns for changes by guests, which are about users and keys only.
func (a *API) ownsClient(ctx context.Context, s *subject) error {
	if p := personOf(ctx); p.scoped() && s.kind != "user" && s.kind != "key" {
		return fail(http.StatusForbidden, "kind: "+strict.Quote(s.kind)+": who is restricted to tenants changes users and keys only")
	}
	return a.owns(ctx, s)
}

// mine returns the object with an id, if it exists for the person of the request.
func (s *resource[T, W, R]) mine(ctx context.Context, a *API, id string) (catalog.Record[T], error) {
	r, err := s.get(ctx, a, id)
	if err == nil {
		err = s.exists(ctx, id, &r.Value)
	}
	return r, err
}

// exists returns an error if an object does not exist for the person of the request.
func (s *resource[T, W, R]) exists(ctx context.Context, id string, v *T) error {
	if p := personOf(ctx); p.scoped() && !s.visible(&p, v) {
		return &catalog.NotFoundError{Kind: s.one, ID: id}
	}
	return nil
}

// found returns a page of what exists for the person of the request.
func (s *resource[T, W, R]) found(ctx context.Context, a *API, q catalog.Query, keeps func(*T) bool) ([]catalog.Record[T], error) {
	p := personOf(ctx)
	if !p.scoped() {
		return s.list(ctx, a, q, keeps)
	}
	visible := func(v *T) bool { return keeps(v) && s.visible(&p, v) }
	if s.theirs != nil {
		return s.listTheirs(ctx, a, q, s.theirs(&p), visible)
	}
	if tenant, ok := q.Filters["tenant"]; s.byTenant {
		if err := narrow(ctx, &tenant); err != nil {
			return nil, err
		}
		if !ok {
			q = with(q, append(pairs(q.Filters), "tenant", tenant)...)
		}
		return s.list(ctx, a, q, visible)
	}
	// There are few of these. The last one that is shown is where the next page begins: no other id is told.
	limit := q.Limit
	var out []catalog.Record[T]
	for q.Limit = maxPage; ; {
		page, err := s.list(ctx, a, q, visible)
		if err != nil {
			return nil, err
		}
		for i := range page {
			if s.visible(&p, &page[i].Value) {
				out = append(out, page[i])
			}
		}
		if len(page) < q.Limit || len(out) >= limit {
			return out[:min(len(out), limit)], nil
		}
		q.After = s.cursor(q, page)
	}
}

// maxPage is the largest page of the catalog.
const maxPage = 1000

func pairs(filters map[string]string) (out []string) {
	for name, value := range filters {
		out = append(out, name, value)
	}
	return out
}

// listTheirs returns a page of objects with known ids, which need not exist.
func (s *resource[T, W, R]) listTheirs(ctx context.Context, a *API, q catalog.Query, ids []string, keeps func(*T) bool) (out []catalog.Record[T], err error) {
	for _, id := range ids {
		r, err := s.get(ctx, a, id)
		switch {
		case errors.As(err, new(*catalog.NotFoundError)):
		case err != nil:
			return nil, err
		case keeps(&r.Value):
			out = append(out, r)
		}
	}
	return catalog.PageOf(out, q, s.id)
}

// change checks what a guest changes.
func (s *resource[T, W, R]) change(ctx context.Context, a *API, was, now *T) error {
	p := personOf(ctx)
	if !p.scoped() {
		return nil
	}
	return s.keep(ctx, a, was, now)
}

// errFixed is the error for a field that guests cannot change.
func errFixed(field string) error {
	return blame(http.StatusForbidden, field, "can be changed by people for all tenants only", "")
}

// keepUser lets guests block a user, and nothing else.
func keepUser(_ context.Context, _ *API, was, now *catalog.User) error {
	for _, f := range []struct {
		name string
		same bool
	}{
		{"id", was.ID == now.ID},
		{"tenant", was.Tenant == now.Tenant},
		{"tier", was.Tier == now.Tier},
		{"limits", sameLimits(was.Limits, now.Limits)},
	} {
		if !f.same {
			return errFixed(f.name)
		}
	}
	return nil
}

// keepKey lets guests change a key, except what limits it. Its user is one of theirs.
func keepKey(ctx context.Context, a *API, was, now *catalog.APIKey) error {
	p := personOf(ctx)
	switch {
	case !p.Covers(now.Tenant):
		return blame(http.StatusForbidden, "tenant", strict.Quote(now.Tenant)+": want one of "+tenantsOf(&p), "")
	case was.Tier != now.Tier:
		return errFixed("tier")
	case !sameLimits(was.Limits, now.Limits):
		return errFixed("limits")
	case now.User == "" || was.User == now.User && was.Tenant == now.Tenant:
		return nil
	}
	u, err := users.mine(ctx, a, now.User)
	if errors.As(err, new(*catalog.NotFoundError)) || err == nil && u.Value.Tenant != now.Tenant {
		return blame(http.StatusUnprocessableEntity, "user", "there is no user "+strict.Quote(now.User)+" of the tenant "+strict.Quote(now.Tenant), "")
	}
	return err
}

func sameLimits(x, y map[string]catalog.Override) bool {
	return len(x) == 0 && len(y) == 0 || reflect.DeepEqual(x, y)
}

// harmlessRule reports whether a rule tells nothing about others: it names no addresses and no values of headers.
func harmlessRule(_ *person, r *rule.Rule) bool {
	return len(r.Match.IPRanges)+len(r.Match.Headers) == 0
}

// findOwn is findSubjects for guests.
func (a *API) findOwn(ctx context.Context, p *person, q string, limit int) ([]FoundSubject, error) {
	out := []FoundSubject{}
	for _, tenant := range p.Tenants {
		query := with(catalog.Query{Prefix: q, Limit: limit}, "tenant", tenant)
		of, err := users.list(ctx, a, query, func(u *catalog.User) bool { return u.Tenant == tenant })
		if err != nil {
			return nil, asParameters(err)
		}
		for i := range of {
			u := &of[i].Value
			out = append(out, FoundSubject{Kind: "user", ID: u.ID, Tier: u.Tier, Tenant: u.Tenant, Known: true})
		}
		all, err := keys.list(ctx, a, query, func(k *catalog.APIKey) bool { return k.Tenant == tenant })
		if err != nil {
			return nil, asParameters(err)
		}
		for i := range all {
			k := &all[i].Value
			out = append(out, FoundSubject{Kind: "key", ID: k.ID, Name: k.Name, Tier: k.Tier, Tenant: k.Tenant, User: k.User, Prefix: k.Prefix, Known: true})
		}
		if strings.HasPrefix(tenant, q) {
			out = append(out, FoundSubject{Kind: "tenant", ID: tenant, Known: true})
		}
	}
	slices.SortStableFunc(out, func(x, y FoundSubject) int { return cmp.Compare(x.ID, y.ID) })
	return out[:min(len(out), limit)], nil
}
