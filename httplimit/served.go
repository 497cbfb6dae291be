package httplimit

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/meter"
	"github.com/stintdev/stint/rule"
)

// served is a request under rules that have a meter or places, while it is served: the ResponseWriter that its
// handler gets. It can do what the server's own can: flush, hijack, read from files, and what
// [http.ResponseController] does. It ends when the handler has returned and the connection, if it was hijacked,
// is closed.
type served struct {
	http.ResponseWriter
	serving *engine.Serving
	meters  *meters
	client  context.Context // ends when the client leaves
	head    bool            // a HEAD request, whose response has no body
	model   *modelCall      // nil: not a request to a language model
	body    countedBody

	mu       sync.Mutex // a handler may leave goroutines behind
	status   int
	sent     int64
	gone     bool            // writing to the client has failed
	response *meter.Response // nil before the first byte
	told     engine.Usage    // by the handler
	hijacked bool
	left     bool // the handler has returned
	over     bool
}

type servedKey struct{}

// Use says what the request of this context has used, in place of what is measured, or where nothing is: the tokens of a
// model, rows, seconds of a processor. Units are by meter, or, if used.Meters is nil, used.Cost for all meters of the
// rules that apply. It can be called as the work goes on: of each meter, the last value before the handler returns
// counts, and negative ones count as 0. Without rules that have a meter, it does nothing.
//
// The context is that of the request that a handler behind the middleware of [New] was given. It is safe for concurrent use.
func Use(ctx context.Context, used engine.Usage) {
	if d, ok := ctx.Value(servedKey{}).(*served); ok {
		d.use(used)
	}
}

func (d *served) use(u engine.Usage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.told.Meters == nil {
		d.told.Meters = map[rule.Meter]int64{}
	}
	for _, m := range d.serving.Meters(nil) { // others have no rule
		if n, ok := u.Meters[m]; ok {
			d.told.Meters[m] = n
		} else if u.Meters == nil {
			d.told.Meters[m] = u.Cost
		}
	}
	d.told.Model, d.told.Estimated = cmp.Or(u.Model, d.told.Model), u.Estimated
}

// serveUntilEnd serves a request, and settles it when it has ended, also if the handler panics. A model may be nil.
func serveUntilEnd(w http.ResponseWriter, r *http.Request, s *engine.Serving, model *modelCall, serve func(http.ResponseWriter, *http.Request)) {
	d := &served{ResponseWriter: w, serving: s, meters: metersOf(s), client: r.Context(), head: r.Method == http.MethodHead, model: model}
	if r.Body != nil && r.Body != http.NoBody && d.meters.request {
		d.body.ReadCloser, d.body.of = r.Body, d
		r.Body = &d.body
	}
	panicked := true
	defer func() { d.leave(panicked) }()
	serve(d, r)
	panicked = false
}

// leave says that the handler has returned.
func (d *served) leave(panicked bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left = true; panicked || !d.hijacked {
		d.end(panicked)
	}
}

// end settles the request. A client that has left pays: otherwise it could have most of a response for nothing.
func (d *served) end(panicked bool) {
	if d.over {
		return
	}
	d.over = true
	failed := panicked || d.status >= http.StatusInternalServerError
	u := engine.Usage{Model: d.told.Model}
	u.Meters, u.Estimated = d.used()
	if d.model != nil {
		failed = d.model.used(&u) || failed
	}
	d.serving.End(u, failed && !d.gone && d.client.Err() == nil)
}

// used returns what the handler has told, and else what the meters say, and whether some of it is an estimate. What they cannot
// say stays as it was reserved.
func (d *served) used() (used map[rule.Meter]int64, estimated bool) {
	used, estimated = make(map[rule.Meter]int64, len(d.meters.names)), d.told.Estimated
	maps.Copy(used, d.told.Meters)
	if len(d.meters.names) == 0 {
		return used, estimated
	}
	if d.response == nil {
		d.response = d.meters.set.Response(d.Header())
	}
	units := d.response.End(nil, meter.End{Trailer: trailer(d.Header()), RequestBytes: d.body.n, Took: d.serving.Took()})
	for i, m := range d.meters.names {
		if _, told := used[m]; told {
			continue
		}
		if m == responseBytes {
			used[m] = d.sent
			continue
		}
		if units[i].Why != meter.Missing {
			used[m] = units[i].N
		}
		estimated = estimated || units[i].Estimated()
	}
	return used, estimated
}

// trailer returns the trailers that a handler has set without announcing them. The others are in the header.
func trailer(h http.Header) (out http.Header) {
	for name, values := range h {
		if announced, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			if out == nil {
				out = http.Header{}
			}
			out[http.CanonicalHeaderKey(announced)] = values
		}
	}
	return out
}

