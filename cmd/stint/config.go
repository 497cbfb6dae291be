package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/rule"
)

func newConfig(t *terminal) *cobra.Command {
	var f sourceFlags
	c := &cobra.Command{
		Use:   "config",
		Short: "Show every setting, its value and where it comes from",
		Long: `Show every setting, its value and where it comes from: a flag, an environment variable, a
line of the config file, or the default. Secrets are masked.

Rules, tiers, users and keys are in the file or in the database, and upstreams are in the
file; they are not shown here.`,
		Example: `  stint config
  stint config --config stint.toml -o json
  STINT_SERVER_REPLICAS=3 stint config --set server.http.address=:9000
  REDIS_URL=redis:6379 stint config --envoy-env`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			config, err := f.load(t, false)
			if err != nil {
				return err
			}
			t.notes(f.notes...)
			return printList(t, config.Settings(), "", []string{"SETTING", "VALUE", "FROM", "VARIABLE"}, func(s *daemon.Setting) []any {
				return []any{s.Name, s.Value, s.Origin, s.Env}
			})
		},
	}
	f.add(c)
	f.addEnvoy(c)
	addOutput(c)
	return c
}

// sourceFlags are the flags of commands that read a configuration.
type sourceFlags struct {
	path     string
	sets     []string
	envoyEnv bool

	more  []daemon.Flag // of the command itself
	notes []string      // about the source
}

func (f *sourceFlags) add(c *cobra.Command) {
	c.Flags().StringVarP(&f.path, "config", "c", "", "the config `file` (default: $STINT_CONFIG, or none)")
	c.Flags().StringArrayVar(&f.sets, "set", nil, "a setting, as `name=value`, such as server.http.address=:9000; can be repeated")
	_ = c.MarkFlagFilename("config", "toml") // both flags exist
	_ = c.RegisterFlagCompletionFunc("set", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, s := range daemon.Defaults() {
			names = append(names, s.Name+"=\t"+s.Doc)
		}
		return names, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	})
}

func (f *sourceFlags) addEnvoy(c *cobra.Command) {
	c.Flags().BoolVar(&f.envoyEnv, "envoy-env", false, "also read the environment variables of envoyproxy/ratelimit, such as REDIS_URL")
}

// flag adds a flag of the command that sets a setting, if it is given.
func (f *sourceFlags) flag(name, setting, value string) {
	if value != "" {
		f.more = append(f.more, daemon.Flag{Name: "--" + name, Setting: setting, Value: value})
	}
}

// source returns where the configuration comes from. Flags override the environment, which
// overrides the environment of envoyproxy/ratelimit, which overrides the file.
func (f *sourceFlags) source(t *terminal) (daemon.Source, error) {
	s := daemon.Source{Path: cmp.Or(f.path, t.variable("STINT_CONFIG")), Environ: t.settings()}
	for _, set := range f.sets {
		name, value, ok := strings.Cut(set, "=")
		if !ok {
			return s, advice{fmt.Errorf("--set %s: want name=value", set), "--set server.http.address=:9000; stint config lists all settings"}
		}
		s.Flags = append(s.Flags, daemon.Flag{Name: "--set " + name, Setting: name, Value: value})
	}
	s.Flags = append(s.Flags, f.more...)
	if f.envoyEnv {
		var err error
		if s.Given, f.notes, err = daemon.EnvoyEnv(t.environ, s.Flags...); err != nil {
			return s, advice{err, "correct the problems; stint config --envoy-env shows the resulting settings"}
		}
	}
	return s, nil
}

// load reads the configuration, or only its settings.
func (f *sourceFlags) load(t *terminal, settingsOnly bool) (*daemon.Config, error) {
	source, err := f.source(t)
	if err != nil {
		return nil, err
	}
	source.SettingsOnly = settingsOnly
	config, err := source.Load()
	return config, advise(source, err)
}

// advise adds a hint to an error of a configuration.
func advise(source daemon.Source, err error) error {
	var problems rule.Problems
	switch {
	case errors.As(err, &problems) && source.Path != "":
		return advice{err, "correct the problems, then: stint rules check " + source.Path}
	case errors.As(err, &problems):
		return advice{err, "correct the problems; stint config shows all settings"}
	case errors.Is(err, fs.ErrNotExist):
		return advice{err, "--config with a file that exists, or no --config"}
	}
	return err
}

// databaseFlags are the flags of commands that use the database.
type databaseFlags struct {
	sourceFlags
	url string

	config *daemon.Config // while the database is in use
}

func (f *databaseFlags) add(c *cobra.Command) {
	f.sourceFlags.add(c)
	c.Flags().StringVar(&f.url, "database", "", "the `URL` of the database: sqlite:FILE or postgres://... (default: server.database)")
}

// requirement is what a command requires of a database.
type requirement int

const (
	mayNotExist requirement = iota
	exists                  // with any schema
	upToDate                // with the schema of this version of stint, or of a later one
)

const (
	tryMigrate  = "stint migrate up, with the same --database or --config"
	tryDatabase = "make sure that the database is running and can be reached from this machine: "
)

// load reads the configuration, with the database that a flag names.
func (f *databaseFlags) load(t *terminal, settingsOnly bool) (*daemon.Config, error) {
	f.flag("database", "server.database", f.url)
	return f.sourceFlags.load(t, settingsOnly)
}

// missingFile reports whether the database is a SQLite file that does not exist.
func missingFile(c *daemon.Config) bool {
	file, ok := strings.CutPrefix(string(c.Server.Database), "sqlite:")
	if !ok || file == ":memory:" {
		return false
	}
	_, err := os.Stat(strings.TrimPrefix(file, "//"))
	return errors.Is(err, fs.ErrNotExist)
}

// use calls do with the database that flags and settings name.
func (f *databaseFlags) use(ctx context.Context, t *terminal, require requirement, do func(*catalog.Catalog) error) (err error) {
	if f.config, err = f.load(t, true); err != nil {
		return err
	}
	const example = "--database sqlite:/var/lib/stint/stint.db, or --config with a file that sets server.database"
	url := f.config.Server.Database
	switch {
	case url == "":
		return advice{errors.New("no database is configured"), example}
	case url == "sqlite::memory:":
		return advice{fmt.Errorf("%s is in the memory of the server: no other process can use it", url), example}
	case require != mayNotExist && missingFile(f.config):
		return advice{fmt.Errorf("%s: the database does not exist", url), tryMigrate + ", to create it"}
	}
	k, err := f.config.OpenCatalog(nil)
	if err != nil {
		return advice{err, example}
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	if require == upToDate {
		err = checkSchema(ctx, k)
	}
	if err == nil {
		err = do(k)
	}
	if errors.Is(err, catalog.ErrUnavailable) {
		return advice{err, tryDatabase + url.String()}
	}
	return err
}

func checkSchema(ctx context.Context, k *catalog.Catalog) error {
	s, err := k.Schema(ctx)
	switch {
	case err != nil:
		return err
	case s.Current == 0:
		return advice{errors.New("the database is empty: it has no schema yet"), tryMigrate}
	case s.Current < s.Latest:
		return advice{fmt.Errorf("the database has schema version %d, and this version of stint needs %d", s.Current, s.Latest), tryMigrate}
	}
	return nil
}

// readRules replaces the rules of a configuration by those in its database, if it has one.
func readRules(ctx context.Context, c *daemon.Config) (err error) {
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
