package httplimit

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/field"
)

// trip is the state of a request on its way to a target. It is the request's context.
type trip struct {
	context.Context
	route   *route
	in      *http.Request // as the client has sent it
	verdict engine.Verdict
	peer    string // its address
	guard   guard

	target *target // the one that was chosen last
	tried  uint64  // a bit for each target that was chosen
	// path and rawPath are sent to the target, after the target's own path.
	path, rawPath string
	body          body
	model         *modelCall // nil: not a request to a language model
	reads         bool       // a meter reads the response's body
	id            string     // of the decision; empty: it is not sent
	forwarded     [6]string  // values of the headers that setForwarded sets
}

type tripKey struct{}

// Value implements [context.Context].
func (t *trip) Value(key any) any {
	if key == (tripKey{}) {
		return t
	}
	return t.Context.Value(key)
}

func tripOf(ctx context.Context) *trip { return ctx.Value(tripKey{}).(*trip) }

// body is the body of a request. Close does nothing, so that the body can be sent to
// another target: the server closes it in the end.
type body struct {
	io.ReadCloser
	begun   atomic.Bool // there was a connection, and the target got some of it
	failed  atomic.Bool // reading it failed, which is the client's fault
	slow    atomic.Bool // because the server's deadline has passed
	unread  atomic.Bool // with HTTP/1, its end was not read yet
	trailer http.Header // is complete after the end
	guard   *guard
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.begun.Store(true)
	switch {
	case errors.Is(err, io.EOF):
		b.unread.Store(false)
		b.guard.cleanTrailer(b.trailer) // with HTTP/1, also of those that were not announced
	case err != nil:
		b.failed.Store(true)
		b.slow.Store(errors.Is(err, os.ErrDeadlineExceeded))
	}
	return n, err
}

func (*body) Close() error { return nil }

// closeIfUnread closes the client's connection after the response if the body was not read
// to its end: the rest must not be read as the next request.
func (b *body) closeIfUnread(h http.Header) {
	if b.unread.Load() {
		h.Set("Connection", "close")
	}
}

// pass sends the request to a target, and the response to the client. The response may be counted on its way to
// the server's own writer.
func (g *Gateway) pass(own, w http.ResponseWriter, r *http.Request, t *trip) {
	var ctx context.Context = t
	if t.route.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(t, t.route.Timeout)
		defer cancel()
	}
	r = r.WithContext(ctx)
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		// A target may answer while it reads. Without this, the server would read the rest
		// of the body itself and discard it.
		_ = http.NewResponseController(w).EnableFullDuplex() // the server of net/http can
		t.body.unread.Store(true)
	}
	if g.maxBody > 0 && r.Body != nil {
		r.Body = http.MaxBytesReader(own, r.Body, g.maxBody)
	}
	t.route.proxy.ServeHTTP(w, r)
}

// rewrite changes the request into the one that is sent to the target.
func rewrite(pr *httputil.ProxyRequest) {
	t, out := tripOf(pr.In.Context()), pr.Out
	t.path, t.rawPath = out.URL.Path, out.URL.RawPath
	if t.route.StripPrefix && t.route.Prefix != "/" {
		t.rawPath = strip(out.URL.EscapedPath(), t.route.Prefix)
		t.path, _ = url.PathUnescape(t.rawPath) // the end of a valid path is valid
	}
	next, mask := t.route.upstream.choose(0)
	t.setTarget(out.URL, next, mask)
	out.URL.RawQuery = pr.In.URL.RawQuery // exactly as the client sent it
	if !t.route.PreserveHost {
		out.Host = ""
	}
	if isHTTP(out.Header.Get("Upgrade")) {
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	if t.model != nil || t.reads {
		acceptReadable(out.Header, t.model != nil && t.model.changes())
	}
	t.guard.clean(out.Header, &t.verdict.Subject)
	out.Trailer = pr.In.Trailer // its values come after the body
	t.guard.cleanTrailer(out.Trailer)
	if out.Body != nil {
		t.body.ReadCloser, t.body.trailer, t.body.guard = out.Body, out.Trailer, &t.guard
		out.Body = &t.body
	}
	t.setForwarded(pr.In, out.Header)
}

// acceptReadable has the target encode its response so that it can be read here, whatever else the client accepts: with gzip,
// or not at all. If it is plain, it may be changed, too.
func acceptReadable(h http.Header, plain bool) {
	encoding := "identity"
	for _, name := range strings.Split(strings.Join(h["Accept-Encoding"], ","), ",") {
		name, weight, _ := strings.Cut(name, ";")
		_, q, _ := strings.Cut(weight, "=")
		refused := q != "" && strings.Trim(q, " 0.") == ""
		if !plain && !refused && strings.EqualFold(strings.TrimSpace(name), "gzip") {
			encoding = "gzip"
		}
	}
	h.Set("Accept-Encoding", encoding)
}

// isHTTP reports whether a protocol to upgrade to can carry further requests.
func isHTTP(protocol string) bool {
	for _, start := range [...]string{"h2", "http/", "tls/"} {
		if len(protocol) >= len(start) && strings.EqualFold(protocol[:len(start)], start) {
			return true
		}
	}
	return false
}

// strip removes the segments of the prefix from a path that is below it, and leaves the
// rest unchanged.
func strip(path, prefix string) string {
	for range strings.Count(prefix, "/") {
		path = strings.TrimLeft(path, "/")
		path = path[strings.IndexByte(path+"/", '/'):]
	}
	return cmp.Or(path, "/")
}

// setTarget sends a request to a target.
func (t *trip) setTarget(u *url.URL, to *target, mask uint64) {
	t.target = to
	t.tried |= mask
	u.Scheme, u.Host = to.url.Scheme, to.url.Host
	u.Path, u.RawPath = to.url.Path+t.path, ""
	if t.rawPath != "" {
		u.RawPath = to.url.Path + t.rawPath
	}
}

// setForwarded sets the headers that tell the target about the client and the decision. Those that the
// client has sent do not get there.
func (t *trip) setForwarded(in *http.Request, h http.Header) {
	client, chain, host, proto := "", t.peer, in.Host, "http"
	if ip := t.verdict.Subject.IP; ip.IsValid() {
		client = ip.String()
	}
	if in.TLS != nil {
		proto = "https"
	}
	if t.verdict.Subject.Trusted {
		before := in.Header["X-Forwarded-For"]
		if chain != "" {
			before = append(slices.Clip(before), chain)
		}
		chain = strings.Join(before, ", ")
		host = cmp.Or(in.Header.Get("X-Forwarded-Host"), host)
		proto = cmp.Or(in.Header.Get("X-Forwarded-Proto"), proto)
	}
	t.forwarded = [...]string{client, chain, host, proto, t.id, field.OverOf(&t.verdict)}
	for i, name := range [...]string{"X-Real-Ip", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", field.Decision, field.Over} {
		if t.forwarded[i] == "" {
			delete(h, name)
		} else {
			h[name] = t.forwarded[i : i+1 : i+1]
		}
	}
}

// addHeaders adds our headers to a response. They replace those of limits of the target,
// as clients could not tell them apart. If we have none, the target's stay. So does the id of
// a decision of its own, since that is the last one.
func (g *Gateway) addHeaders(res *http.Response) error {
	if len(res.Trailer) > 0 {
		res.Header.Del("Content-Length") // HTTP/1.1 has trailers only without a length
	}
	t := tripOf(res.Request.Context())
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.body.closeIfUnread(res.Header)
	}
	if t.model != nil {
		t.model.answer(res)
	}
	v := &t.verdict
	own := res.Header[field.Decision]
	if v.Binding() == nil {
		if own == nil && t.id != "" {
			res.Header[field.Decision] = t.forwarded[4:5:5]
		}
		return nil
	}
	for _, name := range [...]string{
		"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "X-Ratelimit-Cost", "Ratelimit-Policy", "Ratelimit",
	} {
		delete(res.Header, name)
	}
	g.headers.Set(res.Header, v)
	if own != nil {
		res.Header[field.Decision] = own
	}
	if shape, ok := modelStyle(v, t.path); ok {
		setModelHeaders(res.Header, shape, v, g.now())
	}
	return nil
}

