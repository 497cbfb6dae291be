package main

import (
	"bytes"
	"debug/elf"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// contents returns the files below a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, name := range strings.Fields(command(t, "find", dir, "-type", "f")) {
		out[strings.TrimPrefix(name, dir+"/")] = readFile(t, name)
	}
	return out
}

// TestReproducible builds a release here, and again from a copy at another place, whose dashboard
// is built anew, with a binary that takes nothing from the cache of Go.
func TestReproducible(t *testing.T) {
	s := tree(t)
	copied := filepath.Join(t.TempDir(), "elsewhere")
	for _, name := range strings.Split(strings.TrimSuffix(command(t, "git", "-C", s.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00"), "\x00") {
		to := filepath.Join(copied, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		command(t, "cp", filepath.Join(s.root, name), to)
	}
	again := *s
	again.root = copied
	if err := again.checkDashboard(); err == nil {
		t.Error("a tree without a dashboard is accepted")
	}
	command(t, "cp", "-r", filepath.Join(s.root, "web/node_modules"), filepath.Join(copied, "web/node_modules"))
	command(t, "npm", "--prefix", filepath.Join(copied, "web"), "run", "--silent", "build")

	var dirs []map[string]string
	for i, s := range []*source{s, &again} {
		b, err := s.build(t.Context(), targets, os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			t.Setenv("GOCACHE", t.TempDir())
			fresh := filepath.Join(t.TempDir(), "stint")
			if err := s.compile(t.Context(), here, fresh); err != nil {
				t.Fatal(err)
			}
			b.binaries[here] = []byte(readFile(t, fresh))
		}
		dir := t.TempDir()
		if err := b.write(dir); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, contents(t, dir))
	}
	for name, body := range dirs[0] {
		if dirs[1][name] != body {
			t.Errorf("%s is different the second time", name)
		}
		for _, secret := range []string{s.root, copied, hostname(t)} {
			if len(secret) > 4 && strings.Contains(body, secret) {
				t.Errorf("%s has %s", name, secret)
			}
		}
	}
	if got, want := slices.Sorted(maps.Keys(dirs[0])), names(s.version); !slices.Equal(got, want) {
		t.Errorf("the release has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// names returns the names of the files of a release.
func names(v string) []string {
	return []string{
		sumsFile, "stint-" + v + "-1.aarch64.rpm", "stint-" + v + "-1.x86_64.rpm",
		"stint_" + v + "-1_amd64.deb", "stint_" + v + "-1_arm64.deb",
		"stint_" + v + "_darwin_amd64.cdx.json", "stint_" + v + "_darwin_amd64.tar.gz", "stint_" + v + "_darwin_arm64.cdx.json", "stint_" + v + "_darwin_arm64.tar.gz",
		"stint_" + v + "_image.tar",
		"stint_" + v + "_linux_amd64.cdx.json", "stint_" + v + "_linux_amd64.tar.gz", "stint_" + v + "_linux_arm64.cdx.json", "stint_" + v + "_linux_arm64.tar.gz",
	}
}

func hostname(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// TestArchive unpacks an archive, and runs what is in it.
func TestArchive(t *testing.T) {
	b, dir := forHere(t), t.TempDir()
	archive := filepath.Join(dir, "stint.tar.gz")
	if err := os.WriteFile(archive, b.archive("stint_x", here), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "tar", "-C", dir, "-xzf", archive)
	in := filepath.Join(dir, "stint_x")
	got := command(t, filepath.Join(in, "stint"), "version", "-o", "json")
	for _, want := range []string{`"version": "v` + b.version + `"`, `"commit": "` + b.commit + `"`, `"date": "` + b.date.Format(time.RFC3339) + `"`} {
		if !strings.Contains(got, want) {
			t.Errorf("stint version has no %s: %s", want, got)
		}
	}
	for name, has := range map[string]string{
		"LICENSE": "Apache License", "CHANGELOG.md": "[" + b.version + "]", "stint.example.toml": "[server]", "man/man1/stint.1": "stint v" + b.version, "man/man1/stint-health.1": "STINT",
		"completions/stint.bash": "bash completion", "completions/_stint": "#compdef stint", "completions/stint.fish": "fish completion",
	} {
		if !strings.Contains(readFile(t, in, name), has) {
			t.Errorf("%s has no %s", name, has)
		}
	}
	f, err := elf.NewFile(bytes.NewReader(b.binaries[here]))
	if err != nil {
		t.Fatal(err)
	}
	if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("the binary is not static: %v, %v", libraries, err)
	}
}

// TestBOM checks that the bill of materials has what the binary is made of, once each.
func TestBOM(t *testing.T) {
	text, err := forHere(t).bom(here)
	if err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, c := range *bom.Components {
		name, _, _ := strings.Cut(c.PackageURL, "@")
		seen[name]++
		if c.Version == "" || seen[name] > 1 || c.Hashes == nil && name != "pkg:golang/std" {
			t.Errorf("%+v", c)
		}
	}
	for _, name := range []string{"pkg:golang/std", "pkg:golang/github.com/spf13/cobra", "pkg:golang/modernc.org/sqlite", "pkg:golang/google.golang.org/grpc", "pkg:npm/svelte", "pkg:npm/uplot", "pkg:npm/tailwindcss"} {
		if seen[name] != 1 {
			t.Errorf("%s is there %d times", name, seen[name])
		}
	}
	for name := range seen {
		if name == "pkg:npm/vitest" || strings.Contains(name, "nfpm") {
			t.Errorf("%s is not part of the binary", name)
		}
	}
	if m := bom.Metadata; m.Component.Version != "v"+forHere(t).version || m.Timestamp != forHere(t).date.Format(time.RFC3339) || len(bom.SerialNumber) != len("urn:uuid:")+36 {
		t.Errorf("%s, %+v", bom.SerialNumber, m)
	}
}

// TestRefused tries to release what nobody could build again.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		command(t, "git", append([]string{"-C", dir, "-c", "user.name=test", "-c", "user.email=test@example.org"}, args...)...)
	}
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(want string) {
		t.Helper()
		err := run(t.Context(), []string{"-root", dir, "-out", filepath.Join(dir, "dist")}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "dist")); err == nil {
			t.Error("dist was written")
		}
	}
	git("init", "--quiet")
	refused("CHANGELOG.md")
	write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## 0.2.0\n")
	refused("## [1.2.3] - 2006-01-02")
	write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-18\n")
	write(".gitignore", "/web/dist/\n")
	git("add", ".")
	git("commit", "--quiet", "--message", "one")
	refused("make web")
	write("web/dist/index.html", "<html>")
	write("more.go", "package main")
	refused("more.go")
	git("tag", "--annotate", "--message", "0.2.0", "v0.2.0")
	git("add", ".")
	git("commit", "--quiet", "--message", "two")
	refused("v0.2.0 is another commit")
	git("checkout", "--quiet", "v0.2.0")
	refused("cannot find main module") // everything but the program is there
}

// TestChangelog checks the form of the change log.
func TestChangelog(t *testing.T) {
	text := readFile(t, "../../CHANGELOG.md")
	var versions []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "## ") {
			versions = append(versions, strings.TrimSpace(line))
		}
	}
	if len(versions) < 2 || versions[0] != "## [Unreleased]" {
		t.Fatalf("want ## [Unreleased] first, and the versions below it: %q", versions)
	}
	for _, v := range versions[1:] {
		if !versionHeading.MatchString(v) {
			t.Errorf("%s: want ## [1.2.3] - 2006-01-02", v)
		}
	}
}
