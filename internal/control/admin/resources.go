package admin

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/rule"
)

// The filters of lists.
type (
	// RuleFilter is what rules can be asked for.
	RuleFilter struct {
		Page
		Q       string `query:"q" doc:"A part of the name, whatever the case of its letters." example:"sear"`
		Action  string `query:"action" enum:"reject,throttle,log_only,block,allow" doc:"Those with this action." example:"reject"`
		Enabled string `query:"enabled" enum:"true,false" doc:"Those that are in use, or those that are not." example:"true"`
		Group   string `query:"group" doc:"Those of this group." example:"public"`
	}
	// TierFilter is what tiers can be asked for.
	TierFilter struct{ Page }
	// UserFilter is what users can be asked for.
	UserFilter struct {
		Page
		Tier    string `query:"tier" doc:"Those of this tier." example:"pro"`
		Tenant  string `query:"tenant" doc:"Those of this tenant." example:"acme"`
		Blocked bool   `query:"blocked" doc:"Those that have been blocked, whether or not that is over." example:"true"`
	}
	// KeyFilter is what API keys can be asked for.
	KeyFilter struct {
		Page
		User   string `query:"user" doc:"Those of this user." example:"alice"`
		Tier   string `query:"tier" doc:"Those of this tier." example:"pro"`
		Tenant string `query:"tenant" doc:"Those of this tenant." example:"acme"`
	}
	// TenantFilter is what tenants can be asked for.
	TenantFilter struct {
		Page
		Tier string `query:"tier" doc:"Those of this tier." example:"pro"`
	}
	// EntryFilter is what exemptions and bans can be asked for.
	EntryFilter struct{ Page }
)

// with adds filters that are given to a query.
func with(q catalog.Query, filters ...string) catalog.Query {
	q.Filters = map[string]string{}
	for i := 0; i < len(filters); i += 2 {
		if filters[i+1] != "" {
			q.Filters[filters[i]] = filters[i+1]
		}
	}
	return q
}

// is reports whether a value is the one that is asked for, if one is.
func is(asked, value string) bool { return asked == "" || asked == value }

func (f *RuleFilter) query() catalog.Query {
	q := with(f.Page.query(), "action", f.Action, "enabled", f.Enabled, "group", f.Group)
	q.Contains = f.Q
	return q
}

func (f *RuleFilter) keeps(r *rule.Rule) bool {
	action, enabled := string(r.Action), "true"
	if action == "" {
		action = string(rule.Reject)
	}
	if r.Enabled != nil && !*r.Enabled {
		enabled = "false"
	}
	return strings.Contains(strings.ToLower(r.Name), strings.ToLower(f.Q)) && is(f.Action, action) && is(f.Enabled, enabled) && is(f.Group, r.Group)
}

func (f *TierFilter) query() catalog.Query  { return f.Page.query() }
func (f *TierFilter) keeps(*rule.Tier) bool { return true }

func (f *UserFilter) query() catalog.Query {
	q := with(f.Page.query(), "tier", f.Tier, "tenant", f.Tenant)
	q.Blocked = f.Blocked
	return q
}

func (f *UserFilter) keeps(u *catalog.User) bool {
	return is(f.Tier, u.Tier) && is(f.Tenant, u.Tenant) && (!f.Blocked || u.Blocked != nil)
}

func (f *KeyFilter) query() catalog.Query {
	return with(f.Page.query(), "user_id", f.User, "tier", f.Tier, "tenant", f.Tenant)
}

func (f *KeyFilter) keeps(k *catalog.APIKey) bool {
	return is(f.User, k.User) && is(f.Tier, k.Tier) && is(f.Tenant, k.Tenant)
}

func (f *TenantFilter) query() catalog.Query         { return with(f.Page.query(), "tier", f.Tier) }
func (f *TenantFilter) keeps(t *catalog.Tenant) bool { return is(f.Tier, t.Tier) }

func (f *EntryFilter) query() catalog.Query      { return f.Page.query() }
func (f *EntryFilter) keeps(*catalog.Entry) bool { return true }

// object is JSON.
type object = map[string]any

