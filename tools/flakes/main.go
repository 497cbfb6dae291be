// Command flakes reads what a run of tests wrote as JSON, and names each test that failed
// first and passed when it was run again, with the output of its first failure.
//
//	go run ./flakes FILE
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// An event is what go test -json writes about a test.
type event struct {
	Action, Package, Test, Output string
}

// A test is what is known about one: its output since it began, and the output of its first failure.
type test struct {
	output         strings.Builder
	failure        string
	failed, passed bool
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: flakes FILE")
		os.Exit(2)
	}
	f, err := os.Open(os.Args[1])
	if err == nil {
		err = report(os.Stdout, f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "flakes:", err)
		os.Exit(1)
	}
}

// report writes a paragraph for each test of a run that failed and then passed.
func report(w io.Writer, run io.Reader) error {
	tests := map[string]*test{}
	for d := json.NewDecoder(run); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if e.Test == "" {
			continue
		}
		name := e.Package + " " + e.Test
		t := tests[name]
		if t == nil {
			t = &test{}
			tests[name] = t
		}
		switch e.Action {
		case "run":
			t.output.Reset()
		case "output":
			t.output.WriteString(e.Output)
		case "fail":
			if !t.failed {
				t.failure = t.output.String()
			}
			t.failed = true
		case "pass":
			t.passed = t.failed
		}
	}
	var names []string
	for name, t := range tests {
		if t.failed && t.passed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i, name := range names {
		if i+1 < len(names) && strings.HasPrefix(names[i+1], name+"/") {
			continue // a test fails with its subtests: they say why
		}
		if _, err := fmt.Fprintf(w, "FLAKY %s: it failed, and passed when it was run again; first:\n%s", name, tests[name].failure); err != nil {
			return err
		}
	}
	return nil
}
