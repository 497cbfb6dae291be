package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
)

// Self-service: a token for one user, with the role user, may use the operations under /me, and no others. They have no id
// of a user in their paths, so that there is none to change.

// rotateEvery is how often people rotate a key of their own: rules that count by API key begin anew with each.
const rotateEvery = 24 * time.Hour

// Me is a user, and the token of the request.
type Me struct {
	User    string            `json:"user" doc:"The user." example:"alice"`
	Tenant  string            `json:"tenant,omitempty" doc:"The tenant of the user." example:"acme"`
	Tier    string            `json:"tier,omitempty" doc:"The tier that applies." example:"pro"`
	Blocked bool              `json:"blocked" doc:"Whether requests of the user are denied, by a block or a ban." example:"false"`
	Limits  []SubjectOverride `json:"limits" nullable:"false" doc:"Limits of the user that override those of the tier."`
	Token   string            `json:"token" doc:"The name of the token." example:"alice-laptop"`
	Expires time.Time         `json:"token_expires_at,omitzero" doc:"When the token expires. Never, if it is missing." example:"2026-04-02T15:04:05Z"`
}

// me returns the subject of the request.
func me(ctx context.Context) (*subject, error) {
	return (&SubjectPath{Kind: "user", ID: personOf(ctx).User}).addressed()
}

// mineOnly shows a key to its owner, who is not told who works here.
func mineOnly(k *KeyRecord) {
	k.By, k.Value.RevokedBy = "", ""
}

func (a *API) addMe() {
	addQuery(a, operation{
		ID: "getMe", Method: http.MethodGet, Path: "/me", Tag: tagMe, Scoped: true,
		Summary: "Get oneself", Description: "Returns the user that the token is for.",
	}, catalog.OfUser, func(ctx context.Context, _ *struct{}) (Me, error) {
		s, err := me(ctx)
		if err != nil {
			return Me{}, err
		}
		d, err := a.describeSubject(ctx, s)
		if err != nil {
			return Me{}, err
		}
		p := personOf(ctx)
		return Me{
			User: s.id, Tenant: d.Tenant, Tier: d.Tier, Blocked: d.Ban != nil || a.blocks(d.Blocked),
			Limits: d.Overrides, Token: p.Name, Expires: p.Expires,
		}, nil
	})

	addQuery(a, operation{
		ID: "getMyUsage", Method: http.MethodGet, Path: "/me/usage", Tag: tagMe, Scoped: true,
		Summary: "Get one's usage", Description: "Returns every limit that applies to requests of the user, including those that are shared with others, and how much of each is used. It counts nothing.",
	}, catalog.OfUser, func(ctx context.Context, _ *struct{}) (Usage, error) {
		s, err := me(ctx)
		if err != nil {
			return Usage{}, err
		}
		return a.usage(ctx, s)
	})

	addQuery(a, operation{
		ID: "listMyKeys", Method: http.MethodGet, Path: "/me/keys", Tag: tagMe, Scoped: true,
		Summary: "List one's keys", Description: "Returns the API keys of the user, ordered by id, in pages.",
	}, catalog.OfUser, func(ctx context.Context, in *Page) (RecordList[KeyRecord], error) {
		user := personOf(ctx).User
		found, err := keys.list(ctx, a, with(in.sorted(""), "user_id", user), func(k *catalog.APIKey) bool { return k.User == user })
		if err != nil {
			return RecordList[KeyRecord]{}, asParameters(err)
		}
		list := RecordList[KeyRecord]{Items: converted(found, func(r *catalog.Record[catalog.APIKey]) KeyRecord { return KeyRecord{Record: keys.record(r)} })}
		if len(found) == in.Limit {
			list.Next = found[len(found)-1].Value.ID
		}
		err = fillKeys(ctx, a, list.Items)
		for i := range list.Items {
			mineOnly(&list.Items[i])
		}
		return list, err
	})

	add(a, operation{
		ID: "rotateMyKey", Method: http.MethodPost, Path: "/me/keys/{id}/rotate", Tag: tagMe, Scoped: true, Status: http.StatusCreated, ExampleID: keys.example,
		Summary: "Rotate one's key",
		Description: "Creates a key with the same settings, and returns its text, which is shown only once. The old key stays valid for the grace, and then expires. " +
			"A key can be rotated a day after it replaced another, and not while it is disabled, or while it or its user is blocked.",
		Problems: []int{http.StatusConflict},
	}, catalog.OfUser, func(ctx context.Context, in *struct {
		ByID
		DryRun
		Body *Rotation
	},
	) (*Made[RotatedKey], error) {
		if a.options.Catalog == nil {
			return nil, a.errFile()
		}
		if err := a.mayRotate(ctx, in.ID); err != nil {
			return nil, err
		}
		out, err := a.rotate(ctx, in.DryRun, in.ID, in.Body, func(r catalog.Record[catalog.APIKey]) error {
			switch next := r.Created.Add(rotateEvery); {
			case r.Value.User != personOf(ctx).User:
				return &catalog.NotFoundError{Kind: keys.one, ID: in.ID}
			case r.Value.Disabled:
				return fail(http.StatusConflict, "the key is disabled")
			case r.Value.Replaces != "" && a.now().Before(next):
				return fail(http.StatusConflict, "the key has replaced another less than a day ago: it can be rotated from "+next.Format(time.RFC3339)+" on")
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		out.Body.By = ""
		return out, nil
	})
}

// mayRotate returns an error if the user of the request or the key is banned: another key must not be a way around it.
func (a *API) mayRotate(ctx context.Context, id string) error {
	r, err := keys.get(ctx, a, id)
	if user := personOf(ctx).User; err != nil || r.Value.User != user {
		if err == nil || errors.As(err, new(*catalog.NotFoundError)) {
			return &catalog.NotFoundError{Kind: keys.one, ID: id}
		}
		return err
	}
	for kind, id := range map[string]string{"user": r.Value.User, "key": id} {
		s, err := (&SubjectPath{Kind: kind, ID: id}).addressed()
		if err != nil {
			return err
		}
		d, err := a.describeSubject(ctx, s)
		if err != nil {
			return err
		}
		if d.Ban != nil || a.blocks(d.Blocked) {
			return fail(http.StatusConflict, "the "+kind+" is blocked")
		}
	}
	return nil
}

// blocks reports whether a block has not ended.
func (a *API) blocks(b *catalog.Blocked) bool {
	return b != nil && (b.Until.IsZero() || a.now().Before(b.Until.Time))
}

// ofUser completes a token for one user, who has to exist for the person of the request.
func (a *API) ofUser(ctx context.Context, t *catalog.Token) error {
	if len(t.Tenants) > 0 {
		return blame(http.StatusUnprocessableEntity, "tenants", "is given together with user, want one of them", "")
	}
	if !identity.ValidID(t.User) {
		return blame(http.StatusUnprocessableEntity, "user", "want the id of a user", "")
	}
	u, err := users.mine(ctx, a, t.User)
	if errors.As(err, new(*catalog.NotFoundError)) {
		return blame(http.StatusUnprocessableEntity, "user", err.Error(), "")
	}
	if err != nil {
		return err
	}
	if t.Role == "" {
		t.Role = catalog.OfUser
	}
	if u.Value.Tenant != "" { // whose people may revoke it
		t.Tenants = []string{u.Value.Tenant}
	}
	return nil
}
