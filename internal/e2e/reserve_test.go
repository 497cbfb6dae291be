package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testdoc"
)

// TestReserveDocument takes the walk of docs/reserve.md, under its rules, and compares each answer with the one that
// it shows. $TICKET is the latest ticket.
func TestReserveDocument(t *testing.T) {
	t.Parallel()
	const file = "docs/reserve.md"
	s := serve(t, testdoc.In(t, file, "toml")[0].Text)
	shown, n, ticket := testdoc.In(t, file, "json"), 0, ""
	for _, b := range testdoc.In(t, file, "sh") {
		for _, c := range b.Commands() {
			text := replace(t, c.Text, "localhost:8080", s.api, "curl", "'"+tool(t, "curl")+"' -fsS")
			got := command(t, "sh", "-c", strings.ReplaceAll(text, "$TICKET", ticket))
			if n >= len(shown) {
				t.Fatalf("%s: no answer is shown", b)
			}
			if err := testdoc.SameJSON(got, shown[n].Text, "reset_after", "ticket"); err != nil {
				t.Errorf("%s: %v: got %s", shown[n], err, got)
			}
			n++
			var answer struct{ Ticket string }
			if err := json.Unmarshal([]byte(got), &answer); err != nil {
				t.Fatal(err)
			}
			if answer.Ticket != "" {
				ticket = answer.Ticket
			}
		}
	}
	if n != 4 || n != len(shown) {
		t.Errorf("%s has %d commands and %d answers, want 4 of each", file, n, len(shown))
	}
}
