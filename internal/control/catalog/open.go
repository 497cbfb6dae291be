package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/rule"
)

// Options are a catalog's settings.
type Options struct {
	// KeyPrefix is the prefix of new API keys. Default stint.
	KeyPrefix string
	// Pepper, if it is set, is a secret that is hashed with the secrets of new API keys.
	Pepper identity.Secret
	// Replica is the URL of a standby of the database, of which nodes read what it has: see
	// replica.go. Empty: there is none.
	Replica string
	// Side carries notifications and cached lookups between nodes, beside the database.
	// Nil: there is none.
	Side Side
	// Case says whether the case of paths matters to rules.
	Case rule.Case
	// World is the regions in which rules are used: those that are written must fit. Rules that
	// are stored already are used in any case. Nil: it is not known.
	World *rule.World
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Patience is how long an answer of the database, its replica or the side is waited for at
	// least. Zero: as long as makes sense for requests that wait for it.
	Patience time.Duration
}

// limit returns the time limit of a question that is usually answered within a time.
func (c *Catalog) limit(usual time.Duration) time.Duration { return max(usual, c.options.Patience) }

// Side is a store, such as Redis, whose values may vanish and whose messages may be lost.
type Side interface {
	Get(ctx context.Context, name string) (value []byte, ok bool, err error)
	Set(ctx context.Context, name string, value []byte, ttl time.Duration) error
	Delete(ctx context.Context, names ...string) error
	Publish(ctx context.Context, channel, message string) error
	Subscribe(ctx context.Context, channel string, received func(message string, connected bool))
}

// Catalog is the database. It may be used by several goroutines at once.
type Catalog struct {
	options Options
	clock   func() time.Time // Options.Now as it was given, or nil
	dialect *database.DB
	db      *sql.DB  // to write
	reading *sql.DB  // to read
	replica *replica // nil: there is none

	memory *memory
	// refusal is why the node of this process, if there is one, refuses the history.
	refusal *atomic.Pointer[HistoryError]
	wakers  *wakers
	used    *uses
	trial   bool // writes are rolled back

	Rules      *Table[Rule]
	Tiers      *Table[Tier]
	Tenants    *Table[Tenant]
	Users      *Table[User]
	APIKeys    *Table[APIKey]
	Exemptions *Table[Entry]
	Bans       *Table[Entry]
}

// Open returns the catalog at a URL of [database.Open]. It does not connect yet. Close it.
func Open(url string, o Options) (*Catalog, error) {
	clock := o.Now
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.KeyPrefix == "" {
		o.KeyPrefix = "stint"
	}
	d, err := database.Open(url)
	if err != nil {
		return nil, err
	}
	r, err := openReplica(d, o.Replica)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	c := &Catalog{replica: r, options: o, clock: clock, dialect: d, db: d.Write, reading: d.Read, memory: new(memory), refusal: new(atomic.Pointer[HistoryError]), wakers: new(wakers), used: new(uses)}
	c.makeTables()
	return c, nil
}

// Trial returns the same catalog, except that writes are checked and answered and then
// rolled back. It is closed with the original.
func (c *Catalog) Trial() *Catalog {
	trial := *c
	trial.trial = true
	trial.makeTables()
	return &trial
}

// Database returns the database, for packages with tables of their own. It is closed with
// the catalog.
func (c *Catalog) Database() *database.DB { return c.dialect }

// Close closes the connections to the database, and to its replica.
func (c *Catalog) Close() error { return errors.Join(c.dialect.Close(), c.replica.close()) }

// Types of package database.
type (
	// Migration is one step of the schema.
	Migration = database.Migration
	// Schema is the state of the schema.
	Schema = database.Schema
)

// Schema returns the state of the schema.
func (c *Catalog) Schema(ctx context.Context) (Schema, error) { return c.dialect.Schema(ctx) }

// Up brings the schema up to date, as [database.DB.Up] does, and that of the record.
func (c *Catalog) Up(ctx context.Context, to int64) ([]Migration, error) {
	return c.both(func(d *database.DB) ([]Migration, error) { return d.Up(ctx, to) })
}

// Down undoes migrations, as [database.DB.Down] does, and those of the record.
func (c *Catalog) Down(ctx context.Context, to int64) ([]Migration, error) {
	return c.both(func(d *database.DB) ([]Migration, error) { return d.Down(ctx, to) })
}

// both migrates the database, and then that of the record, if it is another.
func (c *Catalog) both(migrate func(*database.DB) ([]Migration, error)) ([]Migration, error) {
	done, err := migrate(c.dialect)
	if events := c.dialect.Record; err == nil && events != c.dialect {
		if _, err = migrate(events); err != nil {
			err = fmt.Errorf("%s: %w", events.Place(), err)
		}
	}
	return done, err
}

// Ping reports whether the database answers.
func (c *Catalog) Ping(ctx context.Context) error { return c.wrap(c.reading.PingContext(ctx)) }

// wrap marks an error as [ErrUnavailable] if the database is out of reach.
func (c *Catalog) wrap(err error) error {
	if Status(err) < http.StatusInternalServerError {
		return err
	}
	return c.dialect.Wrap(err)
}

// withCause adds the error of a context that has ended: SQLite only reports that a call was
// interrupted.
func withCause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) && Status(err) >= http.StatusInternalServerError {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// stamp is a time in a row.
type stamp = database.Stamp
