package daemon_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWire checks that only wire.go, and wireregion.go for other regions, import the parts of a daemon.
func TestWire(t *testing.T) {
	t.Parallel()
	const module = "github.com/stintdev/stint/"
	allowed := map[string][]string{
		"memstore": {"wire.go", "wireregion.go"}, "redisstore": {"wire.go"}, "internal/record": {"wire.go"}, "internal/record/archive": {"wire.go"}, "internal/record/rollup": {"wire.go"}, "internal/kit/blob": {"wire.go"}, "web": {"wire.go"},
		"internal/region": {"wireregion.go", "regional.go", "adminregion.go"},                   // which show the state of links
		"layer":           {"wire.go", "wireregion.go", "metrics.go", "trace.go", "returns.go"}, // which show the calls of layers, and what they tell of outages
	}
	files, err := filepath.Glob("*.go")
	do(t, err)
	named := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		do(t, err)
		for _, i := range f.Imports {
			for dir, in := range allowed {
				path := module + dir
				if got := strings.Trim(i.Path.Value, `"`); got != path && !strings.HasPrefix(got, path+"/") {
					continue
				}
				if named++; !slices.Contains(in, name) {
					t.Errorf("%s imports %s: only %s may", name, dir, strings.Join(in, " and "))
				}
			}
		}
	}
	if named < len(allowed) {
		t.Errorf("only %d of these imports were found", named)
	}
}
