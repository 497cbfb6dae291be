package e2e_test

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testserver"
)

// limited is a configuration with one limit for each address, and an upstream.
func limited(limit, upstream string) string {
	return fmt.Sprintf(`
[[rules]]
name     = "per-address"
count_by = ["ip"]
limits   = [{ name = "address", limit = "%s fixed_window" }]

[[upstreams]]
targets = ["http://%s"]
`, limit, upstream)
}

// curl runs curl and returns its output.
func curl(t testing.TB, args ...string) string {
	t.Helper()
	return command(t, tool(t, "curl"), append([]string{"-sS", "--max-time", "20"}, args...)...)
}

func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", filepath.Base(name), args, err, out)
	}
	return string(out)
}

// has checks that a text contains all of these, ignoring case, since names of headers do.
func has(t testing.TB, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(strings.ToLower(text), strings.ToLower(w)) {
			t.Errorf("got\n%s\nwant %s in it", text, w)
		}
	}
}

func TestCurl(t *testing.T) {
	t.Parallel()
	s := serve(t, limited("4/1000h", newApp(t).address))
	const policy = `RateLimit-Policy: "address";q=4;w=3600000`
	has(t, curl(t, "-i", s.gateway+"/"), "HTTP/1.1 200 OK\r\n", `RateLimit: "address";r=3;t=`, policy, "X-RateLimit-Remaining: 3\r\n")
	file := large(t)
	for i, header := range bodyHeaders {
		out := curl(t, "-i", "-H", header, "-T", file, s.gateway+"/")
		has(t, out, "HTTP/1.1 200 OK\r\n", fmt.Sprintf(`RateLimit: "address";r=%d;t=`, 2-i))
		if n := strings.Count(out, "z"); n != largeSize {
			t.Errorf("%s: got %d bytes back, want %d", header, n, largeSize)
		}
	}
	has(t, curl(t, "-i", "--http2-prior-knowledge", s.gateway+"/"), "HTTP/2 200", `ratelimit: "address";r=0;t=`)
	has(t, curl(t, "-i", s.gateway+"/"), "HTTP/1.1 429 Too Many Requests\r\n", "Retry-After: ", "Content-Type: application/problem+json\r\n",
		`RateLimit: "address";r=0;t=`, policy, `"violated-policies":["address"]`)

	check := []string{"-i", "-H", "Content-Type: application/json", "-d", `{"path": "/", "ip": "192.0.2.1"}`, s.api + "/v1/check"}
	has(t, curl(t, check...), "HTTP/1.1 200 OK\r\n", `RateLimit: "address";r=3;t=`, policy, `"allowed":true`, `"remaining":3`)
	has(t, curl(t, append(check, "--http2-prior-knowledge")...), "HTTP/2 200", `"remaining":2`)
	has(t, curl(t, "-i", s.api+"/v1/check"), "HTTP/1.1 405 ", "Allow: POST")
	has(t, curl(t, "-i", s.api+"/readyz"), "HTTP/1.1 200 OK")
}

// bodyHeaders make curl wait until the body is wanted, and send it without its length.
var bodyHeaders = []string{"Expect: 100-continue", "Transfer-Encoding: chunked"}

const largeSize = 2 << 20

// large returns the path of a large file, which consists of z.
func large(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, bytes.Repeat([]byte("z"), largeSize), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestAnswerWhileReading has an upstream that echoes the body while it arrives.
func TestAnswerWhileReading(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/1.1 is not, unless it is asked for
		_, _ = io.Copy(w, r.Body)                            // the client counts
	}))
	defer upstream.Close()
	s := serve(t, limited("1000/1h", upstream.Listener.Addr().String()))
	file := large(t)
	for _, header := range bodyHeaders {
		for range 5 { // who is faster differs
			if n := strings.Count(curl(t, "-H", header, "-T", file, s.gateway+"/"), "z"); n != largeSize {
				t.Fatalf("%s: got %d bytes back, want %d", header, n, largeSize)
			}
		}
	}
}

