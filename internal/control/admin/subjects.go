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

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// FoundSubject is one of those that are limited.
type FoundSubject struct {
	Kind   string `json:"kind" enum:"user,key,tenant,ip" doc:"What it is." example:"user"`
	ID     string `json:"id" doc:"Which one: that of the user, API key or tenant; an address or a network." example:"alice"`
	Name   string `json:"name,omitempty" doc:"Of a key or a tenant: what people call it." example:"mobile app"`
	Tier   string `json:"tier,omitempty" doc:"The tier that the catalog has for it." example:"pro"`
	Tenant string `json:"tenant,omitempty" doc:"Whose it is." example:"acme"`
	User   string `json:"user,omitempty" doc:"Of a key: whose it is." example:"alice"`
	Prefix string `json:"prefix,omitempty" doc:"Of a key: how its text begins." example:"stint_k3jq"`
	Known  bool   `json:"known" doc:"Whether the catalog has it. Others are limited all the same." example:"true"`
}

// SubjectList is some of them.
type SubjectList struct {
	Items []FoundSubject `json:"items" nullable:"false" doc:"Those that were found."`
}

// Subject is one that is limited, and what is known of it.
type Subject struct {
	Kind      string            `json:"kind" enum:"user,key,tenant,ip" doc:"What it is." example:"user"`
	ID        string            `json:"id" doc:"Which one." example:"alice"`
	Known     bool              `json:"known" doc:"Whether the catalog has it; an address is known if it is on a list itself." example:"true"`
	Tier      string            `json:"tier,omitempty" doc:"The tier that it is limited by, wherever it comes from." example:"pro"`
	Tenant    string            `json:"tenant,omitempty" doc:"Whose it is." example:"acme"`
	User      string            `json:"user,omitempty" doc:"Of a key: whose it is." example:"alice"`
	Name      string            `json:"name,omitempty" doc:"Of a key or a tenant: what people call it." example:"mobile app"`
	Value     any               `json:"value,omitempty" doc:"What the catalog has: the value of its record under /users, /keys or /tenants."`
	Version   int64             `json:"version,omitempty" doc:"The version of that record." example:"12"`
	Ban       *catalog.Entry    `json:"ban,omitempty" doc:"What bans it, if anything does: that may also be its network, its tenant or its user."`
	Exemption *catalog.Entry    `json:"exemption,omitempty" doc:"What exempts it, in the same way."`
	Blocked   *catalog.Blocked  `json:"blocked,omitempty" doc:"Of a user: that it is blocked."`
	Unusable  string            `json:"unusable,omitempty" doc:"Of a key: why it is not good any more." example:"identity: key k3jq8w2n: the API key was revoked"`
	Overrides []SubjectOverride `json:"overrides" nullable:"false" doc:"The limits that it has in place of those of its tier, by their names."`
	Total     int64             `json:"usage_total,omitempty" doc:"Of a user or a key: how many requests it has made." example:"120000"`
	LastUsed  time.Time         `json:"last_used_at,omitzero" doc:"When the last was." example:"2026-01-31T12:00:00Z"`
}

// SubjectOverride is a limit in place of that of the tier.
type SubjectOverride struct {
	Name  string       `json:"limit_name" doc:"The name of the limit." example:"daily"`
	Limit string       `json:"limit" doc:"What it is instead." example:"200/day"`
	Until catalog.Time `json:"until,omitzero" doc:"When that ends. Without it, never." example:"2026-12-31T00:00:00Z"`
}

// NewOverride is an override that is to be set.
type NewOverride struct {
	Limit string       `json:"limit" doc:"The limit, or unlimited." example:"200/day"`
	Until catalog.Time `json:"until,omitzero" doc:"When it ends. Without it, never." example:"2026-12-31T00:00:00Z"`
}

// NewEntry is a ban or an exemption that is to be made.
type NewEntry struct {
	Reason string       `json:"reason,omitempty" doc:"Why. Who is banned may see it." example:"scraping"`
	Until  catalog.Time `json:"until,omitzero" doc:"When it ends. Without it, never." example:"2026-12-31T00:00:00Z"`
}

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

