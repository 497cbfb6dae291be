package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

func newEnvoy(t *terminal) *cobra.Command {
	return family("envoy", "Check, compare and convert configurations of envoyproxy/ratelimit", newEnvoyCheck(t), newEnvoyCompare(t), newEnvoyConvert(t))
}

// envoyFlags are the flags that correspond to settings in [envoy].
type envoyFlags struct {
	descriptor.Options
	dir descriptor.DirOptions
}

func (f *envoyFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.Merge, "merge-domains", false, "allow several files with descriptors of the same domain")
	c.Flags().BoolVar(&f.FixedMonths, "fixed-months", false, "use weeks, months and years of fixed length, like envoyproxy/ratelimit")
	c.Flags().BoolVar(&f.Independent, "independent", false, "count each descriptor of a request separately")
	c.Flags().BoolVar(&f.dir.DotFiles, "dot-files", false, "also read files and directories whose names begin with a dot")
	c.Flags().BoolVar(&f.dir.Siblings, "siblings", false, "also read files and directories beside DIR whose names continue its name with a dot")
}

// read reads the files of a directory. The error is [rule.Problems], unless they cannot be
// read.
func (f *envoyFlags) read(dir string) (files int, skipped []descriptor.Skipped, limits *descriptor.Config, err error) {
	all, skipped, err := descriptor.ReadDir(dir, f.dir)
	if !f.dir.Siblings {
		skipped = append(skipped, descriptor.Siblings(dir)...)
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s: there is no file to read", dir)
	}
	if err != nil {
		return 0, skipped, nil, advice{err, "a directory of YAML files of envoyproxy/ratelimit, or one of these files"}
	}
	limits, err = descriptor.Read(all, f.Options)
	return len(all), skipped, limits, err
}

// descriptors is the output of "envoy check".
type descriptors struct {
	Dir         string        `json:"dir"`
	Files       int           `json:"files"`
	Skipped     []skippedFile `json:"skipped"`
	Domains     []string      `json:"domains"`
	Limits      int           `json:"limits"`
	Problems    rule.Problems `json:"problems"`
	Differences []difference  `json:"differences"`
	General     []string      `json:"general"`
	Request     *traced       `json:"request,omitempty"`
}

// skippedFile is a [descriptor.Skipped] in JSON.
type skippedFile struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// difference is a [descriptor.Difference] in JSON.
type difference struct {
	Path   string `json:"path"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text"`
}

// traced shows how the limit of a descriptor was found, and its decision.
type traced struct {
	Domain  string   `json:"domain"`
	Steps   []string `json:"steps"`
	Limit   string   `json:"limit,omitempty"` // the path; empty: no limit applies
	Hits    int64    `json:"hits"`
	Allowed bool     `json:"allowed"` // with no requests counted before
}

func newEnvoyCheck(t *terminal) *cobra.Command {
	var (
		f envoyFlags
		q question
	)
	c := &cobra.Command{
		Use:   "check DIR",
		Short: "Check a configuration, and list differences from envoyproxy/ratelimit",
		Long: `Check all files of a directory and of those in it, and list all problems with file, line and
column; or, if there are none, what envoyproxy/ratelimit would do differently. Files that are
not read are listed with the reason. The exit code is 1 if there are problems.

With --entry, show entry by entry how the limit of a descriptor is found, and whether a
request would be allowed if none had been counted yet. The exit code is 1 if it would not.`,
		Example: `  stint envoy check ratelimit/config
  stint envoy check ratelimit/config --domain shop --entry generic_key=search --entry user=alice
  stint envoy check ratelimit/config -o json`,
		Args: wants(1, 1, "one DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := q.parse(); err != nil {
				return err
			}
			x := descriptors{Dir: args[0], Skipped: []skippedFile{}, Domains: []string{}, Problems: rule.Problems{}, Differences: []difference{}, General: descriptor.General()}
			files, skipped, limits, err := f.read(args[0])
			x.Files = files
			for _, s := range skipped {
				x.Skipped = append(x.Skipped, skippedFile(s))
			}
			if err == nil {
				x.Domains = limits.Domains()
				for range limits.Limits() {
					x.Limits++
				}
				for _, d := range slices.Concat(limits.Ignored(), limits.Differences()) {
					x.Differences = append(x.Differences, difference(d))
				}
				x.Request, err = q.ask(limits)
			}
			if err != nil && !errors.As(err, &x.Problems) {
				return err
			}
			rows := x.Problems // or differences, in the same form
			for _, d := range x.Differences {
				rows = append(rows, rule.Problem{File: d.File, Line: d.Line, Column: d.Column, Path: d.Path, Message: d.Text})
			}
			return answer(t.print(x, rows, func() error { return x.show(t) }), len(x.Problems) == 0 && (x.Request == nil || x.Request.Allowed))
		},
	}
	f.add(c)
	c.Flags().StringVar(&q.domain, "domain", "", "the `name` of the domain (default: that of the files, if they have only one)")
	c.Flags().StringArrayVar(&q.entries, "entry", nil, "an entry of a descriptor, as `key=value`; can be repeated")
	c.Flags().Int64Var(&q.hits, "hits", 1, "the number of `hits` of the request")
	addOutput(c)
	return c
}

