package admin

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// FoundSubject is a subject that was found.
type FoundSubject struct {
	Kind   string `json:"kind" enum:"user,key,tenant,ip" doc:"The kind of subject." example:"user"`
	ID     string `json:"id" doc:"The id of the user, API key or tenant; an address or a network." example:"alice"`
	Name   string `json:"name,omitempty" doc:"For a key or a tenant: its name." example:"mobile app"`
	Tier   string `json:"tier,omitempty" doc:"The tier in the catalog." example:"pro"`
	Tenant string `json:"tenant,omitempty" doc:"The tenant that it belongs to." example:"acme"`
	User   string `json:"user,omitempty" doc:"For a key: its user." example:"alice"`
	Prefix string `json:"prefix,omitempty" doc:"For a key: the first characters of its text." example:"stint_k3jq"`
	Known  bool   `json:"known" doc:"Whether it is in the catalog. Others are limited all the same." example:"true"`
}

// SubjectList is a list of subjects.
type SubjectList struct {
	Items []FoundSubject `json:"items" nullable:"false" doc:"The subjects that were found."`
}

// Subject is what is known about a user, API key, tenant or address.
type Subject struct {
	Kind      string            `json:"kind" enum:"user,key,tenant,ip" doc:"The kind of subject." example:"user"`
	ID        string            `json:"id" doc:"The id." example:"alice"`
	Known     bool              `json:"known" doc:"Whether it is in the catalog; an address is known if it is banned or exempt itself." example:"true"`
	Tier      string            `json:"tier,omitempty" doc:"The tier that applies, from whatever source." example:"pro"`
	Tenant    string            `json:"tenant,omitempty" doc:"The tenant that it belongs to." example:"acme"`
	User      string            `json:"user,omitempty" doc:"For a key: its user." example:"alice"`
	Name      string            `json:"name,omitempty" doc:"For a key or a tenant: its name." example:"mobile app"`
	Value     any               `json:"value,omitempty" doc:"The value of its record under /users, /keys or /tenants."`
	Version   int64             `json:"version,omitempty" doc:"The version of that record." example:"12"`
	Ban       *catalog.Entry    `json:"ban,omitempty" doc:"The ban that applies to it, which may be that of its network, tenant or user."`
	Exemption *catalog.Entry    `json:"exemption,omitempty" doc:"The exemption that applies to it, in the same way."`
	Blocked   *catalog.Blocked  `json:"blocked,omitempty" doc:"For a user: set if the user is blocked."`
	Unusable  string            `json:"unusable,omitempty" doc:"For a key: why it is rejected." example:"identity: key k3jq8w2n: the API key was revoked"`
	Overrides []SubjectOverride `json:"overrides" nullable:"false" doc:"Limits that override those of its tier, ordered by name."`
	Total     int64             `json:"usage_total,omitempty" doc:"For a user or a key: the number of requests so far." example:"120000"`
	LastUsed  time.Time         `json:"last_used_at,omitzero" doc:"When the last request was made." example:"2026-01-31T12:00:00Z"`
}

// SubjectPath is a subject in a path.
type SubjectPath struct {
	Kind string `path:"kind" enum:"user,key,tenant,ip" doc:"The kind of subject." example:"user"`
	ID   string `path:"id" maxLength:"1024" doc:"The id, URL-escaped. Bans and exemptions can also be for a network." example:"alice"`
}

// subject is a checked SubjectPath.
type subject struct {
	kind, id string
	who      identity.Subject
	network  bool // of addresses, which has no counters
}

// subject checks the kind and the id.
func (p *SubjectPath) subject() (*subject, error) {
	s := &subject{kind: p.Kind, id: p.ID}
	if p.Kind == "ip" {
		if network, err := netip.ParsePrefix(p.ID); err == nil && !network.IsSingleIP() {
			s.id, s.network = network.String(), true
			return s, nil
		} else if err == nil {
			p.ID = network.Addr().String()
		}
		ip, err := netip.ParseAddr(p.ID)
		if err != nil || ip.Zone() != "" {
			return nil, blame(http.StatusBadRequest, "id", strict.Quote(p.ID)+": want an address or a network, such as 192.0.2.1 or 2001:db8::/32", "")
		}
		s.id, s.who.IP = ip.String(), ip
		return s, nil
	}
	if !identity.ValidID(p.ID) {
		return nil, blame(http.StatusBadRequest, "id", strict.Quote(p.ID)+": want 1 to 255 bytes of UTF-8 without control characters", "")
	}
	switch p.Kind {
	case "user":
		s.who.User = p.ID
	case "key":
		s.who.Key = p.ID
	default:
		s.who.Tenant = p.ID
	}
	return s, nil
}