// SubjectPath says who is meant.
type SubjectPath struct {
	Kind string `path:"kind" enum:"user,key,tenant,ip" doc:"What it is." example:"user"`
	ID   string `path:"id" maxLength:"1024" doc:"Which one, escaped. An address stands for itself; bans and exemptions may also be of a network." example:"alice"`
}

// subject is who is meant.
type subject struct {
	kind, id string
	who      identity.Subject
	network  bool // of addresses, which is not counted as such
}

// subject checks who is meant.
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

// entry returns the entry of a list for it.
func (s *subject) entry(n NewEntry) catalog.Entry {
	e := catalog.Entry{User: s.who.User, Tenant: s.who.Tenant, Key: s.who.Key, Reason: n.Reason, Until: n.Until}
	if s.kind == "ip" {
		e.IP = s.id
	}
	return e
}

// addressed returns who is meant, which is no network.
func (p *SubjectPath) addressed() (*subject, error) {
	s, err := p.subject()
	if err == nil && s.network {
		err = blame(http.StatusBadRequest, "id", strict.Quote(s.id)+" is a network, want an address: what is counted is that of addresses", "")
	}
	return s, err
}

// The lists, and what people are in.
var (
	bans = entries("bans", "ban", "",
		func(c *catalog.Catalog) *catalog.Table[catalog.Entry] { return c.Bans },
		func(d *catalog.Document) []catalog.Entry { return d.Bans })
	exemptions = entries("exemptions", "exemption", "",
		func(c *catalog.Catalog) *catalog.Table[catalog.Entry] { return c.Exemptions },
		func(d *catalog.Document) []catalog.Entry { return d.Exemptions })
)

func (a *API) addSubjects() {
	type findInput struct {
		Q     string `query:"q" maxLength:"512" doc:"How an id begins, or an address or a network. Of a key it may also be how its text begins." example:"al"`
		Limit int    `query:"limit" default:"20" minimum:"1" maximum:"1000" doc:"At most so many." example:"20"`
	}
	add(a, operation{
		ID: "findSubjects", Method: http.MethodGet, Path: "/subjects", Tag: tagSubjects,
		Summary: "Find those who are limited", Description: "Returns users, API keys and tenants of the catalog whose ids begin so, and, of a user or an address that it does not have, that it may be meant.",
	}, catalog.Viewer, func(ctx context.Context, in *findInput) (*struct{ Body SubjectList }, error) {
		all, err := a.findSubjects(ctx, in.Q, in.Limit)
		return &struct{ Body SubjectList }{SubjectList{all}}, err
	})

	add(a, operation{
		ID: "getSubject", Method: http.MethodGet, Path: "/subjects/{kind}/{id}", Tag: tagSubjects,
		Summary: "One who is limited", Description: "Returns what is known of one who is limited: also if the catalog does not have it.",
	}, catalog.Viewer, func(ctx context.Context, in *SubjectPath) (*struct{ Body Subject }, error) {
		s, err := in.subject()
		if err != nil {
			return nil, err
		}
		d, err := a.describeSubject(ctx, s)
		return &struct{ Body Subject }{d}, err
	})

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

	a.addEntries("ban", "Ban", "Ban it", "Refuses all its requests, from now on. A ban that is there is replaced.", "Lift its ban", "Lets its requests through to the rules again.",
		func(ctx context.Context, e catalog.Entry, d DryRun) (Record[catalog.Entry], error) {
			if a.options.Catalog == nil {
				return a.banHere(e, d)
			}
			return putEntry(ctx, a, bans, e, d)
		},
		func(ctx context.Context, e catalog.Entry, d DryRun) error {
			if a.options.Catalog == nil {
				return a.unbanHere(e, d)
			}
			return deleteEntry(ctx, a, bans, e, d)
		})
	a.addEntries("exemption", "Exemption", "Exempt it", "Lets all its requests pass uncounted, from now on, unless it is banned. An exemption that is there is replaced.", "End its exemption", "Has its requests counted again.",
		func(ctx context.Context, e catalog.Entry, d DryRun) (Record[catalog.Entry], error) {
			return putEntry(ctx, a, exemptions, e, d)
		},
		func(ctx context.Context, e catalog.Entry, d DryRun) error {
			return deleteEntry(ctx, a, exemptions, e, d)
		})
	a.addOverrides()
}

