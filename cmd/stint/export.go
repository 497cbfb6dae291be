package main

import (
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
)

const asTOML = "toml"

func newExport(t *terminal) *cobra.Command {
	var (
		f            eitherFlags
		file, as     string
		withoutUsers bool
	)
	c := &cobra.Command{
		Use:   "export",
		Short: "Export rules, tiers, users and keys to a file",
		Long: `Write the rules, tiers, tenants, users, API keys, exemptions and bans of a server, or of a
database, as TOML, as they are at one moment. It can be used as a config file, and "stint
apply" makes another database the same. Of keys it has the hashes, and not the keys
themselves.

A file has at most 16 MiB: of a database that has hundreds of thousands of users,
--without-users writes what fits.`,
		Example: `  stint export --database sqlite:stint.db
  stint export --database sqlite:stint.db --without-users -f rules.toml
  stint export -o json | jq '.users | length'`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			write := func(export func(io.Writer) error) error {
				if file == "" || file == "-" {
					return export(t.out)
				}
				return replace(file, func(w io.Writer) error { return t.count(w, export) })
			}
			a, err := f.remote(t)
			if err != nil {
				return err
			}
			if a != nil {
				defer a.close()
				q := url.Values{"users": {strconv.FormatBool(!withoutUsers)}, "format": {as}}
				return write(func(w io.Writer) error { return a.copy(c.Context(), call{path: "/export", query: q}, w) })
			}
			return f.use(c.Context(), t, upToDate, func(k *catalog.Catalog) error {
				export, o := k.ExportTOML, catalog.ExportOptions{Users: !withoutUsers}
				if as == asJSON {
					export = k.ExportJSON
				}
				return write(func(w io.Writer) error { return export(c.Context(), w, o) })
			})
		},
	}
	f.add(c)
	c.Flags().StringVarP(&file, "file", "f", "", "the `FILE` to write (default: the standard output)")
	c.Flags().BoolVar(&withoutUsers, "without-users", false, "leave out users and API keys")
	addChoice(c, &as, "output", "o", "how to write it, as a `format`: toml or json", asTOML, asJSON)
	return c
}

// replace makes a file, or makes it another one, as a whole or not at all. It is its
// owner's alone.
func replace(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return advice{err, "-f with a file in a directory that can be written to"}
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
