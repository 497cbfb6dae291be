package catalog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/stintdev/stint/identity"
)

// CreateKey creates an API key with the fields of k, except for a new id, hash and prefix. The
// text, which clients send, is returned only here, and not stored.
func (c *Catalog) CreateKey(ctx context.Context, actor string, k APIKey) (text string, made APIKey, version int64, err error) {
	if text, err = c.generate(&k); err != nil {
		return "", APIKey{}, 0, err
	}
	version, err = c.APIKeys.Create(ctx, actor, k)
	if err != nil {
		return "", APIKey{}, 0, err
	}
	return text, k, version, nil
}

// generate gives a key an id, a hash and a prefix.
func (c *Catalog) generate(k *APIKey) (text string, err error) {
	text, key, err := identity.GenerateKey(rand.Reader, c.options.KeyPrefix, c.options.Pepper)
	if err != nil {
		return "", err
	}
	const shown = 4 // letters of the id
	k.ID, k.Hash = key.ID, key.Hashing.String()+":"+hex.EncodeToString(key.Hash[:])
	k.Prefix = text[:strings.Index(text, key.ID)+shown]
	return text, nil
}

// maxReplaced is how many predecessors of a key are looked at.
const maxReplaced = 100

// RotateKey replaces a key by a new one with the same settings, in one change. The old key
// stays valid for the grace, but not longer than it was. Its predecessors that have expired are deleted. check may refuse
// it. The text is returned only here, and not stored.
func (c *Catalog) RotateKey(ctx context.Context, actor, id string, grace time.Duration, check func(Record[APIKey]) error) (text string, made APIKey, version int64, err error) {
	version, err = c.write(ctx, actor, func(x *tx) error {
		found, err := x.find(ctx, c.APIKeys.table, id)
		if err != nil {
			return err
		}
		if found == nil {
			return &NotFoundError{kindKey, id}
		}
		old := Record[APIKey]{Version: found.version, Created: found.created.Time, Updated: found.updated.Time, By: found.by}
		if err := json.Unmarshal([]byte(found.body), &old.Value); err != nil {
			return &unreadableError{kindKey, id, err}
		}
		if err := check(old); err != nil {
			return err
		}
		made = old.Value
		made.Replaces = id
		if text, err = c.generate(&made); err != nil {
			return err
		}
		old.Value.ReplacedBy = made.ID
		until := x.now.Add(grace)
		if e := old.Value.Expires; e.IsZero() || e.After(until) {
			old.Value.Expires = Time{Time: until}
		}
		if err := x.put(ctx, &c.APIKeys.kind, id, found, &old.Value, ""); err != nil {
			return err
		}
		if err := x.put(ctx, &c.APIKeys.kind, made.ID, nil, &made, ""); err != nil {
			return err
		}
		return x.removeReplaced(ctx, old.Value.Replaces)
	})
	if err != nil {
		return "", APIKey{}, 0, err
	}
	return text, made, version, nil
}

// removeReplaced deletes a key that was replaced, and its predecessors, from the oldest on, as far as they have expired.
func (t *tx) removeReplaced(ctx context.Context, id string) error {
	type replaced struct {
		key APIKey
		row *row
	}
	var all []replaced
	for id != "" && len(all) < maxReplaced {
		found, err := t.find(ctx, t.c.APIKeys.table, id)
		if err != nil {
			return err
		}
		if found == nil {
			break
		}
		r := replaced{row: found}
		if err := json.Unmarshal([]byte(found.body), &r.key); err != nil {
			return &unreadableError{kindKey, id, err}
		}
		all, id = append(all, r), r.key.Replaces
	}
	for i := len(all) - 1; i >= 0; i-- {
		k := &all[i].key
		if k.Expires.IsZero() || k.Expires.After(t.now) {
			break
		}
		if err := t.remove(ctx, &t.c.APIKeys.kind, k.ID, all[i].row); err != nil {
			return err
		}
	}
	return nil
}
