package main

import (
	"encoding/json"
	"fmt"
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

// notes writes what is to be known beside the answer.
func (t *terminal) notes(notes []string) {
	for _, n := range notes {
		fmt.Fprintln(t.err, "note:", n)
	}
}

// table returns a writer of lines whose cells have tabs between them. Flush it.
func (t *terminal) table() *tabwriter.Writer { return tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0) }
