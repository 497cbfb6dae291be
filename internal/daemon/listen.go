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
	"os"
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
	tls      tlsPointer

	handler  http.Handler
	stall    time.Duration
	closing  atomic.Bool        // connections are told to close
	requests inflight           // those too that have become connections of their own
	fresh    inflight           // connections that have had no request yet, and who accepts them
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
	if l.ProxyProtocol {
		listener = httplimit.ProxyListener(listener, c.trusted())
	}
	s.listener = patientListener{listener, s.stall, &s.fresh}
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	s.cut = cut
	s.http = http.Server{
		Handler: s, ReadHeaderTimeout: time.Duration(c.Server.HeaderTimeout), IdleTimeout: time.Duration(c.Server.IdleTimeout),
		MaxHeaderBytes: maxHeader, Protocols: new(http.Protocols),
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			return context.WithValue(ctx, connKey{}, c)
		},
		ErrorLog: newErrorLog(log.With("listener", l.name)),
	}
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetHTTP2(true)
	s.http.Protocols.SetUnencryptedHTTP2(true)
	if t := c.credentials.tls[l.name]; t != nil {
		s.tls.Store(t)
		s.http.TLSConfig = s.tls.config()
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
	if s.tls.Load() != nil {
		err = s.http.ServeTLS(s.listener, "", "")
	} else {
		err = s.http.Serve(s.listener)
	}
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// ServeHTTP implements [http.Handler].
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.add()
	defer s.requests.done()
	c, patient := r.Context().Value(connKey{}).(*patientConn)
	if patient {
		c.asked()
	}
	if s.closing.Load() && r.Header.Get("Upgrade") == "" {
		w.Header().Set("Connection", "close")
	}
	// The server looks at what its own request has for a body, so they get another.
	switch {
	case r.ContentLength == 0:
	case patient && r.ProtoMajor == 1 && s.name != gatewayListener: // who reads it is done when it is answered
		c.expect()
		defer c.part()
	case patient && r.ProtoMajor == 1: // the connection is this request's alone
		to := &struct {
			request http.Request
			body    patientBody
		}{*r, patientBody{ReadCloser: r.Body, conn: c}}
		c.expect()
		defer to.body.leave()
		r = &to.request
		r.Body = &to.body
	default:
		b := &patientStream{ReadCloser: r.Body, stall: s.stall, stream: http.NewResponseController(w)}
		defer b.leave()
		r = r.WithContext(r.Context())
		r.Body = b
		w = duplexWriter{w, b}
	}
	s.handler.ServeHTTP(w, r)
}

// stop stops listening and waits for requests to end. Those that have not when ctx
// ends are cut off, which is an error.
func (s *server) stop(ctx context.Context) error {
	defer s.cut()
	_ = s.listener.Close()
	s.hear(ctx)
	idle := s.http.Shutdown(ctx)
	err := s.requests.wait(ctx)
	if idle == nil && err == nil {
		return nil
	}
	const moment = time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moment)
	defer cancel()
	if err == nil {
		// What is open has asked for nothing, or its answer is on the way.
		_ = s.http.Shutdown(ctx)
		_ = s.http.Close()
		return nil
	}
	s.cut()
	_ = s.http.Close() // the first error counts
	_ = s.requests.wait(ctx)
	return fmt.Errorf("%s: requests were cut off: %w", s.name, err)
}

// hear waits until all connections have had a request. A server that shuts down closes
// those whose first one it reads later, and does not answer. Some clients connect and
// say nothing, so there is an end to it.
func (s *server) hear(ctx context.Context) {
	const most = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	_ = s.fresh.wait(ctx)
}

// URL is where the server can be reached from this machine.
func (s *server) URL() string {
	scheme := "http://"
	if s.tls.Load() != nil {
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
	fresh *inflight
}

func (l patientListener) Accept() (net.Conn, error) {
	l.fresh.add() // before there is a connection, so that none is missed
	c, err := l.Listener.Accept()
	if err != nil {
		l.fresh.done()
		return nil, err
	}
	return &patientConn{Conn: c, stall: l.stall, asked: sync.OnceFunc(l.fresh.done), began: time.Now()}, nil
}

// patientConn is a connection of a server. A server sets deadlines many times for every
// request, and few of them are ever waited for, so they are noted, and set when it comes
// to that: as long as what is set is not later than what is wanted it can stay, and a
// read that it ends too early goes on.
type patientConn struct {
	net.Conn
	stall time.Duration
	asked func() // it is not fresh any more
	began time.Time

	mu        sync.Mutex
	reads     int           // that wait
	want, set time.Time     // deadlines of reads; zero: none
	each      time.Duration // if not 0, every read sets want to so long from now
	cut       bool          // no one is to read any more
	writeBy   time.Time
}

// connKey is where the context of a request has its connection.
type connKey struct{}

func (c *patientConn) Close() error {
	c.asked()
	return c.Conn.Close()
}

// Write waits for the client, for the time that it may take or up to a quarter longer.
func (c *patientConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if time.Until(c.writeBy) < c.stall {
		c.writeBy = time.Now().Add(c.stall + c.stall/4)
		if err := c.Conn.SetWriteDeadline(c.writeBy); err != nil {
			c.mu.Unlock()
			return 0, err
		}
	}
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// SetWriteDeadline implements [net.Conn]. It holds until the next write. To take away one that
// was not set is to do nothing, which a server does after every request.
func (c *patientConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.IsZero() && !c.writeBy.IsZero() {
		return nil
	}
	c.writeBy = time.Time{}
	return c.Conn.SetWriteDeadline(t)
}

// SetReadDeadline implements [net.Conn].
func (c *patientConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want, c.each = t, 0
	if c.reads > 0 {
		return c.arm()
	}
	return nil
}

// expect has the client send something in every so long, until a deadline is set: the server
// does so when it has come to the end of the body, whoever has read it. No one may be reading.
func (c *patientConn) expect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.each = c.stall
}

// part has the client send what the server wants of the rest of a body within the same time,
// unless it has come to the end already.
func (c *patientConn) part() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.each > 0 {
		c.want, c.each = time.Now().Add(c.stall), 0
	}
}

