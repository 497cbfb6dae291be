package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
)

const root = "../.."

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// version is the newest version of the changelog.
func version(t *testing.T) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^## \[(\d[^]]*)\]`).FindStringSubmatch(read(t, "CHANGELOG.md"))
	if found == nil {
		t.Fatal("CHANGELOG.md has no version")
	}
	return found[1]
}

// TestCompose loads each topology as Docker Compose does, which rejects names that it does not know. internal/e2e runs them.
func TestCompose(t *testing.T) {
	folders, err := filepath.Glob(filepath.Join(root, "deploy/compose/*/compose.yaml"))
	if err != nil || len(folders) != 3 {
		t.Fatalf("%q, %v", folders, err)
	}
	for _, file := range folders {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			options, err := cli.NewProjectOptions([]string{file}, cli.WithEnv([]string{"POSTGRES_PASSWORD=secret"}))
			if err != nil {
				t.Fatal(err)
			}
			p, err := options.LoadProject(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for name, s := range p.Services {
				if strings.HasPrefix(s.Image, "stint:") && s.Image != "stint:"+version(t) {
					t.Errorf("%s runs %s, and the release is %s", name, s.Image, version(t))
				}
				if strings.HasPrefix(s.Image, "stint:") && (!s.ReadOnly || len(s.CapDrop) != 1) {
					t.Errorf("%s may more than it needs: %+v", name, s)
				}
				for _, v := range s.Volumes {
					if v.Type != "bind" {
						continue
					}
					if _, err := os.Stat(v.Source); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
		})
	}
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "deploy/compose/shared/compose.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := options.LoadProject(t.Context()); err == nil || !strings.Contains(err.Error(), "run the first line of compose.yaml") {
		t.Errorf("without a password: %v", err)
	}
}
