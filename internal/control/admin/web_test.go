package admin_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/packed"
)

var emptyFS = fstest.MapFS{"other.html": {}}

func TestWeb(t *testing.T) {
	t.Parallel()
	script := strings.Repeat("console.log('stint');\n", 100)
	h := newTestAPI(t, func(o *admin.Options) {
		o.Web = fstest.MapFS{
			"index.html":                  {Data: []byte("<!doctype html>" + strings.Repeat("<p>stint</p>", 50))},
			"favicon.svg":                 {Data: []byte("<svg/>")},
			"assets/index-d3adb33f.js.gz": {Data: packed.Pack([]byte(script))},
			"assets/a-1.css":              {Data: []byte("a{}")},
			"assets/odd.stint":            {Data: []byte("x")},
		}
	})
	get := func(method, path string, headers ...string) *answer {
		t.Helper()
		r := httptest.NewRequest(method, path, nil)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		h.api.ServeHTTP(w, r)
		return &answer{t, w.Result(), w.Body.Bytes()}
	}
	for _, c := range []struct{ path, contentType, cache string }{
		{"/", "text/html; charset=utf-8", "no-cache"},
		{"/index.html", "text/html; charset=utf-8", "no-cache"},
		{"/favicon.svg", "image/svg+xml", "no-cache"},
		{"/assets/index-d3adb33f.js", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable"},
		{"/assets/a-1.css", "text/css; charset=utf-8", "public, max-age=31536000, immutable"},
		{"/assets/odd.stint", "application/octet-stream", "public, max-age=31536000, immutable"},
	} {
		a := get(http.MethodGet, c.path).want(http.StatusOK)
		if a.Header.Get("Content-Type") != c.contentType || a.Header.Get("Cache-Control") != c.cache || a.Header.Get("Content-Security-Policy") == "" || a.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", c.path, a.Header)
		}
		tag := a.Header.Get("ETag")
		if b := get(http.MethodGet, c.path, "If-None-Match", `"x", `+tag).want(http.StatusNotModified); len(b.body) != 0 {
			t.Errorf("%s: %q", c.path, b.body)
		}
		if b := get(http.MethodHead, c.path).want(http.StatusOK); len(b.body) != 0 || b.Header.Get("Content-Length") != a.Header.Get("Content-Length") {
			t.Errorf("%s: HEAD: %v", c.path, b.Header)
		}
	}
	const js = "/assets/index-d3adb33f.js"
	for accept, pack := range map[string]bool{
		"": false, "gzip": true, "br, gzip;q=0.5": true, "GZIP": true, "gzip;q=0": false, "gzip; q=0.0": false, "identity": false, "xgzip": false, "gzip;q=x": false,
	} {
		a := get(http.MethodGet, js, "Accept-Encoding", accept).want(http.StatusOK)
		if got := a.Header.Get("Content-Encoding") == "gzip"; got != pack || a.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%q: %v", accept, a.Header)
		}
		body := a.body
		if pack {
			z, err := gzip.NewReader(strings.NewReader(string(a.body)))
			if err != nil {
				t.Fatal(err)
			}
			if body, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		if string(body) != script {
			t.Errorf("%q: %d bytes", accept, len(body))
		}
	}
	if get(http.MethodGet, js).Header.Get("ETag") == get(http.MethodGet, js, "Accept-Encoding", "gzip").Header.Get("ETag") {
		t.Error("the same ETag for what is not the same")
	}
	if a := get(http.MethodGet, "/favicon.svg", "Accept-Encoding", "gzip"); a.Header.Get("Content-Encoding") != "" {
		t.Error("packed, and was not")
	}
	for _, path := range []string{"/assets/", "/assets", js + ".gz", "/nothing", "/assets/../index.html", "/%2e%2e/etc/passwd", "/rules"} {
		get(http.MethodGet, path).want(http.StatusNotFound)
	}
}

// TestAuthorize protects another handler on the same listener.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t)
	secret := h.api.Authorize(catalog.Administrator, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") }))
	for token, want := range map[string]int{"": http.StatusUnauthorized, h.viewer: http.StatusForbidden, h.operator: http.StatusForbidden, h.admin: http.StatusOK, configToken: http.StatusOK} {
		r := httptest.NewRequest(http.MethodGet, "/debug/pprof/", nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		secret.ServeHTTP(w, r)
		if w.Code != want || (w.Body.String() == "secret") != (want == http.StatusOK) || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%d, want %d: %s", w.Code, want, w.Body)
		}
	}
}
