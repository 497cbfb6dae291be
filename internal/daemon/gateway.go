package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
)

// gateway passes requests on to the upstreams of the configuration in use. When these
// change, requests that have begun end with those they began with.
type gateway struct {
	engine  *engine.Engine
	headers httplimit.HeaderSet
	maxBody int64
	log     *slog.Logger

	current  atomic.Pointer[passage]
	retiring sync.WaitGroup
}

// passage is a gateway to the upstreams of one configuration.
type passage struct {
	*httplimit.Gateway // nil: there are none
	upstreams          []Upstream
	requests           inflight
}

// prepare returns a passage to the upstreams of a configuration: the one in use, if
// they are the same. Its connections, and what it knows of targets, are kept then.
func (g *gateway) prepare(c *Config) (*passage, error) {
	p := g.current.Load()
	if p != nil && reflect.DeepEqual(p.upstreams, c.Upstreams) {
		return p, nil
	}
	p = &passage{upstreams: c.Upstreams}
	routes := c.routes()
	if len(routes) == 0 {
		return p, nil
	}
	var err error
	p.Gateway, err = httplimit.NewGateway(httplimit.GatewayOptions{
		Engine: g.engine, Routes: routes, Headers: g.headers, MaxBody: g.maxBody, Logger: g.log,
	})
	return p, err
}

// use has requests take the passage from now on. That before it is closed when the
// last of its requests has ended.
func (g *gateway) use(ctx context.Context, p *passage) {
	before := g.current.Swap(p)
	if before == p {
		return
	}
	if p.Gateway != nil {
		_ = p.Start(context.WithoutCancel(ctx)) // until it is stopped; it never fails
	}
	if before != nil && before.Gateway != nil {
		g.retiring.Go(func() { before.close(context.WithoutCancel(ctx)) })
	}
}

// close ends a passage when no request is on its way.
func (p *passage) close(ctx context.Context) {
	_ = p.requests.wait(ctx)
	_ = p.Stop(ctx)
}

// stop closes all passages. No request may come any more.
func (g *gateway) stop(ctx context.Context) {
	if p := g.current.Load(); p != nil && p.Gateway != nil {
		p.close(ctx)
	}
	g.retiring.Wait()
}

// enter returns the passage in use, in which a request is from now on.
func (g *gateway) enter() *passage {
	for {
		p := g.current.Load()
		p.requests.add()
		if p == g.current.Load() {
			return p
		}
		p.requests.done()
	}
}

// ServeHTTP implements [http.Handler].
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := g.enter()
	defer p.requests.done()
	if p.Gateway == nil {
		httplimit.Problem{Status: http.StatusNotFound, Detail: "Nothing is served here."}.Write(w, r)
		return
	}
	p.ServeHTTP(w, r)
}

// health tells how targets are doing.
func (g *gateway) health() []httplimit.TargetHealth {
	if p := g.current.Load(); p != nil && p.Gateway != nil {
		return p.Health()
	}
	return nil
}
