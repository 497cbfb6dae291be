package descriptor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/grpclimit/descriptor"
)

// makeTree makes files, whose texts are their paths, and links, as path -> target.
func makeTree(t *testing.T, paths ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, text := range paths {
		path, target, isLink := strings.Cut(text, " -> ")
		full := filepath.Join(dir, path)
		err := os.MkdirAll(filepath.Dir(full), 0o700)
		switch {
		case err != nil:
		case isLink:
			err = os.Symlink(target, full)
		case strings.HasSuffix(path, "/"):
			err = os.MkdirAll(full, 0o700)
		default:
			err = os.WriteFile(full, []byte(path), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestReadDir checks which files are read, and that the others are named.
func TestReadDir(t *testing.T) {
	t.Parallel()
	// As Kubernetes mounts a volume: names are links into a directory that is a link.
	mounted := []string{"..2026/b.yaml", "..2026/c", "..2026/sub/d.yaml", "..2025/b.yaml", "..data -> ..2026", "b.yaml -> ..data/b.yaml", "c -> ..data/c", "sub -> ..data/sub"}
	for name, row := range map[string]struct {
		tree     []string
		dotFiles bool
		read     string // in lines; those that are links with what they hold
		skipped  string
	}{
		"nothing":   {},
		"any name":  {tree: []string{"a.yaml", "b.yml", "c.json", "d", "E.YAML~"}, read: "E.YAML~\na.yaml\nb.yml\nc.json\nd"},
		"folders":   {tree: []string{"a/b/c.yaml", "a.yaml", "empty/", "x.yaml/y"}, read: "a/b/c.yaml\na.yaml\nx.yaml/y"},
		"no dots":   {tree: []string{".a.yaml", ".git/config", "b"}, read: "b", skipped: ".a.yaml: its name begins with a dot\n.git: its name begins with a dot"},
		"dots":      {tree: []string{".a.yaml", ".b/c", "..d", "e"}, dotFiles: true, read: "..d\n.a.yaml\n.b/c\ne"},
		"mounted":   {tree: mounted, read: "b.yaml ..2026/b.yaml\nc ..2026/c", skipped: "sub: it is a link to a directory"},
		"with dots": {tree: mounted, dotFiles: true, read: "b.yaml ..2026/b.yaml\nc ..2026/c\nsub/d.yaml ..2026/sub/d.yaml"},
		"links": {
			tree: []string{"a/b", "c -> a/b", "d -> a", "e -> nowhere", "f -> f", "g -> /dev/zero", "h -> ."}, read: "a/b\nc a/b",
			skipped: "d: it is a link to a directory\ne: it is a link to nothing\nf: it is a link to nothing\ng: it is not a regular file\nh: it is a link to a directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := makeTree(t, row.tree...)
			files, skipped, err := descriptor.ReadDir(dir, descriptor.DirOptions{DotFiles: row.dotFiles})
			if err != nil {
				t.Fatal(err)
			}
			var read, left []string
			for _, f := range files {
				path := strings.TrimPrefix(f.Name, dir+"/")
				if text := string(f.Data); text != path {
					path += " " + text
				}
				read = append(read, path)
			}
			for _, s := range skipped {
				left = append(left, strings.TrimPrefix(s.Path, dir+"/")+": "+s.Why)
			}
			if got := strings.Join(read, "\n"); got != row.read {
				t.Errorf("read\n%s\nwant\n%s", got, row.read)
			}
			if got := strings.Join(left, "\n"); got != row.skipped {
				t.Errorf("skipped\n%s\nwant\n%s", got, row.skipped)
			}
		})
	}
}

// TestSiblings reads what is beside a directory, whether or not it exists.
func TestSiblings(t *testing.T) {
	t.Parallel()
	dir := makeTree(t, "config/a", "config.d/b/c", "config.yaml", "config.link -> config", "config2/d", "other.yaml")
	for name, row := range map[string]struct{ read, alone, beside string }{
		"config":  {"config/a config.d/b/c config.yaml", "config/a", "config.d config.link config.yaml"},
		"other":   {"other.yaml", "", "other.yaml"},
		"config2": {"config2/d", "config2/d", ""},
		"missing": {},
		"a/b":     {},
	} {
		path := filepath.Join(dir, name)
		names := func(siblings bool) string {
			files, _, err := descriptor.ReadDir(path, descriptor.DirOptions{Siblings: siblings})
			var out []string
			for _, f := range files {
				out = append(out, strings.TrimPrefix(f.Name, dir+"/"))
			}
			if len(out) == 0 && !errors.Is(err, os.ErrNotExist) || len(out) > 0 && err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return strings.Join(out, " ")
		}
		if got := names(true); got != row.read {
			t.Errorf("%s: read %s, want %s", name, got, row.read)
		}
		if got := names(false); got != row.alone {
			t.Errorf("%s: read %s alone, want %s", name, got, row.alone)
		}
		var beside []string
		for _, s := range descriptor.Siblings(path) {
			beside = append(beside, strings.TrimPrefix(s.Path, dir+"/"))
		}
		if got := strings.Join(beside, " "); got != row.beside {
			t.Errorf("%s: has beside it %s, want %s", name, got, row.beside)
		}
	}
	for _, path := range []string{filepath.Join(dir, "config.yaml"), ".", "/"} {
		if got := descriptor.Siblings(path); got != nil {
			t.Errorf("%s has beside it %v", path, got)
		}
	}
}

// TestReadDirBounds checks files in place of a directory, and what is too much.
func TestReadDirBounds(t *testing.T) {
	t.Parallel()
	dir := makeTree(t, "a.yaml", "README.md")
	if _, _, err := descriptor.ReadDir(filepath.Join(dir, "missing"), descriptor.DirOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
	if files, _, err := descriptor.ReadDir(filepath.Join(dir, "README.md"), descriptor.DirOptions{}); err != nil || len(files) != 1 || string(files[0].Data) != "README.md" {
		t.Errorf("a file: %s, %v", files, err)
	}
	if _, _, err := descriptor.ReadDir("/dev/zero", descriptor.DirOptions{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("what never ends: %v", err)
	}
	if err := os.Truncate(filepath.Join(dir, "a.yaml"), descriptor.MaxBytes); err != nil {
		t.Fatal(err)
	}
	if _, _, err := descriptor.ReadDir(dir, descriptor.DirOptions{}); err == nil || !strings.Contains(err.Error(), "more than 67108864 bytes") {
		t.Errorf("very much: %v", err)
	}
}
