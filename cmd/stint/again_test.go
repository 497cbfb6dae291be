package main_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
)

// TestAgain has the answers to a write get lost: it is sent again, and carried out once.
func TestAgain(t *testing.T) {
	t.Parallel()
	h := serveAdmin(t, "")
	to, err := url.Parse(h.admin)
	if err != nil {
		t.Fatal(err)
	}
	var posts atomic.Int64
	var old atomic.Bool // the server looks like one of an earlier version
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && posts.Add(1) <= 2 {
			forward.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler) // the connection breaks
		}
		if old.Load() && strings.HasSuffix(r.URL.Path, "/openapi.json") {
			_, _ = w.Write([]byte("{}"))
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	environ := append([]string{"STINT_SERVER=" + s.URL}, h.environ...)
	run := func(line string) (code int, out, errs string) {
		var o, e bytes.Buffer
		code = stint.Run(t.Context(), strings.Fields(line), environ, &o, &e)
		return code, o.String(), e.String()
	}
	count := func(want int) {
		t.Helper()
		var keys []json.RawMessage
		if _, out, _ := run("keys list -o json"); json.Unmarshal([]byte(out), &keys) != nil || len(keys) != want {
			t.Errorf("there are %d keys, want %d: %s", len(keys), want, out)
		}
	}
	if code, out, errs := run("keys create name=app"); code != 0 || !strings.HasPrefix(out, "stint_") || posts.Load() != 3 {
		t.Errorf("%d after %d requests: %s %s", code, posts.Load(), out, errs)
	}
	count(1)
	// An older server would create another.
	posts.Store(0)
	old.Store(true)
	if code, _, errs := run("keys create name=app"); code != 2 || posts.Load() != 1 || !strings.Contains(errs, "cannot reach the server") {
		t.Errorf("%d after %d requests: %s", code, posts.Load(), errs)
	}
	count(2)
	h.end(t)
}