// WriteHeader implements [http.ResponseWriter].
func (d *served) WriteHeader(status int) {
	d.wrote(status)
	d.ResponseWriter.WriteHeader(status)
}

// wrote notes the status of the response: the first that is not only informational.
func (d *served) wrote(status int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		d.status = status
	}
}

// Write implements [http.ResponseWriter].
func (d *served) Write(p []byte) (int, error) {
	d.wrote(http.StatusOK)
	n, err := d.ResponseWriter.Write(p)
	d.count(p[:n], int64(n), err)
	return n, err
}

// count notes a part of the response. The bytes are nil if no meter reads them.
func (d *served) count(p []byte, n int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return
	}
	d.gone = d.gone || err != nil && !errors.Is(err, http.ErrBodyNotAllowed) && !errors.Is(err, http.ErrContentLength)
	if d.head {
		return
	}
	d.sent += n
	if d.meters.json {
		if d.response == nil { // the header is complete
			d.response = d.meters.set.Response(d.Header())
		}
		d.response.Write(p)
	}
}

// ReadFrom implements [io.ReaderFrom], so that files are still sent by the kernel.
func (d *served) ReadFrom(from io.Reader) (int64, error) {
	if d.meters.json {
		return io.Copy(struct{ io.Writer }{d}, from)
	}
	d.wrote(http.StatusOK)
	n, err := io.Copy(d.ResponseWriter, from)
	d.count(nil, n, nil) // whose error it is, is not known
	return n, err
}

// FlushError is for [http.ResponseController].
func (d *served) FlushError() error {
	d.wrote(http.StatusOK)
	return http.NewResponseController(d.ResponseWriter).Flush()
}

// Flush implements [http.Flusher].
func (d *served) Flush() { _ = d.FlushError() }

// Push implements [http.Pusher].
func (d *served) Push(target string, o *http.PushOptions) error {
	if p, ok := d.ResponseWriter.(http.Pusher); ok {
		return p.Push(target, o)
	}
	return http.ErrNotSupported
}

// Unwrap is for [http.ResponseController].
func (d *served) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// Hijack implements [http.Hijacker]. The request then lasts until the connection is closed.
func (d *served) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffers, err := http.NewResponseController(d.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	d.hijacked = true
	d.mu.Unlock()
	mine := &servedConn{conn, d}
	if buffers.Writer.Buffered() == 0 {
		buffers.Writer.Reset(mine)
	}
	return mine, buffers, nil
}

// servedConn is a hijacked connection.
type servedConn struct {
	net.Conn
	of *served
}

func (c *servedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.of.passed(&c.of.sent, n)
	return n, err
}

func (c *servedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.of.passed(&c.of.body.n, n)
	return n, err
}

// CloseWrite closes one direction, as connections of TCP and TLS can.
func (c *servedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (c *servedConn) Close() error {
	err := c.Conn.Close()
	d := c.of
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hijacked = false; d.left {
		d.end(false)
	}
	return err
}

func (d *served) passed(count *int64, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*count += int64(n)
}

// countedBody is the body of a request.
type countedBody struct {
	io.ReadCloser
	of *served
	n  int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.of.passed(&b.n, n)
	return n, err
}

const (
	requestBytes  rule.Meter = "request_bytes"
	responseBytes rule.Meter = "response_bytes"
)

// meters are the meters of a request that can be read here.
type meters struct {
	names   []rule.Meter
	set     *meter.Set
	request bool // the request's body is counted
	json    bool // the response's body is read
}

// compiled are the meters that rules have in common on requests, by their names. There are few, unless rules
// change very often.
var compiled struct {
	mu  sync.Mutex
	all map[string]*meters
}

func metersOf(s *engine.Serving) *meters {
	var room [8]rule.Meter
	names := s.Meters(room[:0])
	var key strings.Builder
	for _, m := range names {
		key.WriteString(string(m) + "\n")
	}
	compiled.mu.Lock()
	defer compiled.mu.Unlock()
	known := compiled.all[key.String()]
	if known != nil {
		return known
	}
	const most = 256
	if len(compiled.all) >= most || compiled.all == nil {
		compiled.all = map[string]*meters{}
	}
	known = newMeters(names)
	compiled.all[key.String()] = known
	return known
}

func newMeters(names []rule.Meter) *meters {
	m := &meters{}
	var all []meter.Meter
	for _, name := range names {
		parsed, err := meter.Parse(string(name))
		if err != nil {
			continue // one of a language model
		}
		m.names, all = append(m.names, name), append(all, parsed)
		m.request = m.request || name == requestBytes
		m.json = m.json || strings.HasPrefix(string(name), "json:")
	}
	m.set = meter.NewSet(all...)
	return m
}