// addressed returns a subject that is not a network.
func (p *SubjectPath) addressed() (*subject, error) {
	s, err := p.subject()
	if err == nil && s.network {
		err = blame(http.StatusBadRequest, "id", strict.Quote(s.id)+" is a network, want an address: counters are for addresses", "")
	}
	return s, err
}

func (a *API) addSubjects() {
	type findInput struct {
		Q     string `query:"q" maxLength:"512" doc:"The start of an id, an address, or a network. For a key, the start of its text also works." example:"al"`
		Limit int    `query:"limit" default:"20" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"20"`
	}
	addQuery(a, operation{
		ID: "findSubjects", Method: http.MethodGet, Path: "/subjects", Tag: tagSubjects,
		Scoped: true, Summary: "Find subjects", Description: "Returns users, API keys and tenants whose ids start with a text. A user or an address that the catalog does not have is returned, too.",
	}, catalog.Viewer, func(ctx context.Context, in *findInput) (SubjectList, error) {
		find := a.findSubjects
		if p := personOf(ctx); p.scoped() {
			find = func(ctx context.Context, q string, limit int) ([]FoundSubject, error) {
				return a.findOwn(ctx, &p, q, limit)
			}
		}
		all, err := find(ctx, in.Q, in.Limit)
		return SubjectList{all}, err
	})

	addQuery(a, operation{
		ID: "getSubject", Method: http.MethodGet, Path: "/subjects/{kind}/{id}", Tag: tagSubjects,
		Scoped: true, Summary: "Get a subject", Description: "Returns what is known about a user, API key, tenant or address, even if the catalog does not have it.",
	}, catalog.Viewer, func(ctx context.Context, in *SubjectPath) (Subject, error) {
		s, err := in.subject()
		if err == nil {
			err = a.owns(ctx, s)
		}
		if err != nil {
			return Subject{}, err
		}
		return a.describeSubject(ctx, s)
	})
}

// findSubjects returns subjects whose ids start with q.
func (a *API) findSubjects(ctx context.Context, q string, limit int) ([]FoundSubject, error) {
	out := []FoundSubject{}
	_, isNetwork := netip.ParsePrefix(q)
	ip, isAddress := netip.ParseAddr(q)
	if isNetwork == nil || isAddress == nil && ip.Zone() == "" {
		s, err := (&SubjectPath{Kind: "ip", ID: q}).subject()
		if err != nil {
			return nil, err
		}
		d, err := a.describeSubject(ctx, s)
		if err != nil {
			return nil, err
		}
		out = append(out, FoundSubject{Kind: "ip", ID: s.id, Known: d.Known})
	}
	var found []catalog.Found
	if a.options.Catalog != nil {
		var err error
		if found, err = a.options.Catalog.FindSubjects(ctx, q, limit); err != nil {
			return nil, asParameters(err)
		}
	} else {
		found = findInFile(a.options.Document(), q)
	}
	named := len(out) > 0 // by an address
	for _, f := range found {
		named = named || f.ID == q && f.Kind == "user" || f.Prefix != "" && strings.HasPrefix(q, f.Prefix) // which is a key, and maybe a secret one
		out = append(out, FoundSubject{f.Kind, f.ID, f.Name, f.Tier, f.Tenant, f.User, f.Prefix, true})
	}
	out = out[:min(len(out), limit)]
	if !named && identity.ValidID(q) && len(out) < limit {
		out = append(out, FoundSubject{Kind: "user", ID: q})
	}
	return out, nil
}

// findInFile does so in file mode.
func findInFile(d *catalog.Document, q string) (out []catalog.Found) {
	for _, u := range d.Users {
		if strings.HasPrefix(u.ID, q) {
			out = append(out, catalog.Found{Kind: "user", ID: u.ID, Tier: u.Tier, Tenant: u.Tenant})
		}
	}
	for _, k := range d.APIKeys {
		if strings.HasPrefix(k.ID, q) || k.Prefix != "" && (strings.HasPrefix(q, k.Prefix) || strings.HasPrefix(k.Prefix, q)) {
			out = append(out, catalog.Found{Kind: "key", ID: k.ID, Name: k.Name, Tier: k.Tier, Tenant: k.Tenant, User: k.User, Prefix: k.Prefix})
		}
	}
	for _, t := range d.Tenants {
		if strings.HasPrefix(t.ID, q) {
			out = append(out, catalog.Found{Kind: "tenant", ID: t.ID, Name: t.Name, Tier: t.Tier})
		}
	}
	slices.SortStableFunc(out, func(x, y catalog.Found) int { return cmp.Compare(x.ID, y.ID) })
	return out
}

