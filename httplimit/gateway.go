package httplimit

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/rule"
)

// GatewayOptions are a gateway's settings. Engine and Routes are required.
type GatewayOptions struct {
	Engine *engine.Engine
	Routes []Route
	// Headers are the headers that tell clients about their limits.
	Headers HeaderSet
	// MaxBody is how many bytes the body of a request may have. Zero: any number.
	MaxBody int64
	// Logger is told what targets do wrong. Default: no one is.
	Logger *slog.Logger
	// Now is the clock by which targets are left out. Default time.Now.
	Now func() time.Time
}

// Route says where requests go. Of all routes the one with the most specific host is
// chosen, and of those with that host the one with the longest prefix.
type Route struct {
	// Host is the name that requests are for, without a port: api.example.com, or
	// *.example.com for all names below that one. Empty: those that no other route
	// names.
	Host string
	// Prefix is the path that requests are for, and all below it: /api has /api/x, and
	// not /apis. It is compared as rules compare paths. Default /.
	Prefix string
	// Targets are the servers that requests go to in turn, at most 64: URLs with http,
	// https or h2c, which is HTTP/2 without TLS. A path in them comes before that of
	// the request.
	Targets []string
	// StripPrefix takes the prefix off the path that a target sees.
	StripPrefix bool
	// PreserveHost has a target see the host that the client named, in place of the
	// target's own.
	PreserveHost bool
	// Cost, if it is not 0, is what a request costs, whatever rules say.
	Cost int64
	// DialTimeout is for a connection, and once more for TLS. Default 5 s; negative: no limit.
	DialTimeout time.Duration
	// ResponseTimeout is from the end of the request to the start of the response.
	// Default 60 s; negative: no limit.
	ResponseTimeout time.Duration
	// Timeout is for all of it, up to the last byte of the response or of an upgraded
	// connection. Zero: no limit.
	Timeout time.Duration
	// TLS is for https. Default: the roots of the system.
	TLS *tls.Config
	// Check, if it is not nil, is how targets are checked between Start and Stop.
	Check *Check
}

// Check is a GET of a path of each target. It passes if the status is below 400. A
// target that misses two in a row is down until it passes one.
type Check struct {
	Path     string        // default /
	Interval time.Duration // default 10 s
	Timeout  time.Duration // default 2 s
}

// Gateway is a reverse proxy that lets pass what an engine lets pass. It is an
// [http.Handler]; what HTTP its clients speak, and how large their headers may be, is
// the server's to say. Bodies are passed on as they come, both ways, and so are
// upgrades, trailers and responses of 1xx.
//
// Targets see who is asking in X-Real-IP, the address that is counted, and in
// X-Forwarded-For, -Host and -Proto. What a client says there is believed, and the
// peer's address added, if the peer is a trusted proxy, and replaced if not; other
// X-Forwarded headers of strangers are dropped, and so is Forwarded, always.
//
// A request for which there is no connection goes to another target, up to three in
// all. What was sent is not sent again, but for what net/http does by itself: a GET or
// the like without a body, on a connection that the target had just closed. A target
// that three times in a row could not be reached, or did not answer in time, is left
// out for a second, and for longer if that goes on, up to half a minute. When no
// target is left, all are tried.
//
// An upgrade to a protocol by which more requests could be sent unseen, such as h2c,
// is not passed on: the target answers as if none was asked for.
type Gateway struct {
	engine  *engine.Engine
	headers HeaderSet
	maxBody int64
	log     *slog.Logger
	hosts   map[string][]*route // by host, .domain for all below it, and "" for any
	now     func() time.Time

	complained, silent atomic.Int64 // when it was last logged that requests are undecided, and how many since

	mu     sync.Mutex
	stop   context.CancelFunc // of the checks; nil: there are none
	checks sync.WaitGroup
}

// route is a Route that is ready.
type route struct {
	Route
	name     string
	upstream upstream
	proxy    httputil.ReverseProxy
}

