package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// temporary is the prefix of the names of files while they are written.
const temporary = ".tmp-"

// directory is a Bucket of files below a root, which is created when it is first needed. Files
// may contain personal data, so only their owner can read them.
type directory struct{ root, url string }

var _ Bucket = (*directory)(nil)

func (d *directory) String() string { return d.url }

func (d *directory) path(name string) string { return filepath.Join(d.root, filepath.FromSlash(name)) }

func (d *directory) Put(ctx context.Context, name string, r io.Reader) error {
	return d.place(ctx, name, r, os.Rename)
}

func (d *directory) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	return d.place(ctx, name, bytes.NewReader(data), os.Link) // which fails if it exists
}

// place writes a temporary file, and gives it its name once it is synced to disk.
func (d *directory) place(ctx context.Context, name string, r io.Reader, as func(from, to string) error) error {
	if err := checkName(name); err != nil {
		return err
	}
	to := d.path(name)
	from, err := write(ctx, filepath.Dir(to), r)
	if err == nil {
		err = as(from, to)
		if err == nil {
			err = sync(filepath.Dir(to))
		}
	}
	if from != "" {
		_ = os.Remove(from) // unless it was renamed
	}
	return fileError("put", name, err)
}

// write writes what r has to a new file in dir, and returns its path.
func write(ctx context.Context, dir string, r io.Reader) (path string, err error) {
	if err = os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(dir, temporary+"*")
	if err != nil {
		return "", err
	}
	if _, err = io.Copy(f, reader{ctx, r}); err == nil {
		err = f.Sync()
	}
	return f.Name(), errors.Join(err, f.Close())
}

// sync makes the names in a directory survive a crash.
func sync(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// reader is a reader that ends with its context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func (d *directory) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fileError("get", name, err)
	}
	f, err := os.Open(d.path(name))
	if err != nil {
		return nil, fileError("get", name, err)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_ = f.Close()
		return nil, fileError("get", name, fs.ErrNotExist)
	}
	return f, nil
}

func (d *directory) Delete(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	err := ctx.Err()
	if err == nil {
		if err = os.Remove(d.path(name)); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fileError("delete", name, err)
}

func (d *directory) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		err := checkPrefix(prefix)
		if err == nil {
			_, err = d.list(ctx, "", prefix, func(o Object) bool { return yield(o, nil) })
			err = fileError("list", prefix, err)
		}
		if err != nil {
			yield(Object{}, err)
		}
	}
}

// list visits the files below dir whose names begin with prefix, in order of whole names:
// "a-b" is before "a/b". It returns false if visit did.
func (d *directory) list(ctx context.Context, dir, prefix string, visit func(Object) bool) (bool, error) {
	entries, err := os.ReadDir(d.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // nothing was written yet, or it was deleted meanwhile
	}
	if err != nil {
		return false, err
	}
	full := func(e fs.DirEntry) string {
		if e.IsDir() {
			return dir + e.Name() + "/"
		}
		return dir + e.Name()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(full(a), full(b)) })
	for _, e := range entries {
		name := full(e)
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if e.IsDir() {
			if strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name) {
				if more, err := d.list(ctx, name, prefix, visit); err != nil || !more {
					return false, err
				}
			}
			continue
		}
		if !strings.HasPrefix(name, prefix) || checkName(name) != nil {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return false, err
		}
		if !visit(Object{Name: name, Size: info.Size()}) {
			return false, nil
		}
	}
	return true, nil
}

// Check also removes temporary files of killed processes that are more than a day old, by the
// clock of the file system.
func (d *directory) Check(ctx context.Context) error {
	probe, err := write(ctx, d.root, strings.NewReader("stint"))
	if probe != "" {
		defer os.Remove(probe)
	}
	if err != nil {
		return fileError("write to", d.root, err)
	}
	now, err := os.Stat(probe)
	if err != nil {
		return fileError("write to", d.root, err)
	}
	return fileError("look through", d.root, filepath.WalkDir(d.root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasPrefix(e.Name(), temporary) {
			return errors.Join(err, ctx.Err())
		}
		if info, err := e.Info(); err == nil && now.ModTime().Sub(info.ModTime()) > 24*time.Hour {
			_ = os.Remove(path)
		}
		return nil
	}))
}

// fileError adds the operation, the name and the kind of the error.
func fileError(doing, name string, err error) error {
	var kind error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("blob: %s %s: %w", doing, name, err)
	case errors.Is(err, fs.ErrNotExist):
		kind = ErrNotFound
	case errors.Is(err, fs.ErrExist):
		kind = ErrExists
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		kind = ErrNotPermitted
	default:
		kind = ErrUnreachable
	}
	return fmt.Errorf("blob: %s %s: %w: %w", doing, name, kind, err)
}
