package daemon

import (
	"context"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/rule"
)

// directory is the users and keys of a configuration. It does not change.
type directory struct {
	keys  map[string]*identity.Key
	users map[string]*identity.User
}

var _ identity.Directory = (*directory)(nil)

// Key implements [identity.Directory].
func (d *directory) Key(_ context.Context, id string) (*identity.Key, error) { return d.keys[id], nil }

// User implements [identity.Directory].
func (d *directory) User(_ context.Context, id string) (*identity.User, error) {
	return d.users[id], nil
}

// Directory returns the users and keys of the configuration.
func (c *Config) Directory() identity.Directory {
	d := &directory{
		keys: make(map[string]*identity.Key, len(c.APIKeys)), users: make(map[string]*identity.User, len(c.Users)),
	}
	for i := range c.Users {
		u := &c.Users[i]
		user := &identity.User{ID: u.ID, Tenant: u.Tenant, Tier: u.Tier, Limits: values(u.Limits)}
		if b := u.Blocked; b != nil {
			user.Blocked = &identity.Entry{Kind: identity.KindUser, Value: u.ID, Reason: b.Reason, Until: b.Until.Time}
		}
		d.users[u.ID] = user
	}
	for i := range c.APIKeys {
		k := &c.APIKeys[i]
		hash, hashing, _ := parseHash(k.Hash) // checked, as the limits are
		d.keys[k.ID] = &identity.Key{
			ID: k.ID, Hash: hash, Hashing: hashing, User: k.User, Tenant: k.Tenant, Tier: k.Tier, Limits: values(k.Limits),
			Disabled: k.Disabled, Expires: k.Expires.Time, Revoked: k.Revoked.Time,
		}
	}
	return d
}

// values reads limits that were checked.
func values(limits map[string]string) rule.Values {
	if len(limits) == 0 {
		return nil
	}
	out := make(rule.Values, len(limits))
	for name, text := range limits {
		out[name], _ = rule.ParseValue(text)
	}
	return out
}