// addEntries adds what puts a subject on a list, and takes it off.
func (a *API) addEntries(
	word, name, put, putLong, remove, removeLong string,
	doPut func(context.Context, catalog.Entry, DryRun) (Record[catalog.Entry], error), doDelete func(context.Context, catalog.Entry, DryRun) error,
) {
	type putInput struct {
		SubjectPath
		DryRun
		Body *NewEntry
	}
	const here = " Where rules are in a file, bans are those of the node that answers, until it stops, and there are no exemptions."
	add(a, operation{
		ID: "put" + name, Method: http.MethodPut, Path: "/subjects/{kind}/{id}/" + word, Tag: tagSubjects,
		Summary: put, Description: putLong + here, Problems: []int{http.StatusConflict},
	}, catalog.Operator, func(ctx context.Context, in *putInput) (*Recorded[Record[catalog.Entry]], error) {
		s, err := in.subject()
		if err != nil {
			return nil, err
		}
		var entry NewEntry
		if in.Body != nil {
			entry = *in.Body
		}
		if until := entry.Until; !until.IsZero() && !until.After(a.now()) {
			return nil, blame(http.StatusUnprocessableEntity, "until", until.Format(time.RFC3339)+" is over, want a time to come", "")
		}
		r, err := doPut(ctx, s.entry(entry), in.DryRun)
		return &Recorded[Record[catalog.Entry]]{etag(r.Version), in.header(), r}, err
	})

	type deleteInput struct {
		SubjectPath
		DryRun
	}
	add(a, operation{
		ID: "end" + name, Method: http.MethodDelete, Path: "/subjects/{kind}/{id}/" + word, Tag: tagSubjects,
		Summary: remove, Description: removeLong + " Only what is said of it alone is ended, not of its network or tenant.",
		Problems: []int{http.StatusConflict},
	}, catalog.Operator, func(ctx context.Context, in *deleteInput) (*Gone, error) {
		s, err := in.subject()
		if err != nil {
			return nil, err
		}
		return &Gone{in.header()}, doDelete(ctx, s.entry(NewEntry{}), in.DryRun)
	})
}

// putEntry puts an entry on a list, in place of the one that is there.
func putEntry(ctx context.Context, a *API, list *resource[catalog.Entry, catalog.Entry, Record[catalog.Entry]], e catalog.Entry, d DryRun) (Record[catalog.Entry], error) {
	c, err := a.writing(d)
	if err != nil {
		return Record[catalog.Entry]{}, err
	}
	table := list.table(c)
	for {
		var version int64
		was, err := table.Get(ctx, e.ID())
		switch {
		case errors.As(err, new(*catalog.NotFoundError)):
			version, err = table.Create(ctx, actor(ctx), e)
		case err == nil:
			version, err = table.Update(ctx, actor(ctx), e, was.Version)
		}
		if err == nil {
			a.written(ctx, d)
			return list.kept(ctx, a, d, &e, version, was), nil
		}
		if meanwhile := errors.As(err, new(*catalog.ConflictError)) || errors.As(err, new(*catalog.NotFoundError)); !meanwhile || ctx.Err() != nil {
			return Record[catalog.Entry]{}, err
		}
	}
}

// deleteEntry takes an entry off a list.
func deleteEntry(ctx context.Context, a *API, list *resource[catalog.Entry, catalog.Entry, Record[catalog.Entry]], e catalog.Entry, d DryRun) error {
	c, err := a.writing(d)
	if err != nil {
		return err
	}
	table := list.table(c)
	for {
		was, err := table.Get(ctx, e.ID())
		if err == nil {
			err = table.Delete(ctx, actor(ctx), e.ID(), was.Version)
		}
		if errors.As(err, new(*catalog.ConflictError)) && ctx.Err() == nil {
			continue
		}
		if err == nil {
			a.written(ctx, d)
		}
		return err
	}
}