// statusGone means that the client has left. It is for logs only.
const statusGone = 499

// fail answers a request that got no response from a target.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	t := tripOf(r.Context())
	t.body.closeIfUnread(w.Header())
	if errors.Is(r.Context().Err(), context.Canceled) && !t.body.slow.Load() { // net/http takes a slow client for gone
		w.WriteHeader(statusGone)
		return
	}
	p := g.diagnose(r.Context(), t, err)
	if p.Status >= http.StatusInternalServerError {
		g.log.LogAttrs(r.Context(), slog.LevelWarn, "target failed", slog.String("route", t.route.name),
			slog.String("target", t.target.name), slog.Int("status", p.Status), slog.Any("error", err))
	}
	g.headers.Set(w.Header(), &t.verdict)
	g.refuse(w, t.in, t.route, &t.verdict, p)
}

// diagnose says what went wrong. It does not name the target, which is not for clients.
func (g *Gateway) diagnose(ctx context.Context, t *trip, err error) Problem {
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return g.tooLarge()
	case t.body.slow.Load(), t.body.failed.Load():
		return unreadable(t.body.slow.Load())
	case t.target == nil:
		return Problem{Status: http.StatusBadRequest, Detail: "The protocol to upgrade to has no valid name."}
	case ctx.Err() != nil:
		return Problem{Status: http.StatusGatewayTimeout, Detail: "The upstream timed out: the request took too long."}
	case unsent(err) && isTimeout(err):
		return Problem{Status: http.StatusGatewayTimeout, Detail: "The upstream timed out: there was no connection in time."}
	case isTimeout(err):
		return Problem{Status: http.StatusGatewayTimeout, Detail: "The upstream timed out: there was no response in time."}
	case errors.Is(err, syscall.ECONNREFUSED):
		return Problem{Status: http.StatusBadGateway, Detail: "The upstream refused the connection."}
	case unsent(err):
		return Problem{Status: http.StatusBadGateway, Detail: "The upstream could not be reached."}
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Problem{Status: http.StatusBadGateway, Detail: "The upstream reset the connection before it answered."}
	default:
		return Problem{Status: http.StatusBadGateway, Detail: "The upstream sent no valid response."}
	}
}

// unreadable is the problem of a body that could not be read.
func unreadable(slow bool) Problem {
	if slow {
		return Problem{Status: http.StatusRequestTimeout, Detail: "The body of the request came too slowly."}
	}
	return Problem{Status: http.StatusBadRequest, Detail: "The body of the request could not be read."}
}

func (g *Gateway) tooLarge() Problem {
	return Problem{
		Status: http.StatusRequestEntityTooLarge,
		Detail: "The body of the request is larger than " + strconv.FormatInt(g.maxBody, 10) + " bytes.",
	}
}

// buffers are for copying bodies, and shared by all gateways.
var buffers = bufferPool{sync.Pool{New: func() any { return new(buffer) }}}

type buffer [32 << 10]byte

type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte  { return b.pool.Get().(*buffer)[:] }
func (b *bufferPool) Put(p []byte) { b.pool.Put((*buffer)(p)) }
