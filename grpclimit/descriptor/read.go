package descriptor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stintdev/stint/internal/kit/strict"
)

// The bounds of a configuration.
const (
	// MaxFiles is how many files a directory may have.
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
		all = append(all, problems.And(doc.Locate(c.add(f.Name, &d, doc)))...)
	}
	return c.finish(all)
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

// ReadDir returns the files of a directory whose names end in .yaml or .yml, sorted by name.
// Names that begin with a dot are skipped, so that a mounted ConfigMap, whose files are links
// into ..data, is read once. If dir is a file, ReadDir returns this file.
func ReadDir(dir string) ([]File, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	left := int64(MaxBytes)
	if !info.IsDir() {
		f, err := readFile(dir, &left)
		return []File{f}, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []File
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || !slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(name)) {
			continue
		}
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err != nil {
			return nil, err
		} else if info.IsDir() {
			continue
		}
		if len(files) == MaxFiles {
			return nil, fmt.Errorf("%s: too many files, want at most %d", dir, MaxFiles)
		}
		f, err := readFile(path, &left)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no file name ends in .yaml or .yml", dir)
	}
	return files, nil
}

// readFile reads a file of at most left bytes.
func readFile(path string, left *int64) (File, error) {
	// Other files, such as pipes, may block or never end.
	if info, err := os.Stat(path); err != nil {
		return File{}, err
	} else if !info.Mode().IsRegular() {
		return File{}, &os.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, *left+1))
	if err != nil {
		return File{}, err
	}
	if *left -= int64(len(data)); *left < 0 {
		return File{}, fmt.Errorf("%s: all files up to this one have more than %d bytes", path, MaxBytes)
	}
	return File{path, data}, nil
}
