package admin

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/record"
)

const (
	// lookEvery is how often streams send the current state.
	lookEvery = time.Second
	// followEvery is how often new decisions are sent, and maxFollowed how many are kept
	// for a slow client.
	followEvery, maxFollowed = 250 * time.Millisecond, 256
)

// followSource sends decisions.
func followSource(live *record.Cluster) source {
	watch := live.Watch()
	var room []record.Event
	return source{close: watch.Close, next: func(ctx context.Context) (items []item, skipped int64) {
		room, skipped = watch.Take(ctx, room[:0])
		for _, e := range room {
			name := "decision"
			if len(e.Settled) > 0 {
				name = "settled"
			}
			items = append(items, newItems(name, NewEvent(&e), &e)...)
		}
		return items, skipped
	}}
}

// errNoLive is the error of a node without live traffic.
var errNoLive = fail(http.StatusConflict, "live traffic is not available on this node")

// LiveQuery selects nodes.
type LiveQuery struct {
	Node string `query:"node" maxLength:"512" doc:"Only what nodes with this name decided. By default, that of all nodes is added up." example:"node-7"`
}

func (a *API) addLive() {
	live := a.options.Live
	a.streams.follow = hub{every: followEvery, open: func() source { return followSource(live) }}
	conflict := []int{http.StatusConflict}

	addQuery(a, operation{
		ID: "getLive", Method: http.MethodGet, Path: "/live", Tag: tagLive, Problems: conflict,
		Summary: "Get live traffic",
		Description: "Returns what the nodes decided in the last seconds: rates, latency, rules, and the clients with the most requests. " +
			"Other nodes are those that share the database or, without one, Redis. If they cannot be read, only this node is shown, and problem says why.",
	}, catalog.Viewer, func(ctx context.Context, in *LiveQuery) (record.Snapshot, error) {
		if live == nil {
			return record.Snapshot{}, errNoLive
		}
		return live.Snapshot(ctx, in.Node), nil
	})

	add(a, operation{
		ID: "streamLive", Method: http.MethodGet, Path: "/live/stream", Tag: tagLive, Problems: conflict,
		Summary: "Stream live traffic", Description: "Streams the response of GET /live, once a second.",
		Answer: streamDoc("An event live is sent every second, with the response of GET /live."), Produces: eventStream,
	}, catalog.Viewer, func(ctx context.Context, in *LiveQuery) (*streamed, error) {
		if live == nil {
			return nil, errNoLive
		}
		h, leave := a.streams.hub("live "+in.Node, func(ctx context.Context) ([]item, int64) {
			return newItems("live", live.Snapshot(ctx, in.Node), nil), 0
		})
		return a.stream(ctx, h, newMailbox(1, nil), leave)
	})

	add(a, operation{
		ID: "followEvents", Method: http.MethodGet, Path: "/events/follow", Tag: tagRecord, Problems: conflict, Scoped: true,
		Summary: "Follow events",
		Description: "Streams decisions of all nodes: those that denied or delayed a request, those that a log_only rule would have denied, " +
			"and a sample of the others, whose weight says how many decisions they represent. At most 50 a second are sent of the node that is asked, " +
			"and 250 of all others, which are one or two seconds late, before filtering.",
		Answer: streamDoc(`An event decision is as in GET /events; an event settled is the same again, with what became of its reservation, if this node has settled it soon after; an event skipped, such as {"n":12}, says how many more were denied or delayed.`), Produces: eventStream,
	}, catalog.Viewer, func(ctx context.Context, in *EventFilter) (*streamed, error) {
		if live == nil {
			return nil, errNoLive
		}
		q, p := in.query(), personOf(ctx)
		if p.scoped() && q.Tenant != "" {
			if err := narrow(ctx, &q.Tenant); err != nil {
				return nil, err
			}
		}
		return a.stream(ctx, &a.streams.follow, newMailbox(maxFollowed, func(e *record.Event) bool { return p.Covers(e.Tenant) && wanted(&q, e) }), func() {})
	})
}

// wanted reports whether an event matches a query, whatever its time.
func wanted(q *record.EventQuery, e *record.Event) bool {
	for _, f := range [...]struct{ want, is string }{
		{q.User, e.User},
		{q.Tenant, e.Tenant},
		{q.Key, e.Key},
		{q.IP, e.IP},
		{q.Rule, e.Rule},
		{q.Endpoint, e.Endpoint},
		{q.Method, e.Method},
		{q.Region, e.Region},
		{q.Node, e.Node},
		{q.Outcome, e.Outcome.String()},
	} {
		if f.want != "" && f.want != f.is {
			return false
		}
	}
	return strings.HasPrefix(e.Path, q.Path) && (q.Shadow == nil || *q.Shadow == e.Shadow)
}
