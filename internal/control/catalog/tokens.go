package catalog

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Role is what a token may do.
type Role string

// The roles. Each includes those before it.
const (
	Viewer        Role = "viewer"   // read
	Operator      Role = "operator" // write rules, tiers, tenants, users, keys and lists
	Administrator Role = "admin"    // make and revoke tokens
	// OfUser is the role of tokens for one user, who reads and changes what is his or her own. It
	// includes no other, and no other includes it. Programs that do not know it refuse it.
	OfUser Role = "user"
)

var roles = []Role{Viewer, Operator, Administrator}

// Includes reports whether the role may do all that the other may.
func (r Role) Includes(other Role) bool {
	if other == OfUser {
		return r == other
	}
	asked := slices.Index(roles, other)
	return asked >= 0 && slices.Index(roles, r) >= asked
}

// Token is a token of the admin API, without its secret.
type Token struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"` // the actor in the log of changes
	Role      Role      `json:"role"`
	Tenants   []string  `json:"tenants,omitempty"` // nil: all
	User      string    `json:"user,omitempty"`    // of the role OfUser: the user
	Created   time.Time `json:"created_at,omitzero"`
	CreatedBy string    `json:"created_by,omitempty"`
	Expires   time.Time `json:"expires_at,omitzero"`   // zero: never
	LastUsed  time.Time `json:"last_used_at,omitzero"` // to the minute; zero: never
}

// Covers reports whether the token is for a tenant. No tenant, "", is covered by a token for all only.
func (t *Token) Covers(tenant string) bool {
	return len(t.Tenants) == 0 || tenant != "" && slices.Contains(t.Tenants, tenant)
}

// CoversAll reports whether the token is for all of these tenants, which may be none: that means all that there are.
func (t *Token) CoversAll(tenants []string) bool {
	if len(tenants) == 0 {
		return len(t.Tenants) == 0
	}
	return !slices.ContainsFunc(tenants, func(tenant string) bool { return !t.Covers(tenant) })
}

// kindToken is the kind of tokens in the log of changes. Nodes ignore them.
const kindToken = "token"

// ErrBadToken means that a token or a session is unknown, expired or revoked.
var ErrBadToken = errors.New("the token is unknown, expired or revoked")

const (
	tokenPrefix = "stint_admin_"
	tokenIDSize = 16   // letters: 80 bits
	textSize    = 26   // of [rand.Text]: 130 bits
	maxTokens   = 1000 // beside those of users
	maxOfUser   = 10   // of one user
	// MaxTenants is how many tenants a token can be restricted to.
	MaxTenants = 100
	maxYear    = 9999        // of a time in JSON
	usePeriod  = time.Minute // precision of LastUsed
	// noteLimit is the time to store LastUsed: requests must not wait long for it.
	noteLimit = time.Second
)

// CreateToken creates a token with a name, a role and an expiry, which may be zero. The text
// is returned only here, and not stored.
func (c *Catalog) CreateToken(ctx context.Context, actor string, t Token) (text string, made Token, err error) {
	return c.createToken(ctx, actor, t, false)
}

// FirstToken is [Catalog.CreateToken] if there is no valid token of an administrator. If
// there is one, even one that another process creates at the same time, the text is empty.
func (c *Catalog) FirstToken(ctx context.Context, actor string, t Token) (text string, err error) {
	if some, err := c.AnyToken(ctx); some || err != nil {
		return "", err
	}
	text, _, err = c.createToken(ctx, actor, t, true)
	if errors.Is(err, errNotFirst) {
		return "", nil
	}
	return text, err
}

var errNotFirst = errors.New("there is a token already")

func (c *Catalog) createToken(ctx context.Context, actor string, t Token, first bool) (text string, made Token, err error) {
	secret := newText()
	t.ID, t.CreatedBy, t.LastUsed = newText()[:tokenIDSize], actor, time.Time{}
	t.Expires = t.Expires.UTC().Truncate(time.Microsecond)
	_, err = c.write(ctx, actor, func(x *tx) error {
		t.Created = x.now
		if first { // no other writer can create one now
			if some, err := c.anyToken(ctx, x); some || err != nil {
				return cmp.Or(err, errNotFirst)
			}
		}
		if err := x.checkToken(ctx, &t); err != nil || len(x.problems) > 0 {
			return err
		}
		_, err := x.ExecContext(ctx, "INSERT INTO stint_tokens (id, hash, name, role, created_at, created_by, expires_at, tenants, user_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
			t.ID, hashText(secret), t.Name, string(t.Role), c.dialect.Time(t.Created), t.CreatedBy, c.dialect.Time(t.Expires), scopeText(t.Tenants), sql.NullString{String: t.User, Valid: t.User != ""})
		if err != nil {
			return err
		}
		body, err := json.Marshal(t)
		x.note(Change{Kind: kindToken, ID: t.ID, After: body}, "")
		return err
	})
	if err != nil {
		return "", Token{}, err
	}
	return tokenPrefix + t.ID + "_" + secret, t, nil
}

