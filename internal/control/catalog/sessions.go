package catalog

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
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
}

const (
	// maxSessions is how many sessions a token may have. One more ends the oldest.
	maxSessions = 100
	// sweep is how many expired sessions are deleted at once.
	sweep = 1000
	// configToken is the prefix of the ids of tokens of the configuration.
	configToken = "config:"
)

// CreateSession begins a session with a token. The text is returned only here, and not
// stored. The session ends with the token at the latest. A token of the configuration has
// an id that begins with "config:" and no row: the caller checks that it is still valid.
func (c *Catalog) CreateSession(ctx context.Context, t Token, ttl time.Duration) (text string, s Session, err error) {
	defer func() { err = withCause(ctx, err) }()
	now := c.options.Now().UTC().Truncate(time.Microsecond)
	if ttl <= 0 || !t.valid(now) {
		return "", Session{}, strict.Problems{{Message: "a session needs a positive duration and a valid token"}}
	}
	text = newText()
	s = Session{Token: t, CSRF: csrfOf(text), Expires: earlier(now.Add(ttl).Truncate(time.Microsecond), t.Expires)}
	if c.trial {
		return text, s, nil
	}
	_, err = c.db.ExecContext(ctx, "INSERT INTO stint_sessions (hash, token, name, role, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6)",
		hashText(text), t.ID, t.Name, string(t.Role), c.dialect.Time(now), c.dialect.Time(s.Expires))
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

// csrfOf derives the secret from the text of the session, so that no table has it.
func csrfOf(text string) string {
	h := hmac.New(sha256.New, []byte(text))
	h.Write([]byte("csrf"))
	return hex.EncodeToString(h.Sum(nil))
}

// SessionOf returns the session with a text, or [ErrBadToken].
func (c *Catalog) SessionOf(ctx context.Context, text string) (s Session, err error) {
	defer func() { err = withCause(ctx, err) }()
	if len(text) != textSize {
		return Session{}, ErrBadToken
	}
	// It is found by its hash, so that timing tells nothing about the text.
	s.CSRF = csrfOf(text)
	var expires stamp
	err = c.reading.QueryRowContext(ctx, "SELECT token, name, role, expires_at FROM stint_sessions WHERE hash = $1", hashText(text)).
		Scan(&s.Token.ID, &s.Token.Name, &s.Token.Role, &expires)
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
	if strings.HasPrefix(s.Token.ID, configToken) {
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

// EndSession ends the session with a text, if there is one.
func (c *Catalog) EndSession(ctx context.Context, text string) error {
	if c.trial || len(text) != textSize {
		return nil
	}
	_, err := c.db.ExecContext(ctx, "DELETE FROM stint_sessions WHERE hash = $1", hashText(text))
	return c.wrap(withCause(ctx, err))
}