// TestDocumentedCurl runs the command that docs/http.md shows, and compares headers, problems
// and answers with those it shows.
func TestDocumentedCurl(t *testing.T) {
	t.Parallel()
	s := serve(t, `
[identity]
trusted_proxies = ["127.0.0.1"]
user_header     = "X-User"
tenant_header   = "X-Tenant"

[[rules]]
name     = "search"
match    = { paths = ["/search"] }
count_by = ["user"]
limits   = [{ name = "search", limit = "100/1h" }]

[[rules]]
name     = "daily"
count_by = ["tenant"]
limits   = [{ name = "daily", limit = "1000/24h" }]
`)
	const file = "docs/http.md"
	caller := newClient(t, "127.0.0.1", s.api)
	use := func(user, tenant string, cost int) {
		t.Helper()
		caller.do(t, http.MethodPost, "/v1/check", fmt.Sprintf(`{"path": "/search", "user": %q, "tenant": %q, "cost": %d}`, user, tenant, cost), "Content-Type", "application/json")
	}
	as := func(headers ...string) answer {
		t.Helper()
		return caller.do(t, http.MethodGet, "/v1/forward-auth", "", append(headers, "X-Forwarded-Uri", "/search", "X-Forwarded-Method", "GET")...)
	}
	use("bob", "acme", 57)
	headers, got := testdoc.In(t, file, "text"), ""
	w := as("X-User", "bob", "X-Tenant", "acme")
	for line := range strings.Lines(headers[0].Text) {
		name, _, _ := strings.Cut(line, ":")
		got += name + ": " + w.header.Get(name) + "\n"
	}
	if len(headers) != 1 || !testdoc.Same(got, headers[0].Text) {
		t.Errorf("%s: got\n%s", headers, got)
	}

	use("alice", "", 100)
	var answers []string
	for _, b := range testdoc.In(t, file, "sh") {
		for _, c := range b.Commands() {
			answers = append(answers, command(t, "sh", "-c", strings.Replace(replace(t, c.Text, "localhost:8080", s.api), "curl", "'"+tool(t, "curl")+"' -fsS", 1)))
		}
	}
	shown := testdoc.In(t, file, "json")
	if len(answers) != 1 || len(shown) != 2 {
		t.Fatalf("%s has %d commands and %d objects, want 1 and 2", file, len(answers), len(shown))
	}
	for i, got := range []string{as("X-User", "alice").body, answers[0]} {
		if err := testdoc.SameJSON(got, shown[i].Text, "retry_after", "reset_after"); err != nil {
			t.Errorf("%s: %v: got %s", shown[i], err, got)
		}
	}
}

