package admin

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// Token is a token, without its text.
type Token struct {
	ID        string       `json:"id" doc:"The id, which is the part of the text that is not secret." example:"4mqyx7bn2kcd6wvr"`
	Name      string       `json:"name" doc:"The owner or the purpose: the actor in the change log." example:"deploy"`
	Role      catalog.Role `json:"role" enum:"viewer,operator,admin" doc:"The role: viewer may read, operator may change the catalog, admin may also manage tokens." example:"operator"`
	Created   time.Time    `json:"created_at" doc:"When it was created." example:"2026-01-02T15:04:05Z"`
	CreatedBy string       `json:"created_by" doc:"Who created it." example:"first"`
	Expires   time.Time    `json:"expires_at,omitzero" doc:"When it expires. Never, if it is missing." example:"2026-04-02T15:04:05Z"`
	LastUsed  time.Time    `json:"last_used_at,omitzero" doc:"When it was last used, to the minute. Never, if it is missing." example:"2026-01-03T08:00:00Z"`
}

// TokenList is all tokens.
type TokenList struct {
	Items []Token `json:"items" nullable:"false" doc:"The tokens, oldest first."`
	Next  string  `json:"next" doc:"Always empty: the list is complete." example:""`
}

// NewToken is a token to create.
type NewToken struct {
	Name      string       `json:"name" doc:"The owner or the purpose." example:"deploy"`
	Role      catalog.Role `json:"role" enum:"viewer,operator,admin" doc:"The role." example:"operator"`
	ExpiresIn float64      `json:"expires_in_seconds,omitempty" doc:"How long the token is valid. Without this and expires_at it does not expire." example:"7776000"`
	Expires   catalog.Time `json:"expires_at,omitzero" doc:"When the token expires, instead of expires_in_seconds." example:"2026-04-02T15:04:05Z"`
}

// CreatedToken is a token, with its text.
type CreatedToken struct {
	Text string `json:"token" doc:"The text of the token. It is shown only once and not stored." example:"stint_admin_4mqyx7bn2kcd6wvr_0123456789abcdefghijklmnop"`
	Token
}

// expiry returns when the token expires.
func (t *NewToken) expiry(now time.Time) (time.Time, error) {
	switch {
	case t.ExpiresIn == 0:
		return t.Expires.Time, nil
	case !t.Expires.IsZero():
		return time.Time{}, blame(http.StatusUnprocessableEntity, "expires_in_seconds", "is given together with expires_at, want one of them", "")
	case t.ExpiresIn < 1 || t.ExpiresIn > math.MaxInt64/float64(time.Second)/2:
		return time.Time{}, blame(http.StatusUnprocessableEntity, "expires_in_seconds", "want 1 second to 100 years", "")
	}
	return now.Add(time.Duration(t.ExpiresIn * float64(time.Second))), nil
}

func (a *API) addTokens() {
	tokens := a.options.Tokens
	addQuery(a, operation{
		ID: "listTokens", Method: http.MethodGet, Path: "/tokens", Tag: tagAccess,
		Summary: "List tokens", Description: "Returns the tokens in the database, without their texts. The token in the configuration is not listed.",
	}, catalog.Administrator, func(ctx context.Context, _ *struct{}) (TokenList, error) {
		all, err := tokens.Tokens(ctx)
		if err != nil {
			return TokenList{}, err
		}
		return TokenList{Items: converted(all, func(t *catalog.Token) Token { return Token(*t) })}, nil
	})

	addQuery(a, operation{
		ID: "createToken", Method: http.MethodPost, Path: "/tokens", Status: http.StatusCreated, Tag: tagAccess,
		Summary: "Create a token", Description: "Creates a token and returns its text, which is shown only once.",
	}, catalog.Administrator, func(ctx context.Context, in *struct{ Body NewToken }) (CreatedToken, error) {
		if in.Body.Name == a.config.name() {
			return CreatedToken{}, blame(http.StatusUnprocessableEntity, "name", "is the name of the token in the configuration, want another", "")
		}
		expires, err := in.Body.expiry(a.now())
		if err != nil {
			return CreatedToken{}, err
		}
		text, made, err := tokens.CreateToken(ctx, actor(ctx), catalog.Token{Name: in.Body.Name, Role: in.Body.Role, Expires: expires})
		if err != nil {
			return CreatedToken{}, err
		}
		return CreatedToken{text, Token(made)}, nil
	})

	add(a, operation{
		ID: "revokeToken", Method: http.MethodDelete, Path: "/tokens/{id}", Tag: tagAccess,
		Summary: "Revoke a token", Description: "Revokes a token and ends its sessions, at once.",
	}, catalog.Administrator, func(ctx context.Context, in *struct {
		ID string `path:"id" doc:"The id of the token." example:"4mqyx7bn2kcd6wvr"`
	},
	) (*struct{}, error) {
		return &struct{}{}, tokens.RevokeToken(ctx, actor(ctx), in.ID)
	})
}
