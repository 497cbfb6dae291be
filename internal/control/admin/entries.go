package admin

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// NewEntry is a ban or an exemption to create.
type NewEntry struct {
	Reason string       `json:"reason,omitempty" doc:"The reason. The client may see it." example:"scraping"`
	Until  catalog.Time `json:"until,omitzero" doc:"When it ends. Never, if it is missing." example:"2026-12-31T00:00:00Z"`
}

// entry returns the ban or exemption of the subject.
func (s *subject) entry(n NewEntry) catalog.Entry {
	e := catalog.Entry{User: s.who.User, Tenant: s.who.Tenant, Key: s.who.Key, Reason: n.Reason, Until: n.Until}
	if s.kind == "ip" {
		e.IP = s.id
	}
	return e
}

// Bans and exemptions.
var (
	bans = entries("bans", "ban", "ip:192.0.2.0%2F24",
		func(c *catalog.Catalog) *catalog.Table[catalog.Entry] { return c.Bans },
		func(d *catalog.Document) []catalog.Entry { return d.Bans })
	exemptions = entries("exemptions", "exemption", "user:alice",
		func(c *catalog.Catalog) *catalog.Table[catalog.Entry] { return c.Exemptions },
		func(d *catalog.Document) []catalog.Entry { return d.Exemptions })
)

type entryList = resource[catalog.Entry, catalog.Entry, Record[catalog.Entry]]

func entries(path, one, example string, table func(*catalog.Catalog) *catalog.Table[catalog.Entry], filed func(*catalog.Document) []catalog.Entry) *entryList {
	return &entryList{
		path: path, one: one, tag: tagLists, example: example, patch: object{"reason": "scraping", "until": "2026-12-31T00:00:00Z"}, table: table, filed: filed,
		id: (*catalog.Entry).ID, wire: same[catalog.Entry], put: assign[catalog.Entry], show: plain[catalog.Entry],
	}
}

// addBans adds the operations that ban and exempt a subject.
func (a *API) addBans() {
	a.addEntries(bans, "Ban a subject", "Denies all requests of the subject, at once. An existing ban is replaced.",
		"Lift a ban", "Applies the rules to requests of the subject again.")
	a.addEntries(exemptions, "Exempt a subject", "Lets all requests of the subject pass without counting them, at once, unless it is banned. An existing exemption is replaced.",
		"End an exemption", "Counts requests of the subject again.")
}

// addEntries adds the operations that put a subject on a list and remove it.
func (a *API) addEntries(list *entryList, put, putLong, remove, removeLong string) {
	type putInput struct {
		SubjectPath
		DryRun
		Body *NewEntry
	}
	path := "/subjects/{kind}/{id}/" + list.one
	local := list == bans && a.options.Catalog == nil // on this node only
	const here = " If rules are in a file, a ban applies to this node only, until it stops, and exemptions cannot be set."
	add(a, operation{
		ID: "put" + list.word(), Method: http.MethodPut, Path: path, Tag: tagSubjects,
		Scoped: list == bans, Summary: put, Description: putLong + here, Problems: []int{http.StatusConflict},
	}, catalog.Operator, func(ctx context.Context, in *putInput) (*Recorded[Record[catalog.Entry]], error) {
		s, err := in.subject()
		if err == nil {
			err = a.ownsClient(ctx, s)
		}
		if err != nil {
			return nil, err
		}
		var entry NewEntry
		if in.Body != nil {
			entry = *in.Body
		}
		if err := a.checkUntil(entry.Until); err != nil {
			return nil, err
		}
		if local {
			return a.banHere(s.entry(entry), in.DryRun)
		}
		return putEntry(ctx, a, list, s.entry(entry), in.DryRun)
	})

	type deleteInput struct {
		SubjectPath
		DryRun
	}
	add(a, operation{
		ID: "end" + list.word(), Method: http.MethodDelete, Path: path, Tag: tagSubjects,
		Scoped: list == bans, Summary: remove, Description: removeLong + " Entries for its network or tenant stay.",
		Problems: []int{http.StatusConflict},
	}, catalog.Operator, func(ctx context.Context, in *deleteInput) (*Gone, error) {
		s, err := in.subject()
		if err == nil {
			err = a.ownsClient(ctx, s)
		}
		if err != nil {
			return nil, err
		}
		e := s.entry(NewEntry{})
		if local {
			return &Gone{in.header()}, a.unbanHere(e, in.DryRun)
		}
		return list.remove(ctx, a, in.DryRun, e.ID(), 0)
	})
}

// checkUntil rejects a time in the past.
func (a *API) checkUntil(until catalog.Time) error {
	if !until.IsZero() && !until.After(a.now()) {
		return blame(http.StatusUnprocessableEntity, "until", until.Format(time.RFC3339)+" is in the past, want a time in the future", "")
	}
	return nil
}

// putEntry creates or replaces an entry.
func putEntry(ctx context.Context, a *API, list *entryList, e catalog.Entry, d DryRun) (*Recorded[Record[catalog.Entry]], error) {
	c, err := a.writing(d)
	if err != nil {
		return nil, err
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
			return list.recorded(a, d, list.kept(ctx, a, d, &e, version, was)), nil
		}
		if meanwhile := errors.As(err, new(*catalog.ConflictError)) || errors.As(err, new(*catalog.NotFoundError)); !meanwhile || ctx.Err() != nil {
			return nil, err
		}
	}
}

// identityOf converts an entry for the engine.
func identityOf(e *catalog.Entry) identity.Entry {
	out := identity.Entry{Kind: identity.KindIP, Value: e.IP, Reason: e.Reason, Until: e.Until.Time}
	for kind, value := range map[identity.Kind]string{identity.KindUser: e.User, identity.KindTenant: e.Tenant, identity.KindKey: e.Key} {
		if value != "" {
			out.Kind, out.Value = kind, value
		}
	}
	return out
}

// entryOf converts an entry of the engine.
func entryOf(e *identity.Entry) *catalog.Entry {
	if e == nil {
		return nil
	}
	out := &catalog.Entry{Reason: e.Reason, Until: catalog.Time{Time: e.Until}}
	*map[identity.Kind]*string{identity.KindIP: &out.IP, identity.KindUser: &out.User, identity.KindTenant: &out.Tenant, identity.KindKey: &out.Key}[e.Kind] = e.Value
	return out
}

// banHere bans on this node only.
func (a *API) banHere(e catalog.Entry, d DryRun) (*Recorded[Record[catalog.Entry]], error) {
	if !d.DryRun {
		if err := a.options.Engine.Ban(identityOf(&e)); err != nil {
			return nil, rejectedBy(err)
		}
	}
	return bans.recorded(a, d, Record[catalog.Entry]{ID: e.ID(), Value: e}), nil
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
	return rejectedBy(a.options.Engine.Unban(identityOf(&e)))
}

// rejectedBy converts an error of the engine about invalid input to a problem.
func rejectedBy(err error) error {
	if bad := new(stint.InvalidError); errors.As(err, &bad) {
		return blame(http.StatusUnprocessableEntity, "", strict.Quote(bad.Value)+": want "+bad.Want, "")
	}
	return err
}
