package admin

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// Token is a token, without its text.
type Token struct {
	ID        string       `json:"id" doc:"The id, which is the part of the text that is not secret." example:"4mqyx7bn2kcd6wvr"`
	Name      string       `json:"name" doc:"The owner or the purpose: the actor in the change log." example:"deploy"`
	Role      catalog.Role `json:"role" enum:"viewer,operator,admin,user" doc:"The role: viewer may read, operator may change the catalog, admin may also manage tokens; user may use the operations under /me only." example:"operator"`
	Tenants   []string     `json:"tenants,omitempty" nullable:"false" doc:"The tenants that it is restricted to. Missing: it is for all." example:"[\"acme\"]"`
	User      string       `json:"user,omitempty" doc:"With the role user: the user that it is for." example:"alice"`
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
	Role      catalog.Role `json:"role,omitempty" enum:"viewer,operator,admin,user" doc:"The role. With a user it may be missing." example:"operator"`
	Tenants   []string     `json:"tenants,omitempty" nullable:"false" doc:"The tenants that it is restricted to, at most 100. Missing: it is for all. Who is restricted to tenants creates tokens for some of these only." example:"[\"acme\"]"`
	User      string       `json:"user,omitempty" doc:"The user that it is for, who must be in the catalog. It may then use the operations under /me only. A user has at most 10 tokens." example:""`
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

// sortTokens sorts tokens that are in the order of their creation.
func sortTokens(all []catalog.Token, by string) {
	field, down := strings.CutPrefix(by, "-")
	never := time.Unix(math.MaxInt32<<8, 0)
	compare := map[string]func(x, y *catalog.Token) int{
		"name":         func(x, y *catalog.Token) int { return cmp.Compare(strings.ToLower(x.Name), strings.ToLower(y.Name)) },
		"created_at":   func(x, y *catalog.Token) int { return x.Created.Compare(y.Created) },
		"last_used_at": func(x, y *catalog.Token) int { return x.LastUsed.Compare(y.LastUsed) },
		"expires_at": func(x, y *catalog.Token) int {
			return cmp.Or(x.Expires, never).Compare(cmp.Or(y.Expires, never))
		},
	}[field]
	slices.SortStableFunc(all, func(x, y catalog.Token) int {
		if down {
			return compare(&y, &x)
		}
		return compare(&x, &y)
	})
}

func (a *API) addTokens() {
	tokens := a.options.Tokens
	addQuery(a, operation{
		ID: "listTokens", Method: http.MethodGet, Path: "/tokens", Tag: tagAccess,
		Scoped: true, Summary: "List tokens", Description: "Returns the tokens in the database, without their texts: those that are for no single user, or those for one. The token in the configuration is not listed.",
	}, catalog.Administrator, func(ctx context.Context, in *struct {
		User string `query:"user" maxLength:"255" doc:"The tokens for this user." example:"alice"`
		Sort string `query:"sort" enum:"name,-name,created_at,-created_at,expires_at,-expires_at,last_used_at,-last_used_at" default:"created_at" doc:"What to sort by; with a minus, the last comes first. What never expires comes last, and what was never used first." example:"last_used_at"`
	},
	) (TokenList, error) {
		all, err := tokens.Tokens(ctx)
		if in.User != "" {
			all, err = tokens.TokensOf(ctx, in.User)
		}
		if err != nil {
			return TokenList{}, err
		}
		sortTokens(all, in.Sort)
		p := personOf(ctx)
		all = slices.DeleteFunc(all, func(t catalog.Token) bool { return !p.CoversAll(t.Tenants) })
		return TokenList{Items: converted(all, func(t *catalog.Token) Token { return Token(*t) })}, nil
	})

	addQuery(a, operation{
		ID: "createToken", Method: http.MethodPost, Path: "/tokens", Status: http.StatusCreated, Tag: tagAccess,
		Scoped: true, Summary: "Create a token", Description: "Creates a token and returns its text, which is shown only once.",
	}, catalog.Administrator, func(ctx context.Context, in *struct{ Body NewToken }) (CreatedToken, error) {
		if in.Body.Name == a.config.name() {
			return CreatedToken{}, blame(http.StatusUnprocessableEntity, "name", "is the name of the token in the configuration, want another", "")
		}
		t := catalog.Token{Name: in.Body.Name, Role: in.Body.Role, Tenants: in.Body.Tenants, User: in.Body.User}
		if t.User != "" {
			if err := a.ofUser(ctx, &t); err != nil {
				return CreatedToken{}, err
			}
		}
		if p := personOf(ctx); !p.CoversAll(t.Tenants) {
			return CreatedToken{}, blame(http.StatusForbidden, "tenants", "want some of "+tenantsOf(&p), "")
		}
		var err error
		if t.Expires, err = in.Body.expiry(a.now()); err != nil {
			return CreatedToken{}, err
		}
		text, made, err := tokens.CreateToken(ctx, actor(ctx), t)
		if err != nil {
			return CreatedToken{}, err
		}
		return CreatedToken{text, Token(made)}, nil
	})

	add(a, operation{
		ID: "revokeToken", Method: http.MethodDelete, Path: "/tokens/{id}", Tag: tagAccess,
		Scoped: true, Summary: "Revoke a token", Description: "Revokes a token and ends its sessions, at once.",
	}, catalog.Administrator, func(ctx context.Context, in *struct {
		ID string `path:"id" doc:"The id of the token." example:"4mqyx7bn2kcd6wvr"`
	},
	) (*struct{}, error) {
		if p := personOf(ctx); p.scoped() {
			t, err := tokens.Token(ctx, in.ID)
			if err != nil {
				return nil, err
			}
			if !p.CoversAll(t.Tenants) {
				return nil, &catalog.NotFoundError{Kind: "token", ID: in.ID}
			}
		}
		return &struct{}{}, tokens.RevokeToken(ctx, actor(ctx), in.ID)
	})
}