// NewGateway returns a gateway. Its checks begin with Start.
func NewGateway(o GatewayOptions) (*Gateway, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Engine == nil:
		return nil, invalid("Engine", "nil", "what engine.New returns")
	case len(o.Routes) == 0:
		return nil, invalid("Routes", "none", "at least one")
	case o.MaxBody < 0:
		return nil, invalid("MaxBody", strconv.FormatInt(o.MaxBody, 10), "1 or more, or 0 for no limit")
	}
	g := &Gateway{engine: o.Engine, headers: o.Headers, maxBody: o.MaxBody, log: o.Logger, now: o.Now, hosts: map[string][]*route{}}
	for i := range o.Routes {
		r := &route{Route: o.Routes[i]}
		if err := g.add(r, o.Now); err != nil {
			return nil, fmt.Errorf("route %d: %w", i+1, err)
		}
	}
	for _, routes := range g.hosts {
		slices.SortFunc(routes, func(a, b *route) int { return cmp.Compare(len(b.Prefix), len(a.Prefix)) })
	}
	return g, nil
}

func (g *Gateway) add(r *route, now func() time.Time) error {
	if err := r.check(); err != nil {
		return err
	}
	r.name = r.Host + r.Prefix
	r.upstream.now, r.upstream.log = now, g.log
	for _, name := range r.Targets {
		t, err := newTarget(name, &r.Route)
		if err != nil {
			return err
		}
		r.upstream.targets = append(r.upstream.targets, t)
	}
	r.proxy = httputil.ReverseProxy{
		Rewrite: rewrite, Transport: &r.upstream, ModifyResponse: g.respond, ErrorHandler: g.fail,
		// What has no length is passed on at once; the rest need not wait long.
		FlushInterval: 100 * time.Millisecond,
		BufferPool:    &buffers,
		ErrorLog:      slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
	key := strings.TrimPrefix(r.Host, "*")
	for _, other := range g.hosts[key] {
		if other.Prefix == r.Prefix {
			return invalid("Prefix", r.Prefix, "another: there is a route with this host and prefix")
		}
	}
	g.hosts[key] = append(g.hosts[key], r)
	return nil
}

// check puts defaults in their places.
func (r *route) check() error {
	r.Prefix = cmp.Or(r.Prefix, "/")
	r.DialTimeout = cmp.Or(r.DialTimeout, 5*time.Second)
	r.ResponseTimeout = cmp.Or(r.ResponseTimeout, time.Minute)
	host := strings.TrimPrefix(r.Host, "*.")
	switch {
	case r.Host != "" && (host != hostname(host) || host == "" || len(r.Host) > mostHost || strings.ContainsAny(host, "*/ ")) || strings.HasPrefix(host, "."):
		return invalid("Host", r.Host, "a name in lower case without a port, *.name for all below it, or none for any")
	case rule.CleanPath(r.Prefix) != r.Prefix || strings.ContainsAny(r.Prefix, "%*{}"):
		return invalid("Prefix", r.Prefix, "a path such as /api, without escapes and wildcards, and without a slash at its end")
	case len(r.Targets) == 0 || len(r.Targets) > mostTargets:
		return invalid("Targets", strconv.Itoa(len(r.Targets)), "1 to "+strconv.Itoa(mostTargets)+" of them")
	case r.Cost < 0:
		return invalid("Cost", strconv.FormatInt(r.Cost, 10), "1 or more, or 0 for what rules say")
	case r.Timeout < 0:
		return invalid("Timeout", r.Timeout.String(), "some time, or 0 for no limit")
	case r.Check == nil:
		return nil
	}
	c := *r.Check
	c.Path = cmp.Or(c.Path, "/")
	c.Interval = cmp.Or(c.Interval, 10*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 2*time.Second)
	r.Check = &c
	switch {
	case !strings.HasPrefix(c.Path, "/") || strings.ContainsAny(c.Path, "?#%"):
		return invalid("Check.Path", c.Path, "a path such as /healthz")
	case c.Interval < 0:
		return invalid("Check.Interval", c.Interval.String(), "some time")
	case c.Timeout < 0:
		return invalid("Check.Timeout", c.Timeout.String(), "some time")
	}
	return nil
}

// Start begins to check targets. Checks end with the context, or by Stop.
func (g *Gateway) Start(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop != nil {
		return nil
	}
	ctx, g.stop = context.WithCancel(ctx)
	for r, t := range g.targets {
		if r.Check != nil {
			g.checks.Go(func() { t.watch(ctx, r.Check, g.log) })
		}
	}
	return nil
}

// Stop ends the checks, waits for them, and closes connections that are idle. Requests
// that are on their way, and those that still come, are served.
func (g *Gateway) Stop(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop != nil {
		g.stop()
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.checks.Wait()
		}()
		select {
		case <-done:
			g.stop = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, t := range g.targets {
		t.transport.CloseIdleConnections()
	}
	return nil
}

// targets are all there are, of all routes.
func (g *Gateway) targets(yield func(*route, *target) bool) {
	for _, routes := range g.hosts {
		for _, r := range routes {
			for _, t := range r.upstream.targets {
				if !yield(r, t) {
					return
				}
			}
		}
	}
}

// Health tells how all targets are doing, by route and target.
func (g *Gateway) Health() []TargetHealth {
	var out []TargetHealth
	for r, t := range g.targets {
		out = append(out, t.health(r.name, r.upstream.now))
	}
	slices.SortFunc(out, func(a, b TargetHealth) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.Target, b.Target))
	})
	return out
}

