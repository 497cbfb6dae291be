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

// The bounds of what is read.
const (
	// MaxFiles is the most files of a directory.
	MaxFiles = 10_000
	// MaxBytes is the most bytes that they have together.
	MaxBytes = 64 << 20
	// MaxLevels is the most descriptors that stand one in another.
	MaxLevels = 64
)

// Problem is one thing that is wrong with a configuration, with its place.
type Problem = strict.Problem

// Problems are all that is wrong with a configuration. They are an error.
type Problems = strict.Problems

// File is a file with the descriptors of a domain, in YAML. The name is for problems.
type File struct {
	Name string
	Data []byte
}

// Named is the descriptors of a domain that are not from a file, but from something
// that has a name.
type Named struct {
	Name   string
	Domain Domain
}

// Options are how a configuration is understood.
type Options struct {
	// Merge has files add to a domain that another began. Without it that is wrong.
	Merge bool
	// FixedMonths has the units week, month and year be 7, 30 and 365 days from the
	// epoch, as envoyproxy/ratelimit counts them, and not those of the calendar.
	FixedMonths bool
	// Independent is for domains that do not say whether they are.
	Independent bool
}

// Read reads files, checks what they hold, and compiles it. The error is of type
// [Problems]: all that is wrong, file by file.
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

// Compile checks and compiles domains as [Read] does. Problems have the name as their
// file, and no line.
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

// ReadDir returns the files of a directory whose names end in .yaml or .yml, in the
// order of their names. What begins with a dot is left out, so a mounted ConfigMap, in
// which all names are links to what ..data links to, is read once. If it is a file, it
// is that file.
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
			return nil, fmt.Errorf("%s: there are more files, want at most %d", dir, MaxFiles)
		}
		f, err := readFile(path, &left)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: there is no file whose name ends in .yaml or .yml", dir)
	}
	return files, nil
}

// readFile reads a file, of at most as many bytes as are left.
func readFile(path string, left *int64) (File, error) {
	// What is no regular file may never end, or never begin.
	if info, err := os.Stat(path); err != nil {
		return File{}, err
	} else if !info.Mode().IsRegular() {
		return File{}, &os.PathError{Op: "read", Path: path, Err: errors.New("it is not a regular file")}
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
		return File{}, fmt.Errorf("%s: with it there are more than %d bytes to read", path, MaxBytes)
	}
	return File{path, data}, nil
}
