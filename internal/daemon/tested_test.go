package daemon_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stintdev/stint/internal/control/ruletest"
	"github.com/stintdev/stint/internal/daemon"
)

// TestDemoRules runs the tests of the demo's rules, which touch all of them.
func TestDemoRules(t *testing.T) {
	t.Parallel()
	const name = "testdata/demo.ruletest"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := ruletest.Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	config, err := daemon.Source{Path: filepath.Join(filepath.Dir(name), f.Config)}.Load()
	if err != nil {
		t.Fatal(err)
	}
	o, err := config.Tested(&config.Document)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ruletest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	result, err := r.Run(t.Context(), f, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range result.Tests {
		for i := range x.Failures {
			t.Errorf("%s:%d: %s", name, x.Failures[i].Line, &x.Failures[i])
		}
	}
	c := r.Coverage()
	for _, k := range c.Kinds() {
		if len(k.Missing) > 0 {
			t.Errorf("%s that no test touches: %q", k.Name, k.Missing)
		}
	}
}
