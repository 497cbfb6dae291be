package admin

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

const (
	// standardGrace is how long a key stays valid after it was rotated.
	standardGrace = 24 * time.Hour
	maxGrace      = 30 * 24 * time.Hour
)

// Rotation says how to rotate a key.
type Rotation struct {
	Grace *float64 `json:"grace_seconds,omitempty" doc:"How long the old key stays valid, at most 30 days. Default 86400, a day. 0: it expires at once." example:"3600"`
}

// grace returns how long the old key stays valid.
func (r *Rotation) grace(most time.Duration) (time.Duration, error) {
	if r == nil || r.Grace == nil {
		return standardGrace, nil
	}
	if s := *r.Grace; !(s >= 0 && s <= most.Seconds()) {
		return 0, blame(http.StatusUnprocessableEntity, "grace_seconds", "want 0 to "+strconv.FormatFloat(most.Seconds(), 'f', -1, 64)+", which is 30 days", "")
	}
	return time.Duration(*r.Grace * float64(time.Second)), nil
}

// RotatedKey is a new key, with its text, and the one that it replaces.
type RotatedKey struct {
	CreatedKey
	Old     string       `json:"old_id" doc:"The id of the key that it replaces." example:"h2mzt5xc"`
	Expires catalog.Time `json:"old_expires" doc:"When that one expires." example:"2026-01-03T15:04:05Z"`
}

// rotate replaces a key by a new one, unless check refuses it.
func (a *API) rotate(ctx context.Context, d DryRun, id string, how *Rotation, check func(catalog.Record[catalog.APIKey]) error) (*Made[RotatedKey], error) {
	c, err := a.writing(d)
	if err != nil {
		return nil, err
	}
	grace, err := how.grace(maxGrace)
	if err != nil {
		return nil, err
	}
	var expires catalog.Time
	text, made, version, err := c.RotateKey(ctx, actor(ctx), id, grace, func(r catalog.Record[catalog.APIKey]) error {
		if err := check(r); err != nil {
			return err
		}
		v, now := &r.Value, a.now()
		expires = catalog.Time{Time: now.Add(grace).UTC().Truncate(time.Microsecond)}
		if !v.Expires.IsZero() && v.Expires.Before(expires.Time) {
			expires = v.Expires
		}
		switch {
		case !v.Revoked.IsZero():
			return fail(http.StatusConflict, "the key is revoked: create another")
		case v.ReplacedBy != "":
			return fail(http.StatusConflict, "the key was replaced by "+v.ReplacedBy+": rotate that one")
		case !v.Expires.IsZero() && !v.Expires.After(now):
			return fail(http.StatusConflict, "the key has expired: create another")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if a.written(ctx, d); d.DryRun {
		text = "" // which would not be valid
	}
	r := keys.kept(ctx, a, d, &made, version, catalog.Record[catalog.APIKey]{})
	return &Made[RotatedKey]{Recorded[RotatedKey]{etag(r.Version), changed(d, RotatedKey{CreatedKey{r, text}, id, expires})}, keys.location(r.ID)}, nil
}
