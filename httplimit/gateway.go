package httplimit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/llm"
	"github.com/stintdev/stint/internal/kit/quiet"
	"github.com/stintdev/stint/rule"
)

// GatewayOptions are a gateway's settings. Engine and Routes are required.
type GatewayOptions struct {
	Engine *engine.Engine
	Routes []Route
	// Headers are the headers that tell clients about their limits. Default X, IETF and ID.
	Headers HeaderSet
	// MaxBody is how many bytes the body of a request may have. Zero: no limit.
	MaxBody int64
	// Prices are those of language models, by model, for rules with the meter llm.cost.
	Prices map[string]ModelPrice
	// Models counts what language models are used for. Default: one that no one sees.
	Models *ModelMeter
	// Logger logs failures of targets: of lines that repeat, one a second. Default: none.
	Logger *slog.Logger
	// Now is the clock for headers, and for the time that a failing target is left out. Default time.Now.
	Now func() time.Time
}

// Gateway is a reverse proxy that asks an engine about each request. It is an
// [http.Handler]: the versions of HTTP and the size of headers are up to the server that
// it runs in. Bodies are streamed both ways, and upgrades, trailers and 1xx responses are
// passed on.
//
// Targets find the client's address in X-Real-IP, and X-Forwarded-For, -Host and -Proto.
// If the peer is a trusted proxy, its X-Forwarded headers are kept and its address is
// added; otherwise they are replaced, and other X-Forwarded headers are removed. Forwarded
// is always removed. The id of the decision is in Stint-Decision, unless Headers leaves it out. Over which
// limits of mark rules the request is, and by how much, is in Stint-Over.
//
// Headers that the engine's identity accepts from trusted proxies only are removed from
// other requests, and from trailers. So are, from all requests, other spellings of them
// that a service may read as the same name: in CGI and WSGI, X_User_ID is X-User-ID. A token
// that was not accepted, and did not lead to a rejection, is removed, too. So are headers by which a target may serve
// another method or path than the one that was decided: see Route.
//
// A request that gets no connection is tried on up to two other targets. A request that
// was sent is not sent again, except by net/http itself: a GET or the like without a
// body, on a connection that the target had just closed. A target that could not be
// reached, or did not answer in time, three times in a row is left out for a second, and
// for longer if that goes on, up to 30 seconds. When all targets are left out, all are
// tried.
//
// Upgrades to a protocol that could carry further requests, such as h2c, are not passed
// on: those requests would not be counted.
//
// Under rules with a meter or limits of concurrency, a request is served until its response was passed on,
// or both directions of an upgraded connection have ended. Then its places are released, and its costs
// corrected to what was measured, in the background: see [engine.Engine.Settled].
//
// Under rules with a meter of language models, it reads up to 1 MiB of a request before that is decided, to reserve what
// it may use, and the usage that the answer reports as it passes. Where OpenAI's API would not report it in a stream, it asks
// for it, and removes that from the stream.
type Gateway struct {
	engine  *engine.Engine
	headers HeaderSet
	maxBody int64
	prices  *llm.Prices
	models  *ModelMeter
	log     *slog.Logger
	now     func() time.Time
	hosts   map[string][]*route // by host, by .domain for all names below it, and "" for any host

	mu     sync.Mutex
	stop   context.CancelFunc // ends the checks; nil if none run
	checks sync.WaitGroup
}

// ModelPrice is what a language model costs: millionths of a currency's unit for a million tokens.
type ModelPrice = llm.Price

// NewGateway returns a gateway. Call Start to begin its health checks.
func NewGateway(o GatewayOptions) (*Gateway, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = slog.New(quiet.New(o.Logger.Handler(), "route", "target", "status", "down"))
	switch {
	case o.Engine == nil:
		return nil, invalid("Engine", "nil", "what engine.New returns")
	case len(o.Routes) == 0:
		return nil, invalid("Routes", "none", "at least one")
	case o.MaxBody < 0:
		return nil, invalid("MaxBody", strconv.FormatInt(o.MaxBody, 10), "1 or more, or 0 for no limit")
	}
	if o.Models == nil {
		o.Models = new(ModelMeter)
	}
	prices, err := llm.NewPrices(o.Prices)
	if err != nil {
		return nil, err
	}
	g := &Gateway{engine: o.Engine, headers: o.Headers, maxBody: o.MaxBody, prices: prices, models: o.Models, log: o.Logger, now: o.Now, hosts: map[string][]*route{}}
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
	r.name, r.prefix = r.Host+r.Prefix, r.Prefix
	if r.IgnoreCase {
		r.prefix = rule.FoldCase(r.Prefix)
	}
	r.upstream.now, r.upstream.log = now, g.log
	for _, name := range r.Targets {
		t, err := newTarget(name, &r.Route)
		if err != nil {
			return err
		}
		r.upstream.targets = append(r.upstream.targets, t)
	}
	r.proxy = httputil.ReverseProxy{
		Rewrite: rewrite, Transport: &r.upstream, ModifyResponse: g.addHeaders, ErrorHandler: g.fail,
		// Bodies without a length are flushed at once, others soon.
		FlushInterval: 100 * time.Millisecond,
		BufferPool:    &buffers,
		ErrorLog:      log.New(errorLog{g.log}, "", 0),
	}
	key := strings.TrimPrefix(r.Host, "*")
	for _, other := range g.hosts[key] {
		if r.clashes(other) {
			return invalid("Prefix", r.Prefix, "another prefix: there is a route with this host and prefix")
		}
	}
	g.hosts[key] = append(g.hosts[key], r)
	return nil
}