// stop ends the read that is under way, and lets there be no other.
func (c *patientConn) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut, c.want, c.each = true, time.Unix(1, 0), 0
	_ = c.arm() // the read will tell
}

// SetDeadline implements [net.Conn].
func (c *patientConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// arm sets the deadline that is wanted, unless what is set comes first anyway.
func (c *patientConn) arm() error {
	if c.want.IsZero() || !c.set.IsZero() && !c.set.After(c.want) {
		return nil
	}
	c.set = c.want
	return c.Conn.SetReadDeadline(c.want)
}

func (c *patientConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.each > 0 {
		c.want = time.Now().Add(c.each)
	}
	if c.cut || !c.want.IsZero() && c.want.Before(c.began) {
		// While a request is served, the server reads to see whether the client is still
		// there, and then ends that. Mostly it has done so before the read has begun.
		return 0, os.ErrDeadlineExceeded
	}
	c.reads++
	defer func() { c.reads-- }()
	err := c.arm()
	for err == nil {
		var n int
		c.mu.Unlock()
		n, err = c.Conn.Read(p)
		c.mu.Lock()
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !c.want.IsZero() && !c.want.After(time.Now()) {
			return n, err
		}
		c.set = c.want
		err = c.Conn.SetReadDeadline(c.want)
	}
	return 0, err
}

// CloseWrite ends what is sent, for a server that wants its last answer to arrive.
func (c *patientConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

// patientBody is the body of a request that has its connection for itself, and is passed on:
// whoever does that may still read when the request is answered.
type patientBody struct {
	io.ReadCloser
	conn    *patientConn
	reading sync.Mutex // held by Read
}

func (b *patientBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	return b.ReadCloser.Read(p)
}

// leave is called when the request is answered. The server reads some of what is left, and
// then the connection is the next request's.
//
// Whoever still reads, to pass it on, is stopped first: the server would wait for that without
// a deadline. It takes a read that fails for a client that has gone, and would cancel whatever
// came on this connection, so nothing does.
func (b *patientBody) leave() {
	if !b.reading.TryLock() {
		b.conn.stop()
		b.reading.Lock()
	}
	defer b.reading.Unlock()
	b.conn.part()
}

// patientStream is the body of a request that shares its connection with others. It gives up
// on a client that sends nothing for as long as this.
type patientStream struct {
	io.ReadCloser
	stall   time.Duration
	reading sync.Mutex // held by Read

	mu     sync.Mutex
	calm   bool                     // the client may take its time
	stream *http.ResponseController // nil: there is nothing more to wait for
}

func (b *patientStream) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	b.expect(time.Now().Add(b.stall))
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.part(time.Time{})
	}
	return n, err
}

// expect has the client send something by then, unless it may take its time.
func (b *patientStream) expect(by time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(by)
}

func (b *patientStream) set(by time.Time) {
	if !b.calm && b.stream != nil {
		_ = b.stream.SetReadDeadline(by) // the read will tell
	}
}

// relax lets the client take its time.
func (b *patientStream) relax() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set(time.Time{})
	b.calm = true
}

// leave is called when the request is answered. Whoever still reads is stopped.
func (b *patientStream) leave() {
	b.mu.Lock()
	b.calm = false
	b.set(time.Unix(1, 0))
	b.calm = true // the next read does not wait either
	b.mu.Unlock()
	b.reading.Lock()
	defer b.reading.Unlock()
	b.part(time.Now().Add(b.stall))
}

// part leaves the stream to the server, with this as its last deadline.
func (b *patientStream) part(by time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calm = false
	b.set(by)
	b.stream = nil
}

// duplexWriter writes a response by HTTP/2, where client and server may talk by turns:
// a client that is being answered does not stall.
type duplexWriter struct {
	http.ResponseWriter
	body *patientStream
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