// identityOf returns an entry as the engine has it.
func identityOf(e *catalog.Entry) identity.Entry {
	out := identity.Entry{Kind: identity.KindIP, Value: e.IP, Reason: e.Reason, Until: e.Until.Time}
	for kind, value := range map[identity.Kind]string{identity.KindUser: e.User, identity.KindTenant: e.Tenant, identity.KindKey: e.Key} {
		if value != "" {
			out.Kind, out.Value = kind, value
		}
	}
	return out
}

// entryOf returns an entry as the catalog has it.
func entryOf(e *identity.Entry) *catalog.Entry {
	if e == nil {
		return nil
	}
	out := &catalog.Entry{Reason: e.Reason, Until: catalog.Time{Time: e.Until}}
	*map[identity.Kind]*string{identity.KindIP: &out.IP, identity.KindUser: &out.User, identity.KindTenant: &out.Tenant, identity.KindKey: &out.Key}[e.Kind] = e.Value
	return out
}

// banHere bans on this node.
func (a *API) banHere(e catalog.Entry, d DryRun) (Record[catalog.Entry], error) {
	if !d.DryRun {
		if err := a.options.Engine.Ban(identityOf(&e)); err != nil {
			return Record[catalog.Entry]{}, refusedBy(err)
		}
	}
	return Record[catalog.Entry]{ID: e.ID(), Value: e}, nil
}

// unbanHere lifts a ban of this node.
func (a *API) unbanHere(e catalog.Entry, d DryRun) error {
	here := slices.ContainsFunc(a.options.Engine.Bans(), func(b identity.Entry) bool { return entryOf(&b).ID() == e.ID() })
	filed := slices.ContainsFunc(a.options.Document().Bans, func(b catalog.Entry) bool { return b.ID() == e.ID() })
	switch {
	case !here && filed:
		return a.errFile()
	case !here:
		return &catalog.NotFoundError{Kind: bans.one, ID: e.ID()}
	case d.DryRun:
		return nil
	}
	return refusedBy(a.options.Engine.Unban(identityOf(&e)))
}

// refusedBy makes what an engine does not take a problem with content.
func refusedBy(err error) error {
	if bad := new(stint.InvalidError); errors.As(err, &bad) {
		return blame(http.StatusUnprocessableEntity, "", strict.Quote(bad.Value)+": want "+bad.Want, "")
	}
	return err
}

// addOverrides adds what gives a user or a key limits of its own.
func (a *API) addOverrides() {
	type putInput struct {
		SubjectPath
		Name string `path:"limit_name" maxLength:"255" doc:"The name of the limit, escaped." example:"daily"`
		DryRun
		Body NewOverride
	}
	type putOutput struct {
		DryRun string `header:"Stint-Dry-Run" doc:"Is true if nothing was changed." example:"true"`
		Body   SubjectOverride
	}
	add(a, operation{
		ID: "putOverride", Method: http.MethodPut, Path: "/subjects/{kind}/{id}/overrides/{limit_name}", Tag: tagSubjects,
		Summary: "Give it a limit of its own", Description: "Gives a user or an API key a limit in place of that of its tier. A user that the catalog does not have is made.",
		Problems: []int{http.StatusConflict},
	}, catalog.Operator, func(ctx context.Context, in *putInput) (*putOutput, error) {
		s, err := in.subject()
		if err != nil {
			return nil, err
		}
		if until := in.Body.Until; !until.IsZero() && !until.After(a.now()) {
			return nil, blame(http.StatusUnprocessableEntity, "until", until.Format(time.RFC3339)+" is over, want a time to come", "")
		}
		err = a.override(ctx, s, in.DryRun, true, func(limits *map[string]catalog.Override) error {
			if *limits == nil {
				*limits = map[string]catalog.Override{}
			}
			(*limits)[in.Name] = catalog.Override(in.Body)
			return nil
		})
		return &putOutput{in.header(), SubjectOverride{in.Name, in.Body.Limit, in.Body.Until}}, err
	})

	type deleteInput struct {
		SubjectPath
		Name string `path:"limit_name" maxLength:"255" doc:"The name of the limit, escaped." example:"daily"`
		DryRun
	}
	add(a, operation{
		ID: "endOverride", Method: http.MethodDelete, Path: "/subjects/{kind}/{id}/overrides/{limit_name}", Tag: tagSubjects,
		Summary: "Take a limit of its own away", Description: "Has a user or an API key limited by its tier again.",
		Problems: []int{http.StatusConflict, http.StatusUnprocessableEntity},
	}, catalog.Operator, func(ctx context.Context, in *deleteInput) (*Gone, error) {
		s, err := in.subject()
		if err != nil {
			return nil, err
		}
		return &Gone{in.header()}, a.override(ctx, s, in.DryRun, false, func(limits *map[string]catalog.Override) error {
			if _, ok := (*limits)[in.Name]; !ok {
				return &catalog.NotFoundError{Kind: "limit of its own", ID: in.Name}
			}
			delete(*limits, in.Name)
			return nil
		})
	})
}

