package stint_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stintdev/stint/internal/test/testdoc"
)

const module = "github.com/stintdev/stint"

// floors is the house: a package may import packages of lower floors, and of no
// other. Packages of one floor are blind to each other.
var floors = map[string]int{
	"cmd/stint":                            7,
	"internal/daemon":                      6,
	"internal/e2e":                         8, // the whole, with the clients that people have; for tests
	"clients":                              0, // clients in other languages; for tests
	"internal/control/admin":               5,
	"internal/control/catalog/catalogtest": 4, // the suite of its databases
	"internal/record/recordtest":           5, // stores for tests, and events for them
	"internal/record/rollup":               4,
	"internal/record/archive":              4,
	"httplimit":                            4,
	"grpclimit":                            4,
	"grpclimit/rlqs":                       5,
	"grpclimit/compare":                    3, // the answers of two services of Envoy
	"grpclimit/rls":                        4,
	"grpclimit/xds":                        3,
	"internal/door/field":                  3, // what clients and targets are told, in headers and trailers
	"internal/door/settle":                 3, // calls about reservations
	"internal/door/single":                 3, // the engine of one limit
	"internal/door/llm":                    1, // what requests to language models may use, and have used
	"internal/door/meter":                  0, // what a response has used; rules name its meters
	"internal/control/catalog":             3,
	"internal/record":                      3,
	"internal/record/query":                2, // what questions to the record have in common
	"internal/control/recorded":            2, // requests as the record has them
	"internal/control/replay":              4, // recorded requests through two rule sets
	"internal/control/fitting":             4, // which limits would fit an access log
	"internal/control/accesslog":           3, // access logs, as requests
	"internal/control/sim":                 3,
	"internal/control/virtual":             3, // an engine in virtual time
	"internal/control/ruletest":            5, // tests of rules, with the headers that clients get
	"internal/control/rollout":             2, // what rules that are rolled out decide, minute by minute
	"internal/control/importer":            4, // the limits of other programs, as rules
	"internal/control/signin":              4, // people sign in with an identity provider
	"grpclimit/descriptor":                 2, // what Envoy is limited by
	"grpclimit/stintpb":                    0, // the messages of reservations, generated
	"redisstore/doctor":                    2, // what is wrong with the servers of a Redis store
	"internal/daemon/envoyenv":             2, // the environment of envoyproxy/ratelimit, as settings
	"internal/daemon/envoystats":           5, // counts, under the names of envoyproxy/ratelimit
	"engine":                               2,
	"internal/region":                      4, // one limit in several regions
	"internal/region/link":                 3, // the wire between regions
	"internal/region/gossip":               2, // what regions tell each other of their counters
	"internal/region/link/linkpb":          0, // its messages, generated
	"internal/region/quota":                2, // limits that are divided among regions
	"memstore":                             1,
	"redisstore":                           1,
	"layer":                                1,
	"rule":                                 1,
	"identity":                             1,
	"storetest":                            1,
	"internal/kit/blob/blobtest":           1, // the suite of its kinds

	"internal/test/testredis":    2, // real servers, for tests
	"internal/test/testpostgres": 2,
	"internal/test/testserver":   1, // what starts them
	"internal/test/testdoc":      0, // the blocks of the documents
	"internal/test/testdatabase": 3, // databases that have the schema
	"internal/test/torture":      1, // judges what tests measure
	"internal/test/wait":         0, // waits for what must happen
	"internal/test/testopenapi":  0, // validates JSON by OpenAPI documents
	"internal/test/testoidc":     0, // runs an OpenID Connect provider
	"internal/test/testllm":      0, // answers like a provider of language models

	"internal/kit/database": 1, // PostgreSQL or SQLite

	"internal/kit/pulse":    0,
	"internal/kit/deadline": 0,
	"internal/kit/disk":     0, // how much room a filesystem has
	"internal/kit/blob":     0, // files under names, in a directory or in S3
	"internal/kit/lookup":   0, // a cache of what a database says about ids
	"internal/kit/network":  0, // addresses and networks
	"internal/kit/packed":   0, // large texts in the binary, compressed
	"internal/kit/presence": 0, // which nodes are alive
	"internal/kit/quiet":    0, // bounds logs
	"internal/kit/slot":     0, // where a Redis Cluster keeps a key
	"internal/kit/strict":   0, // reads files, and says where they are wrong
	"web":                   0, // the dashboard, as files
	".":                     0,
	"internal/kit/scan":     -1, // JSON and events that pass, also through meters
	"testdata/limits":       -1, // the scripts, for storetest
}

