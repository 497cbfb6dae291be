package catalog

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/strict"
)

// Session is a browser's login with a token.
type Session struct {
	Token Token
	// CSRF is the secret that pages of the session send with every write.
	CSRF    string
	Expires time.Time
	// Kept is what was given to [Catalog.CreateSignIn] or [Catalog.Renew], or nil.
	Kept []byte
}

const (
	// maxSessions is how many sessions a token may have. One more ends the oldest.
	maxSessions = 100
	// sweep is how many expired sessions are deleted at once.
	sweep = 1000
	// configToken is the prefix of the ids of tokens of the configuration.
	configToken = "config:"
	// signInToken is the prefix of the ids of people who have signed in with an identity provider.
	signInToken = "oidc:"
	// maxKept is how many bytes a session may keep.
	maxKept = 32 << 10
	// RenewalTime is how long one node may take to ask an identity provider about the person of a session.
	RenewalTime = 20 * time.Second
)

// CreateSession begins a session with a token. The text is returned only here, and not
// stored. The session ends with the token at the latest. A token of the configuration has
// an id that begins with "config:" and no row: the caller checks that it is still valid.
func (c *Catalog) CreateSession(ctx context.Context, t Token, ttl time.Duration) (text string, s Session, err error) {
	return c.createSession(ctx, t, ttl, nil, false)
}

// CreateSignIn begins the session of a person who has signed in with an identity provider. The id of the token begins
// with "oidc:", and it has no row: the caller checks that the provider is still in use. The token expires when the
// provider no longer vouches for the person. The session ends then, too, unless it renews: then [Catalog.Renew] is to be
// called. What is kept for that is encrypted by the text of the session, which is not stored.
func (c *Catalog) CreateSignIn(ctx context.Context, t Token, ttl time.Duration, kept []byte, renews bool) (text string, s Session, err error) {
	if !strings.HasPrefix(t.ID, signInToken) || t.Expires.IsZero() || len(kept) > maxKept {
		return "", Session{}, strict.Problems{{Message: "a sign-in needs an id of a provider, an expiry, and at most " + strconv.Itoa(maxKept) + " bytes to keep"}}
	}
	return c.createSession(ctx, t, ttl, kept, renews)
}

func (c *Catalog) createSession(ctx context.Context, t Token, ttl time.Duration, kept []byte, renews bool) (text string, s Session, err error) {
	defer func() { err = withCause(ctx, err) }()
	now := c.options.Now().UTC().Truncate(time.Microsecond)
	if ttl <= 0 || !t.valid(now) {
		return "", Session{}, strict.Problems{{Message: "a session needs a positive duration and a valid token"}}
	}
	text = newText()
	t.Expires = t.Expires.Truncate(time.Microsecond)
	s = Session{Token: t, CSRF: csrfOf(text), Expires: now.Add(ttl).Truncate(time.Microsecond), Kept: kept}
	if !renews {
		s.Expires = earlier(s.Expires, t.Expires)
	}
	if c.trial {
		return text, s, nil
	}
	var until time.Time
	if strings.HasPrefix(t.ID, signInToken) {
		until = t.Expires
	}
	_, err = c.db.ExecContext(ctx, "INSERT INTO stint_sessions (hash, token, name, role, created_at, expires_at, tenants, valid_until, sealed) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
		hashText(text), t.ID, t.Name, string(t.Role), c.dialect.Time(now), c.dialect.Time(s.Expires), scopeText(t.Tenants), c.dialect.Time(until), seal(text, kept))
	if err != nil {
		return "", Session{}, c.wrap(err)
	}
	// If these fail, the next session tries again.
	_, _ = c.db.ExecContext(ctx, `DELETE FROM stint_sessions WHERE hash IN
		(SELECT hash FROM stint_sessions WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)`, c.dialect.Time(now), sweep)
	_, _ = c.db.ExecContext(ctx, `DELETE FROM stint_sessions WHERE hash IN
		(SELECT hash FROM stint_sessions WHERE token = $1 ORDER BY created_at DESC LIMIT $2 OFFSET $3)`, t.ID, sweep, maxSessions)
	return text, s, nil
}

// box returns what encrypts what a session keeps. Its key is derived from the text of the session.
func box(text string) cipher.AEAD {
	h := hmac.New(sha256.New, []byte(text))
	h.Write([]byte("seal"))
	block, _ := aes.NewCipher(h.Sum(nil)) // the key has the right length
	aead, _ := cipher.NewGCMWithRandomNonce(block)
	return aead
}

func seal(text string, kept []byte) any {
	if kept == nil {
		return nil
	}
	return box(text).Seal(nil, nil, kept, nil)
}

