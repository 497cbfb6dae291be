package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
)

func newMigrate(t *terminal) *cobra.Command {
	return family("migrate", "Migrate the database schema", newMigrateStatus(t), newMigrateUp(t), newMigrateDown(t))
}

// migrateCommand completes a command that uses the schema of the database.
func migrateCommand(t *terminal, c *cobra.Command, require requirement, run func(c *cobra.Command, k *catalog.Catalog, s catalog.Schema) error) *cobra.Command {
	var f databaseFlags
	f.add(c)
	addOutput(c)
	c.Args = noArgs
	c.RunE = func(c *cobra.Command, _ []string) error {
		return f.use(c.Context(), t, require, func(k *catalog.Catalog) error {
			s, err := k.Schema(c.Context())
			if err != nil {
				return err
			}
			return run(c, k, s)
		})
	}
	return c
}

func newMigrateStatus(t *terminal) *cobra.Command {
	return migrateCommand(t, &cobra.Command{
		Use:   "status",
		Short: "Show applied and pending migrations",
		Long: `Show the migrations of this version of stint, and when each was applied to the database. The
exit code is 0 even if some are pending. A database may be ahead of a program: later
versions keep what earlier ones read, so that nodes can be updated one by one.`,
		Example: `  stint migrate status --database sqlite:stint.db
  stint migrate status --database sqlite:stint.db -o json`,
	}, exists, func(_ *cobra.Command, _ *catalog.Catalog, s catalog.Schema) error {
		return t.print(s, s.Migrations, func() error {
			err := printTable(t, s.Migrations, "", []string{"VERSION", "NAME", "APPLIED"}, func(m *catalog.Migration) []any {
				return []any{m.Version, m.Name, m.Applied}
			})
			fmt.Fprintf(t.out, "\nthe schema has version %d; the latest is %d\n", s.Current, s.Latest)
			return err
		})
	})
}

func newMigrateUp(t *terminal) *cobra.Command {
	var to int64
	c := migrateCommand(t, &cobra.Command{
		Use:   "up",
		Short: "Apply pending migrations",
		Long: `Apply the pending migrations, in order. This is safe while nodes are running, and when it is
run several times at once: one run waits for the other. A server also does it when it
starts, unless server.catalog.migrate is false.`,
		Example: `  stint migrate up --database postgres://stint@localhost/stint
  stint migrate up --database sqlite:stint.db`,
	}, mayNotExist, func(c *cobra.Command, k *catalog.Catalog, s catalog.Schema) error {
		if c.Flags().Changed("to") && (to < 1 || to > s.Latest) {
			return advice{fmt.Errorf("--to %d: want from 1 to %d", to, s.Latest), "stint migrate status"}
		}
		all, err := k.Up(c.Context(), to)
		if err != nil {
			return err
		}
		return printMigrated(c, t, k, "applied", all)
	})
	c.Flags().Int64Var(&to, "to", 0, "migrate to this `version` instead of the latest")
	return c
}

func newMigrateDown(t *terminal) *cobra.Command {
	var to int64
	var yes consent
	c := migrateCommand(t, &cobra.Command{
		Use:   "down",
		Short: "Undo migrations and delete their tables",
		Long: `Undo the last migration or, with --to, all above a version. The data in their tables is
lost; --to 0 deletes everything. The command asks for confirmation, unless --yes is given.

Stop the nodes first, or run a version of stint that has no later schema: a node that
starts would migrate the database again.`,
		Example: `  stint export --database sqlite:stint.db -f backup.toml
  stint migrate down --database sqlite:stint.db --to 1 --yes`,
	}, exists, func(c *cobra.Command, k *catalog.Catalog, s catalog.Schema) error {
		switch {
		case !c.Flags().Changed("to"):
			to = -1 // the last one
		case to < 0 || to > s.Latest:
			return advice{fmt.Errorf("--to %d: want from 0 to %d", to, s.Latest), "stint migrate status"}
		}
		if err := yes.ask(c, t, "the data in the tables of undone migrations will be lost"); err != nil {
			return err
		}
		all, err := k.Down(c.Context(), to)
		if err != nil {
			return err
		}
		for i := range all {
			all[i].Applied = time.Time{}
		}
		return printMigrated(c, t, k, "undone", all)
	})
	c.Flags().Int64Var(&to, "to", 0, "undo all migrations above this `version` instead of the last one")
	yes.add(c)
	return c
}

// printMigrated prints which migrations were applied or undone.
func printMigrated(c *cobra.Command, t *terminal, k *catalog.Catalog, done string, all []catalog.Migration) error {
	s, err := k.Schema(c.Context())
	if err != nil {
		return err
	}
	x := struct {
		Migrations []catalog.Migration `json:"migrations"`
		Current    int64               `json:"current"` // the version of the schema
	}{append([]catalog.Migration{}, all...), s.Current}
	return t.print(x, x.Migrations, func() error {
		for _, m := range all {
			fmt.Fprintf(t.out, "%s: %d %s\n", done, m.Version, m.Name)
		}
		if len(all) == 0 {
			fmt.Fprint(t.out, "nothing to do: ")
		}
		_, err := fmt.Fprintf(t.out, "the schema has version %d\n", s.Current)
		return err
	})
}