// goFile is what these tests look at in a file.
type goFile struct {
	dir, name string
	doc       bool
	imports   []string
}

func (f goFile) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

// goFiles reads the Go files of the module. It reads them itself: what go list
// says is served stale from the test cache.
func goFiles(tree fs.FS) ([]goFile, error) {
	var out []goFile
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := fs.Stat(tree, path.Join(name, "go.mod"))
			if name != "." && (nested == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
				return fs.SkipDir // another module
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		file := goFile{dir: path.Dir(name), name: path.Base(name), doc: f.Doc != nil}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			file.imports = append(file.imports, p)
		}
		out = append(out, file)
		return nil
	})
	return out, err
}

// checkFloors returns what breaks the table of floors. Test files may import
// what they need: they are not part of the house.
func checkFloors(files []goFile) []string {
	var out []string
	for _, f := range files {
		floor, ok := floors[f.dir]
		if !ok {
			out = append(out, fmt.Sprintf("%s: package %s has no floor in the table of arch_test.go", f.name, f.dir))
			continue
		}
		if f.isTest() {
			continue
		}
		for _, i := range f.imports {
			dir, ours := strings.CutPrefix(i, module+"/")
			if i == module {
				dir, ours = ".", true
			}
			switch below, known := floors[dir]; {
			case !ours:
				if f.dir == "." && strings.Contains(strings.Split(i, "/")[0], ".") {
					out = append(out, fmt.Sprintf("%s: the root imports %s, and may import the standard library only", f.name, i))
				}
			case !known || below >= floor:
				out = append(out, fmt.Sprintf("%s/%s: floor %d imports %s of floor %d", f.dir, f.name, floor, dir, below))
			case dir == "storetest" || (strings.HasPrefix(dir, "internal/test") && !strings.HasPrefix(f.dir, "internal/test")) || (dir == "testdata/limits" && f.dir != "storetest"):
				out = append(out, fmt.Sprintf("%s/%s: imports %s, which is for tests", f.dir, f.name, dir))
			}
		}
	}
	return out
}

// checkDocs returns the packages that have not exactly one package doc.
func checkDocs(files []goFile) []string {
	docs := map[string][]string{}
	for _, f := range files {
		if f.isTest() {
			continue
		}
		names := docs[f.dir]
		if f.doc {
			names = append(names, f.name)
		}
		docs[f.dir] = names // also of a package without any
	}
	var out []string
	for dir, names := range docs {
		if len(names) != 1 {
			out = append(out, fmt.Sprintf("%s has %d package docs (%s), want one", dir, len(names), strings.Join(names, ", ")))
		}
	}
	return out
}

func TestFloors(t *testing.T) {
	t.Parallel()
	files, err := goFiles(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("read only %d files", len(files))
	}
	for _, problem := range append(checkFloors(files), checkDocs(files)...) {
		t.Error(problem)
	}
}

// TestFloorsFail plants what must be caught.
func TestFloorsFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, text, says string }{
		"upward":     {"memstore/x.go", `package memstore; import _ "` + module + `/engine"`, "floor 1 imports engine of floor 2"},
		"sideways":   {"memstore/x.go", `package memstore; import _ "` + module + `/layer"`, "floor 1 imports layer of floor 1"},
		"root":       {"x.go", `package stint; import _ "` + module + `/memstore"`, "floor 0 imports memstore of floor 1"},
		"dependency": {"x.go", `package stint; import _ "pgregory.net/rapid"`, "the standard library only"},
		"for tests":  {"engine/x.go", `package engine; import _ "` + module + `/storetest"`, "which is for tests"},
		"no floor":   {"util/x.go", `package util`, "has no floor"},
		"two docs":   {"memstore/doc.go", "// Package memstore again.\npackage memstore", "has 2 package docs"},
		"no doc":     {"rule/x.go", "package rule", "has 0 package docs"},
	} {
		tree := fstest.MapFS{
			"stint.go":             {Data: []byte("// Package stint.\npackage stint")},
			"memstore/memstore.go": {Data: []byte("// Package memstore.\npackage memstore\nimport _ \"" + module + "\"")},
			"bench/go.mod":         {},
			"bench/x.go":           {Data: []byte("package main")},
		}
		files, err := goFiles(tree)
		if err != nil {
			t.Fatal(err)
		}
		if problems := append(checkFloors(files), checkDocs(files)...); problems != nil {
			t.Fatalf("a sound house: %v", problems)
		}
		tree[c.file] = &fstest.MapFile{Data: []byte(c.text)}
		if files, err = goFiles(tree); err != nil {
			t.Fatal(err)
		}
		if problems := append(checkFloors(files), checkDocs(files)...); !strings.Contains(strings.Join(problems, "\n"), c.says) {
			t.Errorf("%s: got %q, want a problem that says %q", name, problems, c.says)
		}
	}
}

