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
	ID        string       `json:"id" doc:"Which one it is: a part of its text that is not secret." example:"4mqyx7bn2kcd6wvr"`
	Name      string       `json:"name" doc:"Whose it is, or what it is for: the actor of what is changed with it." example:"deploy"`
	Role      catalog.Role `json:"role" enum:"viewer,operator,admin" doc:"What one may do with it: look; write what is limited, and how; say who may do so." example:"operator"`
	Created   time.Time    `json:"created_at" doc:"When it was made." example:"2026-01-02T15:04:05Z"`
	CreatedBy string       `json:"created_by" doc:"Who has made it." example:"first"`
	Expires   time.Time    `json:"expires_at,omitzero" doc:"When it stops being good. Without it, never." example:"2026-04-02T15:04:05Z"`
	LastUsed  time.Time    `json:"last_used_at,omitzero" doc:"When it was last used, to the minute. Without it, never." example:"2026-01-03T08:00:00Z"`
}

// TokenList is all tokens.
type TokenList struct {
	Items []Token `json:"items" nullable:"false" doc:"The tokens, in the order in which they were made."`
	Next  string  `json:"next" doc:"Always empty: the list is whole." example:""`
}

// NewToken is a token that is to be made.
type NewToken struct {
	Name      string       `json:"name" doc:"Whose it is, or what it is for." example:"deploy"`
	Role      catalog.Role `json:"role" enum:"viewer,operator,admin" doc:"What one may do with it." example:"operator"`
	ExpiresIn float64      `json:"expires_in_seconds,omitempty" doc:"How long it is good. Without this and expires_at, for good." example:"7776000"`
	Expires   catalog.Time `json:"expires_at,omitzero" doc:"When it stops being good, instead of expires_in_seconds." example:"2026-04-02T15:04:05Z"`
}

// CreatedToken is a token, with its text.
type CreatedToken struct {
	Text string `json:"token" doc:"The text of the token. It is told this once, and kept nowhere." example:"stint_admin_4mqyx7bn2kcd6wvr_0123456789abcdefghijklmnop"`
	Token
}

// expiry returns when the token is to expire.
func (t *NewToken) expiry(now time.Time) (time.Time, error) {
	switch {
	case t.ExpiresIn == 0:
		return t.Expires.Time, nil
	case !t.Expires.IsZero():
		return time.Time{}, blame(http.StatusUnprocessableEntity, "expires_in_seconds", "is given beside expires_at, want one of them", "")
	case t.ExpiresIn < 1 || t.ExpiresIn > math.MaxInt64/float64(time.Second)/2:
		return time.Time{}, blame(http.StatusUnprocessableEntity, "expires_in_seconds", "want at least 1, and not more than a hundred years", "")
	}
	return now.Add(time.Duration(t.ExpiresIn * float64(time.Second))), nil
}

func (a *API) addTokens() {
	tokens := a.options.Tokens
	add(a, operation{
		ID: "listTokens", Method: http.MethodGet, Path: "/tokens", Tag: tagAccess,
		Summary: "All tokens", Description: "Returns the tokens that are in the database, without their texts. That of the config is not among them.",
	}, catalog.Administrator, func(ctx context.Context, _ *struct{}) (*struct{ Body TokenList }, error) {
		all, err := tokens.Tokens(ctx)
		if err != nil {
			return nil, err
		}
		list := TokenList{Items: make([]Token, len(all))}
		for i, t := range all {
			list.Items[i] = Token(t)
		}
		return &struct{ Body TokenList }{list}, nil
	})

	add(a, operation{
		ID: "createToken", Method: http.MethodPost, Path: "/tokens", Status: http.StatusCreated, Tag: tagAccess,
		Summary: "Make a token", Description: "Makes a token, and returns its text, which is told this once.",
	}, catalog.Administrator, func(ctx context.Context, in *struct{ Body NewToken }) (*struct{ Body CreatedToken }, error) {
		if in.Body.Name == a.config.name() {
			return nil, blame(http.StatusUnprocessableEntity, "name", "is that of the token of the config, want another", "")
		}
		expires, err := in.Body.expiry(a.now())
		if err != nil {
			return nil, err
		}
		text, made, err := tokens.CreateToken(ctx, actor(ctx), catalog.Token{Name: in.Body.Name, Role: in.Body.Role, Expires: expires})
		if err != nil {
			return nil, err
		}
		return &struct{ Body CreatedToken }{CreatedToken{text, Token(made)}}, nil
	})

	add(a, operation{
		ID: "revokeToken", Method: http.MethodDelete, Path: "/tokens/{id}", Tag: tagAccess,
		Summary: "Revoke a token", Description: "Revokes a token, at once, and ends its sessions.",
	}, catalog.Administrator, func(ctx context.Context, in *struct {
		ID string `path:"id" doc:"The id of the token." example:"4mqyx7bn2kcd6wvr"`
	},
	) (*struct{}, error) {
		return &struct{}{}, tokens.RevokeToken(ctx, actor(ctx), in.ID)
	})
}
