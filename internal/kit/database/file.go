package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// ErrMoved means that the file of a database is not the one that was opened: it was
// deleted, renamed, replaced or emptied while it was in use. Errors of this kind are of
// [ErrUnavailable], too.
var ErrMoved = errors.New("the file of the database was deleted or replaced while it was in use")

// file is the file of a SQLite database, which others may delete or replace while it is in
// use. SQLite would go on with the file that it has opened, and nobody would ever read what
// is written there.
//
// So every connection asks whether its file is still in its place: before it is used, and
// after a commit, which fails if it is not. Connections to a file that is gone are closed,
// all of them, before the first one to its successor is opened: both would share the
// write-ahead log, which is found by name. A file that is gone is not created again.
type file struct {
	path  string
	pools []*sql.DB

	opening sync.Mutex // held while a connection is opened
	closing sync.Mutex // held while one is closed

	mu   sync.Mutex
	info os.FileInfo // of the file that was opened; nil: none yet
	open int         // connections
}

// moved returns an error unless the file that was opened is in its place.
func (f *file) moved() error {
	f.mu.Lock()
	opened := f.info
	f.mu.Unlock()
	now, err := os.Stat(f.path)
	return f.compare(opened, now, err)
}

// compare returns an error unless the result of a stat is that of the opened file.
func (f *file) compare(opened, now os.FileInfo, err error) error {
	var what string
	switch {
	case opened == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		what = f.path + " is missing"
	case err != nil:
		what = err.Error()
	case !os.SameFile(opened, now):
		what = f.path + " is another file"
	case now.Size() == 0: // it never is, from the first connection on
		what = f.path + " is empty"
	default:
		return nil
	}
	return fmt.Errorf("%w: %w: %s", ErrUnavailable, ErrMoved, what)
}

// pool makes the connections of a pool.
type pool struct {
	*file
	first driver.Connector // creates the file if it is missing
	later driver.Connector // does not
}

// Driver implements [driver.Connector].
func (p *pool) Driver() driver.Driver { return p.first.Driver() }

// Connect implements [driver.Connector].
func (p *pool) Connect(ctx context.Context) (driver.Conn, error) {
	p.opening.Lock()
	defer p.opening.Unlock()
	before, err := os.Stat(p.path)
	p.mu.Lock()
	opened, left := p.info, p.open
	p.mu.Unlock()
	connect := p.first.Connect
	if opened == nil && errors.Is(err, fs.ErrNotExist) {
		before, err = p.create()
	}
	if opened != nil {
		connect = p.later.Connect
		if err := p.compare(opened, before, err); err != nil {
			if left > 0 {
				left = p.evict()
			}
			if left > 0 || before == nil || before.Size() == 0 {
				return nil, err
			}
		}
	}
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	after, err := os.Stat(p.path)
	if err != nil || before != nil && !os.SameFile(before, after) { // it was replaced at this moment
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, ErrMoved), err, c.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info = after
	p.open++
	return &connection{sqliteConn: c.(sqliteConn), file: p.file}, nil
}

// create creates the file, so that no other user can read it: SQLite would give it a wider mode, and
// gives its other files the same. If that fails, SQLite says why.
func (f *file) create() (os.FileInfo, error) {
	c, err := os.OpenFile(f.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer c.Close() // nothing was written
	return c.Stat()
}

// evict closes the connections that are not in use, and returns how many are. These are
// closed when their use ends.
func (f *file) evict() (left int) {
	const idle = 2 // the default of package sql
	for _, db := range f.pools {
		db.SetMaxIdleConns(-1)
		db.SetMaxIdleConns(idle)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

// sqliteConn is what connections of SQLite implement.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// connection is a connection that knows whether its file is gone.
type connection struct {
	sqliteConn
	file *file
	tx   bool // a transaction is running
	gone bool
}

// check returns an error, and has the connection closed, if its file is not in its place.
func (c *connection) check() error {
	err := c.file.moved()
	c.gone = c.gone || err != nil
	return err
}

// ResetSession implements [driver.SessionResetter]: it is called before each use.
func (c *connection) ResetSession(ctx context.Context) error {
	if c.check() != nil {
		return driver.ErrBadConn
	}
	return c.sqliteConn.ResetSession(ctx)
}

// IsValid implements [driver.Validator]: it is called after each use.
func (c *connection) IsValid() bool { return !c.gone && c.sqliteConn.IsValid() }

// BeginTx implements [driver.ConnBeginTx].
func (c *connection) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.sqliteConn.BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	c.tx = true
	return &transaction{tx, c}, nil
}

// ExecContext implements [driver.ExecerContext].
func (c *connection) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r, err := c.sqliteConn.ExecContext(ctx, query, args)
	if err == nil && !c.tx {
		err = c.check()
	}
	return r, err
}

// Close implements [driver.Conn]. The last connection to a file that was renamed leaves it
// complete, and leaves no log to the file that takes its place.
func (c *connection) Close() error {
	f := c.file
	f.closing.Lock()
	defer f.closing.Unlock()
	f.mu.Lock()
	last, opened := f.open == 1, f.info
	f.mu.Unlock()
	if now, err := os.Stat(f.path); last && f.compare(opened, now, err) != nil && (err != nil || !os.SameFile(opened, now)) {
		_, _ = c.sqliteConn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)", nil) //nolint:forbidigo // it is short, and Close has no context
	}
	err := c.sqliteConn.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open--
	return err
}

// transaction is a transaction of a connection.
type transaction struct {
	driver.Tx
	c *connection
}

// Commit implements [driver.Tx]. What was written to a file that is gone is not stored.
func (t *transaction) Commit() error {
	t.c.tx = false
	if err := t.Tx.Commit(); err != nil {
		return err
	}
	return t.c.check()
}

// Rollback implements [driver.Tx].
func (t *transaction) Rollback() error {
	t.c.tx = false
	return t.Tx.Rollback()
}