// TestPathsExist checks that every path that ARCHITECTURE.md names in code
// quotes is there, unless its line says that it is to come, and that the links
// of all documents lead somewhere.
func TestPathsExist(t *testing.T) {
	t.Parallel()
	tree := os.DirFS(".")
	exists := func(doc, name string) {
		t.Helper()
		if found, err := fs.Glob(tree, strings.TrimSuffix(name, "/")); err != nil || len(found) == 0 {
			t.Errorf("%s names %s, which is not there", doc, name)
		}
	}

	// A path has a slash or a file's ending.
	paths := regexp.MustCompile("`([A-Za-z_.][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.*-]*)+|[A-Za-z0-9_.-]+\\.(?:go|md|yml|toml|txt|sh))`")
	text, err := fs.ReadFile(tree, "ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "(to come)") {
			continue
		}
		for _, m := range paths.FindAllStringSubmatch(line, -1) {
			exists("ARCHITECTURE.md", m[1])
			named++
		}
	}
	if named < 20 {
		t.Errorf("ARCHITECTURE.md names only %d paths", named)
	}

	links := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	for _, pattern := range []string{"*.md", "docs/*.md", "bench/*.md"} {
		docs, err := fs.Glob(tree, pattern)
		if err != nil || len(docs) == 0 {
			t.Fatalf("%s: %v, %v", pattern, docs, err)
		}
		for _, doc := range docs {
			text, err := fs.ReadFile(tree, doc)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range links.FindAllStringSubmatch(string(text), -1) {
				exists(doc, path.Join(path.Dir(doc), m[1]))
			}
		}
	}
}

// TestDocumentedCode checks that the Go in documents is the code of examples, which
// are compiled and run.
func TestDocumentedCode(t *testing.T) {
	t.Parallel()
	tree := os.DirFS(".")
	read := func(patterns ...string) map[string]string {
		out := map[string]string{}
		for _, pattern := range patterns {
			names, err := fs.Glob(tree, pattern)
			if err != nil || len(names) == 0 {
				t.Fatalf("%s: %v, %v", pattern, names, err)
			}
			for _, name := range names {
				text, err := fs.ReadFile(tree, name)
				if err != nil {
					t.Fatal(err)
				}
				out[name] = string(text)
			}
		}
		return out
	}
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	var examples strings.Builder
	for _, text := range read("example_test.go", "*/example_test.go", "examples/*/main.go") {
		examples.WriteString(squeeze(text) + "\n")
	}
	for _, b := range testdoc.Blocks(t) {
		if b.Language == "go" && !strings.Contains(examples.String(), squeeze(b.Text)) {
			t.Errorf("this is in %s and in no example:\n%s", b, b.Text)
		}
	}
}

// TestNamedTests checks that the tests exist that docs/security.md names.
func TestNamedTests(t *testing.T) {
	t.Parallel()
	tree := os.DirFS(".")
	text, err := fs.ReadFile(tree, "docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	err = fs.WalkDir(tree, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			if e != nil && e.Name() == "node_modules" {
				return fs.SkipDir
			}
			return err
		}
		source, err := fs.ReadFile(tree, path)
		tests.Write(source)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 40 {
		t.Errorf("docs/security.md names only %d tests", len(named))
	}
	for _, m := range named {
		if !strings.Contains(tests.String(), "\nfunc "+m[1]+"(") {
			t.Errorf("docs/security.md names %s, which is not there", m[1])
		}
	}
}