// checkToken notes the problems of a new token.
func (t *tx) checkToken(ctx context.Context, token *Token) error {
	var k checker
	if k.checkText("name", token.Name, maxTitle); token.Name == "" {
		k.Add("name", "missing, want who or what it is for", "")
	}
	switch {
	case token.User != "":
		if k.checkID("user", token.User); token.Role != OfUser {
			k.Refuse("role", string(token.Role), "user, which is the role of a token for one user", "")
		}
	case token.Role == OfUser:
		k.Add("user", "missing, want the user that a token with the role user is for", "")
	case !slices.Contains(roles, token.Role):
		k.Refuse("role", string(token.Role), "one of viewer, operator and admin", k.Closest(string(token.Role), []string{"viewer", "operator", "admin"}))
	}
	if at := token.Expires; !at.IsZero() && (!at.After(t.now) || at.Year() > maxYear) {
		k.Add("expires_at", at.Format(time.RFC3339)+": want a time in the future, before the year "+strconv.Itoa(maxYear+1), "")
	}
	checkTenants(&k, token.Tenants)
	most, where, of := maxTokens, "user_id IS NULL", []any{}
	if token.User != "" {
		most, where, of = maxOfUser, "user_id = $1", []any{token.User}
	}
	var n int
	if len(k.Problems) == 0 { // or the user cannot be asked for
		if err := t.QueryRowContext(ctx, "SELECT count(*) FROM stint_tokens WHERE "+where, of...).Scan(&n); err != nil {
			return err
		}
	}
	if n >= most {
		k.Add("", "there are "+strconv.Itoa(n)+" tokens, which is the limit: revoke some that are not used", "")
	}
	t.problems = append(t.problems, k.Problems...)
	return nil
}

// checkTenants notes the problems of a list of tenants.
func checkTenants(k *checker, tenants []string) {
	if len(tenants) > MaxTenants {
		k.Add("tenants", strconv.Itoa(len(tenants))+" tenants: want at most "+strconv.Itoa(MaxTenants), "")
		return
	}
	for i, id := range tenants {
		switch path := strict.Item("tenants", i); {
		case !identity.ValidID(id):
			k.Refuse(path, id, "the id of a tenant: 1 to 255 bytes of UTF-8 without control characters", "")
		case slices.Contains(tenants[:i], id):
			k.Add(path, strict.Quote(id)+" is there already, want each once", "")
		}
	}
}

// scopeText returns tenants for the database: a JSON list, or nothing for all.
func scopeText(tenants []string) sql.NullString {
	if len(tenants) == 0 {
		return sql.NullString{}
	}
	text, _ := json.Marshal(tenants) // it does not fail
	return sql.NullString{String: string(text), Valid: true}
}

// errScope means that the tenants of a token cannot be read. It must not become one for all tenants.
var errScope = errors.New("the tenants in the database are not a JSON list")

// scopeOf returns the tenants in the database.
func scopeOf(text sql.NullString) (tenants []string, err error) {
	if !text.Valid {
		return nil, nil
	}
	if json.Unmarshal([]byte(text.String), &tenants) != nil || len(tenants) == 0 {
		return nil, errScope
	}
	return tenants, nil
}

// newText returns random letters and digits.
func newText() string { return strings.ToLower(rand.Text()) }