// override has the limits changed that a subject has of its own.
func (a *API) override(ctx context.Context, s *subject, d DryRun, create bool, change func(*map[string]catalog.Override) error) error {
	c, err := a.writing(d)
	if err != nil {
		return err
	}
	switch s.kind {
	case "user":
		for {
			_, err = c.Users.Modify(ctx, actor(ctx), s.id, func(u *catalog.User) error { return change(&u.Limits) })
			if missing := new(catalog.NotFoundError); !create || !errors.As(err, &missing) || missing.Kind != "user" {
				break
			}
			u := catalog.User{ID: s.id}
			if err = change(&u.Limits); err == nil {
				_, err = c.Users.Create(ctx, actor(ctx), u)
			}
			if !errors.As(err, new(*catalog.ConflictError)) || ctx.Err() != nil {
				break
			}
		}
	case "key":
		_, err = c.APIKeys.Modify(ctx, actor(ctx), s.id, func(k *catalog.APIKey) error { return change(&k.Limits) })
	default:
		return blame(http.StatusBadRequest, "kind", strict.Quote(s.kind)+": want user or key, which can have limits of their own", "")
	}
	if err == nil {
		a.written(ctx, d)
	}
	return err
}

// findSubjects returns those whose ids begin so.
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

// findInFile returns those of a file whose ids begin so.
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

// describeSubject returns what is known of a subject.
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
		of   *resource[catalog.Entry, catalog.Entry, Record[catalog.Entry]]
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
		d.Ban = nil // it is the same
	}
	if d.Ban == nil { // or what this node was told
		here, err := identity.NewList(a.options.Engine.Bans())
		if err != nil {
			return d, err
		}
		d.Ban = entryOf(here.Find(&who, now))
	}
	return d, nil
}

// describeKnown adds what the catalog has.
func (a *API) describeKnown(ctx context.Context, s *subject, d *Subject) (err error) {
	var limits map[string]catalog.Override
	switch s.kind {
	case "user":
		var u catalog.UserStatus
		if a.options.Catalog != nil {
			u, err = a.options.Catalog.UserStatus(ctx, s.id)
		} else {
			u.Record, err = filed(a.options.Document().Users, s, func(u *catalog.User) string { return u.ID })
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
			k.Record, err = filed(a.options.Document().APIKeys, s, func(k *catalog.APIKey) string { return k.ID })
		}
		if err == nil {
			v := keyOf(&k.Value)
			d.Value, d.Version, d.Tenant, d.Tier, d.User, d.Name = v, k.Version, v.Tenant, v.Tier, v.User, v.Name
			d.Total, d.LastUsed, limits = k.Total, k.LastUsed, v.Limits
		}
	case "tenant":
		var t catalog.Record[catalog.Tenant]
		if a.options.Catalog != nil {
			t, err = a.options.Catalog.Tenants.Get(ctx, s.id)
		} else {
			t, err = filed(a.options.Document().Tenants, s, func(t *catalog.Tenant) string { return t.ID })
		}
		if err == nil {
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

// filed returns what a file has of a subject.
func filed[T any](all []T, s *subject, id func(*T) string) (catalog.Record[T], error) {
	for i := range all {
		if id(&all[i]) == s.id {
			return catalog.Record[T]{Value: all[i]}, nil
		}
	}
	return catalog.Record[T]{}, &catalog.NotFoundError{Kind: s.kind, ID: s.id}
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
