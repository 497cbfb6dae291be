package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stintdev/stint/httplimit"
)

// maxHeader is the maximum size of the headers of a request, in bytes.
const maxHeader = 64 << 10

// ListenError is the error of a listener that could not be opened.
type ListenError struct {
	Listener string // gateway, http, grpc, admin, region, debug or metrics
	Err      error
}

func (e *ListenError) Error() string {
	return door{name: e.Listener}.path() + ".address: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// server is an HTTP listener.
type server struct {
	name     string
	acceptor *acceptor
	listener net.Listener // the acceptor, or one around it
	http     http.Server
	tls      tlsPointer

	handler      http.Handler
	stallTimeout time.Duration
	minBodyRate  int64
	accepting    sync.WaitGroup     // serve, which accepts connections
	closing      atomic.Bool        // clients are asked to close their connections
	requests     inflight           // including those on hijacked connections
	newConns     newConns           // that have not sent a request yet
	cancel       context.CancelFunc // ends all requests
}

// listen opens a listener. Requests do not end with ctx: a stopping daemon lets them
// finish.
func (c *Config) listen(ctx context.Context, l door, h http.Handler, log *slog.Logger) (*server, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", l.Address)
	if err != nil {
		return nil, &ListenError{l.name, err}
	}
	return c.serverOf(ctx, listener, l, h, log), nil
}

// serverOf returns the server of a listener that is open.
func (c *Config) serverOf(ctx context.Context, listener net.Listener, l door, h http.Handler, log *slog.Logger) *server {
	log = log.With("listener", l.name)
	accepting := &acceptor{Listener: listener, log: log}
	listener = accepting
	if l.ProxyProtocol {
		listener = httplimit.ProxyListener(listener, c.trusted())
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &server{
		name: l.name, acceptor: accepting, listener: listener, handler: h, cancel: cancel,
		stallTimeout: time.Duration(c.Server.StallTimeout), minBodyRate: int64(c.Server.MinBodyRate),
	}
	s.http = http.Server{
		Handler: s, ReadHeaderTimeout: time.Duration(c.Server.HeaderTimeout), IdleTimeout: time.Duration(c.Server.IdleTimeout),
		MaxHeaderBytes: maxHeader, Protocols: new(http.Protocols),
		// For connections that accept no data; exchange sets the deadlines of streams.
		HTTP2:       &http.HTTP2Config{WriteByteTimeout: s.stallTimeout, MaxConcurrentStreams: maxRequests},
		ConnContext: countCancels,
		BaseContext: func(net.Listener) context.Context { return base },
		ConnState:   s.newConns.note,
		ErrorLog:    newErrorLog(log),
	}
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetHTTP2(true)
	s.http.Protocols.SetUnencryptedHTTP2(true)
	if t := c.credentials.tls[l.name]; t != nil {
		s.tls.Store(t)
		s.http.TLSConfig = s.tls.config()
	}
	return s
}

// trusted returns the networks of trusted proxies.
func (c *Config) trusted() []netip.Prefix {
	var out []netip.Prefix
	for _, text := range c.Identity.TrustedProxies {
		if p, err := parseProxy(text); err == nil { // checked
			out = append(out, p)
		}
	}
	return out
}

// serve serves until the server is stopped. The caller must add it to accepting.
func (s *server) serve() error {
	defer s.accepting.Done()
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
	if s.closing.Load() && r.Header.Get("Upgrade") == "" {
		w.Header().Set("Connection", "close")
	}
	e, r := newExchange(w, r, s.stallTimeout, s.minBodyRate)
	defer e.end()
	defer noteEnd(r, s.acceptor.log)
	s.handler.ServeHTTP(e, r)
}

// stop stops listening and waits for requests to end. When ctx ends, it cuts off the rest
// and returns an error.
func (s *server) stop(ctx context.Context) error {
	defer s.cancel()
	_ = s.listener.Close()
	s.accepting.Wait()
	s.awaitFirstRequests(ctx)
	idle := s.http.Shutdown(ctx)
	err := s.requests.wait(ctx)
	if idle == nil && err == nil {
		return nil
	}
	const moment = time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moment)
	defer cancel()
	if err == nil {
		// Open connections are idle, or their response is on its way.
		_ = s.http.Shutdown(ctx)
		_ = s.http.Close()
		return nil
	}
	s.cancel()
	_ = s.http.Close() // the first error counts
	_ = s.requests.wait(ctx)
	return fmt.Errorf("%s: requests were cut off: %w", s.name, err)
}

// awaitFirstRequests waits until every connection has sent a request: after Shutdown,
// http.Server ignores the first request of a connection. Some clients connect and send
// nothing, so the wait is short.
func (s *server) awaitFirstRequests(ctx context.Context) {
	const longest = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	_ = s.newConns.wait(ctx)
}

// newConns are connections that have not sent a request yet.
type newConns struct {
	inflight // counts them
	known    sync.Map
}

// note is for [http.Server].ConnState.
func (n *newConns) note(c net.Conn, state http.ConnState) {
	if state == http.StateNew {
		n.known.Store(c, nil)
		n.add()
	} else if _, isNew := n.known.LoadAndDelete(c); isNew {
		n.done()
	}
}

// URL returns the URL of the server on this machine.
func (s *server) URL() string {
	scheme := "http://"
	if s.tls.Load() != nil {
		scheme = "https://"
	}
	return scheme + localAddress(s.listener)
}

// localAddress returns the address of a listener on this machine.
func localAddress(l net.Listener) string {
	address := l.Addr()
	if a, err := netip.ParseAddrPort(address.String()); err == nil && a.Addr().IsUnspecified() {
		return fmt.Sprintf("localhost:%d", a.Port())
	}
	return cmp.Or(address.String(), address.Network())
}

// logBound logs what a listener is bound to, and who can reach it.
func (d *Daemon) logBound(ctx context.Context, name, url string, l net.Listener) {
	from := "this machine"
	if isOpen(l) {
		from = "other machines"
	}
	d.log.InfoContext(ctx, "listening", "address", l.Addr().String(), "reachable_from", from, "listener", name, "url", url)
	s := &d.config.Server
	if name == httpListener && s.HTTP.Open() || name == grpcListener && s.GRPC.Open() {
		d.log.WarnContext(ctx, "other machines can ask for decisions without a token", "listener", name, "address", l.Addr().String(),
			"try", "server."+name+".tokens, server."+name+".tls_client_ca, or a firewall")
	}
}

// isOpen reports whether other machines can reach a listener.
func isOpen(l net.Listener) bool {
	a, err := netip.ParseAddrPort(l.Addr().String())
	return err == nil && !a.Addr().Unmap().IsLoopback() // or it is a unix socket
}

// newErrorLog returns the error log of a server. Except for panics of handlers, its errors
// are about clients.
func newErrorLog(l *slog.Logger) *log.Logger { return log.New(errorLog{l}, "", 0) }

type errorLog struct{ log *slog.Logger }

func (l errorLog) Write(p []byte) (int, error) {
	switch {
	case bytes.HasPrefix(p, []byte("http: panic serving")):
		l.log.Error("handler panicked", "error", string(p))
	case bytes.HasPrefix(p, []byte("http: Accept error")): // acceptor has logged it
	default:
		l.log.Debug("connection failed", "error", string(bytes.TrimSpace(p)))
	}
	return len(p), nil
}

// acceptor is a listener that logs why it cannot accept connections. Servers try again
// after a moment, and say nothing, or say it where no one looks.
type acceptor struct {
	net.Listener
	log    *slog.Logger
	failed atomic.Uint64
}

func (a *acceptor) Accept() (net.Conn, error) {
	c, err := a.Listener.Accept()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		a.failed.Add(1)
		advice := "the error says what the system lacks"
		switch {
		case errors.Is(err, syscall.EMFILE):
			advice = "raise the limit of open files of this process: ulimit -n 65536, or LimitNOFILE=65536 in systemd"
		case errors.Is(err, syscall.ENFILE):
			advice = "raise the limit of open files of this machine: sysctl fs.file-max"
		}
		a.log.Error("connections cannot be accepted and have to wait", "error", err.Error(), "try", advice)
	}
	return c, err
}