func TestHTTP2(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	a := newApp(t)
	config := limited("250/1000h", a.address)
	plain := serve(t, config)
	secret := serve(t, config, "STINT_SERVER_GATEWAY_TLS_CERT="+cert, "STINT_SERVER_GATEWAY_TLS_KEY="+key)
	check := filepath.Join(t.TempDir(), "check.json")
	if err := os.WriteFile(check, []byte(`{"path": "/", "ip": "192.0.2.1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		url, protocol, passed string
		args                  []string
	}{
		"gateway with TLS":    {secret.gateway + "/", "h2", "250 2xx, 0 3xx, 50 4xx, 0 5xx", nil},
		"gateway without TLS": {plain.gateway + "/", "h2c", "250 2xx, 0 3xx, 50 4xx, 0 5xx", nil},
		"API":                 {plain.api + "/v1/check", "h2c", "300 2xx, 0 3xx, 0 4xx, 0 5xx", []string{"-d", check, "-H", "content-type: application/json"}},
	} {
		out := command(t, tool(t, "h2load"), append(c.args, "-n", "300", "-c", "4", "-m", "10", c.url)...)
		if !regexp.MustCompile(`(?m)^Application protocol: ` + c.protocol + `$`).MatchString(out) {
			t.Errorf("%s: want %s", name, c.protocol)
		}
		has(t, out, "300 done", "0 errored, 0 timeout", "status codes: "+c.passed)
	}
	if n := a.served.Load(); n != 500 {
		t.Errorf("the app has seen %d requests, want 500", n)
	}
	has(t, curl(t, "-i", "--http2", "--cacert", cert, "--interface", "127.0.0.2", secret.gateway+"/"), "HTTP/2 200")
	has(t, curl(t, "-i", "--http1.1", "--cacert", cert, "--interface", "127.0.0.2", secret.gateway+"/"), "HTTP/1.1 200 OK", "r=248;")
}

// certificate writes a certificate for 127.0.0.1, and its key.
func certificate(t testing.TB) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	testserver.WritePair(t, cert, key, testserver.Host)
	return cert, key
}

// TestEvents sends each event only after the client has received the previous one.
func TestEvents(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-seen:
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer upstream.Close()
	s := serve(t, limited("1/1h", upstream.Listener.Addr().String()))
	cmd := exec.CommandContext(t.Context(), tool(t, "curl"), "-sS", "-N", "--max-time", "20", s.gateway+"/")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	events := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if line := lines.Text(); line == "data: "+strconv.Itoa(events) {
			events++
			seen <- struct{}{}
		} else if line != "" {
			t.Errorf("got %q after %d events", line, events)
		}
	}
	if err := cmd.Wait(); err != nil || events != 3 {
		t.Errorf("got %d events, %v, want 3", events, err)
	}
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			acceptKey(r.Header.Get("Sec-WebSocket-Key")))
		for {
			opcode, text, err := readFrame(rw)
			if err != nil {
				t.Error(err)
				return
			}
			if err := writeFrame(conn, opcode, nil, text); err != nil || opcode == opClose {
				return
			}
		}
	}))
	defer upstream.Close()
	s := serve(t, limited("2/1000h", upstream.Listener.Addr().String()))
	for range 2 {
		conn, r, w := upgrade(t, s.gateway)
		if w.status != http.StatusSwitchingProtocols || w.header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
			t.Fatalf("got %d %v, want 101", w.status, w.header)
		}
		for i := range 20 { // more than the limit: messages are not requests
			text := fmt.Appendf(nil, "message %d", i)
			if err := writeFrame(conn, opText, []byte{1, 2, 3, 4}, text); err != nil {
				t.Fatal(err)
			}
			if opcode, got, err := readFrame(r); err != nil || opcode != opText || !bytes.Equal(got, text) {
				t.Fatalf("got %d %q, %v, want %q", opcode, got, err, text)
			}
		}
		if err := writeFrame(conn, opClose, []byte{1, 2, 3, 4}, nil); err != nil {
			t.Fatal(err)
		}
		if opcode, _, err := readFrame(r); err != nil || opcode != opClose {
			t.Errorf("got %d, %v, want a close", opcode, err)
		}
		if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the end", err)
		}
	}
	if _, _, w := upgrade(t, s.gateway); w.status != http.StatusTooManyRequests {
		t.Errorf("got %d, want 429", w.status)
	}
}

// upgrade requests a WebSocket.
func upgrade(t testing.TB, url string) (net.Conn, *bufio.Reader, answer) {
	t.Helper()
	conn := dial(t, url)
	fmt.Fprint(conn, "GET /chat HTTP/1.1\r\nHost: app\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	r := bufio.NewReader(conn)
	w, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	return conn, r, answer{status: w.StatusCode, header: w.Header}
}

// dial connects to the host of a URL, for the duration of the test, with a deadline.
func dial(t testing.TB, url string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// The part of RFC 6455 that a short conversation needs: unfragmented messages below 126
// bytes.
const (
	opText  = 1
	opClose = 8
)

func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// writeFrame writes a message. Those of clients are masked.
func writeFrame(w io.Writer, opcode byte, mask, text []byte) error {
	frame := []byte{0x80 | opcode, byte(len(text))}
	if mask != nil {
		frame[1] |= 0x80
		frame = append(frame, mask...)
	}
	for i, b := range text {
		if mask != nil {
			b ^= mask[i%4]
		}
		frame = append(frame, b)
	}
	_, err := w.Write(frame)
	return err
}

func readFrame(r io.Reader) (opcode byte, text []byte, err error) {
	var head [2]byte
	var mask [4]byte
	if err := binary.Read(r, binary.BigEndian, &head); err != nil {
		return 0, nil, err
	}
	if head[1]&0x80 != 0 {
		if _, err := io.ReadFull(r, mask[:]); err != nil {
			return 0, nil, err
		}
	}
	text = make([]byte, head[1]&0x7f)
	_, err = io.ReadFull(r, text)
	for i := range text {
		text[i] ^= mask[i%4]
	}
	return head[0] & 0x0f, text, err
}
