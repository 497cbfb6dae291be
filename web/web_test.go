package web_test

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stintdev/stint/web"
)

func TestPick(t *testing.T) {
	t.Parallel()
	placeholder := &fstest.MapFile{Data: []byte("how to build it")}
	for name, c := range map[string]struct {
		tree fstest.MapFS
		want string
	}{
		"built":      {fstest.MapFS{"dist/index.html": {Data: []byte("built")}, "dist-placeholder/index.html": placeholder}, "built"},
		"half built": {fstest.MapFS{"dist/assets/a.js": {}, "dist-placeholder/index.html": placeholder}, "how to build it"},
		"not built":  {fstest.MapFS{"dist-placeholder/index.html": placeholder}, "how to build it"},
	} {
		got, err := fs.ReadFile(web.Pick(c.tree), "index.html")
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// TestPolicy checks that the page, built or not, is one that the content security policy
// of the admin listener lets work: nothing inline, and nothing from elsewhere.
func TestPolicy(t *testing.T) {
	t.Parallel()
	page, err := fs.ReadFile(web.Files(), "index.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{`<style`, ` style=`, `<script>`, `(src|href)="(https?:)?//`, ` on[a-z]+="`} {
		if found := regexp.MustCompile(bad).FindString(strings.ToLower(string(page))); found != "" {
			t.Errorf("index.html has %q", found)
		}
	}
}
