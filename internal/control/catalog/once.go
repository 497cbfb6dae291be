package catalog

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"time"
)

// Once is a request that is carried out once, however often it is sent: its answer is stored in the
// transaction of what it changes.
//
// A context that has it, by [Once.In], makes the next write wait, uncommitted, for [Catalog.Finish]
// or [Once.Drop]. One of them must be called. Until then there must be no other write in that context, and no
// read: an SQLite database in memory has one connection.
//
// The answer may contain a secret, such as the text of a new key. It is encrypted under a key that is
// derived from a text that only the client has, and the request is stored as a hash under that key.
type Once struct {
	id, owner, request string
	box                cipher.AEAD
	held               *tx // the change; nil: nothing was changed yet
}

const (
	// OnceTime is how long answers are kept.
	OnceTime = 24 * time.Hour
	// MaxAnswer is the largest answer that is kept, in bytes.
	MaxAnswer = 64 << 10
	// maxAnswers is how many answers an owner has. One more deletes the oldest.
	maxAnswers = 1000
)

var (
	// ErrOther means that the text was used for another request.
	ErrOther = errors.New("the request is another one")
	// ErrInFlight means that the same request is being carried out right now.
	ErrInFlight = errors.New("the same request is being carried out")
	// errAnswered means that the request was answered meanwhile.
	errAnswered = errors.New("the request was answered meanwhile")
	// errTwice is a defect of the caller.
	errTwice = errors.New("a request that is carried out once has two writes")
)

// NewOnce returns a request of an owner, such as the id of a token, with the text that the client has chosen for
// it, and everything that tells it from another request.
func NewOnce(owner, text string, request []byte) *Once {
	derive := func(what string) []byte {
		key, _ := hkdf.Key(sha256.New, []byte(text), []byte(owner), "stint answer: "+what, sha256.Size) // the length is valid
		return key
	}
	block, _ := aes.NewCipher(derive("box")) // the key has the right length
	box, _ := cipher.NewGCMWithRandomNonce(block)
	h := hmac.New(sha256.New, derive("request"))
	h.Write(request)
	return &Once{id: hex.EncodeToString(derive("id")), owner: owner, request: hex.EncodeToString(h.Sum(nil)), box: box}
}

type onceKey struct{}

// In returns a context in which the request is carried out.
func (o *Once) In(ctx context.Context) context.Context { return context.WithValue(ctx, onceKey{}, o) }

// Apart returns a context whose writes are not held.
func Apart(ctx context.Context) context.Context { return (*Once)(nil).In(ctx) }

// OnceOf returns the request of a context, or nil.
func OnceOf(ctx context.Context) *Once {
	o, _ := ctx.Value(onceKey{}).(*Once)
	return o
}

// ID identifies the request and its owner.
func (o *Once) ID() string { return o.id }

// Now returns the time of the change that is held, or the zero time.
func (o *Once) Now() time.Time {
	if o == nil || o.held == nil {
		return time.Time{}
	}
	return o.held.now
}

// Answer returns the answer to the request, or nil if it has none yet. If the text was used for another request, that is
// [ErrOther].
func (c *Catalog) Answer(ctx context.Context, o *Once) (answer []byte, err error) {
	defer func() { err = withCause(ctx, err) }()
	var (
		at      stamp
		request string
		sealed  []byte
	)
	err = c.reading.QueryRowContext(ctx, "SELECT at, request, answer FROM stint_answers WHERE id = $1", o.id).Scan(&at, &request, &sealed)
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && !c.options.Now().Before(at.Add(OnceTime)):
		return nil, nil
	case err != nil:
		return nil, c.wrap(err)
	case request != o.request:
		return nil, ErrOther
	}
	return o.box.Open(nil, nil, sealed, []byte(o.id))
}

// Drop undoes what is held. After [Catalog.Finish] it does nothing.
func (o *Once) Drop() {
	if o.held != nil {
		_ = o.held.Rollback()
		o.held = nil
	}
}

// Finish stores the answer with what is held. If the request was answered meanwhile, which only [Catalog.Answer] tells,
// or if the database fails, nothing is changed. An answer that is too large is not kept: done, but not once.
func (c *Catalog) Finish(ctx context.Context, o *Once, answer []byte) (err error) {
	defer func() { err = withCause(ctx, err) }()
	defer o.Drop()
	if o.held == nil {
		t := &tx{c: c, now: c.options.Now().UTC().Truncate(time.Microsecond)}
		if t.Tx, err = c.db.BeginTx(ctx, nil); err != nil {
			return c.wrap(err)
		}
		o.held = t
	}
	if len(answer) <= MaxAnswer {
		if err := o.held.keep(ctx, o, answer); err != nil {
			return c.wrap(err)
		}
	}
	return o.held.commit(ctx)
}

// keep stores an answer, and deletes old ones.
func (t *tx) keep(ctx context.Context, o *Once, answer []byte) error {
	old := t.c.dialect.Time(t.now.Add(-OnceTime))
	for _, d := range []struct {
		query string
		args  []any
	}{
		{"DELETE FROM stint_answers WHERE id = $1 AND at <= $2", []any{o.id, old}},
		{"DELETE FROM stint_answers WHERE id IN (SELECT id FROM stint_answers WHERE at <= $1 ORDER BY at LIMIT $2)", []any{old, sweep}},
		{
			"DELETE FROM stint_answers WHERE id IN (SELECT id FROM stint_answers WHERE owner = $1 ORDER BY at DESC, id LIMIT $2 OFFSET $3)",
			[]any{o.owner, sweep, maxAnswers - 1},
		},
	} {
		if _, err := t.ExecContext(ctx, d.query, d.args...); err != nil {
			return err
		}
	}
	done, err := t.ExecContext(ctx, "INSERT INTO stint_answers (id, owner, at, request, answer) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (id) DO NOTHING",
		o.id, o.owner, t.c.dialect.Time(t.now), o.request, o.box.Seal(nil, nil, answer, []byte(o.id)))
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return errAnswered
}

// claim returns [ErrInFlight] if another node is carrying out the same request. An SQLite database has one node.
func (o *Once) claim(ctx context.Context, t *tx) error {
	if !t.c.dialect.Postgres() {
		return nil
	}
	id, _ := hex.DecodeString(o.id) // it is hexadecimal
	var mine bool
	if err := t.QueryRowContext(ctx, "SELECT pg_try_advisory_xact_lock($1)", int64(binary.BigEndian.Uint64(id))).Scan(&mine); err != nil || mine {
		return err
	}
	return ErrInFlight
}
