package importer_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/importer"
	"github.com/stintdev/stint/internal/kit/strict"
)

var update = flag.Bool("update", false, "write the golden files")

// corpus returns the files of testdata/corpus, by source.
func corpus(t testing.TB) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	n := 0
	for _, source := range importer.Sources() {
		files, err := filepath.Glob("testdata/corpus/" + source + "/*.*")
		if err != nil || len(files) == 0 {
			t.Fatalf("there are no files of %s: %v", source, err)
		}
		out[source] = files
		n += len(files)
	}
	if n < 60 {
		t.Errorf("the corpus has %d files, want 60 or more", n)
	}
	return out
}

// TestCorpus compares what is made of each file with its golden file, and checks that a server accepts it.
func TestCorpus(t *testing.T) {
	t.Parallel()
	golden := map[string]bool{}
	for source, files := range corpus(t) {
		for _, file := range files {
			r, err := importer.Import(source, importer.Options{Files: []string{file}, Nodes: 3})
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			if err := load(r.Text); err != nil {
				t.Errorf("%s: a server does not accept this: %v\n%s", file, err, r.Text)
			}
			name := filepath.Join("testdata/golden", source, filepath.Base(file)+".txt")
			golden[name] = true
			compare(t, name, r.Text+"\n"+written(r))
		}
	}
	err := filepath.WalkDir("testdata/golden", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !golden[path] {
			t.Errorf("%s is of no file of the corpus", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// load reads and checks a config file. That a server accepts all of it is checked in cmd/stint.
func load(text string) error {
	var f struct {
		Identity map[string]any `json:"identity"`
		catalog.Document
	}
	_, problems := strict.TOML("stint.toml", []byte(text), &f)
	return problems.And(f.Check()).Err()
}

// written is a report as text.
func written(r *importer.Report) string {
	var b strings.Builder
	for _, l := range r.Limits {
		fmt.Fprintf(&b, "limit %s:%d %s\n  by %s; on one node %s; on %d %s; after %s; rule %s, limit %s; counted before by %s\n", l.File, l.Line, l.What, l.By, l.Node, r.Nodes, l.All, l.After, l.Rule, l.Name, l.Scope)
	}
	for _, f := range r.Missing {
		fmt.Fprintln(&b, "missing", f)
	}
	for _, f := range r.Notes {
		fmt.Fprintln(&b, "note", f)
	}
	return b.String()
}

func compare(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil || string(want) != got {
		t.Errorf("%s: %v; go test -update writes it. Got\n%s\nwant\n%s", name, err, got, want)
	}
}

// in imports files that are in memory.
func in(source string, o importer.Options, files map[string]string) (*importer.Report, error) {
	o.Read = func(name string) ([]byte, error) {
		if text, ok := files[name]; ok {
			return []byte(text), nil
		}
		return nil, fs.ErrNotExist
	}
	o.Glob = func(pattern string) (out []string, err error) {
		for name := range files {
			if ok, _ := filepath.Match(pattern, name); ok {
				out = append(out, name)
			}
		}
		return out, nil
	}
	return importer.Import(source, o)
}

// TestBroken checks that files that cannot be parsed are refused, with file and line.
func TestBroken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ source, file, text, says string }{
		{"nginx", "a.conf", "http {\n  server {\n", `a.conf:2:1: the block has no end: want }`},
		{"nginx", "a.conf", "http { }\n}", `a.conf:2:1: } without a block`},
		{"nginx", "a.conf", "user www-data", `"user" is not ended: want ; after it`},
		{"nginx", "a.conf", "\nuser \"x;", `a.conf:2:1: a quote without an end`},
		{"nginx", "a.conf", "{ }", `a block without a name`},
		{"nginx", "a.conf", "include a.conf;", `the file includes itself`},
		{"nginx", "a.conf", strings.Repeat("a { ", 100), `inside each other`},
		{"kong", "a.yaml", "a:\n- b\n c: [", `a.yaml:`},
		{"kong", "a.yaml", "- a\n- b\n", `want an object`},
		{"traefik", "a.toml", "[http\n", `a.toml:1`},
	} {
		_, err := in(c.source, importer.Options{Files: []string{c.file}}, map[string]string{c.file: c.text})
		var problems strict.Problems
		if !errors.As(err, &problems) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %q: got %v, want a problem that says %q", c.source, c.text, err, c.says)
		}
	}
	if _, err := importer.Import("haproxy", importer.Options{Files: []string{"a"}}); err == nil || !strings.Contains(err.Error(), "want one of envoy, ingress-nginx, kong, nginx, traefik") {
		t.Error(err)
	}
	if _, err := in("nginx", importer.Options{Files: []string{"not-there"}}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestHost checks that one host can be imported, without conditions on it.
func TestHost(t *testing.T) {
	t.Parallel()
	for file, hosts := range map[string][]string{
		"nginx/vhosts-shared-zone.conf":            {"a.example.com", "x.a.example.com", "b.example.com"},
		"ingress-nginx/one-ingress-two-hosts.yaml": {"a.example.com", "b.example.com"},
		"kong/hosts.yaml":                          {"a.example.com"},
		"traefik/chain.yaml":                       {"a.example.com", "b.example.com"},
	} {
		source := filepath.Dir(file)
		for _, host := range hosts {
			r, err := importer.Import(source, importer.Options{Files: []string{"testdata/corpus/" + file}, Host: host})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Missing) > 0 || len(r.Limits) != 1 || strings.Contains(r.Text, "X-Forwarded-Host") {
				t.Errorf("%s at %s: %v\n%s", file, host, r.Missing, r.Text)
			}
		}
		if _, err := importer.Import(source, importer.Options{Files: []string{"testdata/corpus/" + file}, Host: "other.example.org"}); err == nil || !strings.Contains(err.Error(), hosts[0]) {
			t.Errorf("%s at another host: %v", file, err)
		}
	}
}

// TestSecrets checks that no output has credentials.
func TestSecrets(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"consumers", "credential"} {
		r, err := importer.Import("kong", importer.Options{Files: []string{"testdata/corpus/kong/" + file + ".yaml"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"plain-old-key", "abcdefghijklmnopqrstuvwxyz012345", "not-shown"} {
			if strings.Contains(r.Text+written(r), secret) {
				t.Errorf("%s: the output has the secret %s", file, secret)
			}
		}
	}
}

// TestAliases checks that what YAML can expand to is bounded.
func TestAliases(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	if _, err := in("kong", importer.Options{Files: []string{"a.yaml"}}, map[string]string{"a.yaml": b.String()}); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("got %v, want a bound", err)
	}
}

// fuzz checks that nothing panics, and that what comes out is valid.
func fuzz(f *testing.F, sources []string, ending string) {
	f.Helper()
	for _, source := range sources {
		for _, file := range corpus(f)[source] {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(text))
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, source := range sources {
			r, err := in(source, importer.Options{Files: []string{"a" + ending}}, map[string]string{"a" + ending: text})
			if err != nil {
				continue
			}
			if err := load(r.Text); err != nil {
				t.Errorf("%s: %v\n%s", source, err, r.Text)
			}
		}
	})
}

func FuzzNginx(f *testing.F) { fuzz(f, []string{"nginx"}, ".conf") }

func FuzzYAML(f *testing.F) { fuzz(f, []string{"ingress-nginx", "kong", "traefik", "envoy"}, ".yaml") }

func FuzzTOML(f *testing.F) { fuzz(f, []string{"traefik"}, ".toml") }
