package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
)

// databaseFlags are the flags of commands that work on the database.
type databaseFlags struct {
	sourceFlags
	url string

	config *daemon.Config // what was read, while the database is used
}

func (f *databaseFlags) add(c *cobra.Command) {
	f.sourceFlags.add(c)
	c.Flags().StringVar(&f.url, "database", "", "the database, as a `URL`: sqlite:FILE or postgres://... (default: server.database)")
}

// state is what a command wants a database to be.
type state int

const (
	anyhow   state = iota // it need not be there
	there                 // whatever its schema
	upToDate              // with the schema of this program, or of a later one
)

const tryMigrate = "stint migrate up, with the same --database or --config"

// located is where the configuration comes from, with the database that a flag names.
func (f *databaseFlags) located(t *terminal) (daemon.Source, error) {
	if f.url != "" {
		f.more = append(f.more, daemon.Flag{Name: "--database", Setting: "server.database", Value: f.url})
	}
	return f.source(t)
}

// sqliteFile is the file of the database, if it has one.
func sqliteFile(c *daemon.Config) (string, bool) {
	file, ok := strings.CutPrefix(string(c.Server.Database), "sqlite:")
	return strings.TrimPrefix(file, "//"), ok && file != ":memory:"
}

// use opens the database that flags and settings name, has something done with it, and
// closes it.
func (f *databaseFlags) use(ctx context.Context, t *terminal, want state, do func(*catalog.Catalog) error) (err error) {
	source, err := f.located(t)
	if err != nil {
		return err
	}
	source.SettingsOnly = true
	config, err := source.Load()
	if err != nil {
		return advise(source, err)
	}
	f.config = config
	const example = "--database sqlite:/var/lib/stint/stint.db, or --config with a file that sets server.database"
	url := config.Server.Database
	switch file, isFile := sqliteFile(config); {
	case url == "":
		return advice{errors.New("no database is named"), example}
	case url == "sqlite::memory:":
		return advice{fmt.Errorf("%s is a database in the memory of the process that serves, which no other can reach", url), example}
	case isFile && want != anyhow:
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return advice{fmt.Errorf("%s: there is no such database", url), tryMigrate + ", which makes it"}
		}
	}
	k, err := config.OpenCatalog(nil)
	if err != nil {
		return advice{err, example}
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	if want == upToDate {
		err = upToDateSchema(ctx, k)
	}
	if err == nil {
		err = do(k)
	}
	if errors.Is(err, catalog.ErrUnavailable) {
		return advice{err, "make sure that the database runs, and that this machine reaches it: " + url.String()}
	}
	return err
}

func upToDateSchema(ctx context.Context, k *catalog.Catalog) error {
	s, err := k.Schema(ctx)
	switch {
	case err != nil:
		return err
	case s.Current == 0:
		return advice{errors.New("the database is empty: it has no schema yet"), tryMigrate}
	case s.Current < s.Latest:
		return advice{fmt.Errorf("the schema of the database is of version %d, and this program wants %d", s.Current, s.Latest), tryMigrate}
	}
	return nil
}

// fromDatabase adds to a configuration the rules that are in its database, if it has one.
func fromDatabase(ctx context.Context, c *daemon.Config) (err error) {
	if c.Server.Database == "" {
		return nil
	}
	k, err := c.OpenCatalog(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	d, err := k.Export(ctx, catalog.ExportOptions{})
	if err == nil {
		c.File = d.File
	}
	return err
}
