package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// Key is an API key, without the hash of its secret.
type Key struct {
	ID        string                      `json:"id" doc:"The part of the key between its prefix and its secret. Read-only." example:"k3jq8w2n"`
	Prefix    string                      `json:"prefix,omitempty" doc:"The first characters of the key, so that its owner recognizes it. Read-only." example:"stint_k3jq"`
	Name      string                      `json:"name,omitempty" doc:"A name for people." example:"mobile app"`
	User      string                      `json:"user,omitempty" doc:"The user that the key belongs to." example:"alice"`
	Tenant    string                      `json:"tenant,omitempty" doc:"The tenant that the key belongs to." example:"acme"`
	Tier      string                      `json:"tier,omitempty" doc:"The tier, overriding that of the user." example:"pro"`
	Limits    map[string]catalog.Override `json:"limits,omitempty" doc:"Limits that override those of the tier, by name." example:"{\"daily\":\"200/day\"}"`
	Disabled  bool                        `json:"disabled,omitempty" doc:"Whether the key is disabled: requests with it are rejected." example:"false"`
	Expires   catalog.Time                `json:"expires,omitzero" doc:"When the key expires." example:"2026-12-31T00:00:00Z"`
	Revoked   catalog.Time                `json:"revoked,omitzero" doc:"When the key was revoked. Read-only." example:"2026-06-01T00:00:00Z"`
	RevokedBy string                      `json:"revoked_by,omitempty" doc:"Who revoked it. Read-only." example:"alice"`
	Replaces  string                      `json:"replaces,omitempty" doc:"The key that this one has replaced. Read-only." example:"h2mzt5xc"`
	Replaced  string                      `json:"replaced_by,omitempty" doc:"The key that has replaced this one. Read-only." example:"p9wd4ktb"`
}

// KeyRecord is an API key, as stored, and its use.
type KeyRecord struct {
	Record[Key]
	LastUsed time.Time `json:"last_used_at,omitzero" doc:"When the key was last used, on any node, a few seconds late. Never, if it is missing." example:"2026-01-31T12:00:00Z"`
	Total    int64     `json:"usage_total,omitempty" doc:"The number of requests with it so far." example:"120000"`
}

// NewKey is an API key to create.
type NewKey struct {
	Name    string                      `json:"name,omitempty" doc:"A name for people." example:"mobile app"`
	User    string                      `json:"user,omitempty" doc:"The user that the key belongs to, who must be in the catalog." example:"alice"`
	Tenant  string                      `json:"tenant,omitempty" doc:"The tenant that the key belongs to." example:"acme"`
	Tier    string                      `json:"tier,omitempty" doc:"The tier, overriding that of the user." example:"pro"`
	Limits  map[string]catalog.Override `json:"limits,omitempty" doc:"Limits that override those of the tier, by name." example:"{\"daily\":\"200/day\"}"`
	Expires catalog.Time                `json:"expires,omitzero" doc:"When it expires. Never, if it is missing." example:"2026-12-31T00:00:00Z"`
}

// CreatedKey is an API key, with its text.
type CreatedKey struct {
	Record[Key]
	Text string `json:"key" doc:"The text of the key, which clients send. It is shown only once and not stored. Empty for a dry run." example:"stint_k3jq8w2n_0123456789abcdefghijklmnop"`
}

func keyOf(k *catalog.APIKey) Key {
	return Key{k.ID, k.Prefix, k.Name, k.User, k.Tenant, k.Tier, k.Limits, k.Disabled, k.Expires, k.Revoked, k.RevokedBy, k.Replaces, k.ReplacedBy}
}

// put updates a stored key, or rejects changes of read-only fields.
func (k Key) put(into *catalog.APIKey) error {
	for _, f := range []struct{ name, is, was string }{
		{"id", k.ID, into.ID},
		{"prefix", k.Prefix, into.Prefix},
		{"revoked", k.Revoked.String(), into.Revoked.String()},
		{"revoked_by", k.RevokedBy, into.RevokedBy},
		{"replaces", k.Replaces, into.Replaces},
		{"replaced_by", k.Replaced, into.ReplacedBy},
	} {
		if f.is != f.was {
			return blame(http.StatusUnprocessableEntity, f.name, "cannot be changed", "a key is revoked by POST /keys/{id}/revoke, and replaced by /rotate")
		}
	}
	into.Name, into.User, into.Tenant, into.Tier = k.Name, k.User, k.Tenant, k.Tier
	into.Limits, into.Disabled, into.Expires = k.Limits, k.Disabled, k.Expires
	return nil
}

