package descriptor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Skipped is a file or a directory that [ReadDir] did not read, and why.
type Skipped struct{ Path, Why string }

// Why a file or a directory was not read.
const (
	whyDot     = "its name begins with a dot"
	whyLink    = "it is a link to a directory"
	whyNowhere = "it is a link to nothing"
	whySpecial = "it is not a regular file"
	whyDenied  = "permission denied"
)

// DirOptions say what [ReadDir] reads.
type DirOptions struct {
	DotFiles bool // files and directories whose names begin with a dot
	// Siblings are files and directories beside the directory whose names continue its own with a
	// dot, such as config.yaml beside config. envoyproxy/ratelimit reads them unless
	// RUNTIME_WATCH_ROOT is false.
	Siblings bool
}

// ReadDir returns all files below a directory, whatever their names are, like
// envoyproxy/ratelimit: in the order of their paths, and with those whose names begin with a
// dot only if DotFiles is set. It does not follow links to directories. If dir is a file,
// ReadDir returns this file.
//
// A mounted volume of Kubernetes, whose files are links into the directory ..data, is read
// once.
//
// What is not read is returned as well. An empty directory is no error, and with Siblings, if there
// are some, neither is a missing one.
func ReadDir(dir string, o DirOptions) ([]File, []Skipped, error) {
	d := dirReader{root: dir, dotFiles: o.DotFiles, left: MaxBytes}
	info, err := os.Stat(dir)
	var beside []fs.DirEntry
	if o.Siblings && (err != nil || info.IsDir()) {
		beside = siblings(dir)
	}
	switch {
	case len(beside) > 0 && errors.Is(err, fs.ErrNotExist):
		err = nil
	case err != nil:
		return nil, nil, err
	case info.IsDir():
		err = d.directory(dir)
	default:
		if err = d.file(dir); err == nil && len(d.files) == 0 {
			err = &os.PathError{Op: "read", Path: dir, Err: errors.New(d.skipped[0].Why)}
		}
	}
	for _, e := range beside {
		if err == nil {
			err = d.entry(filepath.Join(filepath.Dir(dir), e.Name()), e, false)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	return d.files, d.skipped, nil
}

// Siblings returns the files and directories beside a directory that [ReadDir] reads only with
// Siblings.
func Siblings(dir string) (skipped []Skipped) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil
	}
	for _, e := range siblings(dir) {
		path := filepath.Join(filepath.Dir(dir), e.Name())
		skipped = append(skipped, Skipped{path, "it is beside the directory " + filepath.Base(dir) + ", not in it"})
	}
	return skipped
}

func siblings(dir string) (found []fs.DirEntry) {
	if name := filepath.Base(dir); strings.Trim(name, "./") == "" {
		return nil // it has no name of its own
	}
	entries, _ := os.ReadDir(filepath.Dir(dir)) // none, if it cannot be read
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(dir)+".") {
			found = append(found, e)
		}
	}
	return found
}

type dirReader struct {
	root     string
	dotFiles bool
	seen     int   // files and directories
	left     int64 // bytes
	files    []File
	skipped  []Skipped
}

func (d *dirReader) skip(path, why string) { d.skipped = append(d.skipped, Skipped{path, why}) }

// mountedData is the link to the current directory of a mounted volume of Kubernetes. Names
// that begin with two dots are reserved there.
const mountedData = "..data"

func (d *dirReader) directory(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrPermission) && dir != d.root {
		d.skip(dir, whyDenied)
		return nil
	} else if err != nil {
		return err
	}
	_, missing := os.Lstat(filepath.Join(dir, mountedData))
	for _, e := range entries {
		if d.seen++; d.seen > MaxFiles {
			return fmt.Errorf("%s: too many files, want at most %d", d.root, MaxFiles)
		}
		if err := d.entry(filepath.Join(dir, e.Name()), e, missing == nil); err != nil {
			return err
		}
	}
	return nil
}

// entry reads an entry of a directory, which may be a mounted volume.
func (d *dirReader) entry(path string, e fs.DirEntry, mounted bool) error {
	switch name := e.Name(); {
	case mounted && strings.HasPrefix(name, ".."):
		return nil // it is read by way of links
	case strings.HasPrefix(name, ".") && !d.dotFiles:
		d.skip(path, whyDot)
		return nil
	case e.IsDir():
		return d.directory(path)
	case e.Type()&fs.ModeSymlink != 0:
		// envoyproxy/ratelimit finds the directories of a volume only behind the dots.
		return d.link(path, mounted && d.dotFiles)
	}
	return d.file(path)
}

func (d *dirReader) link(path string, follow bool) error {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return d.file(path)
	}
	if follow {
		return d.directory(path)
	}
	d.skip(path, whyLink)
	return nil
}

// file reads a file.
func (d *dirReader) file(path string) error {
	f, err := d.open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ELOOP):
		d.skip(path, whyNowhere) // or it was removed just now
		return nil
	case errors.Is(err, fs.ErrPermission):
		d.skip(path, whyDenied)
		return nil
	case err != nil || f == nil:
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, d.left+1))
	if err != nil {
		return err
	}
	if d.left -= int64(len(data)); d.left < 0 {
		return fmt.Errorf("%s: all files up to this one have more than %d bytes", path, MaxBytes)
	}
	d.files = append(d.files, File{path, data})
	return nil
}

// open opens a regular file. Others, such as pipes, may block or never end: they are
// skipped, and the file is nil.
func (d *dirReader) open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		d.skip(path, whySpecial)
		return nil, nil
	}
	return os.Open(path)
}
