// Package trial tries the examples out, as a client would.
package trial

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
)

// Store returns a store in memory whose clock stands still.
func Store(t *testing.T) stint.Store {
	t.Helper()
	now := time.Now()
	store, err := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// HTTP starts a server with a limit of 100 requests a minute, and sends it that many,
// which must be served, and one more, which must be denied.
func HTTP(t *testing.T, handler http.Handler) {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	expect := func(about string, h http.Header, name, want string) {
		t.Helper()
		if got := h.Get(name); got != want {
			t.Errorf("%s: %s: %q, want %q", about, name, got, want)
		}
	}
	for left := 99; left >= 0; left-- {
		status, h, body := get(t, server)
		if status != http.StatusOK || string(body) != "hello\n" {
			t.Fatalf("a request within the limit: status %d, body %q", status, body)
		}
		expect("within the limit", h, "X-RateLimit-Limit", "100")
		expect("within the limit", h, "X-RateLimit-Remaining", strconv.Itoa(left))
		expect("within the limit", h, "RateLimit-Policy", `"default";q=100;w=60`)
	}
	status, h, body := get(t, server)
	if status != http.StatusTooManyRequests {
		t.Fatalf("a request over the limit: status %d, body %q", status, body)
	}
	expect("over the limit", h, "X-RateLimit-Remaining", "0")
	expect("over the limit", h, "Content-Type", "application/problem+json")
	for _, name := range []string{"Retry-After", "RateLimit", "X-RateLimit-Reset"} {
		if h.Get(name) == "" {
			t.Errorf("over the limit: there is no %s", name)
		}
	}
	var problem struct {
		Status   int      `json:"status"`
		Violated []string `json:"violated-policies"`
	}
	if err := json.Unmarshal(body, &problem); err != nil || problem.Status != status || len(problem.Violated) != 1 {
		t.Errorf("over the limit: %s: %v", body, err)
	}
}

func get(t *testing.T, server *httptest.Server) (status int, h http.Header, body []byte) {
	t.Helper()
	response, err := server.Client().Get(server.URL + "/hello")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err = io.ReadAll(response.Body); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, body
}
