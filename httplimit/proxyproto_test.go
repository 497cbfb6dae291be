package httplimit_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/httplimit"
)

const signature = "\r\n\r\n\x00\r\nQUIT\n"

// v2 is a header of version 2.
func v2(command, family byte, rest ...byte) string {
	return signature + string(binary.BigEndian.AppendUint16([]byte{command, family}, uint16(len(rest)))) + string(rest)
}

var (
	v4ends = []byte{192, 0, 2, 1, 198, 51, 100, 1, 0x12, 0x34, 1, 0xbb}
	v6ends = append(append(netip.MustParseAddr("2001:db8::1").AsSlice(), netip.MustParseAddr("2001:db8::2").AsSlice()...), 0x12, 0x34, 1, 0xbb)
)

// proxyHeaders are headers, and whom they name: nobody, if it is the peer, and error if
// it is no header.
var proxyHeaders = []struct{ text, want string }{
	{"PROXY TCP4 192.0.2.1 198.51.100.1 4660 443\r\n", "192.0.2.1:4660"},
	{"PROXY TCP6 2001:db8::1 2001:db8::2 4660 443\r\n", "[2001:db8::1]:4660"},
	{"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", "192.0.2.1:1"},
	{"PROXY UNKNOWN\r\n", "nobody"},
	{"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n", "nobody"},
	{v2(0x21, 0x11, v4ends...), "192.0.2.1:4660"},
	{v2(0x21, 0x21, v6ends...), "[2001:db8::1]:4660"},
	{v2(0x21, 0x11, append(v4ends, make([]byte, 65000)...)...), "192.0.2.1:4660"},
	{v2(0x20, 0x00), "nobody"},
	{v2(0x20, 0x11, v4ends...), "nobody"},
	{v2(0x21, 0x00, 1, 2, 3), "nobody"},
	{v2(0x21, 0x31, make([]byte, 216)...), "nobody"},

	{"PROXY TCP4 192.0.2.1 198.51.100.1 4660\r\n", "error"},
	{"PROXY TCP4 192.0.2.1 198.51.100.1 4660 443 1\r\n", "error"},
	{"PROXY TCP4 192.0.2.1  198.51.100.1 4660 443\r\n", "error"},
	{"PROXY TCP4 192.0.2.1 198.51.100.1 4660 443\n", "error"},
	{"PROXY TCP4 192.0.2.1 198.51.100.1 65536 443\r\n", "error"},
	{"PROXY TCP4 192.0.2.1 198.51.100.1 1 -1\r\n", "error"},
	{"PROXY TCP4 2001:db8::1 198.51.100.1 1 1\r\n", "error"},
	{"PROXY TCP6 192.0.2.1 2001:db8::1 1 1\r\n", "error"},
	{"PROXY TCP6 fe80::1%eth0 2001:db8::1 1 1\r\n", "error"},
	{"PROXY UDP4 192.0.2.1 198.51.100.1 1 1\r\n", "error"},
	{"PROXY  TCP4 192.0.2.1 198.51.100.1 1 1\r\n", "error"},
	{"proxy TCP4 192.0.2.1 198.51.100.1 1 1\r\n", "error"},
	{"PROXY UNKNOWN" + strings.Repeat(" ", 100) + "\r\n", "error"},
	{v2(0x21, 0x11, v4ends[:11]...), "error"},
	{v2(0x21, 0x21, v6ends[:35]...), "error"},
	{v2(0x22, 0x11, v4ends...), "error"},
	{v2(0x11, 0x11, v4ends...), "error"},
	{"", "error"},
}

// TestProxyListener serves requests behind headers, to peers that are trusted and to
// others.
func TestProxyListener(t *testing.T) {
	t.Parallel()
	open := func(trusted string) *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.RemoteAddr)
		}))
		s.Listener = httplimit.ProxyListener(s.Listener, []netip.Prefix{netip.MustParsePrefix(trusted)})
		s.Start()
		t.Cleanup(s.Close)
		return s
	}
	trusting, wary := open("127.0.0.0/8"), open("192.0.2.0/24")
	send := func(s *httptest.Server, header string) (says, peer string) {
		t.Helper()
		conn, r := connect(t, s)
		defer conn.Close()
		// In pieces, as it may come.
		text := header + "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
		for len(text) > 0 {
			n := min(len(text), 50)
			if _, err := io.WriteString(conn, text[:n]); err != nil {
				break
			}
			text = text[n:]
		}
		peer = conn.LocalAddr().String()
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return "error", peer
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("%q: %d, %v", header, res.StatusCode, err)
		}
		return string(body), peer
	}
	for _, c := range proxyHeaders {
		got, peer := send(trusting, c.text)
		if got == peer {
			got = "nobody"
		}
		if got != c.want {
			t.Errorf("%.120q: %s; want %s", c.text, got, c.want)
		}
		if c.want == "error" {
			continue
		}
		if got, _ := send(wary, c.text); got != "error" {
			t.Errorf("%.120q, from one who is not trusted: %s", c.text, got)
		}
	}
	if got, peer := send(wary, ""); got != peer {
		t.Errorf("%s, and the peer is %s", got, peer)
	}
}

