package clients_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the types of the clients")

// TestTypes checks that the types that are made from the OpenAPI document of the decision API are current.
func TestTypes(t *testing.T) {
	t.Parallel()
	args := []string{"generate.py", "--check"}
	if *update {
		args = args[:1]
	}
	if out, err := exec.Command("python3", args...).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestDeclarations has TypeScript check the client for JavaScript and a program that uses it, and checks that the
// declarations in the package are those of its source.
func TestDeclarations(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "node_modules", "stint-client") // as it is installed
	sources, err := filepath.Glob("js/*.js")
	if err != nil || len(sources) < 3 {
		t.Fatal(sources, err)
	}
	for _, path := range append(sources, "js/types.d.ts", "js/package.json", "js/tsconfig.json") {
		copyFile(t, path, filepath.Join(dir, filepath.Base(path)))
	}
	tsc(t, dir, "-p", ".")
	for _, path := range sources {
		name := filepath.Base(path[:len(path)-len(".js")]) + ".d.ts"
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			copyFile(t, filepath.Join(dir, name), filepath.Join("js", name))
		} else if want, err := os.ReadFile(filepath.Join("js", name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("js/%s is stale: run go test ./clients -update: %v", name, err)
		}
	}
	program := filepath.Dir(filepath.Dir(dir))
	copyFile(t, "js/test/types.ts", filepath.Join(program, "types.mts"))
	tsc(t, program, "--noEmit", "--strict", "--skipDefaultLibCheck", "--target", "ES2022", "--module", "NodeNext", "--lib", "ES2023,ESNext.Disposable,DOM", "types.mts")
}

// tsc runs the TypeScript of the dashboard.
func tsc(t *testing.T, dir string, args ...string) {
	t.Helper()
	compiler, err := filepath.Abs("../web/node_modules/typescript/bin/tsc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(compiler); err != nil {
		t.Fatalf("TypeScript is not installed: make web installs it, with Node 20.19 or later: %v", err)
	}
	cmd := exec.Command("node", append([]string{compiler}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%q: %v: %s", args, err, out)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
