package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"path"
	"slices"
	"strings"
	"time"
)

// entry is an entry of an archive, with the owner root unless it says otherwise.
type entry struct {
	tar.Header
	body []byte
}

// tarOf returns an archive of files below a directory, in the order of their names, with the
// directories that they are in.
func tarOf(at time.Time, below string, files []file) []byte {
	var all []entry
	for _, f := range files {
		all = append(all, entry{tar.Header{Name: below + f.name, Mode: f.mode}, f.body})
	}
	return tarEntries(at, all)
}

func tarEntries(at time.Time, all []entry) []byte {
	known := map[string]bool{".": true}
	for _, e := range all {
		if strings.HasSuffix(e.Name, "/") {
			known[path.Clean(e.Name)] = true
		}
	}
	for _, e := range slices.Clone(all) {
		for dir := path.Dir(path.Clean(e.Name)); !known[dir]; dir = path.Dir(dir) {
			known[dir] = true
			all = append(all, entry{Header: tar.Header{Name: dir + "/", Mode: 0o755}})
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range all {
		h := e.Header
		h.ModTime, h.Size, h.Typeflag = at, int64(len(e.body)), tar.TypeReg
		switch {
		case strings.HasSuffix(h.Name, "/"):
			h.Typeflag = tar.TypeDir
		case h.Linkname != "":
			h.Typeflag = tar.TypeSymlink
		}
		// Neither can fail: the names are short, and it is memory.
		_ = w.WriteHeader(&h)
		_, _ = w.Write(e.body)
	}
	_ = w.Close()
	return out.Bytes()
}
