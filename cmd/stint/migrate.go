package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/catalog"
)

func newMigrate(t *terminal) *cobra.Command {
	c := &cobra.Command{
		Use: "migrate", Short: "Work with the schema of the database", Args: wants(0, 0, "one of its commands"),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newMigrateStatus(t), newMigrateUp(t), newMigrateDown(t))
	return c
}

func newMigrateStatus(t *terminal) *cobra.Command {
	var f databaseFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show which migrations were applied",
		Long: `Show the migrations that this program has, and when each was applied to the database.
The exit code is 0 whether or not some are left. A database may be ahead of a program:
later versions leave in place what this one reads, so that nodes can be updated one by
one.`,
		Example: `  stint migrate status --database sqlite:stint.db
  stint migrate status --config stint.toml --json`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c.Context(), t, there, func(k *catalog.Catalog) error {
				s, err := k.Schema(c.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return t.writeJSON(s)
				}
				w := t.table()
				fmt.Fprintln(w, "VERSION\tNAME\tAPPLIED")
				for _, m := range s.Migrations {
					when := ""
					if !m.Applied.IsZero() {
						when = m.Applied.UTC().Format(time.RFC3339)
					}
					fmt.Fprintf(w, "%d\t%s\t%s\n", m.Version, m.Name, cmp.Or(when, "-"))
				}
				if err := w.Flush(); err != nil {
					return err
				}
				fmt.Fprintf(t.out, "\nthe schema is of version %d, and the latest is %d\n", s.Current, s.Latest)
				return nil
			})
		},
	}
	f.add(c)
	addJSON(c, &asJSON)
	return c
}

// migrated is what "migrate up" and "migrate down" say that they have done.
type migrated struct {
	Migrations []catalog.Migration `json:"migrations"`
	Current    int64               `json:"current"` // the version of the schema
}

func newMigrateUp(t *terminal) *cobra.Command {
	var (
		f      databaseFlags
		to     int64
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "up",
		Short: "Bring the schema up to date",
		Long: `Apply the migrations that were not applied yet, in their order. It can be run while
nodes are serving, and by several at once: they take turns. A server does the same at
its start, unless server.catalog.migrate is false.`,
		Example: `  stint migrate up --database postgres://stint@localhost/stint
  stint migrate up --config stint.toml`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c.Context(), t, anyhow, func(k *catalog.Catalog) error {
				return migrate(c.Context(), t, k, asJSON, "applied", func(s catalog.Schema) ([]catalog.Migration, error) {
					if c.Flags().Changed("to") && (to < 1 || to > s.Latest) {
						return nil, advice{fmt.Errorf("--to %d: want from 1 to %d", to, s.Latest), "stint migrate status"}
					}
					return k.Up(c.Context(), to)
				})
			})
		},
	}
	f.add(c)
	c.Flags().Int64Var(&to, "to", 0, "go to this `version`, and not to the latest")
	addJSON(c, &asJSON)
	return c
}

func newMigrateDown(t *terminal) *cobra.Command {
	var (
		f           databaseFlags
		to          int64
		yes, asJSON bool
	)
	c := &cobra.Command{
		Use:   "down",
		Short: "Undo migrations, and lose what their tables hold",
		Long: `Undo the last migration, or, with --to, all above a version. What the tables that they
made hold is lost: --to 0 is all that there is. It wants --yes, and asks nothing.

Stop the nodes first, or have them be of a version that knows no later schema: one that
starts would bring it up to date again.`,
		Example: `  stint export --database sqlite:stint.db -o backup.toml
  stint migrate down --database sqlite:stint.db --to 1 --yes`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			if !yes {
				return advice{errors.New("what is in the tables of a migration is lost when it is undone"), "stint export first, and then the same with --yes"}
			}
			return f.use(c.Context(), t, there, func(k *catalog.Catalog) error {
				return migrate(c.Context(), t, k, asJSON, "undone", func(s catalog.Schema) ([]catalog.Migration, error) {
					switch {
					case !c.Flags().Changed("to"):
						to = -1 // the last one
					case to < 0 || to > s.Latest:
						return nil, advice{fmt.Errorf("--to %d: want from 0 to %d", to, s.Latest), "stint migrate status"}
					}
					all, err := k.Down(c.Context(), to)
					for i := range all {
						all[i].Applied = time.Time{} // no more
					}
					return all, err
				})
			})
		},
	}
	f.add(c)
	c.Flags().Int64Var(&to, "to", 0, "undo all above this `version`, and not the last alone")
	c.Flags().BoolVar(&yes, "yes", false, "lose what the tables hold")
	addJSON(c, &asJSON)
	return c
}

// migrate has migrations applied or undone, and says which.
func migrate(ctx context.Context, t *terminal, k *catalog.Catalog, asJSON bool, done string, do func(catalog.Schema) ([]catalog.Migration, error)) error {
	s, err := k.Schema(ctx)
	if err != nil {
		return err
	}
	all, err := do(s)
	if err != nil {
		return err
	}
	if s, err = k.Schema(ctx); err != nil {
		return err
	}
	if asJSON {
		return t.writeJSON(migrated{append([]catalog.Migration{}, all...), s.Current})
	}
	for _, m := range all {
		fmt.Fprintf(t.out, "%s: %d %s\n", done, m.Version, m.Name)
	}
	if len(all) == 0 {
		fmt.Fprint(t.out, "nothing to do: ")
	}
	fmt.Fprintf(t.out, "the schema is of version %d\n", s.Current)
	return nil
}
