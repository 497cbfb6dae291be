package database

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations
var migrations embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int64     `json:"version"`
	Name    string    `json:"name"`
	Applied time.Time `json:"applied,omitzero"` // zero: it is not applied
}

// Schema is the state of the schema of a database.
type Schema struct {
	Migrations []Migration `json:"migrations"`
	// Current is the version of the database, and Latest that of this program. Current may
	// be the greater one while nodes are updated one by one.
	Current int64 `json:"current"`
	Latest  int64 `json:"latest"`
}

// provider returns goose. On PostgreSQL it holds a lock while it migrates, so that nodes
// that start together take turns; SQLite has one writer anyway.
func (d *DB) provider() (*goose.Provider, error) {
	options := []goose.ProviderOption{goose.WithTableName("stint_migrations"), goose.WithDisableGlobalRegistry(true)}
	dialect, dir := goose.DialectSQLite3, "migrations/sqlite"
	if d.Postgres() {
		dialect, dir = goose.DialectPostgres, "migrations/postgres"
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
		if err != nil {
			return nil, err
		}
		options = append(options, goose.WithSessionLocker(locker))
	}
	files, err := migrations.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		m, err := migration(dir, f.Name())
		if err != nil {
			return nil, err
		}
		options = append(options, goose.WithGoMigrations(m))
	}
	return goose.NewProvider(dialect, d.Write, nil, options...)
}

// migration returns the migration of a file, each half of which is executed as a whole. Goose would split it, and take
// four megabytes of memory for each line.
func migration(dir, name string) (*goose.Migration, error) {
	text, err := migrations.ReadFile(path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	version, err := goose.NumericComponent(name)
	if err != nil {
		return nil, err
	}
	execute := func(sqls string) *goose.GoFunc {
		return &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, sqls)
			return err
		}}
	}
	up, down, _ := strings.Cut(string(text), "\n-- +goose Down\n") // checked by a test
	m := goose.NewGoMigration(version, execute(up), execute(down))
	m.Source = strings.TrimSuffix(name, ".sql") + ".go" // goose takes no other
	return m, nil
}

// Schema returns the state of the schema.
func (d *DB) Schema(ctx context.Context) (s Schema, err error) {
	p, err := d.provider()
	if err != nil {
		return s, err
	}
	all, err := p.Status(ctx)
	if err != nil {
		return s, d.Wrap(err)
	}
	if s.Current, s.Latest, err = p.GetVersions(ctx); err != nil {
		return s, d.Wrap(err)
	}
	for _, m := range all {
		s.Migrations = append(s.Migrations, Migration{Version: m.Source.Version, Name: nameOf(m.Source.Path), Applied: m.AppliedAt})
	}
	return s, nil
}

// Latest returns the version of the schema of this program.
func (d *DB) Latest() (int64, error) {
	p, err := d.provider()
	if err != nil {
		return 0, err
	}
	all := p.ListSources()
	return all[len(all)-1].Version, nil
}

// nameOf returns the name of a migration's source without its number and ending.
func nameOf(file string) string {
	var version int
	var name string
	_, _ = fmt.Sscanf(file, "%d_%s", &version, &name) // checked by a test
	return name[:max(0, len(name)-len(".go"))]
}

// Up brings the schema up to date, or to a version if that is not 0, and returns what
// was applied.
func (d *DB) Up(ctx context.Context, to int64) ([]Migration, error) {
	if err := d.create(); err != nil {
		return nil, err
	}
	p, err := d.provider()
	if err != nil {
		return nil, err
	}
	var all []*goose.MigrationResult
	// Without a lock, the second of two processes fails with nothing done. When it tries
	// again it finds what the first has done, so each attempt gets further.
	for range len(p.ListSources()) + 2 {
		var results []*goose.MigrationResult
		if to == 0 {
			results, err = p.Up(ctx)
		} else {
			results, err = p.UpTo(ctx, to)
		}
		if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
			results = partial.Applied
		}
		if all = append(all, results...); err == nil || ctx.Err() != nil || d.Postgres() {
			break
		}
	}
	if err == nil {
		err = d.extend(ctx)
	}
	return d.applied(all, err)
}

// Down undoes the last migration, or all above a version if that is not negative, and
// returns what was undone. The rows of their tables are lost.
func (d *DB) Down(ctx context.Context, to int64) ([]Migration, error) {
	p, err := d.provider()
	if err != nil {
		return nil, err
	}
	var results []*goose.MigrationResult
	if to < 0 {
		var one *goose.MigrationResult
		if one, err = p.Down(ctx); one != nil {
			results = append(results, one)
		}
	} else {
		results, err = p.DownTo(ctx, to)
	}
	if err == nil {
		err = d.sweep(ctx)
	}
	return d.applied(results, err)
}

func (d *DB) applied(results []*goose.MigrationResult, err error) ([]Migration, error) {
	if errors.Is(err, goose.ErrNoNextVersion) {
		err = nil // there is nothing to do
	}
	var out []Migration
	for _, r := range results {
		out = append(out, Migration{Version: r.Source.Version, Name: nameOf(r.Source.Path), Applied: time.Now().UTC()})
	}
	return out, d.Wrap(err)
}
