package daemon_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// certificate returns the name of the certificate of a server.
func certificate(t testing.TB, url string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// TestTLS serves TLS on all listeners, and replaces the certificate.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	testserver.WritePair(t, cert, key, "first")
	var flags []daemon.Flag
	for _, l := range []string{"http", "gateway", "admin"} {
		flags = append(flags, set("server."+l+".tls_cert", cert), set("server."+l+".tls_key", key))
	}
	p := start(t, many+echo(t), flags...)
	roots := x509.NewCertPool()
	first, err := os.ReadFile(cert)
	do(t, err)
	roots.AppendCertsFromPEM(first)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	for _, l := range []string{"http", "gateway", "admin"} {
		answer, err := (&http.Client{Transport: transport}).Get(p.URL(l) + "/readyz")
		do(t, err)
		do(t, answer.Body.Close())
		if answer.ProtoMajor != 2 || answer.StatusCode != http.StatusOK || certificate(t, p.URL(l)) != "first" {
			t.Errorf("%s: %s %s %s", l, answer.Proto, answer.Status, certificate(t, p.URL(l)))
		}
	}
	old := tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}
	if _, err := tls.Dial("tcp", strings.TrimPrefix(p.URL("http"), "https://"), &old); err == nil {
		t.Error("it speaks TLS 1.1")
	}

	testserver.WritePair(t, cert, filepath.Join(dir, "other.pem"), "unfit")
	if err := p.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "a certificate in PEM whose key is in tls_key") {
		t.Error(err)
	}
	if got := certificate(t, p.URL("http")); got != "first" {
		t.Errorf("%s is shown, and is not any more what the key is for", got)
	}
	testserver.WritePair(t, cert, key, "second")
	wait.For(t, "the second certificate", func() bool { return certificate(t, p.URL("gateway")) == "second" })
	if h := p.Health(); h.Status != "ok" {
		t.Errorf("%+v", h)
	}
	if _, body := p.plain(t); strings.Contains(body, "ok") {
		t.Error("it answers without TLS", body)
	}
}

// plain connects to the decision API without TLS.
func (p *process) plain(t *testing.T) (int, string) {
	t.Helper()
	return fetch(t, p.client, strings.Replace(p.URL("http"), "https", "http", 1)+"/readyz")
}

// TestPairs checks the problems of invalid certificates.
func TestPairs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	testserver.WritePair(t, path("a.crt"), path("a.key"), "a")
	testserver.WritePair(t, path("b.crt"), path("b.key"), "b")
	put(t, path("nonsense"), "hunter2")
	for name, c := range map[string]struct{ cert, key, want string }{
		"good":     {path("a.crt"), path("a.key"), ""},
		"no key":   {path("a.crt"), "", "server.admin.tls_cert: needs tls_key"},
		"no cert":  {"", path("a.key"), "server.admin.tls_key: needs tls_cert"},
		"unfit":    {path("a.crt"), path("b.key"), "private key does not match public key"},
		"missing":  {path("x.crt"), path("x.key"), "server.admin.tls_cert: \"" + path("x.crt") + "\": want a file that can be read: no such file or directory\n"},
		"nonsense": {path("nonsense"), path("a.key"), "server.admin.tls_cert: \"" + path("nonsense") + "\": want a certificate in PEM"},
	} {
		got := problems(t, fmt.Sprintf("[server.admin]\naddress = \":9090\"\ntls_cert = %q\ntls_key = %q\n", c.cert, c.key))
		if !strings.Contains(got, c.want) || (c.want == "") != (got == "") || strings.Contains(got, "hunter2") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestProtocols uses HTTP/2 without TLS.
func TestProtocols(t *testing.T) {
	t.Parallel()
	p := start(t, many+echo(t))
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	for _, l := range []string{"http", "gateway", "admin"} {
		answer, err := (&http.Client{Transport: transport}).Get(p.URL(l) + "/readyz")
		do(t, err)
		do(t, answer.Body.Close())
		if answer.ProtoMajor != 2 || answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", l, answer.Proto, answer.Status)
		}
	}
}