// mostHost is the most bytes that a name of a host has.
const mostHost = 253

// hostname returns the host in the form in which routes have it. One that is no name
// is cut: it must not be looked up a million times.
func hostname(host string) string {
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host = host[:i]
	}
	host = strings.TrimSuffix(host, ".")
	if len(host) > mostHost {
		return ""
	}
	return strings.ToLower(host)
}

// find returns the route for a host and a clean path, or nil.
func (g *Gateway) find(host, path string) *route {
	host = hostname(host)
	routes, ok := g.hosts[host]
	for !ok && host != "" {
		if i := strings.IndexByte(host[1:], '.'); i >= 0 {
			host = host[1+i:]
		} else {
			host = ""
		}
		routes, ok = g.hosts[host]
	}
	for _, r := range routes {
		if below(path, r.Prefix) {
			return r
		}
	}
	return nil
}

// below reports whether a path is the prefix or below it.
func below(path, prefix string) bool {
	return prefix == "/" || (strings.HasPrefix(path, prefix) && (len(path) == len(prefix) || path[len(prefix)] == '/'))
}

// climbs reports whether a path, decoded, has segments that are . or .., also behind
// an escaped slash or before a semicolon. What targets make of those differs, so that
// a path might be counted as one and served as another.
func climbs(path string) bool {
	for {
		i := strings.Index(path, "/.")
		if i < 0 {
			return false
		}
		path = path[i+2:]
		if rest := strings.TrimPrefix(path, "."); rest == "" || rest[0] == '/' || rest[0] == ';' {
			return true
		}
	}
}

// trip is what is known of a request on its way. It is the context of that.
type trip struct {
	context.Context
	route   *route
	verdict engine.Verdict
	peer    string // the address of the peer

	target *target // the last one that was chosen
	tried  uint64  // the targets that were
	// path and rawPath are what a target sees, behind a path of its own.
	path, rawPath string
	body          body
	forwarded     [4]string // values of headers
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

// body is the body of a request. Closed, it can still be sent to another target: it is
// the server that closes it in the end. And it knows whether it was the client's fault
// if it could not be sent.
type body struct {
	io.ReadCloser
	failed atomic.Bool
	owed   atomic.Bool // by HTTP/1, the end of it was not seen yet
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.owed.Store(false)
	case err != nil:
		b.failed.Store(true)
	}
	return n, err
}

func (*body) Close() error { return nil }

// settle has the connection of a response end with it if more of the request is to
// come: that must not be taken for the next one.
func (b *body) settle(h http.Header) {
	if b.owed.Load() {
		h.Set("Connection", "close")
	}
}

// complain logs that a request could not be decided: the first of each second, and how
// many others there were. It is clients who make requests.
func (g *Gateway) complain(ctx context.Context, to *route, err error) {
	now, last := g.now().UnixNano(), g.complained.Load()
	if now-last < int64(time.Second) || !g.complained.CompareAndSwap(last, now) {
		g.silent.Add(1)
		return
	}
	g.log.LogAttrs(ctx, slog.LevelError, "request undecided", slog.String("route", to.name), slog.Any("error", err), slog.Int64("others", g.silent.Swap(0)))
}