var keys = &resource[catalog.APIKey, Key, KeyRecord]{
	path: "keys", one: "key", tag: tagKeys, example: "k3jq8w2n", key: "id", patch: object{"disabled": true},
	table: func(c *catalog.Catalog) *catalog.Table[catalog.APIKey] { return c.APIKeys },
	filed: func(d *catalog.Document) []catalog.APIKey { return d.APIKeys },
	id:    func(k *catalog.APIKey) string { return k.ID },
	wire:  keyOf, put: Key.put, show: func(_ *API, r Record[Key]) KeyRecord { return KeyRecord{Record: r} },
	visible: func(p *person, k *catalog.APIKey) bool { return p.Covers(k.Tenant) }, byTenant: true,
	fill: fillKeys,
}

// fillKeys adds when keys were last used.
func fillKeys(ctx context.Context, a *API, all []KeyRecord) error {
	if a.options.Catalog == nil {
		return nil
	}
	uses, err := a.options.Catalog.KeyUses(ctx, converted(all, func(k *KeyRecord) string { return k.ID }))
	for i := range all {
		use := uses[all[i].ID]
		all[i].LastUsed, all[i].Total = use.Last, use.Total
	}
	return err
}

func init() { keys.keep = keepKey } // which uses keys

func (a *API) addKeys() {
	addList(a, keys, filterKeys)

	create := keys.op(http.MethodPost, "", "createKey", "Create a key", "Creates an API key and returns its text, which is shown only once.", http.StatusConflict)
	create.Status, create.Scoped = http.StatusCreated, true
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
		key := catalog.APIKey{Name: n.Name, User: n.User, Tenant: n.Tenant, Tier: n.Tier, Limits: n.Limits, Expires: n.Expires}
		if err := keys.change(ctx, a, &catalog.APIKey{}, &key); err != nil {
			return nil, err
		}
		text, made, version, err := c.CreateKey(ctx, actor(ctx), key)
		if err != nil {
			return nil, err
		}
		if a.written(ctx, in.DryRun); in.DryRun.DryRun {
			text = "" // which would not be valid
		}
		r := keys.kept(ctx, a, in.DryRun, &made, version, catalog.Record[catalog.APIKey]{})
		return &Made[CreatedKey]{Recorded[CreatedKey]{etag(r.Version), changed(in.DryRun, CreatedKey{r, text})}, keys.location(r.ID)}, nil
	})

	addReading(a, keys)
	addPatching(a, keys)

	rotate := keys.op(http.MethodPost, "/{id}/rotate", "rotateKey", "Rotate a key",
		"Creates a key with the same settings, and returns its text, which is shown only once. The old key stays valid for the grace, and then expires. Keys that were replaced earlier, and have expired, are deleted. "+
			"Rules that count by API key count the new one from zero.", http.StatusConflict)
	rotate.Status, rotate.Scoped = http.StatusCreated, true
	add(a, rotate, catalog.Operator, func(ctx context.Context, in *struct {
		ByID
		DryRun
		Body *Rotation
	},
	) (*Made[RotatedKey], error) {
		return a.rotate(ctx, in.DryRun, in.ID, in.Body, func(r catalog.Record[catalog.APIKey]) error { return keys.exists(ctx, in.ID, &r.Value) })
	})

	revoke := keys.op(http.MethodPost, "/{id}/revoke", "revokeKey", "Revoke a key", "Revokes a key, at once. A key that is revoked stays as it is.", http.StatusConflict, http.StatusUnprocessableEntity)
	revoke.Scoped = true
	add(a, revoke,
		catalog.Operator, func(ctx context.Context, in *struct {
			ByID
			DryRun
		},
		) (*Recorded[KeyRecord], error) {
			return keys.replace(ctx, a, in.DryRun, in.ID, anyVersion, func(k *catalog.APIKey) error {
				if now := a.now().UTC().Truncate(time.Microsecond); k.Revoked.IsZero() || k.Revoked.After(now) {
					k.Revoked, k.RevokedBy = catalog.Time{Time: now}, actor(ctx)
				}
				return nil
			})
		})
}