// describeSubject returns what is known about a subject.
func (a *API) describeSubject(ctx context.Context, s *subject) (Subject, error) {
	d := Subject{Kind: s.kind, ID: s.id, Overrides: []SubjectOverride{}}
	who, now := s.who, a.now()
	if !s.network {
		err := a.options.Resolver().Describe(ctx, now, &who)
		refused := new(identity.RefusedError)
		switch {
		case errors.As(err, &refused):
			d.Unusable = refused.Error()
		case err != nil:
			return d, err
		}
	}
	if err := a.describeKnown(ctx, s, &d); err != nil {
		return d, err
	}
	d.Tier = cmp.Or(who.Tier, d.Tier)
	if s.kind != "tenant" {
		d.Tenant = cmp.Or(d.Tenant, who.Tenant)
	}
	own := s.entry(NewEntry{})
	for _, list := range []struct {
		of   *entryList
		into **catalog.Entry
		who  *identity.Entry
	}{{bans, &d.Ban, who.Banned}, {exemptions, &d.Exemption, who.Exempt}} {
		r, err := list.of.get(ctx, a, own.ID())
		switch missing := errors.As(err, new(*catalog.NotFoundError)); {
		case err != nil && !missing:
			return d, err
		case err == nil && (r.Value.Until.IsZero() || now.Before(r.Value.Until.Time)):
			*list.into = &r.Value
			d.Known = true
		default:
			*list.into = entryOf(list.who)
		}
	}
	if b := d.Ban; b != nil && d.Blocked != nil && b.User == s.id && *b == (catalog.Entry{User: b.User, Reason: d.Blocked.Reason, Until: d.Blocked.Until}) {
		d.Ban = nil // it is the block
	}
	if d.Ban == nil { // it may be banned on this node only
		here, err := identity.NewList(a.options.Engine.Bans())
		if err != nil {
			return d, err
		}
		d.Ban = entryOf(here.Find(&who, now))
	}
	return d, nil
}

// describeKnown adds what is in the catalog.
func (a *API) describeKnown(ctx context.Context, s *subject, d *Subject) (err error) {
	var limits map[string]catalog.Override
	switch s.kind {
	case "user":
		var u catalog.UserStatus
		if a.options.Catalog != nil {
			u, err = a.options.Catalog.UserStatus(ctx, s.id)
		} else {
			u.Record, err = users.get(ctx, a, s.id)
		}
		if err == nil {
			v := u.Value
			d.Value, d.Version, d.Tenant, d.Tier, d.Blocked = v, u.Version, v.Tenant, v.Tier, v.Blocked
			d.Total, d.LastUsed, limits = u.Total, u.LastSeen, v.Limits
		}
	case "key":
		var k catalog.KeyStatus
		if a.options.Catalog != nil {
			k, err = a.options.Catalog.KeyStatus(ctx, s.id)
		} else {
			k.Record, err = keys.get(ctx, a, s.id)
		}
		if err == nil {
			v := keyOf(&k.Value)
			d.Value, d.Version, d.Tenant, d.Tier, d.User, d.Name = v, k.Version, v.Tenant, v.Tier, v.User, v.Name
			d.Total, d.LastUsed, limits = k.Total, k.LastUsed, v.Limits
		}
	case "tenant":
		var t catalog.Record[catalog.Tenant]
		if t, err = tenants.get(ctx, a, s.id); err == nil {
			d.Value, d.Version, d.Name, d.Tier = t.Value, t.Version, t.Value.Name, t.Value.Tier
		}
	default:
		return nil
	}
	if errors.As(err, new(*catalog.NotFoundError)) {
		return nil
	}
	d.Known = err == nil
	for name, o := range limits {
		d.Overrides = append(d.Overrides, SubjectOverride{name, o.Limit, o.Until})
	}
	slices.SortFunc(d.Overrides, func(x, y SubjectOverride) int { return cmp.Compare(x.Name, y.Name) })
	return err
}