// Start begins to check targets. The checks end with the context, or with Stop.
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

// Stop ends the checks, waits for them, and closes idle connections. Requests are still
// served.
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

// targets iterates over all targets of all routes.
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

// Health returns the health of all targets, sorted by route and target.
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

// errorLog logs errors of ReverseProxy, which contain what clients have sent.
type errorLog struct{ log *slog.Logger }

func (l errorLog) Write(p []byte) (int, error) {
	l.log.Debug("response failed", "error", string(bytes.TrimSpace(p)))
	return len(p), nil
}

// ServeHTTP implements [http.Handler].
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	bad := Problem{Status: http.StatusBadRequest, Detail: "The path contains . or .. segments. Send it without them."}
	if hasDots(r.URL.Path) {
		g.refuse(w, r, nil, &engine.Verdict{}, bad)
		return
	}
	to := g.find(r.Host, rule.CleanPath(path))
	switch {
	case to == nil:
		bad = Problem{Status: http.StatusNotFound, Detail: "Nothing is served at this host and path."}
	case !to.LenientPaths && isObscure(r.URL.Path):
		bad.Detail = "The path contains %00, or escapes that are escaped again, such as %2561. Send it escaped once."
	case r.Method == http.MethodConnect:
		bad = Problem{Status: http.StatusMethodNotAllowed, Detail: "CONNECT is not supported."}
	default:
		g.serve(w, r, path, to)
		return
	}
	g.refuse(w, r, to, &engine.Verdict{}, bad)
}

// serve decides a request, and passes it to its route.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, path string, to *route) {
	t := &trip{Context: r.Context(), route: to, in: r}
	peer := peerOf(r)
	q := engine.Request{Method: r.Method, Path: path, IgnoreCase: to.IgnoreCase, Headers: r.Header, Peer: peer, Cost: to.Cost}
	if g.engine.Rules().OfModels() {
		t.model = &modelCall{ctx: r.Context(), prices: g.prices, meter: g.models, maxBody: g.maxBody, path: path, body: &t.body}
		if !to.OverrideHeaders {
			t.model.method = r.Method
		}
		q.Estimate = t.model.estimator(r)
	}
	serving, err := g.engine.Serve(t.Context, &q, &t.verdict)
	if t.model != nil && (!t.model.read || t.model.idle) {
		t.model = nil // no rule that applies is about language models, or it asks them for nothing
	}
	switch v := &t.verdict; {
	case err != nil && r.Context().Err() != nil:
		w.WriteHeader(statusGone)
	case isUnread(err):
		g.refuse(w, r, to, v, unreadable(errors.Is(err, os.ErrDeadlineExceeded)))
	case err != nil:
		if !tooLong(err) {
			g.log.LogAttrs(r.Context(), slog.LevelError, "request undecided", slog.String("route", to.name), slog.Any("error", err))
		}
		if unavailable(err) {
			None.Set(w.Header(), &notNow)
		}
		g.refuse(w, r, to, v, undecidedProblem(err))
	case !v.Outcome.Passed():
		g.deny(w, r, to, v)
	case g.maxBody > 0 && r.ContentLength > g.maxBody:
		if serving != nil {
			used := engine.Usage{Meters: map[rule.Meter]int64{}}
			if t.model != nil {
				t.model.used(&used)
			}
			serving.End(used, false)
		}
		g.headers.Set(w.Header(), v)
		g.refuse(w, r, to, v, g.tooLarge())
	default:
		if peer.IsValid() {
			t.peer = peer.String()
		}
		if g.headers.Has(ID) {
			t.id = v.ID.String()
		}
		t.guard = guard{g.engine.Identity().Headers(), to.OverrideHeaders}
		if serving == nil {
			g.pass(w, w, r, t)
			return
		}
		if t.model != nil {
			t.model.serving = serving
		}
		serveUntilEnd(w, r.WithContext(t.Context), serving, t.model, func(counting http.ResponseWriter, r *http.Request) {
			t.reads = counting.(*served).meters.json
			g.pass(w, counting, r, t)
		})
	}
}
