package catalog

import (
	"context"
	"slices"
	"strings"
)

// Found is a user, an API key or a tenant of the catalog.
type Found struct {
	Kind   string `json:"kind"` // user, key or tenant
	ID     string `json:"id"`
	Name   string `json:"name,omitempty"`
	Tier   string `json:"tier,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	User   string `json:"user,omitempty"`
	Prefix string `json:"prefix,omitempty"`
}

// FindSubjects returns users, API keys and tenants whose ids begin with the prefix, some of
// each, and at most limit, from 1 to 1000. For an API key the prefix may also be the
// beginning of its text, or all of it.
func (c *Catalog) FindSubjects(ctx context.Context, prefix string, limit int) ([]Found, error) {
	keyIDs, secret := keyPrefixes(prefix)
	var users, keys, tenants []Found
	if !secret {
		all, err := c.Users.List(ctx, Query{Prefix: prefix, Limit: limit})
		if err != nil {
			return nil, err
		}
		for i := range all {
			u := &all[i].Value
			users = append(users, Found{Kind: "user", ID: u.ID, Tier: u.Tier, Tenant: u.Tenant})
		}
		others, err := c.Tenants.List(ctx, Query{Prefix: prefix, Limit: limit})
		if err != nil {
			return nil, err
		}
		for i := range others {
			t := &others[i].Value
			tenants = append(tenants, Found{Kind: "tenant", ID: t.ID, Name: t.Name, Tier: t.Tier})
		}
	}
	for _, id := range keyIDs {
		all, err := c.APIKeys.List(ctx, Query{Prefix: id, Limit: limit})
		if err != nil {
			return nil, err
		}
		for i := range all {
			k := &all[i].Value
			if id == prefix || strings.HasPrefix(prefix, k.Prefix) || strings.HasPrefix(k.Prefix, prefix) {
				keys = append(keys, Found{Kind: "key", ID: k.ID, Name: k.Name, Tier: k.Tier, Tenant: k.Tenant, User: k.User, Prefix: k.Prefix})
			}
		}
	}
	return share(limit, users, keys, tenants), nil
}

// keyPrefixes returns the prefixes of ids of API keys that a text may stand for: an id, or the
// text of a key, whose prefix may have underscores. A secret must not reach the database, so
// secret reports whether the text contains a large part of one.
func keyPrefixes(text string) (ids []string, secret bool) {
	parts := strings.Split(text, "_")
	const maxParts, minSecret = 6, 16
	for i, part := range parts[:min(len(parts), maxParts)] {
		switch {
		case i == 0 && len(parts) > 1, i > 0 && part == "", strings.ContainsFunc(part, notAlphanumeric), slices.Contains(ids, part):
		case i > 0 && len(part) >= minSecret && validKeyID(parts[i-1]):
			return ids, true
		default:
			ids = append(ids, part)
		}
	}
	return ids, false
}

// share returns at most limit items, about the same number of each list.
func share(limit int, lists ...[]Found) []Found {
	out := []Found{}
	taken := make([]int, len(lists))
	for left := limit; left > 0; {
		before := left
		for i := range lists {
			if left > 0 && taken[i] < len(lists[i]) {
				taken[i]++
				left--
			}
		}
		if left == before {
			break
		}
	}
	for i := range lists {
		out = append(out, lists[i][:taken[i]]...)
	}
	return out
}
