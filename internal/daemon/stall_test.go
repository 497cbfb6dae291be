package daemon_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint/internal/daemon"
	"github.com/stintdev/stint/internal/test/testserver"
)

// pipes is a listener whose connections are pipes, for tests in virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
	dialed int
}

func newPipes() *pipes {
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.close()
	return nil
}

func (*pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(t testing.TB) (net.Conn, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _ = ours.Close() })
	select {
	case p.conns <- theirs:
		p.dialed++
		return ours, nil
	case <-p.closed:
		return nil, syscall.ECONNREFUSED
	}
}

// client returns a client of what listens, for one version of HTTP.
func (p *pipes) client(t testing.TB, http2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(context.Context, string, string) (net.Conn, error) { return p.dial(t) }}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// inFront serves a proxy of an upstream as the gateway is served. The upstream is reached by one version of HTTP.
func inFront(t testing.TB, front net.Listener, stall time.Duration, minBodyRate int, http2 bool, upstream http.HandlerFunc) (stop func(context.Context) error) {
	t.Helper()
	back := newPipes()
	u := http.Server{Handler: upstream, Protocols: new(http.Protocols)}
	u.Protocols.SetHTTP1(true)
	u.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = u.Serve(back) }()
	t.Cleanup(func() { _ = u.Close() })
	stop = daemon.Serve(t.Context(), front, &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "upstream" },
		Transport: back.client(t, http2).Transport, ErrorLog: log.New(io.Discard, "", 0),
	}, stall, minBodyRate)
	t.Cleanup(func() { _ = stop(context.Background()) })
	return stop
}

// endless responds until that fails. The response has a length, or the proxy would wait for the end of a write
// with a lock, and virtual time with it.
func endless(w http.ResponseWriter) {
	w.Header().Set("Content-Length", strconv.Itoa(1<<40))
	for b := make([]byte, 1<<16); ; {
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

// TestFirstRequest has a client that is connected when a server stops, and sends its first request after that.
func TestFirstRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		front := newPipes()
		stop := inFront(t, front, time.Minute, 0, false, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") })
		conn, err := front.dial(t)
		do(t, err)
		synctest.Wait() // it is accepted
		stopped := make(chan error, 1)
		go func() { stopped <- stop(context.Background()) }()
		<-time.After(time.Second)
		if _, err := front.dial(t); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error("another connection:", err)
		}
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		do(t, err)
		defer answer.Body.Close()
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "done" || !answer.Close {
			t.Errorf("%s %q %v, close %t", answer.Status, body, err, answer.Close)
		}
		do(t, <-stopped)
	})
}

// TestUnread has clients that do not read a response after the first, one of them over TLS.
func TestUnread(t *testing.T) {
	t.Parallel()
	cert, key := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	testserver.WritePair(t, cert, key, "x")
	certificate, err := tls.LoadX509KeyPair(cert, key)
	do(t, err)
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				front := newPipes()
				var listener net.Listener = front
				if secure {
					listener = tls.NewListener(front, &tls.Config{Certificates: []tls.Certificate{certificate}})
				}
				ended := make(chan struct{})
				inFront(t, listener, 100*time.Millisecond, 0, false, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/first" {
						return
					}
					endless(w)
					close(ended)
				})
				conn, err := front.dial(t)
				do(t, err)
				if secure {
					conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
				}
				fmt.Fprint(conn, "GET /first HTTP/1.1\r\nHost: x\r\n\r\n")
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				do(t, err)
				do(t, answer.Body.Close())
				fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
				<-ended
			})
		})
	}
}

// TestPatient has a client with pauses whose sum is too long, and a slow upstream. Neither is cut off.
func TestPatient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const stall = 2 * time.Second
		pause := func() { <-time.After(stall - time.Millisecond) }
		front := newPipes()
		inFront(t, front, stall, 0, false, func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			for range 5 {
				pause()
			}
			if r.Context().Err() != nil {
				t.Error("the client is said to have left")
			}
			fmt.Fprint(w, n, err)
		})
		conn, err := front.dial(t)
		do(t, err)
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
		for range 5 {
			pause()
			fmt.Fprint(conn, "x")
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		do(t, err)
		defer answer.Body.Close()
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "5 <nil>" {
			t.Errorf("%s %q %v", answer.Status, body, err)
		}
	})
}

