package catalog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"

	"github.com/stintdev/stint/identity"
)

// CreateKey makes an API key of what is given, but for its id, hash and prefix, and
// returns it with its text, which is what its client sends. The text is nowhere else:
// this is the only time that it can be seen.
func (c *Catalog) CreateKey(ctx context.Context, actor string, k APIKey) (text string, made APIKey, version int64, err error) {
	text, key, err := identity.GenerateKey(rand.Reader, c.options.KeyPrefix, c.options.Pepper)
	if err != nil {
		return "", APIKey{}, 0, err
	}
	const shown = 4 // letters of the id
	k.ID, k.Hash = key.ID, key.Hashing.String()+":"+hex.EncodeToString(key.Hash[:])
	k.Prefix = text[:strings.Index(text, key.ID)+shown]
	version, err = c.APIKeys.Create(ctx, actor, k)
	if err != nil {
		return "", APIKey{}, 0, err
	}
	return text, k, version, nil
}

// RevokeKey revokes an API key, now. One that is revoked stays as it is.
func (c *Catalog) RevokeKey(ctx context.Context, actor, id string) error {
	_, err := c.APIKeys.Modify(ctx, actor, id, func(k *APIKey) error {
		if now := c.options.Now().UTC().Truncate(time.Microsecond); k.Revoked.IsZero() || k.Revoked.After(now) {
			k.Revoked, k.RevokedBy = Time{now}, actor
		}
		return nil
	})
	return err
}
