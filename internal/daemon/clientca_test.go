package daemon_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testserver"
)

// client returns a client that trusts the server, and presents a certificate unless its
// name is empty.
func client(t *testing.T, dir, name string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "server.crt"))
	do(t, err)
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AppendCertsFromPEM(text)
	if name != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
		do(t, err)
		// What a server says it accepts is not asked: a client that insists is tried, too.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return c
}

// asks sends one request to a listener, on a new connection.
func (p *process) asks(t *testing.T, listener string, c *tls.Config) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if listener == "grpc" {
		conn, err := grpc.NewClient(p.URL(listener), grpc.WithTransportCredentials(credentials.NewTLS(c)))
		do(t, err)
		defer conn.Close()
		_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return err
	}
	transport := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL(listener)+"/readyz", nil)
	do(t, err)
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 2 {
		return fmt.Errorf("%s %s", answer.Proto, answer.Status)
	}
	return nil
}

// TestClientCA requires client certificates at every listener, and then changes the
// authority.
func TestClientCA(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"server", "alice", "mallory"} {
		testserver.WritePair(t, path(name+".crt"), path(name+".key"), name)
	}
	text, err := os.ReadFile(path("alice.crt"))
	do(t, err)
	put(t, path("ca.crt"), string(text))
	put(t, path("shop.yaml"), shop)
	listeners := []string{"http", "gateway", "grpc", "admin"}
	flags := []daemon.Flag{set("envoy.config", path("shop.yaml"))}
	for _, l := range listeners {
		flags = append(flags, set("server."+l+".tls_cert", path("server.crt")), set("server."+l+".tls_key", path("server.key")),
			set("server."+l+".tls_client_ca", path("ca.crt")))
	}
	p := start(t, many+echo(t), flags...)
	for _, l := range listeners {
		if err := p.asks(t, l, client(t, dir, "alice")); err != nil {
			t.Errorf("%s: %v", l, err)
		}
		for _, who := range []string{"", "mallory"} {
			if err := p.asks(t, l, client(t, dir, who)); err == nil {
				t.Errorf("%s: %q is let in", l, who)
			}
		}
	}

	put(t, path("ca.crt"), "nonsense")
	if err := p.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "want a file with certificates in PEM") {
		t.Error(err)
	}
	text, err = os.ReadFile(path("mallory.crt"))
	do(t, err)
	put(t, path("ca.crt"), string(text))
	do(t, p.Reload(t.Context()))
	for _, l := range listeners {
		if err := p.asks(t, l, client(t, dir, "mallory")); err != nil {
			t.Errorf("%s: %v", l, err)
		}
		if err := p.asks(t, l, client(t, dir, "alice")); err == nil {
			t.Errorf("%s: who was trusted before still is", l)
		}
	}
	if h := p.Health(); h.Status != "ok" {
		t.Errorf("%+v", h)
	}
}

// TestClientSAN requires a name in the certificates of clients, and then another.
func TestClientSAN(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	var all string
	for _, name := range []string{"server", "alice", "mallory"} {
		testserver.WritePair(t, path(name+".crt"), path(name+".key"), name)
		text, err := os.ReadFile(path(name + ".crt"))
		do(t, err)
		all += string(text)
	}
	put(t, path("ca.crt"), all)
	put(t, path("shop.yaml"), shop)
	config := func(san string) string {
		listener := fmt.Sprintf("tls_cert = %q\ntls_key = %q\ntls_client_ca = %q\ntls_client_san = %q\n", path("server.crt"), path("server.key"), path("ca.crt"), san)
		return fmt.Sprintf("[envoy]\nconfig = %q\n[server.http]\n%s[server.grpc]\n%s", path("shop.yaml"), listener, listener)
	}
	p := start(t, config("alice"))
	for _, row := range []struct{ san, in, out string }{{"alice", "alice", "mallory"}, {"mallory", "mallory", "alice"}} {
		put(t, p.path, config(row.san))
		do(t, p.Reload(t.Context()))
		for _, l := range []string{"http", "grpc"} {
			if err := p.asks(t, l, client(t, dir, row.in)); err != nil {
				t.Errorf("%s: %v", l, err)
			}
			if err := p.asks(t, l, client(t, dir, row.out)); err == nil {
				t.Errorf("%s: %q is let in", l, row.out)
			}
		}
	}
	if got, want := problems(t, "[server.http]\ntls_client_san = \"alice\"\n"), "server.http.tls_client_san: needs tls_client_ca"; !strings.Contains(got, want) {
		t.Error(got)
	}
}

// TestClientCAProblems checks the problems of files of authorities.
func TestClientCAProblems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	testserver.WritePair(t, path("a.crt"), path("a.key"), "a")
	pair := fmt.Sprintf("tls_cert = %q\ntls_key = %q\n", path("a.crt"), path("a.key"))
	for name, c := range map[string]struct{ pair, ca, want string }{
		"good":     {pair, path("a.crt"), ""},
		"no TLS":   {"", path("a.crt"), "server.http.tls_client_ca: needs tls_cert and tls_key"},
		"missing":  {pair, path("x.crt"), "server.http.tls_client_ca: \"" + path("x.crt") + "\": want a file that can be read: no such file or directory"},
		"nonsense": {pair, path("a.key"), "server.http.tls_client_ca: \"" + path("a.key") + "\": want a file with certificates in PEM"},
	} {
		got := problems(t, fmt.Sprintf("[server.http]\n%stls_client_ca = %q\n", c.pair, c.ca))
		if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s: %s", name, got)
		}
	}
}
