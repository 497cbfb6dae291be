package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/httplimit"
)

// gateway forwards requests to the upstreams of the configuration in use. When these
// change, running requests finish with the old ones.
type gateway struct {
	engine  *engine.Engine
	headers httplimit.HeaderSet
	maxBody int64
	models  httplimit.ModelMeter
	log     *slog.Logger

	current  atomic.Pointer[upstreams]
	retiring sync.WaitGroup
}

// upstreams is a gateway to the upstreams of one configuration.
type upstreams struct {
	*httplimit.Gateway // nil: there are none
	settings           []Upstream
	prices             []Price
	requests           inflight
}

// prepare returns the upstreams of a configuration: those in use if nothing has changed,
// with their connections and the health of their targets.
func (g *gateway) prepare(c *Config) (*upstreams, error) {
	u := g.current.Load()
	if u != nil && reflect.DeepEqual(u.settings, c.Upstreams) && slices.Equal(u.prices, c.Prices) {
		return u, nil
	}
	u = &upstreams{settings: c.Upstreams, prices: c.Prices}
	routes := c.routes()
	if len(routes) == 0 {
		return u, nil
	}
	var err error
	u.Gateway, err = httplimit.NewGateway(httplimit.GatewayOptions{
		Engine: g.engine, Routes: routes, Headers: g.headers, MaxBody: g.maxBody, Prices: c.prices(), Models: &g.models, Logger: g.log,
	})
	return u, err
}

// use forwards requests to these upstreams from now on. The previous ones are closed when
// their last request has ended.
func (g *gateway) use(ctx context.Context, u *upstreams) {
	before := g.current.Swap(u)
	if before == u {
		return
	}
	if u.Gateway != nil {
		_ = u.Start(context.WithoutCancel(ctx)) // until it is stopped; it never fails
	}
	if before != nil && before.Gateway != nil {
		g.retiring.Go(func() { before.close(context.WithoutCancel(ctx)) })
	}
}

// close closes the upstreams when no request uses them.
func (u *upstreams) close(ctx context.Context) {
	_ = u.requests.wait(ctx)
	_ = u.Stop(ctx)
}

// stop closes all upstreams. No request may come any more.
func (g *gateway) stop(ctx context.Context) {
	if u := g.current.Load(); u != nil && u.Gateway != nil {
		u.close(ctx)
	}
	g.retiring.Wait()
}

// enter returns the upstreams in use, with one more request.
func (g *gateway) enter() *upstreams {
	for {
		u := g.current.Load()
		u.requests.add()
		if u == g.current.Load() {
			return u
		}
		u.requests.done()
	}
}

// ServeHTTP implements [http.Handler].
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u := g.enter()
	defer u.requests.done()
	if u.Gateway == nil {
		httplimit.Problem{Status: http.StatusNotFound, Detail: "No upstream is configured."}.Write(w, r)
		return
	}
	u.ServeHTTP(w, r)
}

// health returns the health of the targets.
func (g *gateway) health() []httplimit.TargetHealth {
	if u := g.current.Load(); u != nil && u.Gateway != nil {
		return u.Health()
	}
	return nil
}
