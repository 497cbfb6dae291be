package e2e_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testdoc"
)

// TestDocumentedAdmin runs the commands that docs/admin-api.md and docs/operations.md show,
// in their order, against one server.
func TestDocumentedAdmin(t *testing.T) {
	t.Parallel()
	s := newSite(t, inSQLite)
	s.must(t, "POST", "/users", map[string]any{"id": "alice"})
	t.Run("curl", func(t *testing.T) {
		t.Parallel()
		out := ""
		for _, b := range testdoc.In(t, "docs/admin-api.md", "sh", "json") {
			if b.Language == "json" { // what the command before it prints
				if err := testdoc.SameJSON(out, b.Text, "version", "updated_by"); err != nil {
					t.Errorf("%s: %v: got %s", b, err, out)
				}
				continue
			}
			for _, c := range b.Commands() {
				text := replace(t, c.Text, "http://127.0.0.1:9090", s.admin)
				out = command(t, "sh", "-c", "STINT_TOKEN="+adminToken+"; "+strings.Replace(text, "curl", "'"+tool(t, "curl")+"' -S", 1))
				if strings.Contains(out, `"errors"`) != strings.Contains(text, "20 per hour") {
					t.Errorf("%s: %s: got %s", b, text, out)
				}
			}
		}
	})
	t.Run("stint", func(t *testing.T) {
		t.Parallel()
		ran := 0
		for _, c := range regexp.MustCompile("`(stint [a-z]+ [^`]+)`").FindAllStringSubmatch(read(t, "../../docs/operations.md"), -1) {
			text := strings.ReplaceAll(c[1], "\n", " ")
			switch {
			case strings.Contains(text, ".toml"), strings.Contains(text, "REVISION"), strings.Contains(text, "migrate"):
				continue // it is about something that is not here
			case strings.HasPrefix(text, "stint reset"):
				text += " --yes"
			}
			ran++
			command(t, "sh", "-c", "export STINT_SERVER="+s.admin+" STINT_TOKEN="+adminToken+"; '"+program.path+"'"+strings.TrimPrefix(text, "stint"))
		}
		if ran < 5 {
			t.Fatalf("operations.md shows %d commands", ran)
		}
	})
}

func read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
