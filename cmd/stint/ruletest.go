package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/control/ruletest"
	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/kit/strict"
)

func newRulesTest(t *terminal) *cobra.Command {
	var (
		r               ruleTests
		only, junit     string
		coverage, write bool
	)
	c := &cobra.Command{
		Use:   "test FILE...",
		Short: "Run tests of rules, in virtual time",
		Long: `Run tests of rules: files that say who asks what when, and what is expected. Time is virtual,
so a month takes as long as its requests, and counters are those of the test. See
docs/rule-tests.md for the language.

The rules are those of --config, --database or --server. Without these, they are those of the
config file that a file of tests names, or else of $STINT_CONFIG, or else of a running server.
Nothing is changed or counted there.

With --update, what has happened is written in place of what was expected, where the two
differ: look at the difference before you keep it. --coverage shows which rules, limits, tiers
and branches of groups no test has touched.

The exit code is 0 if all tests pass, 1 if one fails, and 2 if files or flags are wrong.`,
		Example: `  stint rules test search.ruletest --config stint.toml
  stint rules test search.ruletest --config stint.toml --run 'a minute' --coverage
  stint rules test search.ruletest --config stint.toml --junit report.xml
  stint rules test demo.ruletest --server http://127.0.0.1:9090 -o json`,
		Args: wants(1, math.MaxInt, "one FILE or more"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"ruletest"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(c *cobra.Command, names []string) (err error) {
			if r.only, err = regexp.Compile(only); err != nil {
				return advice{fmt.Errorf("--run %s: %w", strict.Quote(only), err), "--run with a regular expression, such as 'a minute'"}
			}
			files, err := readRuleTests(names)
			if err != nil {
				return err
			}
			if err := r.run(c.Context(), t, files); err != nil {
				return err
			}
			if coverage {
				r.cover()
			}
			if write {
				return r.update(t, files)
			}
			if junit != "" {
				if err := t.writeTo(junit, func(w io.Writer) error { return ruletest.WriteJUnit(w, r.out.Files) }); err != nil {
					return fmt.Errorf("--junit: %w", err)
				}
			}
			if junit == "-" {
				return answer(nil, r.out.Failed == 0)
			}
			return answer(t.print(&r.out, r.flat(), func() error { return r.print(t) }), r.out.Failed == 0)
		},
	}
	r.flags.add(c)
	c.Flags().StringVar(&only, "run", "", "only run tests whose name matches this `regexp`")
	c.Flags().BoolVar(&write, "update", false, "write what has happened in place of what was expected")
	c.Flags().BoolVar(&coverage, "coverage", false, "show what no test has touched")
	c.Flags().StringVar(&junit, "junit", "", "also write the results to a `FILE` in the format of JUnit; - is the standard output, without anything else")
	c.MarkFlagsMutuallyExclusive("update", "junit")
	c.MarkFlagsMutuallyExclusive("update", "coverage")
	_ = c.MarkFlagFilename("junit", "xml") // the flag exists
	addOutput(c)
	return c
}

// ruleTests is a run of "rules test".
type ruleTests struct {
	flags eitherFlags
	only  *regexp.Regexp

	tested []testedRules
	of     []*ruletest.Runner // of each file
	out    ruleTestOutput
}

// testedRules are the rules that some of the files test.
type testedRules struct {
	from   string // what names them
	runner *ruletest.Runner
}

// ruleTestOutput is the output of "rules test".
type ruleTestOutput struct {
	Tests    int                `json:"tests"`
	Failed   int                `json:"failed"`
	Files    []ruletest.Result  `json:"files"`
	Coverage []ruleTestCoverage `json:"coverage,omitempty"`
}

type ruleTestCoverage struct {
	Rules string            `json:"of"`
	Parts ruletest.Coverage `json:"parts"`
}

// readRuleTests reads files of tests, and reports the problems of all of them.
func readRuleTests(names []string) (out []*ruletest.File, err error) {
	var problems strict.Problems
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, advice{err, "stint rules test with a file that exists and can be read"}
		}
		f, err := ruletest.Parse(name, data)
		var some strict.Problems
		if errors.As(err, &some) {
			problems = append(problems, some...)
		}
		out = append(out, f)
	}
	return out, adviseRuleTests(problems.Err())
}

func adviseRuleTests(err error) error {
	if problems := strict.Problems(nil); errors.As(err, &problems) {
		return advice{err, "correct the problems; docs/rule-tests.md has the language"}
	}
	return err
}

// run runs all files.
func (r *ruleTests) run(ctx context.Context, t *terminal, files []*ruletest.File) error {
	var problems strict.Problems
	for _, f := range files {
		runner, err := r.runner(ctx, t, f)
		if err != nil {
			return err
		}
		r.of = append(r.of, runner)
		var some strict.Problems
		if errors.As(runner.Check(f), &some) {
			problems = append(problems, some...)
		}
	}
	if err := problems.Err(); err != nil {
		return adviseRuleTests(err)
	}
	for i, f := range files {
		result, err := r.of[i].Run(ctx, f, r.only.MatchString)
		if err != nil {
			return err
		}
		r.out.Files = append(r.out.Files, *result)
		for j := range result.Tests {
			if r.out.Tests++; !result.Tests[j].Passed() {
				r.out.Failed++
			}
		}
	}
	if r.out.Tests == 0 {
		return advice{fmt.Errorf("--run %s: no test has such a name", strict.Quote(r.only.String())), "--run with a part of a name; without it, all tests run"}
	}
	return nil
}