// addResources adds all kinds of things but rules and keys, which are more than that.
func (a *API) addResources() {
	tiers := &resource[rule.Tier, rule.Tier, Record[rule.Tier]]{
		path: "tiers", one: "tier", tag: tagTiers, example: "pro", key: "name", patch: object{"price": "59 EUR a month"},
		table: func(c *catalog.Catalog) *catalog.Table[rule.Tier] { return c.Tiers },
		filed: func(d *catalog.Document) []rule.Tier { return d.Tiers },
		id:    func(t *rule.Tier) string { return t.Name },
		wire:  same[rule.Tier], put: assign[rule.Tier], show: plain[rule.Tier],
	}
	addList(a, tiers, func(f *TierFilter) filter[rule.Tier] { return f })
	addWhole(a, tiers)

	users := &resource[catalog.User, catalog.User, Record[catalog.User]]{
		path: "users", one: "user", tag: tagUsers, example: "alice", key: "id", patch: object{"tier": "pro", "blocked": nil},
		table: func(c *catalog.Catalog) *catalog.Table[catalog.User] { return c.Users },
		filed: func(d *catalog.Document) []catalog.User { return d.Users },
		id:    func(u *catalog.User) string { return u.ID },
		wire:  same[catalog.User], put: assign[catalog.User], show: plain[catalog.User],
	}
	addList(a, users, func(f *UserFilter) filter[catalog.User] { return f })
	addWhole(a, users)

	tenants := &resource[catalog.Tenant, catalog.Tenant, Record[catalog.Tenant]]{
		path: "tenants", one: "tenant", tag: tagTenants, example: "acme", key: "id", patch: object{"tier": "pro"},
		table: func(c *catalog.Catalog) *catalog.Table[catalog.Tenant] { return c.Tenants },
		filed: func(d *catalog.Document) []catalog.Tenant { return d.Tenants },
		id:    func(t *catalog.Tenant) string { return t.ID },
		wire:  same[catalog.Tenant], put: assign[catalog.Tenant], show: plain[catalog.Tenant],
	}
	addList(a, tenants, func(f *TenantFilter) filter[catalog.Tenant] { return f })
	addWhole(a, tenants)

	exemptions := entries("exemptions", "exemption", "user:alice",
		func(c *catalog.Catalog) *catalog.Table[catalog.Entry] { return c.Exemptions },
		func(d *catalog.Document) []catalog.Entry { return d.Exemptions })
	addList(a, exemptions, func(f *EntryFilter) filter[catalog.Entry] { return f })
	addWhole(a, exemptions)

	bans := entries("bans", "ban", "ip:192.0.2.0%2F24",
		func(c *catalog.Catalog) *catalog.Table[catalog.Entry] { return c.Bans },
		func(d *catalog.Document) []catalog.Entry { return d.Bans })
	addList(a, bans, func(f *EntryFilter) filter[catalog.Entry] { return f })
	addWhole(a, bans)

	a.addKeys()
}

func entries(path, one, example string, table func(*catalog.Catalog) *catalog.Table[catalog.Entry], filed func(*catalog.Document) []catalog.Entry) *resource[catalog.Entry, catalog.Entry, Record[catalog.Entry]] {
	return &resource[catalog.Entry, catalog.Entry, Record[catalog.Entry]]{
		path: path, one: one, tag: tagLists, example: example, patch: object{"reason": "scraping", "until": "2026-12-31T00:00:00Z"}, table: table, filed: filed,
		id: (*catalog.Entry).ID, wire: same[catalog.Entry], put: assign[catalog.Entry], show: plain[catalog.Entry],
	}
}

// addWhole adds all that can be done with one.
func addWhole[T, W, R any](a *API, s *resource[T, W, R]) {
	addWriting(a, s)
	addReading(a, s)
	addPatching(a, s)
}

// Key is an API key, without the hash of its secret.
type Key struct {
	ID        string                      `json:"id" doc:"The part of the key between its prefix and its secret. It cannot be changed." example:"k3jq8w2n"`
	Prefix    string                      `json:"prefix,omitempty" doc:"How the key begins, so that its owner knows it again. It cannot be changed." example:"stint_k3jq"`
	Name      string                      `json:"name,omitempty" doc:"For people." example:"mobile app"`
	User      string                      `json:"user,omitempty" doc:"Whose it is." example:"alice"`
	Tenant    string                      `json:"tenant,omitempty" doc:"The tenant that it is of." example:"acme"`
	Tier      string                      `json:"tier,omitempty" doc:"The tier, in place of that of its user." example:"pro"`
	Limits    map[string]catalog.Override `json:"limits,omitempty" doc:"Limits in place of those of the tier, by their names." example:"{\"daily\":\"200/day\"}"`
	Disabled  bool                        `json:"disabled,omitempty" doc:"Whether it is not good for now." example:"false"`
	Expires   catalog.Time                `json:"expires,omitzero" doc:"When it stops being good." example:"2026-12-31T00:00:00Z"`
	Revoked   catalog.Time                `json:"revoked,omitzero" doc:"When it was revoked. It cannot be changed here." example:"2026-06-01T00:00:00Z"`
	RevokedBy string                      `json:"revoked_by,omitempty" doc:"By whom. It cannot be changed here." example:"alice"`
}