// scripted is a connection that has sent something, from a peer of our choice.
type scripted struct {
	net.Conn
	io.Reader
	peer   string
	closed bool
}

func (c *scripted) Read(p []byte) (int, error) { return c.Reader.Read(p) }

func (c *scripted) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.peer))
}

func (c *scripted) Close() error {
	c.closed = true
	if c.Conn != nil {
		return c.Conn.Close()
	}
	return nil
}

// one is a listener of one connection.
type one struct {
	net.Listener
	conn net.Conn
}

func (l one) Accept() (net.Conn, error) { return l.conn, nil }

// accept returns the connection as a listener would that trusts 10.0.0.0/8.
func accept(tb testing.TB, c net.Conn) net.Conn {
	tb.Helper()
	c, err := httplimit.ProxyListener(one{conn: c}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}).Accept()
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// TestProxyTimeout cuts off who is trusted, and says nothing.
func TestProxyTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		c := accept(t, &scripted{Conn: near, Reader: near, peer: "10.0.0.1:1"})
		go func() { _, _ = io.WriteString(far, "PROXY TCP4 192.0.2.1 ") }()
		begin := time.Now()
		if got := c.RemoteAddr().String(); got != "10.0.0.1:1" {
			t.Error(got)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(begin) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// TestProxyMapped knows peers by their IPv4 addresses, also on a socket of both kinds.
func TestProxyMapped(t *testing.T) {
	t.Parallel()
	for peer, want := range map[string]string{
		"10.0.0.1:1": "192.0.2.1:4660", "[::ffff:10.0.0.1]:1": "192.0.2.1:4660", "192.0.2.9:1": "192.0.2.9:1", "[fe80::1%eth0]:1": "[fe80::1%eth0]:1",
	} {
		c := accept(t, &scripted{Reader: strings.NewReader(v2(0x21, 0x11, v4ends...)), peer: peer})
		if got := c.RemoteAddr().String(); got != want {
			t.Errorf("%s: %s; want %s", peer, got, want)
		}
	}
}

// TestProxyCloseWrite ends what is sent, and not what is read.
func TestProxyCloseWrite(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	near, err := httplimit.ProxyListener(l, nil).Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	type closer interface{ CloseWrite() error }
	if err := near.(closer).CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("%v; want the end", err)
	}
	_, _ = io.WriteString(far, "still here")
	if n, err := near.Read(make([]byte, 20)); n != 10 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := accept(t, &scripted{peer: "10.0.0.1:1"}).(closer).CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

// FuzzProxyListener reads what peers send. Who is not trusted is no one else, and all
// that comes after a header is read.
func FuzzProxyListener(f *testing.F) {
	for _, c := range proxyHeaders {
		f.Add([]byte(c.text+"rest"), true)
		f.Add([]byte(c.text), false)
	}
	f.Add([]byte(v2(0x21, 0x11, append(v4ends, make([]byte, 50)...)...))[:70], true) // its end is missing
	f.Add([]byte("PRO"), false)
	f.Add([]byte("\r\n\r\nGET / HTTP/1.1"), false)
	f.Fuzz(func(t *testing.T, data []byte, trusted bool) {
		s := &scripted{Reader: bytes.NewReader(data), peer: "192.0.2.99:9"}
		if trusted {
			s.peer = "10.0.0.1:9"
		}
		c := accept(t, s)
		from := c.RemoteAddr().String()
		rest, err := io.ReadAll(c)
		header := bytes.HasPrefix(data, []byte("PROXY ")) || bytes.HasPrefix(data, []byte(signature))
		switch {
		case (err != nil) != s.closed && len(data) > 0: // at the end without a start nothing is wrong
			t.Errorf("%v, and closed is %v", err, s.closed)
		case !bytes.HasSuffix(data, rest):
			t.Errorf("%q read of %q", rest, data)
		case !trusted && (from != s.peer || header != (err != nil) || (err == nil && len(rest) != len(data))):
			t.Errorf("%q from one who is not trusted: %s, %q, %v", data, from, rest, err)
		case trusted && err == nil && !header:
			t.Errorf("%q is no header, and passes", data)
		case trusted && err != nil && from != s.peer:
			t.Errorf("%q is no header, and names %s", data, from)
		case trusted && err == nil && from != s.peer && bytes.HasPrefix(data, []byte("PROXY ")):
			line, _, _ := strings.Cut(string(data), "\r\n")
			if host, port, _ := net.SplitHostPort(from); !strings.HasSuffix(line, port) && !strings.Contains(line, port+" ") || host == "" {
				t.Errorf("%q names %s", line, from)
			}
			if len(line)+2+len(rest) != len(data) {
				t.Errorf("%q of %q is left", rest, data)
			}
		}
	})
}
