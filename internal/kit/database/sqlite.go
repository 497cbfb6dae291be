package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/stintdev/stint"
)

// embedded is the dialect of SQLite.
type embedded struct {
	path   string // empty: in memory
	memory string // the name of the database in memory
	// Set by open.
	write, read *sql.DB
	file        *file
}

// memories counts databases in memory, to name them.
var memories atomic.Int64

// pollInterval is how often the file is checked for writes of other processes.
const pollInterval = 100 * time.Millisecond

func newSQLite(text string) (*embedded, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(text, "sqlite:"), "//")
	switch {
	case path == ":memory:":
		return inMemory(), nil
	case path == "" || strings.ContainsAny(path, "?#\x00"):
		return nil, &stint.InvalidError{Field: "database", Value: text, Want: "sqlite: and the path of a file, such as sqlite:/var/lib/stint/stint.db, or sqlite::memory:"}
	}
	return &embedded{path: path}, nil
}

func inMemory() *embedded {
	return &embedded{memory: "stint-" + strconv.FormatInt(memories.Add(1), 10)}
}

// record returns the database beside this one: stint-record.db beside stint.db.
func (e *embedded) record() dialect {
	if e.path == "" {
		return inMemory()
	}
	ending := filepath.Ext(e.path)
	return &embedded{path: strings.TrimSuffix(e.path, ending) + "-record" + ending}
}

// File implements dialect.
func (e *embedded) File() string { return e.path }

func (e *embedded) open() (write, read *sql.DB, err error) {
	pragmas := []string{"busy_timeout(5000)", "synchronous(normal)", "foreign_keys(1)"}
	if e.path == "" {
		q := url.Values{"_pragma": pragmas, "_txlock": {"immediate"}, "vfs": {"memdb"}}
		// The database lives as long as its last connection.
		db, err := sql.Open("sqlite", "file:/"+e.memory+"?"+q.Encode())
		if err != nil {
			return nil, nil, err
		}
		db.SetMaxOpenConns(1)
		e.write, e.read = db, db
		return db, db, nil
	}
	place := (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: e.path}).EscapedPath()}).String()
	e.file = &file{path: e.path}
	openPool := func(lock string, most int) (*sql.DB, error) {
		q := url.Values{"_pragma": append(pragmas, "journal_mode(wal)"), "_txlock": {lock}}
		first, err := sqlite.NewConnector(place + "?" + q.Encode())
		if err != nil {
			return nil, err
		}
		q.Set("mode", "rw")
		later, err := sqlite.NewConnector(place + "?" + q.Encode())
		if err != nil {
			return nil, err
		}
		db := sql.OpenDB(&pool{file: e.file, first: first, later: later})
		db.SetMaxOpenConns(most)
		e.file.pools = append(e.file.pools, db)
		return db, nil
	}
	if e.write, err = openPool("immediate", 1); err != nil { // SQLite has one writer
		return nil, nil, err
	}
	if e.read, err = openPool("deferred", 8); err != nil {
		return nil, nil, errors.Join(err, e.write.Close())
	}
	return e.write, e.read, nil
}

func (e *embedded) Place() string {
	path, err := filepath.Abs(e.path)
	if e.path == "" || err != nil {
		path = e.path
	}
	return "sqlite:" + path
}

func (e *embedded) Files() []string {
	if e.path == "" {
		return nil
	}
	return []string{e.path, e.path + "-wal", e.path + "-shm", e.path + "-journal"}
}

// create makes the directory of the file.
func (e *embedded) create() error {
	if e.path == "" {
		return nil
	}
	return os.MkdirAll(filepath.Dir(e.path), 0o700)
}

func (e *embedded) extend(ctx context.Context) error {
	return e.each(ctx, `SELECT 'ALTER TABLE "' || m.name || '" ADD COLUMN ' || c.name || ' ' || c.type
		FROM sqlite_master AS m, pragma_table_info('stint_events') AS c
		WHERE m.type = 'table' AND m.name GLOB 'stint_events_*'
		AND NOT EXISTS (SELECT 1 FROM pragma_table_info(m.name) AS old WHERE old.name = c.name)`)
}

func (e *embedded) sweep(ctx context.Context) error {
	return e.each(ctx, `SELECT 'DROP TABLE "' || name || '"' FROM sqlite_master WHERE type = 'table' AND name GLOB 'stint_events_*'
		AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'stint_events')`)
}

// each executes the statements that a query returns, all or nothing.
func (e *embedded) each(ctx context.Context, query string) error {
	tx, err := e.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	var statements []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return err
		}
		statements = append(statements, text)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	for _, text := range statements {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (*embedded) Time(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

func (*embedded) Now() string {
	return "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
}

func (e *embedded) Ago(d time.Duration) string {
	return fmt.Sprintf("%s - %d", e.Now(), d.Microseconds())
}

func (*embedded) ReadOnly() *sql.TxOptions { return &sql.TxOptions{ReadOnly: true} }

func (*embedded) Postgres() bool { return false }
func (*embedded) Notify() string { return "" }

func (*embedded) unavailable(err error) bool {
	e := new(sqlite.Error)
	if errors.As(err, &e) {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_TOOBIG:
			return false
		}
		return true // busy, full, unreadable, damaged
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrConnDone)
}

func (*embedded) NoTable(err error) bool {
	return err != nil && strings.Contains(err.Error(), "no such table")
}

// Watch polls the counter that SQLite raises with each write of another connection, and
// whether the file is still in its place. That takes a few microseconds.
func (e *embedded) Watch(ctx context.Context, notified func()) {
	if e.path == "" {
		<-ctx.Done() // no other process can write to it
		return
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var conn *sql.Conn // the counter is per connection
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	const unknown = -1
	last := int64(unknown)
	for {
		version := int64(unknown)
		var err error
		if conn == nil {
			conn, err = e.read.Conn(ctx)
		}
		if err == nil {
			err = e.file.moved()
		}
		if err == nil {
			err = conn.QueryRowContext(ctx, "PRAGMA data_version").Scan(&version)
		}
		if err != nil && conn != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // which closes it
			conn = nil
		}
		if version != last {
			notified() // also if it is unknown now: a look finds out why
			last = version
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