// NewKey is an API key that is to be made.
type NewKey struct {
	Name    string                      `json:"name,omitempty" doc:"For people." example:"mobile app"`
	User    string                      `json:"user,omitempty" doc:"Whose it is: a user of the catalog." example:"alice"`
	Tenant  string                      `json:"tenant,omitempty" doc:"The tenant that it is of." example:"acme"`
	Tier    string                      `json:"tier,omitempty" doc:"The tier, in place of that of its user." example:"pro"`
	Limits  map[string]catalog.Override `json:"limits,omitempty" doc:"Limits in place of those of the tier, by their names." example:"{\"daily\":\"200/day\"}"`
	Expires catalog.Time                `json:"expires,omitzero" doc:"When it stops being good. Without it, never." example:"2026-12-31T00:00:00Z"`
}

// CreatedKey is an API key, with its text.
type CreatedKey struct {
	Record[Key]
	Text string `json:"key" doc:"The text of the key, which is what its client sends. It is told this once, and kept nowhere. Empty if it was only tried." example:"stint_k3jq8w2n_0123456789abcdefghijklmnop"`
}

func keyOf(k *catalog.APIKey) Key {
	return Key{k.ID, k.Prefix, k.Name, k.User, k.Tenant, k.Tier, k.Limits, k.Disabled, k.Expires, k.Revoked, k.RevokedBy}
}

// put makes a stored key what is wanted of it.
func (k Key) put(into *catalog.APIKey) error {
	for _, f := range []struct{ name, is, was string }{
		{"id", k.ID, into.ID},
		{"prefix", k.Prefix, into.Prefix},
		{"revoked", k.Revoked.String(), into.Revoked.String()},
		{"revoked_by", k.RevokedBy, into.RevokedBy},
	} {
		if f.is != f.was {
			return blame(http.StatusUnprocessableEntity, f.name, "cannot be changed", "a key is revoked by POST /keys/{id}/revoke")
		}
	}
	into.Name, into.User, into.Tenant, into.Tier = k.Name, k.User, k.Tenant, k.Tier
	into.Limits, into.Disabled, into.Expires = k.Limits, k.Disabled, k.Expires
	return nil
}

func (a *API) addKeys() {
	keys := &resource[catalog.APIKey, Key, Record[Key]]{
		path: "keys", one: "key", tag: tagKeys, example: "k3jq8w2n", key: "id", patch: object{"disabled": true},
		table: func(c *catalog.Catalog) *catalog.Table[catalog.APIKey] { return c.APIKeys },
		filed: func(d *catalog.Document) []catalog.APIKey { return d.APIKeys },
		id:    func(k *catalog.APIKey) string { return k.ID },
		wire:  keyOf, put: Key.put, show: plain[Key],
	}
	addList(a, keys, func(f *KeyFilter) filter[catalog.APIKey] { return f })

	create := keys.op(http.MethodPost, "", "createKey", "Make a key", "Makes an API key, and returns its text, which is told this once.", http.StatusConflict)
	create.Status = http.StatusCreated
	add(a, create, catalog.Operator, func(ctx context.Context, in *struct {
		DryRun
		Body NewKey
	},
	) (*Made[CreatedKey], error) {
		c, err := a.writing(in.DryRun)
		if err != nil {
			return nil, err
		}
		n := &in.Body
		text, made, version, err := c.CreateKey(ctx, actor(ctx), catalog.APIKey{
			Name: n.Name, User: n.User, Tenant: n.Tenant, Tier: n.Tier, Limits: n.Limits, Expires: n.Expires,
		})
		if err != nil {
			return nil, err
		}
		if a.written(ctx, in.DryRun); in.DryRun.DryRun {
			text = "" // which would open nothing
		}
		r := keys.kept(ctx, a, in.DryRun, &made, version, catalog.Record[catalog.APIKey]{})
		return &Made[CreatedKey]{Recorded[CreatedKey]{etag(r.Version), in.header(), CreatedKey{r, text}}, keys.location(r.ID)}, nil
	})

	addReading(a, keys)
	addPatching(a, keys)

	add(a, keys.op(http.MethodPost, "/{id}/revoke", "revokeKey", "Revoke a key", "Revokes a key, now. One that is revoked stays as it is.", http.StatusConflict, http.StatusUnprocessableEntity),
		catalog.Operator, func(ctx context.Context, in *struct {
			ByID
			DryRun
		},
		) (*Recorded[Record[Key]], error) {
			r, err := keys.replace(ctx, a, in.DryRun, in.ID, 0, func(k *catalog.APIKey) error {
				if now := a.now().UTC().Truncate(time.Microsecond); k.Revoked.IsZero() || k.Revoked.After(now) {
					k.Revoked, k.RevokedBy = catalog.Time{Time: now}, actor(ctx)
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
			out := keys.recorded(a, in.DryRun, r)
			return &out, nil
		})
}
