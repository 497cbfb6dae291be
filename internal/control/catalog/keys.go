package catalog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"

	"github.com/stintdev/stint/identity"
)

// CreateKey creates an API key with the fields of k, except for a new id, hash and prefix. The
// text, which clients send, is returned only here, and not stored.
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
