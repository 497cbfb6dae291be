package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManual writes the help of all commands as manual pages.
func newManual(t *terminal) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write manual pages",
		Long: `Write a manual page of each command to a directory, which is created if it does not exist.
Pages of earlier versions are overwritten.`,
		Example: `  stint man man1
  stint man /usr/local/share/man/man1`,
		Args: wants(1, 1, "a directory"),
		RunE: func(c *cobra.Command, args []string) error {
			dir := args[0]
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			v := versionOf()
			date, _ := time.Parse(time.RFC3339, v.Date) // not today's, so that a version has the same pages everywhere
			root := c.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Date: &date, Source: "stint " + v.Version, Manual: "Stint"}, dir); err != nil {
				return err
			}
			t.notes(fmt.Sprintf("the pages are in %s: man -l %s/stint.1", dir, dir))
			return nil
		},
	}
}
