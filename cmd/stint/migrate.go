package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
)

func newMigrate(t *terminal) *cobra.Command {
	return family("migrate", "Migrate the database schema", newMigrateStatus(t), newMigrateUp(t), newMigrateDown(t))
}

func newMigrateStatus(t *terminal) *cobra.Command {
	var f databaseFlags
	var as string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show applied and pending migrations",
		Long: `Show the migrations that this program has, and when each was applied to the database.
The exit code is 0 whether or not some are left. A database may be ahead of a program:
later versions leave in place what this one reads, so that nodes can be updated one by
one.`,
		Example: `  stint migrate status --database sqlite:stint.db
  stint migrate status --database sqlite:stint.db -o json`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c.Context(), t, there, func(k *catalog.Catalog) error {
				s, err := k.Schema(c.Context())
				if err != nil {
					return err
				}
				return t.say(as, s, s.Migrations, func() error {
					w := t.grid("VERSION", "NAME", "APPLIED")
					for _, m := range s.Migrations {
						w.row(m.Version, m.Name, m.Applied)
					}
					if err := w.Flush(); err != nil {
						return err
					}
					_, err := fmt.Fprintf(t.out, "\nthe schema is of version %d, and the latest is %d\n", s.Current, s.Latest)
					return err
				})
			})
		},
	}
	f.add(c)
	addOutput(c, &as)
	return c
}

// migrated is what "migrate up" and "migrate down" say that they have done.
type migrated struct {
	Migrations []catalog.Migration `json:"migrations"`
	Current    int64               `json:"current"` // the version of the schema
}

func newMigrateUp(t *terminal) *cobra.Command {
	var (
		f  databaseFlags
		to int64
		as string
	)
	c := &cobra.Command{
		Use:   "up",
		Short: "Apply pending migrations",
		Long: `Apply the migrations that were not applied yet, in their order. It can be run while
nodes are serving, and by several at once: they take turns. A server does the same at
its start, unless server.catalog.migrate is false.`,
		Example: `  stint migrate up --database postgres://stint@localhost/stint
  stint migrate up --database sqlite:stint.db`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.use(c.Context(), t, anyhow, func(k *catalog.Catalog) error {
				return migrate(c.Context(), t, k, as, "applied", func(s catalog.Schema) ([]catalog.Migration, error) {
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
	addOutput(c, &as)
	return c
}

func newMigrateDown(t *terminal) *cobra.Command {
	var (
		f   databaseFlags
		to  int64
		yes consent
		as  string
	)
	c := &cobra.Command{
		Use:   "down",
		Short: "Undo migrations and delete their tables",
		Long: `Undo the last migration, or, with --to, all above a version. What the tables that they
made hold is lost: --to 0 is all that there is. It asks whether that is meant, unless
there is --yes.

Stop the nodes first, or have them be of a version that knows no later schema: one that
starts would bring it up to date again.`,
		Example: `  stint export --database sqlite:stint.db -f backup.toml
  stint migrate down --database sqlite:stint.db --to 1 --yes`,
		Args: nothing,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := yes.ask(c, t, "what is in the tables of a migration is lost when it is undone"); err != nil {
				return err
			}
			return f.use(c.Context(), t, there, func(k *catalog.Catalog) error {
				return migrate(c.Context(), t, k, as, "undone", func(s catalog.Schema) ([]catalog.Migration, error) {
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
	yes.add(c)
	addOutput(c, &as)
	return c
}

// migrate has migrations applied or undone, and says which.
func migrate(ctx context.Context, t *terminal, k *catalog.Catalog, as, done string, do func(catalog.Schema) ([]catalog.Migration, error)) error {
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
	x := migrated{append([]catalog.Migration{}, all...), s.Current}
	return t.say(as, x, x.Migrations, func() error {
		for _, m := range all {
			fmt.Fprintf(t.out, "%s: %d %s\n", done, m.Version, m.Name)
		}
		if len(all) == 0 {
			fmt.Fprint(t.out, "nothing to do: ")
		}
		_, err := fmt.Fprintf(t.out, "the schema is of version %d\n", s.Current)
		return err
	})
}
