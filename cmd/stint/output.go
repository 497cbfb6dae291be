package main

import (
	"encoding/json"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func addJSON(c *cobra.Command, asJSON *bool) {
	c.Flags().BoolVar(asJSON, "json", false, "write JSON")
}

func (t *terminal) writeJSON(v any) error {
	e := json.NewEncoder(t.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table returns a writer of lines whose cells have tabs between them. Flush it.
func (t *terminal) table() *tabwriter.Writer { return tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0) }
