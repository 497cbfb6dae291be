package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/database"
)

// Options are a catalog's settings.
type Options struct {
	// KeyPrefix is what API keys that are made begin with. Default stint.
	KeyPrefix string
	// Pepper, if it is set, is the secret that goes into the hashes of their secrets.
	Pepper identity.Secret
	// Side is what nodes tell each other by, and remember lookups in, beside the
	// database. Nil: nothing.
	Side Side
	// Now is the clock of what is written. Default time.Now.
	Now func() time.Time
}

// Side is a store of values that may vanish and messages that may be lost, such as
// Redis is.
type Side interface {
	Get(ctx context.Context, name string) (value []byte, ok bool, err error)
	Set(ctx context.Context, name string, value []byte, ttl time.Duration) error
	Delete(ctx context.Context, names ...string) error
	Publish(ctx context.Context, channel, message string) error
	Subscribe(ctx context.Context, channel string, told func(message string, connected bool))
}

// Catalog is the database. It may be used by several goroutines at once.
type Catalog struct {
	options Options
	clock   func() time.Time // that of the options; nil: none was given
	dialect *database.DB
	db      *sql.DB // to write
	reading *sql.DB // to read

	memory *memory
	wakers *wakers
	used   *uses
	trial  bool // nothing stays

	Rules      *Table[Rule]
	Tiers      *Table[Tier]
	Tenants    *Table[Tenant]
	Users      *Table[User]
	APIKeys    *Table[APIKey]
	Exemptions *Table[Entry]
	Bans       *Table[Entry]
}

// Open returns the catalog at a URL, as [database.Open] takes it. The database need not
// be there yet. Close it.
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
	c := &Catalog{options: o, clock: clock, dialect: d, db: d.Write, reading: d.Read, memory: new(memory), wakers: new(wakers), used: new(uses)}
	c.makeTables()
	return c, nil
}

// Trial returns the same catalog, but for what people write by it: that is checked, and
// answered, as by the other, and then undone. It is closed with the other.
func (c *Catalog) Trial() *Catalog {
	trial := *c
	trial.trial = true
	trial.makeTables()
	return &trial
}

// Database is what the catalog is in, for others that have something there. It is closed
// with the catalog.
func (c *Catalog) Database() *database.DB { return c.dialect }

// Close closes the connections to the database.
func (c *Catalog) Close() error { return c.dialect.Close() }

// What package database says of the schema.
type (
	// Migration is one step of the schema.
	Migration = database.Migration
	// Schema is how far the schema of a database is.
	Schema = database.Schema
)

// Schema tells how far the schema is.
func (c *Catalog) Schema(ctx context.Context) (Schema, error) { return c.dialect.Schema(ctx) }

// Up brings the schema up to date, as [database.DB.Up] does.
func (c *Catalog) Up(ctx context.Context, to int64) ([]Migration, error) {
	return c.dialect.Up(ctx, to)
}

// Down undoes migrations, as [database.DB.Down] does.
func (c *Catalog) Down(ctx context.Context, to int64) ([]Migration, error) {
	return c.dialect.Down(ctx, to)
}

// Ping reports whether the database answers.
func (c *Catalog) Ping(ctx context.Context) error { return c.wrap(c.reading.PingContext(ctx)) }

// wrap says of an error whether the database is out of reach, unless it is about what was
// asked.
func (c *Catalog) wrap(err error) error {
	if Status(err) < http.StatusInternalServerError {
		return err
	}
	return c.dialect.Wrap(err)
}

// ended says of an error that comes of the end of a context that it does: SQLite says no
// more than that it was interrupted.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) && Status(err) >= http.StatusInternalServerError {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// stamp is a time of a row.
type stamp = database.Stamp
