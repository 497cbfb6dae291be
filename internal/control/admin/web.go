package admin

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/kit/packed"
)

// file is a file of the dashboard, in memory.
type file struct {
	contentType  string
	plain        func() []byte
	gzipped      []byte // nil: it is not packed
	etag         string
	cacheControl string
}

// readFiles reads the dashboard. Files in assets/ have hashes of their contents in their
// names, and can be cached forever. Those that end in .gz were packed when it was built.
func readFiles(web fs.FS) (map[string]*file, error) {
	files := map[string]*file{}
	if web == nil {
		return files, nil
	}
	err := fs.WalkDir(web, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(web, name)
		if err != nil {
			return err
		}
		f := &file{plain: func() []byte { return content }, cacheControl: "no-cache"}
		if unpacked, ok := strings.CutSuffix(name, ".gz"); ok {
			name, f.gzipped, f.plain = unpacked, content, packed.Text(content)
		}
		f.contentType = contentTypeOf(name)
		if strings.HasPrefix(name, "assets/") {
			f.cacheControl = "public, max-age=31536000, immutable"
		}
		sum := sha256.Sum256(content)
		f.etag = hex.EncodeToString(sum[:8])
		files["/"+name] = f
		return nil
	})
	if err != nil {
		return nil, err
	}
	if files["/"] = files["/index.html"]; files["/"] == nil {
		return nil, fmt.Errorf("no index.html among %d files", len(files)-1)
	}
	if files["/docs"] = files["/docs.html"]; files["/docs"] == nil {
		files["/docs"] = files["/"] // which says how to build it
	}
	return files, nil
}

// contentTypes are the types of known files. Those of the machine, which differ from
// machine to machine, are only used for others.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".txt": "text/plain; charset=utf-8",
	".json": "application/json", ".map": "application/json", ".webmanifest": "application/manifest+json",
	".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2",
}

func contentTypeOf(name string) string {
	ext := path.Ext(name)
	return cmp.Or(contentTypes[ext], mime.TypeByExtension(ext), "application/octet-stream")
}

// serveFile serves the dashboard. All pages are index.html, with a fragment after the #
// that browsers do not send.
func (a *API) serveFile(w http.ResponseWriter, r *http.Request) {
	f, ok := a.files[r.URL.Path]
	switch {
	case !ok:
		a.problem(w, r, fail(http.StatusNotFound, "not found"))
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		a.problem(w, r, fail(http.StatusMethodNotAllowed, "method "+shown(r.Method)+" is not allowed, want GET or HEAD"))
		return
	}
	etag, h, pack := `"`+f.etag+`"`, w.Header(), f.gzipped != nil && takesGzip(r.Header.Values("Accept-Encoding"))
	if f.gzipped != nil {
		h.Set("Vary", "Accept-Encoding")
	}
	if pack {
		etag = `"` + f.etag + `-gzip"`
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Cache-Control", f.cacheControl)
	h.Set("Content-Type", f.contentType)
	h.Set("ETag", etag)
	if slices.Contains(strings.Split(strings.ReplaceAll(r.Header.Get("If-None-Match"), " ", ""), ","), etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.gzipped
	if !pack {
		body = f.plain()
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // the client may be gone
	}
}

// takesGzip reports whether a client accepts gzip.
func takesGzip(accepted []string) bool {
	for coding := range strings.SplitSeq(strings.Join(accepted, ","), ",") {
		name, quality, _ := strings.Cut(strings.ReplaceAll(coding, " ", ""), ";")
		if strings.EqualFold(name, "gzip") {
			q, err := strconv.ParseFloat(strings.TrimPrefix(quality, "q="), 64)
			return quality == "" || err == nil && q > 0
		}
	}
	return false
}
