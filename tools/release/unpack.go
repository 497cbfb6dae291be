package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
)

// keychain has the credentials of the user for registries.
var keychain = authn.DefaultKeychain

// unpack writes the files of an archive below a directory, and calls each with the header of
// every one, if it is not nil.
func unpack(dir string, from io.Reader, each func(path string, h *tar.Header) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(filepath.Clean(h.Name), 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, h.Name)
		case tar.TypeReg:
			var f *os.File
			if f, err = root.OpenFile(h.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode().Perm()); err == nil {
				_, err = io.Copy(f, r)
				err = errors.Join(err, f.Close())
			}
		default:
			err = fmt.Errorf("type %q", h.Typeflag)
		}
		if err == nil && each != nil {
			err = each(filepath.Join(dir, h.Name), h)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}