// csrfOf derives the secret from the text of the session, so that no table has it.
func csrfOf(text string) string {
	h := hmac.New(sha256.New, []byte(text))
	h.Write([]byte("csrf"))
	return hex.EncodeToString(h.Sum(nil))
}

// SessionOf returns the session with a text, or [ErrBadToken]. That of a person who has signed in with an identity
// provider may be one whose token has expired, if it can be renewed: see [Session.Kept].
func (c *Catalog) SessionOf(ctx context.Context, text string) (s Session, err error) {
	defer func() { err = withCause(ctx, err) }()
	if len(text) != textSize {
		return Session{}, ErrBadToken
	}
	// It is found by its hash, so that timing tells nothing about the text.
	s.CSRF = csrfOf(text)
	var (
		expires, until stamp
		tenants        sql.NullString
		sealed         []byte
	)
	err = c.reading.QueryRowContext(ctx, "SELECT token, name, role, expires_at, tenants, valid_until, sealed FROM stint_sessions WHERE hash = $1", hashText(text)).
		Scan(&s.Token.ID, &s.Token.Name, &s.Token.Role, &expires, &tenants, &until, &sealed)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Session{}, ErrBadToken
	case err != nil:
		return Session{}, c.wrap(err)
	}
	now := c.options.Now()
	if s.Expires = expires.Time; !now.Before(s.Expires) {
		return Session{}, ErrBadToken // the next CreateSession deletes it
	}
	switch {
	case strings.HasPrefix(s.Token.ID, configToken):
		return s, nil
	case strings.HasPrefix(s.Token.ID, signInToken):
		if s.Token.Tenants, err = scopeOf(tenants); err != nil {
			return Session{}, c.wrap(err)
		}
		if s.Token.Expires = until.Time; sealed != nil {
			if s.Kept, err = box(text).Open(nil, nil, sealed, nil); err != nil {
				return Session{}, ErrBadToken
			}
		}
		if s.Kept == nil && !s.Token.valid(now) {
			return Session{}, ErrBadToken
		}
		return s, nil
	}
	s.Token, _, err = c.token(ctx, c.reading, s.Token.ID)
	switch {
	case errors.As(err, new(*NotFoundError)):
		return Session{}, ErrBadToken
	case err != nil:
		return Session{}, err
	case !s.Token.valid(now):
		return Session{}, ErrBadToken
	}
	c.use(ctx, &s.Token, now)
	return s, nil
}

// ClaimRenewal reports whether the caller is the one, of all nodes, that is to ask the identity provider again about a
// session whose token it has seen expire. It has [RenewalTime] for that. If the session was renewed since, it is not: what
// the caller has kept of it may be valid only once.
func (c *Catalog) ClaimRenewal(ctx context.Context, text string, expires time.Time) (bool, error) {
	now := c.options.Now()
	done, err := c.db.ExecContext(ctx, "UPDATE stint_sessions SET renewing_until = $2 WHERE hash = $1 AND valid_until = $4 AND (renewing_until IS NULL OR renewing_until <= $3)",
		hashText(text), c.dialect.Time(now.Add(RenewalTime)), c.dialect.Time(now), c.dialect.Time(expires))
	if err != nil {
		return false, c.wrap(withCause(ctx, err))
	}
	n, err := done.RowsAffected()
	return n == 1, c.wrap(err)
}

// Renew stores what the identity provider has said about the person of a session: name, role, tenants and expiry of the
// token, and what is kept from now on. The id cannot change.
func (c *Catalog) Renew(ctx context.Context, text string, t Token, kept []byte) error {
	if len(kept) > maxKept {
		return strict.Problems{{Message: "want at most " + strconv.Itoa(maxKept) + " bytes to keep"}}
	}
	_, err := c.db.ExecContext(ctx, "UPDATE stint_sessions SET name = $3, role = $4, tenants = $5, valid_until = $6, sealed = $7, renewing_until = NULL WHERE hash = $1 AND token = $2",
		hashText(text), t.ID, t.Name, string(t.Role), scopeText(t.Tenants), c.dialect.Time(t.Expires), seal(text, kept))
	return c.wrap(withCause(ctx, err))
}

// EndSession ends the session with a text, if there is one.
func (c *Catalog) EndSession(ctx context.Context, text string) error {
	if c.trial || len(text) != textSize {
		return nil
	}
	_, err := c.db.ExecContext(ctx, "DELETE FROM stint_sessions WHERE hash = $1", hashText(text))
	return c.wrap(withCause(ctx, err))
}
