package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/catalog"
)

func newExport(t *terminal) *cobra.Command {
	var (
		f            databaseFlags
		file         string
		withoutUsers bool
		asJSON       bool
	)
	c := &cobra.Command{
		Use:   "export",
		Short: "Write what is in the database as a file",
		Long: `Write the rules, tiers, tenants, users, API keys, exemptions and bans of the database as
TOML, as it is at one moment. It can be used as a config file, and "stint apply" makes
another database the same. Of keys it has the hashes, and not the keys themselves.

A file has at most 16 MiB: of a database that has hundreds of thousands of users,
--without-users writes what fits.`,
		Example: `  stint export --database sqlite:stint.db
  stint export --config /etc/stint/stint.toml --without-users -o rules.toml
  stint export --json | jq '.users | length'`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c.Context(), t, upToDate, func(k *catalog.Catalog) error {
				write, o := k.ExportTOML, catalog.ExportOptions{Users: !withoutUsers}
				if asJSON {
					write = k.ExportJSON
				}
				if file == "" || file == "-" {
					return write(c.Context(), t.out, o)
				}
				return replace(file, func(w io.Writer) error { return write(c.Context(), w, o) })
			})
		},
	}
	f.add(c)
	c.Flags().StringVarP(&file, "output", "o", "", "the `FILE` to write (default: the standard output)")
	c.Flags().BoolVar(&withoutUsers, "without-users", false, "leave out users and API keys")
	addJSON(c, &asJSON)
	return c
}

// replace makes a file, or makes it another one, as a whole or not at all. It is its
// owner's alone.
func replace(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return advice{err, "-o with a file in a directory that can be written to"}
	}
	err = errors.Join(write(f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error counts
	}
	return err
}
