package daemon

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// exchange is a request and its response. A client that pauses for longer than timeout
// while it sends the body, or while it should read the response, is cut off. The
// timeouts of [http.Server] cannot do that: they bound the whole of a body or of a
// response, however long, and would end streams.
type exchange struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	request http.Request // a copy, whose Body is this exchange; the server looks at the Body of its own
	body    io.ReadCloser
	http2   bool

	mu      sync.Mutex
	patient bool // the body has no deadline: it has been read, or the client is being answered by HTTP/2
	ended   bool // deadlines are set by the server, or by the handler that has hijacked the connection
}

func newExchange(w http.ResponseWriter, r *http.Request, timeout time.Duration) (*exchange, *http.Request) {
	e := &exchange{ResponseWriter: w, control: http.NewResponseController(w), timeout: timeout, http2: r.ProtoMajor >= 2}
	if r.ContentLength == 0 {
		return e, r
	}
	e.request, e.body = *r, r.Body
	e.request.Body = exchangeBody{e}
	if !e.http2 {
		// If the handler answers without reading the body, the server reads the rest.
		e.setRead(time.Now().Add(timeout))
	}
	return e, &e.request
}

// end is called when the handler has returned, and the server is about to send what is
// left of the response and to read what is left of the body.
func (e *exchange) end() {
	by := time.Now().Add(e.timeout)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return
	}
	e.ended = true
	_ = e.control.SetWriteDeadline(by)
	if e.body != nil && !e.patient && !e.http2 {
		_ = e.control.SetReadDeadline(by)
	}
}

// setRead sets the deadline for reading the body. Zero: there is none. A goroutine that
// passes the body on may still read when the handler has returned.
func (e *exchange) setRead(by time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended && !e.patient {
		_ = e.control.SetReadDeadline(by) // the read will fail
	}
}

// write runs f, which sends some of the response.
func (e *exchange) write(f func() error) error {
	_ = e.control.SetWriteDeadline(time.Now().Add(e.timeout)) // the write will fail
	err := f()
	if e.http2 {
		// A deadline of HTTP/2 resets the stream even if nothing is being written.
		_ = e.control.SetWriteDeadline(time.Time{})
	}
	return err
}

// Write implements [http.ResponseWriter].
func (e *exchange) Write(p []byte) (n int, err error) {
	e.begin()
	err = e.write(func() (err error) {
		n, err = e.ResponseWriter.Write(p)
		return err
	})
	return n, err
}

// WriteHeader implements [http.ResponseWriter].
func (e *exchange) WriteHeader(status int) {
	if status >= http.StatusOK {
		e.begin()
	}
	e.ResponseWriter.WriteHeader(status)
}

// FlushError is for [http.ResponseController].
func (e *exchange) FlushError() error {
	e.begin()
	return e.write(e.control.Flush)
}

// begin notes that the response has begun. By HTTP/2, client and server may then talk in
// turns, so the client may pause in its body.
func (e *exchange) begin() {
	if !e.http2 || e.body == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended && !e.patient {
		_ = e.control.SetReadDeadline(time.Time{})
		e.patient = true
	}
}

// Hijack implements [http.Hijacker]. Of the connection, only writes have a deadline: those
// who speak another protocol may be silent for as long as they like.
func (e *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffers, err := e.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	return stallConn{conn, e.timeout}, buffers, nil
}

// Unwrap is for [http.ResponseController].
func (e *exchange) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// exchangeBody is the body of the request.
type exchangeBody struct{ *exchange }

func (b exchangeBody) Read(p []byte) (int, error) {
	b.setRead(time.Now().Add(b.timeout))
	n, err := b.body.Read(p)
	switch {
	case b.http2:
		// A deadline of HTTP/2 ends the body even if nothing is being read.
		b.setRead(time.Time{})
	case errors.Is(err, io.EOF):
		// The server has taken the deadline away. From now on it reads, to learn whether
		// the client has gone, and would take a deadline for that.
		b.mu.Lock()
		b.patient = true
		b.mu.Unlock()
	}
	return n, err
}

func (b exchangeBody) Close() error { return b.body.Close() }

// stallConn is a connection that was hijacked.
type stallConn struct {
	net.Conn
	timeout time.Duration
}

func (c stallConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// CloseWrite ends what is sent, for those who pass on that the other side has ended.
func (c stallConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return http.ErrNotSupported
}