// ServeHTTP implements [http.Handler].
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	if climbs(r.URL.Path) {
		Problem{Status: http.StatusBadRequest, Detail: "The path has . or .. in it. Send it resolved."}.Write(w, r)
		return
	}
	to := g.find(r.Host, rule.CleanPath(path))
	switch {
	case to == nil:
		Problem{Status: http.StatusNotFound, Detail: "Nothing is served at this host and path."}.Write(w, r)
		return
	case r.Method == http.MethodConnect:
		Problem{Status: http.StatusMethodNotAllowed, Detail: "This is no proxy to connect through."}.Write(w, r)
		return
	}
	t := &trip{Context: r.Context(), route: to}
	peer := peerOf(r)
	q := engine.Request{Method: r.Method, Path: path, Headers: r.Header, Peer: peer, Cost: to.Cost}
	err := g.engine.DecideInto(t.Context, &q, &t.verdict)
	switch v := &t.verdict; {
	case err != nil && r.Context().Err() != nil:
		w.WriteHeader(statusGone)
	case err != nil:
		g.complain(r.Context(), to, err)
		undecided(w, r, err)
	case !v.Outcome.Passed():
		Refuse(w, r, g.headers, v)
	case g.maxBody > 0 && r.ContentLength > g.maxBody:
		g.headers.Set(w.Header(), v)
		g.tooLarge().Write(w, r)
	default:
		if peer.IsValid() {
			t.peer = peer.String()
		}
		g.pass(w, r, t)
	}
}

func (g *Gateway) pass(w http.ResponseWriter, r *http.Request, t *trip) {
	var ctx context.Context = t
	if t.route.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(t, t.route.Timeout)
		defer cancel()
	}
	r = r.WithContext(ctx)
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		// A target may answer while it reads. Otherwise the server would throw away what
		// has not been read by then.
		_ = http.NewResponseController(w).EnableFullDuplex() // who cannot do so is no server of net/http
		t.body.owed.Store(true)
	}
	if g.maxBody > 0 && r.Body != nil {
		r.Body = http.MaxBytesReader(w, r.Body, g.maxBody)
	}
	t.route.proxy.ServeHTTP(w, r)
}

// rewrite makes of a request what a target gets to see.
func rewrite(pr *httputil.ProxyRequest) {
	t, out := tripOf(pr.In.Context()), pr.Out
	t.path, t.rawPath = out.URL.Path, out.URL.RawPath
	if t.route.StripPrefix && t.route.Prefix != "/" {
		t.rawPath = strip(out.URL.EscapedPath(), t.route.Prefix)
		t.path, _ = url.PathUnescape(t.rawPath) // it is the end of one that was valid
	}
	next, mask := t.route.upstream.choose(0)
	t.aim(out.URL, next, mask)
	out.URL.RawQuery = pr.In.URL.RawQuery // also what net/url would not have written
	if !t.route.PreserveHost {
		out.Host = ""
	}
	if isHTTP(out.Header.Get("Upgrade")) {
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	out.Trailer = pr.In.Trailer // it is filled when the body has been read
	if out.Body != nil {
		t.body.ReadCloser = out.Body
		out.Body = &t.body
	}
	t.introduce(pr.In, out.Header)
}

// isHTTP reports whether requests could be sent by a protocol that is upgraded to.
func isHTTP(protocol string) bool {
	for _, start := range [...]string{"h2", "http/", "tls/"} {
		if len(protocol) >= len(start) && strings.EqualFold(protocol[:len(start)], start) {
			return true
		}
	}
	return false
}

// strip takes the prefix off a path that is below it, and leaves the rest spelled as
// it was.
func strip(path, prefix string) string {
	for i := range len(prefix) {
		switch {
		case prefix[i] == '/':
			path = strings.TrimLeft(path, "/")
		case path[0] == '%':
			path = path[3:]
		default:
			path = path[1:]
		}
	}
	if !strings.HasPrefix(path, "/") {
		return "/" + path
	}
	return path
}

// aim has a request go to a target.
func (t *trip) aim(u *url.URL, to *target, mask uint64) {
	t.target = to
	t.tried |= mask
	u.Scheme, u.Host = to.url.Scheme, to.url.Host
	u.Path, u.RawPath = to.url.Path+t.path, ""
	if t.rawPath != "" {
		u.RawPath = to.url.Path + t.rawPath
	}
}

// introduce says who is asking. Forwarded, X-Forwarded-For, -Host and -Proto of the
// client are not in h any more.
func (t *trip) introduce(in *http.Request, h http.Header) {
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
	} else {
		for name := range h {
			if strings.HasPrefix(name, "X-Forwarded-") {
				delete(h, name)
			}
		}
	}
	t.forwarded = [...]string{client, chain, host, proto}
	for i, name := range [...]string{"X-Real-Ip", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if t.forwarded[i] == "" {
			delete(h, name)
		} else {
			h[name] = t.forwarded[i : i+1 : i+1]
		}
	}
}