// runner returns the runner of the rules that a file tests.
func (r *ruleTests) runner(ctx context.Context, t *terminal, f *ruletest.File) (*ruletest.Runner, error) {
	flags, from := r.flags, cmp.Or(r.flags.path, r.flags.url, r.flags.server)
	if from == "" && f.Config != "" {
		flags.path = f.Config
		if !filepath.IsAbs(flags.path) {
			flags.path = filepath.Join(filepath.Dir(f.Name), f.Config)
		}
		from = flags.path
	}
	for _, x := range r.tested {
		if x.from == from {
			return x.runner, nil
		}
	}
	o, err := flags.tested(ctx, t)
	if err != nil {
		return nil, err
	}
	runner, err := ruletest.New(o)
	if err != nil {
		return nil, advice{err, "stint status, to see whether the server is the same version of stint"} // files and databases are checked
	}
	r.tested = append(r.tested, testedRules{from, runner})
	return runner, nil
}

// tested returns the rules that flags name, and whom they are for.
func (f *eitherFlags) tested(ctx context.Context, t *terminal) (o ruletest.Options, err error) {
	a, err := f.remote(t)
	if err != nil {
		return o, err
	}
	var (
		config   *daemon.Config
		document *catalog.Document
	)
	if a == nil {
		if config, err = f.load(t, false); err != nil {
			return o, err
		}
		document = &config.Document
		if config.Server.Database != "" {
			err = f.use(ctx, t, upToDate, func(k *catalog.Catalog) (err error) {
				document, err = k.Export(ctx, catalog.ExportOptions{Users: true})
				return err
			})
		}
	} else {
		defer a.close()
		if config, err = (daemon.Source{}).Load(); err == nil {
			document, err = exported(ctx, t, a)
		}
	}
	if err != nil {
		return o, err
	}
	return config.Tested(document)
}

// exported returns the catalog of a server: without users and keys, if the token is not for those.
func exported(ctx context.Context, t *terminal, a *client) (*catalog.Document, error) {
	d := new(catalog.Document)
	err := a.do(ctx, call{path: "/export", query: url.Values{"users": {"true"}}, into: d})
	if hasStatus(err, http.StatusForbidden) {
		t.notes("the token is not for users and keys: requests are decided as if there were none")
		err = a.do(ctx, call{path: "/export", into: d})
	}
	return d, err
}

// cover adds to the output what tests have touched.
func (r *ruleTests) cover() {
	for _, x := range r.tested {
		r.out.Coverage = append(r.out.Coverage, ruleTestCoverage{cmp.Or(x.from, "the rules"), x.runner.Coverage()})
	}
}

// update writes what has happened in place of what was expected. What cannot be written is a failure.
func (r *ruleTests) update(t *terminal, files []*ruletest.File) error {
	failed := 0
	for i, f := range files {
		text, n := f.Update(&r.out.Files[i])
		if n > 0 {
			if err := os.WriteFile(f.Name, text, 0o600); err != nil { // it exists, and keeps its mode
				return advice{err, "--update with files that can be written to"}
			}
		}
		fmt.Fprintf(t.out, "%s: expectations updated: %d\n", f.Name, n)
		for _, x := range r.out.Files[i].Tests {
			for _, y := range x.Failures {
				if y.Error {
					failed++
					printRuleFailure(t, f.Name, &x, &y)
				}
			}
		}
	}
	return answer(nil, failed == 0)
}

// flat returns the tests of all files.
func (r *ruleTests) flat() any {
	type row struct {
		File string `json:"file"`
		ruletest.TestResult
	}
	out := []row{}
	for _, f := range r.out.Files {
		for _, x := range f.Tests {
			out = append(out, row{f.File, x})
		}
	}
	return out
}

func (r *ruleTests) print(t *terminal) error {
	for _, f := range r.out.Files {
		failed := 0
		for _, x := range f.Tests {
			if !x.Passed() {
				failed++
			}
			for _, y := range x.Failures {
				printRuleFailure(t, f.File, &x, &y)
			}
		}
		if failed > 0 {
			fmt.Fprintf(t.out, "%s: %d of %d tests failed\n", f.File, failed, len(f.Tests))
		} else {
			fmt.Fprintf(t.out, "%s: tests passed: %d\n", f.File, len(f.Tests))
		}
	}
	for _, c := range r.out.Coverage {
		fmt.Fprintln(t.out)
		w := t.table("COVERAGE OF "+c.Rules, "TOUCHED", "NOT TOUCHED")
		for _, k := range c.Parts.Kinds() {
			w.row(k.Name, fmt.Sprintf("%d of %d", k.All-len(k.Missing), k.All), k.Missing)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func printRuleFailure(t *terminal, file string, x *ruletest.TestResult, f *ruletest.Failure) {
	fmt.Fprintf(t.out, "%s:%d: %s\n", file, f.Line, clean(x.Name))
	for line := range strings.SplitSeq(f.String(), "\n") {
		fmt.Fprintln(t.out, "   ", clean(line))
	}
}
