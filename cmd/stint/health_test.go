package main_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	stint "github.com/stintdev/stint/cmd/stint"
	"github.com/stintdev/stint/internal/test/testserver"
)

// TestHealth asks servers for their health as a container does: with their settings, without
// a token, and with an answer whatever happens.
func TestHealth(t *testing.T) {
	t.Parallel()
	cert, key := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	testserver.WritePair(t, cert, key, "stint.example.org")
	plain := serve(t, "--set", "server.drain_delay=0", "--set", "server.log_format=text")
	at := func(s *server, listener, scheme string) string {
		return s.logs(t, "listener="+listener+" url="+scheme+"://(.*)")
	}
	decisions, admin := at(plain, "http", "http"), at(plain, "admin", "http")
	plain.logs(t, "msg=(ready)")
	secure := serve(t, "--set", "server.drain_delay=0", "--set", "server.log_format=text",
		"--set", "server.admin.tls_cert="+cert, "--set", "server.admin.tls_key="+key)
	private := at(secure, "admin", "https")
	secure.logs(t, "msg=(ready)")
	pair := " --set server.admin.tls_cert=" + cert + " --set server.admin.tls_key=" + key
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"status": "not_ready", "checks": [{"name": "rules", "status": "ok"}, {"name": "server", "status": "not_ready", "detail": "it stops\u001b[2J"}]}`)
	}))
	defer bad.Close()
	silent := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-silent }))
	defer slow.Close()
	defer close(silent)
	for _, c := range []struct {
		args, environ string
		code          int
		says          string
	}{
		{"", "STINT_SERVER_ADMIN_ADDRESS=" + admin, 0, "ok\n"},
		{"-o json", "STINT_SERVER_ADMIN_ADDRESS=" + admin, 0, `"status": "ok"`},
		{"--set server.admin.address=" + admin, "HTTP_PROXY=http://127.0.0.1:1", 0, "ok\n"},
		{"--envoy-env --set server.admin.address=" + admin, "REDIS_URL=localhost:1", 0, "ok\n"},
		{"--set server.admin.address= --set server.http.address=" + decisions, "", 0, "ok\n"},
		{"--set server.admin.address=" + private + pair, "", 0, "ok\n"},
		{"--set server.admin.address=" + private + pair + " --set server.admin.tls_client_ca=" + cert + " --set server.http.address=" + decisions, "", 0, "ok\n"},
		{"--set server.admin.address=" + private, "", 1, "not ready\nserver: "},
		{"--set server.admin.address=127.0.0.1:1", "", 1, "connection refused"},
		{"-o json --set server.admin.address=127.0.0.1:1", "", 1, `"status": "not_ready"`},
		{"--set server.admin.address=" + strings.TrimPrefix(other.URL, "http://"), "", 1, "is not Stint: it answers 404"},
		{"--set server.admin.address=" + strings.TrimPrefix(bad.URL, "http://"), "", 1, "not ready\nserver: it stops"},
		{"--timeout 10ms --set server.admin.address=" + strings.TrimPrefix(slow.URL, "http://"), "", 1, "deadline exceeded"},
		{"--timeout 0s", "", 2, "--timeout 0s: want more than 0"},
		{"--set server.admin.address= --set server.http.address=", "", 2, "are disabled"},
		{"--config none.toml", "", 2, "none.toml"},
		{"more", "", 2, "takes no arguments"},
	} {
		var out bytes.Buffer
		code := stint.Run(t.Context(), append([]string{"health"}, words(c.args)...), []string{c.environ}, &out, &out)
		if code != c.code || !strings.Contains(out.String(), c.says) || strings.Contains(out.String(), "\x1b") {
			t.Errorf("%s %s: %d, want %d and %q: %s", c.environ, c.args, code, c.code, c.says, out.String())
		}
	}
	for _, s := range []*server{plain, secure} {
		s.signal(t, syscall.SIGTERM)
		if code := s.ends(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}
