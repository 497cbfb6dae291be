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
	return Key{k.ID, k.Prefix, k.Name, k.User, k.Tenant, k.Tier, k.Limits, k.Disabled, k.Expires, k.Revoked, k.RevokedBy}
}

// put updates a stored key, or rejects changes of read-only fields.
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

var keys = &resource[catalog.APIKey, Key, Record[Key]]{
	path: "keys", one: "key", tag: tagKeys, example: "k3jq8w2n", key: "id", patch: object{"disabled": true},
	table: func(c *catalog.Catalog) *catalog.Table[catalog.APIKey] { return c.APIKeys },
	filed: func(d *catalog.Document) []catalog.APIKey { return d.APIKeys },
	id:    func(k *catalog.APIKey) string { return k.ID },
	wire:  keyOf, put: Key.put, show: plain[Key],
}

func (a *API) addKeys() {
	addList(a, keys, filterKeys)

	create := keys.op(http.MethodPost, "", "createKey", "Create a key", "Creates an API key and returns its text, which is shown only once.", http.StatusConflict)
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
			text = "" // which would not be valid
		}
		r := keys.kept(ctx, a, in.DryRun, &made, version, catalog.Record[catalog.APIKey]{})
		return &Made[CreatedKey]{Recorded[CreatedKey]{etag(r.Version), changed(in.DryRun, CreatedKey{r, text})}, keys.location(r.ID)}, nil
	})

	addReading(a, keys)
	addPatching(a, keys)

	add(a, keys.op(http.MethodPost, "/{id}/revoke", "revokeKey", "Revoke a key", "Revokes a key, at once. A key that is revoked stays as it is.", http.StatusConflict, http.StatusUnprocessableEntity),
		catalog.Operator, func(ctx context.Context, in *struct {
			ByID
			DryRun
		},
		) (*Recorded[Record[Key]], error) {
			return keys.replace(ctx, a, in.DryRun, in.ID, anyVersion, func(k *catalog.APIKey) error {
				if now := a.now().UTC().Truncate(time.Microsecond); k.Revoked.IsZero() || k.Revoked.After(now) {
					k.Revoked, k.RevokedBy = catalog.Time{Time: now}, actor(ctx)
				}
				return nil
			})
		})
}
