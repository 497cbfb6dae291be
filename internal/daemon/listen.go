package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/httplimit"
)

// maxHeader is how many bytes the header of a request may have.
const maxHeader = 64 << 10

// ListenError says that a listener could not be opened.
type ListenError struct {
	Listener string // gateway, http or admin
	Err      error
}

func (e *ListenError) Error() string { return "server." + e.Listener + ".address: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// server is one listener and what is served there.
type server struct {
	name     string
	listener net.Listener
	http     http.Server
	pair     atomic.Pointer[tls.Certificate] // nil: there is no TLS

	handler  http.Handler
	stall    time.Duration
	closing  atomic.Bool        // connections are told to close
	requests inflight           // those too that have become connections of their own
	cut      context.CancelFunc // ends all requests
}

// listen listens where the configuration says. Requests do not end with ctx: a daemon
// that stops lets them finish.
func (c *Config) listen(ctx context.Context, l door, h http.Handler, log *slog.Logger) (*server, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", l.Address)
	if err != nil {
		return nil, &ListenError{l.name, err}
	}
	s := &server{name: l.name, handler: h, stall: time.Duration(c.Server.StallTimeout)}
	s.listener = patientListener{listener, s.stall}
	if l.ProxyProtocol {
		s.listener = httplimit.ProxyListener(s.listener, c.trusted())
	}
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	s.cut = cut
	s.http = http.Server{
		Handler: s, ReadHeaderTimeout: time.Duration(c.Server.HeaderTimeout), IdleTimeout: time.Duration(c.Server.IdleTimeout),
		MaxHeaderBytes: maxHeader, Protocols: new(http.Protocols),
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    newErrorLog(log.With("listener", l.name)),
	}
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetHTTP2(true)
	s.http.Protocols.SetUnencryptedHTTP2(true)
	if pair := c.credentials.pairs[l.name]; pair != nil {
		s.pair.Store(pair)
		s.http.TLSConfig = &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.pair.Load(), nil },
		}
	}
	return s, nil
}

// trusted are the networks of proxies.
func (c *Config) trusted() []netip.Prefix {
	var out []netip.Prefix
	for _, text := range c.Identity.TrustedProxies {
		if p, err := parseProxy(text); err == nil { // checked
			out = append(out, p)
		}
	}
	return out
}

// serve serves until the server is stopped.
func (s *server) serve() error {
	var err error
	if s.pair.Load() != nil {
		err = s.http.ServeTLS(s.listener, "", "")
	} else {
		err = s.http.Serve(s.listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// ServeHTTP implements [http.Handler].
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.add()
	defer s.requests.done()
	if s.closing.Load() && r.Header.Get("Upgrade") == "" {
		w.Header().Set("Connection", "close")
	}
	if r.ContentLength != 0 {
		b := &patientBody{ReadCloser: r.Body, stall: s.stall, conn: http.NewResponseController(w)}
		defer b.leave()
		r.Body = b
		if r.ProtoMajor > 1 {
			w = duplexWriter{w, b}
		}
	}
	s.handler.ServeHTTP(w, r)
}

// stop stops listening and waits for requests to end. Those that have not when ctx
// ends are cut off, which is an error.
func (s *server) stop(ctx context.Context) error {
	defer s.cut()
	err := s.http.Shutdown(ctx)
	_ = s.listener.Close() // also if it was never served
	if err == nil {
		err = s.requests.wait(ctx)
	}
	if err == nil {
		return nil
	}
	s.cut()
	_ = s.http.Close() // the first error counts
	const moment = time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moment)
	defer cancel()
	_ = s.requests.wait(ctx)
	return fmt.Errorf("%s: requests were cut off: %w", s.name, err)
}

// URL is where the server can be reached from this machine.
func (s *server) URL() string {
	scheme := "http://"
	if s.pair.Load() != nil {
		scheme = "https://"
	}
	address := s.listener.Addr().String()
	if a, err := netip.ParseAddrPort(address); err == nil && a.Addr().IsUnspecified() {
		return fmt.Sprintf("%slocalhost:%d", scheme, a.Port())
	}
	return scheme + address
}

// patientListener has connections that give up on a client that reads nothing for as
// long as this.
type patientListener struct {
	net.Listener
	stall time.Duration
}

func (l patientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return patientConn{c, l.stall}, nil
}

type patientConn struct {
	net.Conn
	stall time.Duration
}

func (c patientConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// CloseWrite ends what is sent, for a server that wants its last answer to arrive.
func (c patientConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

// patientBody is the body of a request. It gives up on a client that sends nothing for
// as long as this.
type patientBody struct {
	io.ReadCloser
	stall time.Duration

	mu   sync.Mutex
	calm bool                     // the client may take its time
	conn *http.ResponseController // nil: there is nothing more to wait for
}

func (b *patientBody) Read(p []byte) (int, error) {
	b.expect(time.Now().Add(b.stall))
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		// From now on the server looks whether the client is still there.
		b.relax()
	}
	return n, err
}

// expect has the client send something by then, unless it may take its time.
func (b *patientBody) expect(by time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(by)
}

func (b *patientBody) set(by time.Time) {
	if !b.calm && b.conn != nil {
		_ = b.conn.SetReadDeadline(by) // the read will tell
	}
}

// relax lets the client take its time.
func (b *patientBody) relax() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(time.Time{})
	b.calm = true
}

// leave is called when the request is answered. The server reads some of what is left,
// and then the connection is the next request's.
func (b *patientBody) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(time.Now().Add(b.stall))
	b.conn = nil
}

// duplexWriter writes a response by HTTP/2, where client and server may talk by turns:
// a client that is being answered does not stall.
type duplexWriter struct {
	http.ResponseWriter
	body *patientBody
}

func (w duplexWriter) WriteHeader(status int) {
	if status >= http.StatusOK {
		w.body.relax()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (w duplexWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// newErrorLog returns what a server writes its errors to. But for a handler that
// panics, these are about clients.
func newErrorLog(l *slog.Logger) *log.Logger { return log.New(errorLog{l}, "", 0) }

type errorLog struct{ log *slog.Logger }

func (l errorLog) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("http: panic serving")) {
		l.log.Error("handler panicked", "error", string(p))
	} else {
		l.log.Debug("connection failed", "error", string(bytes.TrimSpace(p)))
	}
	return len(p), nil
}
