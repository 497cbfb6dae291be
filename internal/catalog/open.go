package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/identity"
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
	dialect dialect
	db      *sql.DB // to write
	reading *sql.DB // to read

	wakers wakers

	Rules      *Table[Rule]
	Tiers      *Table[Tier]
	Tenants    *Table[Tenant]
	Users      *Table[User]
	APIKeys    *Table[APIKey]
	Exemptions *Table[Entry]
	Bans       *Table[Entry]
}

// dialect is what differs between databases.
type dialect interface {
	// open returns what to write and what to read with, which may be the same. It
	// reaches for nothing.
	open() (write, read *sql.DB, err error)
	// place is which database it is, whoever asks.
	place() string
	// create makes room for a database, if that is not there yet.
	create() error
	// time returns a time as an argument.
	time(t time.Time) any
	// now is the time of the database, and ago that so long before.
	now() string
	ago(d time.Duration) string
	// readOnly are the options of a transaction that sees one moment.
	readOnly() *sql.TxOptions
	// name is that of goose, and of the directory of migrations.
	name() string
	// notify is what tells others of a revision, within its transaction. Empty: nothing.
	notify() string
	// watch calls told whenever there may be something new, until ctx ends.
	watch(ctx context.Context, c *Catalog, told func())
	// unavailable reports whether the error says that the database is, and not that
	// something was wrong with what it was asked.
	unavailable(err error) bool
}

// Open returns the catalog at a URL: postgres://..., sqlite:FILE or sqlite::memory:.
// The database need not be there yet. Close it.
func Open(url string, o Options) (*Catalog, error) {
	clock := o.Now
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.KeyPrefix == "" {
		o.KeyPrefix = "stint"
	}
	c := &Catalog{options: o, clock: clock}
	var err error
	switch scheme, _, _ := strings.Cut(url, ":"); scheme {
	case "postgres", "postgresql":
		c.dialect, err = newPostgres(url)
	case "sqlite":
		c.dialect, err = newSQLite(url)
	default:
		// It is not shown: what does not begin like a URL may be a password.
		err = &stint.InvalidError{Field: "database", Want: "a URL that begins with postgres:// or sqlite:"}
	}
	if err != nil {
		return nil, err
	}
	if c.db, c.reading, err = c.dialect.open(); err != nil {
		return nil, err
	}
	c.makeTables()
	return c, nil
}

// Close closes the connections to the database.
func (c *Catalog) Close() error {
	err := c.db.Close()
	if c.reading != c.db {
		err = joinFirst(err, c.reading.Close())
	}
	return err
}

func joinFirst(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// Ping reports whether the database answers.
func (c *Catalog) Ping(ctx context.Context) error { return c.wrap(c.reading.PingContext(ctx)) }

// wrap says of an error whether the database is out of reach.
func (c *Catalog) wrap(err error) error {
	switch {
	case Status(err) < http.StatusInternalServerError, errors.Is(err, ErrUnavailable), errors.Is(err, context.Canceled):
		return err // it is about what was asked, or about who has asked
	case c.dialect.unavailable(err) || strings.Contains(err.Error(), "sql: database is closed"):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// ended says of an error that comes of the end of a context that it does: SQLite says no
// more than that it was interrupted.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) && Status(err) >= http.StatusInternalServerError {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// stamp is a time of a row, which is a time in one database and a number of
// microseconds in another. It may be null.
type stamp struct{ time.Time }

// Scan implements [sql.Scanner].
func (s *stamp) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		s.Time = time.Time{}
	case time.Time:
		s.Time = v.UTC()
	case int64:
		s.Time = time.UnixMicro(v).UTC()
	default:
		return fmt.Errorf("catalog: a time is a %T", v)
	}
	return nil
}