// TestProxyProtocol takes the client address from a proxy.
func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	p := start(t, "[identity]\ntrusted_proxies = [\"127.0.0.1\"]\n"+few+echo(t), set("server.gateway.proxy_protocol", "true"))
	conn := dial(t, p, "gateway")
	fmt.Fprint(conn, "PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	do(t, err)
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(body), "192.0.2.7") {
		t.Errorf("%s %v", body, err)
	}
}

// dial connects to a listener.
func dial(t testing.TB, p *process, listener string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.URL(listener), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestSlow has clients that do nothing for too long. All of them are cut off: the test ends.
func TestSlow(t *testing.T) {
	t.Parallel()
	p := start(t, many+echo(t), set("server.header_timeout", "100ms"), set("server.stall_timeout", "100ms"), set("server.idle_timeout", "100ms"))
	for name, text := range map[string]string{
		"nothing": "",
		"header":  "GET / HTTP/1.1\r\nHost: x\r\nX-Slow",
		"body":    "POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
		"chunk":   "POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
		"login":   "POST /admin/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
		"idle":    "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		for _, l := range []string{"http", "gateway", "admin"} {
			t.Run(name+" "+l, func(t *testing.T) {
				t.Parallel()
				conn := dial(t, p, l)
				fmt.Fprint(conn, text)
				_, _ = io.Copy(io.Discard, conn)
			})
		}
	}
}

// TestTooLarge sends more than a listener accepts.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	p := start(t, many+echo(t), set("server.max_body", "1000"))
	large := strings.Repeat("x", 1<<20)
	for _, l := range []string{"http", "gateway", "admin"} {
		conn := dial(t, p, l)
		go fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-Large: %s\r\n\r\n", large)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		do(t, err)
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s: %s", l, answer.Status)
		}
	}
	for l, path := range map[string]string{"http": "/v1/check", "gateway": "/"} {
		for _, body := range []io.Reader{strings.NewReader(large + large), io.MultiReader(strings.NewReader(large), strings.NewReader(large))} {
			answer, err := p.client.Post(p.URL(l)+path, "application/json", body)
			do(t, err)
			do(t, answer.Body.Close())
			if answer.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("%s: %s", l, answer.Status)
			}
		}
	}
}

// TestErrorLog checks that a panic of a handler is not logged as a failed connection.
func TestErrorLog(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := daemon.NewErrorLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.Print("http: TLS handshake error from 192.0.2.1: EOF")
	log.Print("http: Accept error: too many open files; retrying in 5ms") // which is logged where it happens
	log.Print("http: panic serving 192.0.2.1: index out of range")
	for _, want := range []string{`level=DEBUG msg="connection failed"`, `level=ERROR msg="handler panicked"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s, want %s", out.String(), want)
		}
	}
}

// idleClients is the variable that makes a process of this test run clients.
const idleClients = "DAEMON_TEST_IDLE_CLIENTS"

// TestIdle has 2,000 idle connections, more than the usual limit of files. The clients are
// in another process, since both ends of a connection are files.
func TestIdle(t *testing.T) {
	t.Parallel()
	const clients = 2000
	if address := os.Getenv(idleClients); address != "" {
		beIdle(t, address, clients)
		return
	}
	p := start(t, many)
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestIdle$", "-test.v")
	c.Env = append(os.Environ(), idleClients+"="+strings.TrimPrefix(p.URL("http"), "http://"))
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all of "+strconv.Itoa(clients)) {
		t.Errorf("%v: %s", err, out)
	}
}

// beIdle opens connections, uses each of them, and again when all are open.
func beIdle(t *testing.T, address string, clients int) {
	t.Helper()
	r := bufio.NewReader(nil)
	use := func(i int, c net.Conn) {
		fmt.Fprint(c, "GET /v1/none HTTP/1.1\r\nHost: x\r\n\r\n")
		r.Reset(c)
		answer, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusNotFound || answer.Close {
			t.Fatalf("connection %d: %s %v", i, answer.Status, err)
		}
	}
	conns := make([]net.Conn, clients)
	for i := range conns {
		var err error
		if conns[i], err = net.Dial("tcp", address); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer conns[i].Close()
		use(i, conns[i])
	}
	for i, c := range conns {
		use(i, c)
	}
	fmt.Println("all of", clients)
}
