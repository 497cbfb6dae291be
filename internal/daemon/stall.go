package daemon

import (
	"bufio"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"
)

// exchange is a request and its response. A client that pauses for longer than timeout
// while sending the body or reading the response is cut off, and so is one that sends its
// body, all in all, more slowly than minRate. The timeouts of [http.Server] are for a whole
// body or response, and would end streams.
//
// With it, /v1/check takes 1.54 times the processor time of an empty handler (bench,
// "door: stint /v1/check").
type exchange struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	minRate int64        // bytes of the body a second; 0: any
	request http.Request // a copy, whose Body is this exchange; the server keeps its own
	body    io.ReadCloser
	http2   bool

	writeBy time.Time // the deadline for writing

	inRead   sync.Mutex    // held while the body is read
	whole    bool          // it was read to its end
	received int64         // bytes of the body
	waited   time.Duration // for these

	mu      sync.Mutex
	readBy  time.Time // the deadline for reading the body
	reading bool      // the handler has begun to read the body
	patient bool      // the body has no deadline: it has been read, or an HTTP/2 response has begun
	closed  bool      // the handler has returned: only the server may read the rest of the body
	ended   bool      // the server sets deadlines, or the handler that has hijacked the connection
}

func newExchange(w http.ResponseWriter, r *http.Request, timeout time.Duration, minRate int64) (*exchange, *http.Request) {
	e := &exchange{ResponseWriter: w, control: http.NewResponseController(w), timeout: timeout, minRate: minRate, http2: r.ProtoMajor >= 2}
	if r.ContentLength == 0 {
		return e, r
	}
	e.request, e.body = *r, r.Body
	e.request.Body = exchangeBody{e}
	if !e.http2 {
		e.allowRead(noBound) // the server reads what the handler does not
	}
	return e, &e.request
}

// end is called when the handler has returned, before the server sends the rest of the
// response and reads the rest of the body.
func (e *exchange) end() {
	e.mu.Lock()
	ended := e.ended
	e.closed = true
	e.mu.Unlock()
	if ended {
		return
	}
	e.allowWrite()
	if e.body != nil && !e.http2 {
		e.interruptRead()
		e.allowRead(noBound)
	}
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
}

// interruptRead ends a running read of the body: a proxy that has its response may still
// be forwarding the body. The server would end it, too, but then read the rest without a
// deadline.
func (e *exchange) interruptRead() {
	for !e.inRead.TryLock() {
		e.mu.Lock()
		e.readBy = time.Time{}
		_ = e.control.SetReadDeadline(time.Unix(1, 0))
		e.mu.Unlock()
		runtime.Gosched()
	}
	e.inRead.Unlock()
}

// extend returns a new deadline, unless the given one is far enough away. Deadlines are a
// quarter longer than timeout, so that a quick request sets each only once.
func (e *exchange) extend(deadline time.Time) (later time.Time, ok bool) {
	now := time.Now()
	if deadline.Sub(now) >= e.timeout {
		return deadline, false
	}
	return now.Add(e.timeout + e.timeout/4), true
}

// noBound is longer than any read takes.
const noBound = time.Duration(math.MaxInt64)

// bound returns how long the next read of the body may take, so that the body as a whole is
// not slower than minRate. Only the time that reads have taken counts: a handler may be
// slow, too.
func (e *exchange) bound() time.Duration {
	if e.minRate == 0 {
		return noBound
	}
	return e.timeout + e.timeout/4 + time.Duration(e.received/e.minRate)*time.Second - e.waited
}

// allowRead extends the deadline for reading the body, but not beyond a time from now.
func (e *exchange) allowRead(longest time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	by, ok := e.extend(e.readBy)
	if left := time.Until(by); longest < left {
		by, ok = by.Add(longest-left), true
	}
	if ok && !e.ended && !e.patient {
		e.readBy = by
		_ = e.control.SetReadDeadline(by) // the read will fail
	}
}

// forgetRead removes the deadline for reading the body, permanently if patient is true.
func (e *exchange) forgetRead(patient bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended && !e.patient {
		e.readBy, e.patient = time.Time{}, patient
		_ = e.control.SetReadDeadline(time.Time{})
	}
}

// allowWrite extends the deadline for writing the response.
func (e *exchange) allowWrite() {
	if by, ok := e.extend(e.writeBy); ok {
		e.writeBy = by
		_ = e.control.SetWriteDeadline(by) // the write will fail
	}
}

// written removes the deadline after a write by HTTP/2, which would reset the stream even
// if nothing is being written.
func (e *exchange) written() {
	if e.http2 {
		e.writeBy = time.Time{}
		_ = e.control.SetWriteDeadline(time.Time{})
	}
}

// Write implements [http.ResponseWriter].
func (e *exchange) Write(p []byte) (int, error) {
	e.begin()
	e.allowWrite()
	defer e.written()
	return e.ResponseWriter.Write(p)
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
	e.allowWrite()
	defer e.written()
	return e.control.Flush()
}

// begin is called when the response begins. With HTTP/2, client and server may then take
// turns, so the client may pause in its body.
//
// With HTTP/1, a response that begins while the body is being forwarded must be the last
// of its connection. Otherwise the server may find the body closed, assume that it was
// read, and take the rest of it for the next request.
func (e *exchange) begin() {
	switch {
	case e.body == nil:
	case e.http2:
		e.forgetRead(true)
	default:
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.reading && !e.patient {
			e.Header().Set("Connection", "close")
		}
	}
}

// SetReadDeadline is for [http.ResponseController]. It is valid until the next read.
func (e *exchange) SetReadDeadline(by time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.readBy = time.Time{}
	return e.control.SetReadDeadline(by)
}

// SetWriteDeadline is for [http.ResponseController]. It is valid until the next write.
func (e *exchange) SetWriteDeadline(by time.Time) error {
	e.writeBy = time.Time{}
	return e.control.SetWriteDeadline(by)
}

// Hijack implements [http.Hijacker]. Only writes to the connection have a deadline: other
// protocols may be silent for any time.
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
	b.inRead.Lock()
	defer b.inRead.Unlock()
	if b.whole { // a proxy reads again, and would give up its response if it got the error of a closed body
		return 0, io.EOF
	}
	b.mu.Lock()
	b.reading = true
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return 0, http.ErrBodyReadAfterClose
	}
	b.allowRead(b.bound())
	began := time.Now()
	n, err := b.body.Read(p)
	b.waited += time.Since(began)
	b.received += int64(n)
	b.whole = errors.Is(err, io.EOF)
	switch {
	case b.http2:
		// With HTTP/2, a deadline ends the body even if nothing is being read.
		b.forgetRead(false)
	case b.whole:
		// The server has removed the deadline. From now on it reads to detect whether the
		// client is gone, and would mistake a deadline for that.
		b.mu.Lock()
		b.patient = true
		b.mu.Unlock()
	}
	return n, err
}

func (b exchangeBody) Close() error { return b.body.Close() }

// stallConn is a hijacked connection.
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

// CloseWrite is for proxies, which forward the end of a stream.
func (c stallConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return http.ErrNotSupported
}
