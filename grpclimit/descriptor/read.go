package descriptor

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stintdev/stint/internal/kit/strict"
)

// The bounds of a configuration.
const (
	// MaxFiles is how many files and directories may be below a directory.
	MaxFiles = 10_000
	// MaxBytes is how many bytes all files may have together.
	MaxBytes = 64 << 20
	// MaxLevels is how deep descriptors may be nested.
	MaxLevels = 64
)

// Problem is a problem in a configuration, and where it is.
type Problem = strict.Problem

// Problems are all problems in a configuration. They are an error.
type Problems = strict.Problems

// File is a file with the descriptors of a domain, in YAML. Problems show its name.
type File struct {
	Name string
	Data []byte
}

// Named is a domain that does not come from a file. Problems show its name.
type Named struct {
	Name   string
	Domain Domain
}

// Options say how a configuration is read.
type Options struct {
	// Merge allows several files for one domain, which is an error otherwise.
	Merge bool
	// FixedMonths makes the units week, month and year 7, 30 and 365 days from the epoch, as
	// in envoyproxy/ratelimit, instead of calendar periods.
	FixedMonths bool
	// Independent makes all domains independent, as compat: independent does for one.
	Independent bool
}

// Read parses, checks and compiles files. The error is of type [Problems]: all problems,
// file by file.
func Read(files []File, o Options) (*Config, error) {
	c := newCompiler(o)
	var all Problems
	for _, f := range files {
		var d Domain
		doc, problems := strict.YAML(f.Name, f.Data, &d)
		problems = c.tolerate(problems).And(doc.Locate(c.add(f.Name, &d, doc)))
		if len(problems) > 0 && !slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(f.Name)) {
			problems[0].Hint = cmp.Or(problems[0].Hint, "all files of the directory are read: if it has no descriptors, move it elsewhere")
		}
		all = append(all, problems...)
	}
	return c.finish(all)
}

// theirFields are the fields of envoyproxy/ratelimit, which ignores them in the wrong place.
var theirFields = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited", "shadow_mode", "quota_mode", "name",
	"replaces", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
}

// tolerate takes out the problems with what envoyproxy/ratelimit ignores: fields in the wrong
// place, and all documents of a file but the first.
func (c *compiler) tolerate(problems Problems) (left Problems) {
	for _, p := range problems {
		field := p.Path[strings.LastIndexByte(p.Path, '.')+1:]
		if p.Message != strict.SecondDocument && (p.Message != strict.UnknownField || !slices.Contains(theirFields, field)) {
			left = append(left, p)
			continue
		}
		text := "it has no effect here"
		if p.Message == strict.SecondDocument {
			text = "a second document begins here, which has no effect"
		}
		c.ignore(origin{p.File, p.Line, p.Column}, p.Path, text, p.Hint)
	}
	return left
}

// Compile checks and compiles domains like [Read]. Problems have the name as their file, and
// no line.
func Compile(domains []Named, o Options) (*Config, error) {
	c := newCompiler(o)
	var all Problems
	for i := range domains {
		n := &domains[i]
		found := c.add(n.Name, &n.Domain, nil)
		for j := range found {
			found[j].File = n.Name
		}
		all = append(all, found...)
	}
	return c.finish(all)
}