// hashText returns the hash of a random text, which needs no salt.
func hashText(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

const tokenColumns = "SELECT id, name, role, created_at, created_by, expires_at, last_used_at, hash, tenants, COALESCE(user_id, '') FROM stint_tokens "

// scanToken reads a row of tokenColumns.
func scanToken(scan func(into ...any) error) (t Token, hash string, err error) {
	var (
		created, expires, used stamp
		tenants                sql.NullString
	)
	if err = scan(&t.ID, &t.Name, &t.Role, &created, &t.CreatedBy, &expires, &used, &hash, &tenants, &t.User); err != nil {
		return t, hash, err
	}
	t.Created, t.Expires, t.LastUsed = created.Time, expires.Time, used.Time
	t.Tenants, err = scopeOf(tenants)
	return t, hash, err
}

// token returns a token and its hash, or a [NotFoundError].
func (c *Catalog) token(ctx context.Context, q querier, id string) (Token, string, error) {
	missing := &NotFoundError{kindToken, id}
	if !storable(id) {
		return Token{}, "", missing
	}
	t, hash, err := scanToken(q.QueryRowContext(ctx, tokenColumns+"WHERE id = $1", id).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return Token{}, "", missing
	}
	return t, hash, c.wrap(withCause(ctx, err))
}

// Tokens returns all tokens except those of users, expired ones too, the oldest first.
func (c *Catalog) Tokens(ctx context.Context) ([]Token, error) {
	return c.tokens(ctx, c.reading, "user_id IS NULL")
}

// TokensOf returns the tokens of a user, expired ones too, the oldest first.
func (c *Catalog) TokensOf(ctx context.Context, user string) ([]Token, error) {
	if !storable(user) {
		return nil, nil
	}
	return c.tokens(ctx, c.reading, "user_id = $1", user)
}

// Token returns the token with an id, or a [NotFoundError].
func (c *Catalog) Token(ctx context.Context, id string) (Token, error) {
	t, _, err := c.token(ctx, c.reading, id)
	return t, err
}

func (c *Catalog) tokens(ctx context.Context, q querier, where string, args ...any) (out []Token, err error) {
	defer func() { err = withCause(ctx, err) }()
	rows, err := q.QueryContext(ctx, tokenColumns+"WHERE "+where+" ORDER BY created_at, id", args...)
	if err != nil {
		return nil, c.wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		t, _, err := scanToken(rows.Scan)
		if err != nil {
			return nil, c.wrap(err)
		}
		out = append(out, t)
	}
	return out, c.wrap(rows.Err())
}

// AnyToken reports whether there is a valid token of an administrator for all tenants.
func (c *Catalog) AnyToken(ctx context.Context) (bool, error) { return c.anyToken(ctx, c.reading) }

func (c *Catalog) anyToken(ctx context.Context, q querier) (bool, error) {
	all, err := c.tokens(ctx, q, "user_id IS NULL")
	now := c.options.Now()
	return slices.ContainsFunc(all, func(t Token) bool { return t.Role == Administrator && len(t.Tenants) == 0 && t.valid(now) }), err
}

func (t *Token) valid(now time.Time) bool { return t.Expires.IsZero() || now.Before(t.Expires) }

// RevokeToken deletes a token and ends its sessions. It may be the last token. The id may
// also be the text of the token, which then appears in no error.
func (c *Catalog) RevokeToken(ctx context.Context, actor, id string) error {
	if rest, ok := strings.CutPrefix(id, tokenPrefix); ok {
		id, _, _ = strings.Cut(rest, "_")
	}
	_, err := c.write(ctx, actor, func(x *tx) error {
		t, _, err := c.token(ctx, x, id)
		if err != nil {
			return err
		}
		t.LastUsed = time.Time{} // the log has no uses
		body, err := json.Marshal(t)
		if err != nil {
			return err
		}
		if _, err := x.ExecContext(ctx, "DELETE FROM stint_sessions WHERE token = $1", id); err != nil {
			return err
		}
		if _, err := x.ExecContext(ctx, "DELETE FROM stint_tokens WHERE id = $1", id); err != nil {
			return err
		}
		x.note(Change{Kind: kindToken, ID: id, Before: body}, "")
		return nil
	})
	return err
}

// TokenOf returns the token with a text, or [ErrBadToken].
func (c *Catalog) TokenOf(ctx context.Context, text string) (Token, error) {
	rest, ok := strings.CutPrefix(text, tokenPrefix)
	id, secret, _ := strings.Cut(rest, "_")
	if !ok || len(id) != tokenIDSize || len(secret) != textSize {
		return Token{}, ErrBadToken
	}
	t, hash, err := c.token(ctx, c.reading, id)
	if err != nil && !errors.As(err, new(*NotFoundError)) {
		return Token{}, err
	}
	now := c.options.Now()
	same := subtle.ConstantTimeCompare([]byte(hash), []byte(hashText(secret))) == 1
	if err != nil || !same || !t.valid(now) {
		return Token{}, ErrBadToken
	}
	c.use(ctx, &t, now)
	return t, nil
}

// uses are the times at which this process last stored LastUsed of tokens.
type uses struct {
	mu sync.Mutex
	at map[string]time.Time
}

// due reports whether the caller is to store LastUsed now.
func (u *uses) due(id string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.at[id]) < usePeriod {
		return false
	}
	if u.at == nil || len(u.at) >= 2*maxTokens { // most of them are revoked
		u.at = map[string]time.Time{}
	}
	u.at[id] = now
	return true
}

// use stores when a token was used. If that fails, the token is still accepted.
func (c *Catalog) use(ctx context.Context, t *Token, now time.Time) {
	if c.trial || now.Sub(t.LastUsed) < usePeriod || !c.used.due(t.ID, now) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.limit(noteLimit))
	defer cancel()
	_, _ = c.db.ExecContext(ctx, "UPDATE stint_tokens SET last_used_at = $2 WHERE id = $1", t.ID, c.dialect.Time(now)) // the next use tries again
}
