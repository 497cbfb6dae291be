// Package database opens the database that a program keeps its things in, PostgreSQL or
// SQLite, says in which words each wants to be asked where these differ, and brings its
// schema up to date.
//
// SQL is that of its callers, and the same for both: placeholders are $1, and what cannot
// be the same is asked for here. All tables are named stint_..., so that a database can
// be shared.
//
// # What holds
//
//   - To open is to reach for nothing: a database need not be there yet.
//   - Of several PostgreSQL hosts the one that can be written to is used, and one that
//     hangs does not keep others from being tried.
//   - Migrations are applied once, however many start at the same time.
//   - Passwords are in no error.
//
// It has no tables of its own business, and no retries: who asks knows what may be asked
// twice.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stintdev/stint"
)

// ErrUnavailable is that the database cannot be reached, or does not answer.
var ErrUnavailable = errors.New("the database is out of reach")

// DB is a database.
type DB struct {
	Write, Read *sql.DB // which may be the same
	dialect     dialect
}

// ConnectLimit is the time for a connection, whichever host it is to.
const ConnectLimit = 5 * time.Second

// Open returns the database at a URL: postgres://..., sqlite:FILE or sqlite::memory:.
// It need not be there yet. Close it.
func Open(url string) (*DB, error) {
	d := new(DB)
	var err error
	switch scheme, _, _ := strings.Cut(url, ":"); scheme {
	case "postgres", "postgresql":
		d.dialect, err = newPostgres(url)
	case "sqlite":
		d.dialect, err = newSQLite(url)
	default:
		// It is not shown: what does not begin like a URL may be a password.
		err = &stint.InvalidError{Field: "database", Want: "a URL that begins with postgres:// or sqlite:"}
	}
	if err != nil {
		return nil, err
	}
	d.Write, d.Read, err = d.dialect.open()
	return d, err
}

// Close closes the connections.
func (d *DB) Close() error {
	err := d.Write.Close()
	if d.Read != d.Write {
		err = joinFirst(err, d.Read.Close())
	}
	return err
}

func joinFirst(a, b error) error {
	if a != nil {
		return a
	}
	return b
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
	// sweep drops tables that were made after the pattern of one that is no more.
	sweep(ctx context.Context, d *DB) error
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
	watch(ctx context.Context, d *DB, told func())
	// unavailable reports whether the error says that the database is, and not that
	// something was wrong with what it was asked.
	unavailable(err error) bool
}

// Postgres reports whether it is PostgreSQL.
func (d *DB) Postgres() bool { return d.dialect.name() == "postgres" }

// Place is which database it is, whoever asks.
func (d *DB) Place() string { return d.dialect.place() }

// Time returns a time as an argument. Zero is null.
func (d *DB) Time(t time.Time) any { return d.dialect.time(t) }

// Now is the time of the database, in SQL.
func (d *DB) Now() string { return d.dialect.now() }

// Ago is the time of the database so long before, in SQL.
func (d *DB) Ago(before time.Duration) string { return d.dialect.ago(before) }

// ReadOnly are the options of a transaction that sees one moment.
func (d *DB) ReadOnly() *sql.TxOptions { return d.dialect.readOnly() }

// Notify is a statement that tells those who watch, once its transaction is committed.
// Empty: they notice by themselves.
func (d *DB) Notify() string { return d.dialect.notify() }

// Watch calls told whenever there may be something new, until ctx ends.
func (d *DB) Watch(ctx context.Context, told func()) { d.dialect.watch(ctx, d, told) }

// Wrap says of an error whether the database is out of reach.
func (d *DB) Wrap(err error) error {
	switch {
	case err == nil, errors.Is(err, ErrUnavailable), errors.Is(err, context.Canceled):
		return err
	case d.dialect.unavailable(err) || strings.Contains(err.Error(), "sql: database is closed"):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// Stamp is a time of a row, which is a time in one database and a number of
// microseconds in another. It may be null.
type Stamp struct{ time.Time }

// Scan implements [sql.Scanner].
func (s *Stamp) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		s.Time = time.Time{}
	case time.Time:
		s.Time = v.UTC()
	case int64:
		s.Time = time.UnixMicro(v).UTC()
	default:
		return fmt.Errorf("database: a time is a %T", v)
	}
	return nil
}
