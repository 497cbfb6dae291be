// Package database opens a PostgreSQL or SQLite database, hides what differs between the
// two, and migrates the schema.
//
// Callers write SQL that both understand, with placeholders $1; what cannot be the same is
// a method here. All tables are named stint_..., so that a database can be shared.
//
// # What holds
//
//   - Open does not connect: the database need not be up yet.
//   - Of several PostgreSQL hosts the writable one is used, or any of a replica, and one that
//     hangs does not keep the others from being tried.
//   - A migration is applied once, however many processes start at the same time.
//   - On SQLite the record of decisions has a file of its own, so that neither its size nor its
//     writes nor its damage keep others from writing to the database.
//   - A SQLite file that is deleted or replaced while it is in use is noticed before the next
//     statement, and after every commit, which then fails: [ErrMoved]. Watch notices it
//     within a second. It is not created again; when there is a file, that one is opened.
//   - No other user can read a SQLite file that was created here.
//   - No error has a password in it.
//
// It does not retry: only the caller knows what may be repeated.
package database

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/stintdev/stint"
)

// ErrUnavailable means that the database cannot be reached, or does not answer.
var ErrUnavailable = errors.New("the database is out of reach")

// DB is a database. The methods of dialect are its own, too.
type DB struct {
	Write, Read *sql.DB // which may be the same
	// Record is the database with the record of decisions. In PostgreSQL it is the same. In
	// SQLite it is another file, with -record in its name, and the same schema; each of the two
	// uses its part of that. Up and Down are for one file.
	Record *DB
	dialect
}

// ConnectLimit is the time to connect, for all hosts together.
const ConnectLimit = 5 * time.Second

// Open returns the database at a URL: postgres://..., sqlite:FILE or sqlite::memory:.
// It does not connect yet. Close it.
func Open(url string) (*DB, error) {
	var own dialect
	var err error
	switch scheme, _, _ := strings.Cut(url, ":"); scheme {
	case "postgres", "postgresql":
		own, err = newPostgres(url, pgconn.ValidateConnectTargetSessionAttrsReadWrite)
	case "sqlite":
		own, err = newSQLite(url)
	default:
		// It is not shown: what does not begin like a URL may be a password.
		err = &stint.InvalidError{Field: "database", Want: "a URL that begins with postgres:// or sqlite:"}
	}
	if err != nil {
		return nil, err
	}
	d, err := open(own)
	if err != nil {
		return nil, err
	}
	if other := own.record(); other != nil {
		if d.Record, err = open(other); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// OpenReplica returns a replica of a PostgreSQL database, to read from. It does not connect yet.
// Close it.
func OpenReplica(url string) (*DB, error) {
	if scheme, _, _ := strings.Cut(url, "://"); scheme != "postgres" && scheme != "postgresql" {
		return nil, &stint.InvalidError{Field: "replica", Want: "a URL that begins with postgres://"}
	}
	own, err := newPostgres(url, nil)
	if err != nil {
		return nil, err
	}
	return open(own)
}

// open opens one database, which is also that of the record.
func open(own dialect) (*DB, error) {
	d := &DB{dialect: own}
	d.Record = d
	var err error
	d.Write, d.Read, err = d.open()
	return d, err
}

// Close closes the connections.
func (d *DB) Close() error {
	err := d.Write.Close()
	if d.Read != d.Write {
		err = cmp.Or(err, d.Read.Close())
	}
	if d.Record != d {
		err = cmp.Or(err, d.Record.Close())
	}
	return err
}

// dialect is what differs between PostgreSQL and SQLite.
type dialect interface {
	// Postgres reports whether it is PostgreSQL.
	Postgres() bool
	// Place identifies the database, without user and password.
	Place() string
	// File is the path of its file. Empty: it has none, or others look after it.
	File() string
	// Files returns the files of the database, if it has some, of which the first is the
	// database itself. The others may not exist.
	Files() []string
	// Time returns a time as an argument of a statement. Zero is NULL.
	Time(t time.Time) any
	// Now is the current time of the database in SQL, and Ago a time before it.
	Now() string
	Ago(before time.Duration) string
	// ReadOnly are the options of a transaction that reads one snapshot.
	ReadOnly() *sql.TxOptions
	// Notify is a statement that notifies watchers when its transaction commits. Empty: they
	// notice without it.
	Notify() string
	// Watch calls notified whenever something may have changed, until ctx ends.
	Watch(ctx context.Context, notified func())

	// record returns the database of the record, or nil if it is the same.
	record() dialect
	// open returns the pools for writing and reading, which may be the same. It does not
	// connect.
	open() (write, read *sql.DB, err error)
	// create creates what the database needs to be opened, if it is missing.
	create() error
	// extend adds the columns of their parent table to the tables of single months.
	extend(ctx context.Context) error
	// sweep drops the tables of single months after their parent table was dropped.
	sweep(ctx context.Context) error
	// unavailable reports whether an error means that the database is down, rather than
	// that a statement was wrong.
	unavailable(err error) bool
	// NoTable reports whether an error means that there is no such table.
	NoTable(err error) bool
}

// Wrap adds [ErrUnavailable] to an error that means that the database is down.
func (d *DB) Wrap(err error) error {
	switch {
	case err == nil, errors.Is(err, ErrUnavailable), errors.Is(err, context.Canceled):
		return err
	case d.unavailable(err) || strings.Contains(err.Error(), "sql: database is closed"):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// Stamp is a time in a row: a timestamp in PostgreSQL, and microseconds since 1970 in
// SQLite. It may be NULL.
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
