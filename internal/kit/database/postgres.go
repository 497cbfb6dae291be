package database

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/stintdev/stint"
)

// postgres is the dialect of PostgreSQL.
type postgres struct {
	hosts []*pgx.ConnConfig // they differ in the host only
	// first is the host to try first: the last one that was reached, or the one after the
	// last one that was not.
	first atomic.Int64
}

const (
	// channel is the channel of notifications.
	channel = "stint_catalog"

	// pingLimit is the time in which an idle connection must answer, or another is used.
	pingLimit = 300 * time.Millisecond
	// A listening connection is pinged every listenProbe, and has listenLimit to answer.
	listenProbe, listenLimit = 5 * time.Second, 3 * time.Second
)

// newPostgres returns the database at a URL. Of several hosts, one is used that passes choose; nil:
// any.
func newPostgres(url string, choose pgconn.ValidateConnectFunc) (*postgres, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		// The error of the parser may contain the password.
		return nil, &stint.InvalidError{Field: "database", Want: "a PostgreSQL URL, such as postgres://user:password@host:5432/name?sslmode=require"}
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "stint"
	}
	p := new(postgres)
	for _, f := range append([]*pgconn.FallbackConfig{{Host: config.Host, Port: config.Port, TLSConfig: config.TLSConfig}}, config.Fallbacks...) {
		if n := len(p.hosts); n > 0 && p.hosts[n-1].Host == f.Host && p.hosts[n-1].Port == f.Port {
			p.hosts[n-1].Fallbacks = append(p.hosts[n-1].Fallbacks, f) // the same without TLS, or with
			continue
		}
		host := config.Copy()
		host.Host, host.Port, host.TLSConfig, host.Fallbacks = f.Host, f.Port, f.TLSConfig, nil
		p.hosts = append(p.hosts, host)
	}
	for _, host := range p.hosts {
		if host.ConnectTimeout == 0 {
			host.ConnectTimeout = ConnectLimit / time.Duration(len(p.hosts))
		}
		if host.ValidateConnect == nil && len(p.hosts) > 1 {
			host.ValidateConnect = choose
		}
	}
	return p, nil
}

// reach calls connect for one host after the other until it succeeds. A host that hangs may
// use up the time, so the next attempt begins with another one.
func (p *postgres) reach(ctx context.Context, connect func(*pgx.ConnConfig) error) (err error) {
	first := p.first.Load()
	for i := range int64(len(p.hosts)) {
		at := (first + i) % int64(len(p.hosts))
		last := err
		if err = connect(p.hosts[at].Copy()); err == nil {
			p.first.Store(at)
			return nil
		}
		if err = cmp.Or(last, err); errors.Is(ctx.Err(), context.Canceled) {
			return err
		}
		p.first.Store((at + 1) % int64(len(p.hosts)))
		if ctx.Err() != nil {
			return err
		}
	}
	return err
}

// connector makes the connections of a pool.
type connector struct{ *postgres }

// Connect implements [driver.Connector].
func (p connector) Connect(ctx context.Context) (conn driver.Conn, err error) {
	err = p.reach(ctx, func(host *pgx.ConnConfig) error {
		conn, err = stdlib.GetConnector(*host, stdlib.OptionShouldPing(isGone)).Connect(ctx)
		return err
	})
	return conn, err
}

// Driver implements [driver.Connector].
func (connector) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

// isGone reports whether a connection that was idle does not answer. It waits only briefly, so
// that there is time left to use another connection.
func isGone(ctx context.Context, p stdlib.ShouldPingParams) bool {
	if p.IdleDuration < time.Second {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	return p.Conn.Ping(ctx) != nil // if it fails it has closed the connection
}

func (p *postgres) open() (write, read *sql.DB, err error) {
	db := sql.OpenDB(connector{p})
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(4)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, db, nil
}

func (*postgres) Files() []string { return nil }

func (p *postgres) Place() string {
	place := "postgres:" + strconv.Quote(p.hosts[0].Database)
	for _, host := range p.hosts {
		place += " " + net.JoinHostPort(host.Host, strconv.Itoa(int(host.Port)))
	}
	return place
}

func (*postgres) File() string { return "" }

func (*postgres) record() dialect { return nil }

func (*postgres) create() error { return nil } // operators create it

func (*postgres) extend(context.Context) error { return nil } // partitions have the columns of their table

func (*postgres) sweep(context.Context) error { return nil } // partitions are dropped with their table

func (*postgres) Time(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

func (*postgres) Now() string { return "clock_timestamp()" }

func (*postgres) Ago(d time.Duration) string {
	return fmt.Sprintf("clock_timestamp() - interval '%d microseconds'", d.Microseconds())
}

func (*postgres) ReadOnly() *sql.TxOptions {
	return &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
}

func (*postgres) Postgres() bool { return true }
func (*postgres) Notify() string { return "SELECT pg_notify('" + channel + "', '')" }

func (*postgres) unavailable(err error) bool {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		switch e.Code[:min(2, len(e.Code))] {
		case "08", "53", "57", "58": // connection, resources, operator, system
			return true
		}
		return e.Code == "25006" // read-only: it is a standby
	}
	return errors.As(err, new(*pgconn.ConnectError)) || errors.As(err, new(*net.OpError)) || pgconn.Timeout(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrConnDone) ||
		strings.Contains(err.Error(), "conn closed") || strings.Contains(err.Error(), "unexpected EOF") ||
		strings.Contains(err.Error(), "driver: bad connection")
}

func (*postgres) NoTable(err error) bool {
	e := (*pgconn.PgError)(nil)
	return errors.As(err, &e) && e.Code == "42P01"
}

// Watch listens for notifications. It reconnects after a pause that grows, and pings the
// connection, which may break without an error.
func (p *postgres) Watch(ctx context.Context, notified func()) {
	const first, longest = 50 * time.Millisecond, 2 * time.Second
	pause := first
	for ctx.Err() == nil {
		if p.listen(ctx, func() { pause = first; notified() }) == nil {
			return
		}
		wait := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		pause = min(2*pause, longest)
	}
}

func (p *postgres) listen(ctx context.Context, notified func()) error {
	var conn *pgx.Conn
	err := p.reach(ctx, func(host *pgx.ConnConfig) (err error) {
		conn, err = pgx.ConnectConfig(ctx, host)
		return err
	})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // an error does not matter any more
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	notified()       // something may have been missed before
	defer notified() // a look then finds out whether the database is down
	for {
		waiting, cancel := context.WithTimeout(ctx, listenProbe)
		_, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil:
			notified()
		case ctx.Err() != nil:
			return nil
		case !pgconn.Timeout(err):
			return err
		default:
			asking, cancel := context.WithTimeout(ctx, listenLimit)
			err := conn.Ping(asking)
			cancel()
			if err != nil {
				return err
			}
		}
	}
}