// TestDuplex has client and upstream take turns over HTTP/2, with pauses that would be too
// long before the response has begun.
func TestDuplex(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const stall = time.Second
		front := newPipes()
		inFront(t, front, stall, 0, true, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/early":
				return
			case "/silent":
				_, _ = io.Copy(io.Discard, r.Body)
				return
			}
			_ = http.NewResponseController(w).Flush()
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, "heard")
		})
		client := front.client(t, true)
		post := func(path string) (*http.Response, *io.PipeWriter, error) {
			r, w := io.Pipe()
			go func() { _, _ = w.Write([]byte("hello")) }()
			answer, err := client.Post("http://gateway"+path, "text/plain", r)
			return answer, w, err
		}
		answer, w, err := post("/")
		do(t, err)
		defer answer.Body.Close()
		<-time.After(10 * stall)
		_, err = w.Write([]byte("still here"))
		do(t, err, w.Close())
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "heard" {
			t.Errorf("%q %v", body, err)
		}

		answer, w, err = post("/early")
		do(t, err)
		defer answer.Body.Close()
		if _, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("%s %v", answer.Status, err)
		}
		do(t, w.Close())

		answer, w, err = post("/silent")
		defer w.Close()
		if err == nil {
			defer answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				t.Error("a client that stalls is not cut off")
			}
		}
	})
}

// TestStalledStream has an HTTP/2 client that does not read one response, and reads another
// on the same connection: only the first is cut off.
func TestStalledStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		front := newPipes()
		inFront(t, front, 500*time.Millisecond, 0, false, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/endless" {
				fmt.Fprint(w, "done")
				return
			}
			endless(w)
			close(ended)
		})
		client := front.client(t, true)
		unread, err := client.Get("http://gateway/endless")
		do(t, err)
		defer unread.Body.Close()
		<-ended
		answer, err := client.Get("http://gateway/")
		do(t, err)
		defer answer.Body.Close()
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "done" || front.dialed != 1 {
			t.Errorf("%q %v on connection %d", body, err, front.dialed)
		}
	})
}

// TestSilentStream has an upstream that pauses in its response for longer than a client
// may: the client is not cut off, whatever its protocol.
func TestSilentStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const stall = 200 * time.Millisecond
		front := newPipes()
		inFront(t, front, stall, 0, false, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "first")
			_ = http.NewResponseController(w).Flush()
			<-time.After(10 * stall)
			fmt.Fprintln(w, "second")
		})
		for _, http2 := range []bool{false, true} {
			answer, err := front.client(t, http2).Post("http://gateway/", "text/plain", strings.NewReader("hello"))
			do(t, err)
			lines := bufio.NewScanner(answer.Body)
			var got []string
			for lines.Scan() {
				got = append(got, lines.Text())
			}
			if strings.Join(got, " ") != "first second" || lines.Err() != nil || (answer.ProtoMajor == 2) != http2 {
				t.Errorf("%s: %q %v", answer.Proto, got, lines.Err())
			}
			_ = answer.Body.Close()
		}
	})
}

// TestReadAgain has a handler that reads its body once more when the response has begun, as the transport of a proxy
// does to find more than the promised length: it is at the end, though the server has closed it.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		front := newPipes()
		stop := daemon.Serve(t.Context(), front, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(w, r.Body)
			flushed := http.NewResponseController(w).Flush()
			_, again := r.Body.Read(make([]byte, 1))
			fmt.Fprint(w, n, err, flushed, again)
		}), time.Second, 0)
		defer func() { do(t, stop(t.Context())) }()
		for _, http2 := range []bool{false, true} {
			client := front.client(t, http2)
			answer, err := client.Post("http://gateway/", "text/plain", strings.NewReader("hello"))
			do(t, err)
			if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "hello5 <nil> <nil> EOF" {
				t.Errorf("%s: %q %v", answer.Proto, body, err)
			}
			do(t, answer.Body.Close())
			client.CloseIdleConnections()
		}
	})
}

// TestSlowBody has clients that send their body in parts, and never pause for too long: one is a bit slower
// than it may be, one a bit faster.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	const part, stall = 1000, 3 * time.Second
	for _, http2 := range []bool{false, true} {
		for pause, good := range map[time.Duration]bool{900 * time.Millisecond: true, 1100 * time.Millisecond: false} {
			t.Run(fmt.Sprint("HTTP/2 ", http2, " ", pause), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					front := newPipes()
					inFront(t, front, stall, part, false, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
					body, w := io.Pipe()
					var sending sync.WaitGroup
					defer sending.Wait()
					defer body.Close()
					sending.Go(func() {
						defer w.Close()
						for range 100 {
							if _, err := io.WriteString(w, strings.Repeat("x", part)); err != nil {
								return
							}
							<-time.After(pause)
						}
					})
					status := 0
					if answer, err := front.client(t, http2).Post("http://gateway/", "text/plain", body); err == nil {
						defer answer.Body.Close()
						status = answer.StatusCode
					}
					if (status == http.StatusOK) != good {
						t.Error(status)
					}
				})
			})
		}
	}
}