// respond puts our headers into a response. What the target says of limits of its own
// gives way, as a client could not tell whose they are; it is left where we say none.
func (g *Gateway) respond(res *http.Response) error {
	if len(res.Trailer) > 0 {
		res.Header.Del("Content-Length") // HTTP/1.1 has either a length or trailers
	}
	t := tripOf(res.Request.Context())
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.body.settle(res.Header)
	}
	v := &t.verdict
	if v.Binding() == nil {
		return nil
	}
	for _, name := range [...]string{
		"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "X-Ratelimit-Cost", "Ratelimit-Policy", "Ratelimit",
	} {
		delete(res.Header, name)
	}
	g.headers.Set(res.Header, v)
	return nil
}

// statusGone is for logs. The client it is about does not see it.
const statusGone = 499

// fail answers a request that was let pass, and got no answer.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	t := tripOf(r.Context())
	t.body.settle(w.Header())
	if errors.Is(r.Context().Err(), context.Canceled) {
		w.WriteHeader(statusGone)
		return
	}
	p := g.diagnose(r.Context(), t, err)
	if p.Status >= http.StatusInternalServerError {
		g.log.LogAttrs(r.Context(), slog.LevelWarn, "target failed", slog.String("route", t.route.name),
			slog.String("target", t.target.name), slog.Int("status", p.Status), slog.Any("error", err))
	}
	g.headers.Set(w.Header(), &t.verdict)
	p.Write(w, r)
}

// diagnose says what went wrong, and by whom. Names of targets are not for clients.
func (g *Gateway) diagnose(ctx context.Context, t *trip, err error) Problem {
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return g.tooLarge()
	case t.body.failed.Load():
		return Problem{Status: http.StatusBadRequest, Detail: "The body of the request could not be read."}
	case t.target == nil:
		return Problem{Status: http.StatusBadRequest, Detail: "The protocol to upgrade to has no valid name."}
	case ctx.Err() != nil:
		return Problem{Status: http.StatusGatewayTimeout, Detail: "The upstream timed out: the request took longer than it may."}
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

func (g *Gateway) tooLarge() Problem {
	return Problem{
		Status: http.StatusRequestEntityTooLarge,
		Detail: "The body of the request has more than " + strconv.FormatInt(g.maxBody, 10) + " bytes.",
	}
}

// buffers are what bodies are copied through, for all gateways.
var buffers bufferPool

type bufferPool struct{ pool sync.Pool }

const bufferSize = 32 << 10

func (b *bufferPool) Get() []byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p[:]
	}
	return make([]byte, bufferSize)
}

func (b *bufferPool) Put(p []byte) { b.pool.Put((*[bufferSize]byte)(p)) }

// Echo returns a handler that tells requests as it sees them, in JSON. It is something
// to point a gateway at.
func Echo() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		_ = out.Encode(struct { // the client may be gone
			Method  string      `json:"method"`
			Host    string      `json:"host"`
			Path    string      `json:"path"`
			Query   string      `json:"query,omitempty"`
			Proto   string      `json:"proto"`
			Remote  string      `json:"remote"`
			Headers http.Header `json:"headers"`
		}{r.Method, r.Host, r.URL.EscapedPath(), r.URL.RawQuery, r.Proto, r.RemoteAddr, r.Header})
	})
}