func (x *descriptors) show(t *terminal) error {
	for _, s := range x.Skipped {
		fmt.Fprintf(t.out, "%s: not read: %s\n", s.Path, s.Why)
	}
	if len(x.Problems) > 0 {
		_, err := fmt.Fprintln(t.out, x.Problems.Error())
		return err
	}
	if x.Request != nil {
		x.Request.show(t)
		return nil
	}
	fmt.Fprintf(t.out, "%s: files: %d, domains: %d, limits: %d, no problems\n", x.Dir, x.Files, len(x.Domains), x.Limits)
	if len(x.Differences) > 0 {
		fmt.Fprintln(t.out, "\nDifferences from envoyproxy/ratelimit in this configuration:")
		for _, d := range x.Differences {
			fmt.Fprintln(t.out, " ", descriptor.Difference(d))
		}
	}
	fmt.Fprintln(t.out, "\nDifferences in any configuration:")
	for _, text := range x.General {
		fmt.Fprintln(t.out, " ", text)
	}
	return nil
}

// question is a request with one descriptor.
type question struct {
	domain  string
	entries []string
	hits    int64

	parsed []descriptor.Entry
}

func (q *question) parse() error {
	const example = "--domain shop --entry user=alice"
	for _, text := range q.entries {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return advice{fmt.Errorf("--entry %q: want key=value", text), example}
		}
		q.parsed = append(q.parsed, descriptor.Entry{Key: key, Value: value})
	}
	switch {
	case q.domain != "" && len(q.parsed) == 0:
		return advice{errors.New("--domain: want --entry as well"), example}
	case q.hits < 1 || q.hits > math.MaxUint32:
		return advice{fmt.Errorf("--hits %d: want from 1 to %d", q.hits, uint32(math.MaxUint32)), "--hits 1"}
	}
	return nil
}

// ask finds the limit of the request, or returns nil if there are no entries.
func (q *question) ask(c *descriptor.Config) (*traced, error) {
	if len(q.parsed) == 0 {
		return nil, nil
	}
	domains := c.Domains()
	if q.domain == "" && len(domains) == 1 {
		q.domain = domains[0]
	}
	if !slices.Contains(domains, q.domain) {
		meant, ok := strict.Closest(q.domain, domains)
		if !ok {
			meant = domains[0]
		}
		return nil, advice{fmt.Errorf("--domain %q: want one of %s", q.domain, strings.Join(domains, ", ")), "--domain " + meant}
	}
	x := &traced{Domain: q.domain, Hits: q.hits, Allowed: true}
	var found *descriptor.Limit
	for _, s := range c.Domain(q.domain).Explain(q.parsed) {
		x.Steps, found = append(x.Steps, s.String()), s.Limit
	}
	if found == nil {
		return x, nil
	}
	x.Limit = found.Path
	if !found.Unlimited && !found.Shadow {
		_, unused := found.Limit.Take(stint.State{}, time.Unix(0, 0), q.hits)
		x.Allowed = found.Requests > 0 && unused.Allowed
	}
	return x, nil
}

func (x *traced) show(t *terminal) {
	for _, s := range x.Steps {
		fmt.Fprintln(t.out, s)
	}
	outcome := "allowed"
	if !x.Allowed {
		outcome = "denied"
	}
	fmt.Fprintf(t.out, "\n%s, if no requests were counted before, with hits: %d\n", outcome, x.Hits)
}

func newEnvoyConvert(t *terminal) *cobra.Command {
	var f envoyFlags
	var meanings map[string]string
	c := &cobra.Command{
		Use:   "convert DIR",
		Short: "Convert a configuration of envoyproxy/ratelimit to rules",
		Long: `Convert the descriptors of a directory to rules, and write them in TOML to the standard
output. Differences, and descriptors that cannot be converted, are listed on the standard
error.

The keys of descriptors come from Envoy's actions, while rules match requests: --map sets
what a key means. It is ip, user, tenant, api_key, path, method, header:NAME, or ignore for
a key that is always the same. Keys of Envoy's own actions, such as remote_address, are
known; any other key is assumed to be the name of a header.`,
		Example: `  stint envoy convert ratelimit/config > stint.toml
  stint envoy convert ratelimit/config --map account=user --map plan=header:X-Plan`,
		Args: wants(1, 1, "one DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			for key, meaning := range meanings {
				if !isMeaning(meaning) {
					return advice{
						fmt.Errorf("--map %s=%s: want %s=, and then ip, user, tenant, api_key, path, method, header:NAME or ignore", key, meaning, key),
						"--map " + key + "=user",
					}
				}
			}
			_, skipped, limits, err := f.read(args[0])
			if problems := rule.Problems(nil); errors.As(err, &problems) {
				return advice{err, "correct the problems, then: stint envoy check " + args[0]}
			} else if err != nil {
				return err
			}
			text, notes := limits.Convert(descriptor.ConvertOptions{Map: meanings})
			fmt.Fprint(t.out, text)
			for _, s := range skipped {
				notes = append(notes, s.Path+": not read: "+s.Why)
			}
			t.notes(notes...)
			return nil
		},
	}
	f.add(c)
	c.Flags().StringToStringVar(&meanings, "map", nil, "the meaning of a key, as `key=meaning`; can be repeated")
	return c
}

// isMeaning reports whether --map accepts a meaning.
func isMeaning(text string) bool {
	name, isHeader := strings.CutPrefix(text, "header:")
	return isHeader && name != "" ||
		slices.Contains([]string{"ip", "user", "tenant", "api_key", "path", "method", "ignore"}, text)
}
