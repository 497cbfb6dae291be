package admin

import (
	"context"
	"net/http"
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
func followSource(tap *record.Tap) source {
	watch := tap.Watch()
	var room []record.Event
	return source{close: watch.Close, next: func(context.Context) (items []item, skipped int64) {
		room, skipped = watch.Take(room[:0])
		for _, e := range room {
			items = append(items, newItems("decision", NewEvent(&e), &e)...)
		}
		return items, skipped
	}}
}

// errNoLive is the error of a node without live traffic.
var errNoLive = fail(http.StatusConflict, "live traffic is not available on this node")

func (a *API) addLive() {
	live, tap := a.options.Live, a.options.Tap
	a.streams.live = hub{every: lookEvery, latest: true, open: func() source {
		return source{next: func(context.Context) ([]item, int64) { return newItems("live", live.Snapshot(), nil), 0 }}
	}}
	a.streams.follow = hub{every: followEvery, open: func() source { return followSource(tap) }}
	a.streams.usage = map[string]*hub{}
	conflict := []int{http.StatusConflict}

	addQuery(a, operation{
		ID: "getLive", Method: http.MethodGet, Path: "/live", Tag: tagLive, Problems: conflict,
		Summary:     "Get live traffic",
		Description: "Returns what this node decided in the last seconds: rates, latency, rules, and the clients with the most requests.",
	}, catalog.Viewer, func(context.Context, *struct{}) (record.Snapshot, error) {
		if live == nil {
			return record.Snapshot{}, errNoLive
		}
		return live.Snapshot(), nil
	})

	add(a, operation{
		ID: "streamLive", Method: http.MethodGet, Path: "/live/stream", Tag: tagLive, Problems: conflict,
		Summary: "Stream live traffic", Description: "Streams the response of GET /live, once a second.",
		Answer: streamDoc("An event live is sent every second, with the response of GET /live."), Produces: eventStream,
	}, catalog.Viewer, func(ctx context.Context, _ *struct{}) (*streamed, error) {
		if live == nil {
			return nil, errNoLive
		}
		return a.stream(ctx, &a.streams.live, newMailbox(1, nil), func() {})
	})

	add(a, operation{
		ID: "followEvents", Method: http.MethodGet, Path: "/events/follow", Tag: tagRecord, Problems: conflict,
		Summary: "Follow events",
		Description: "Streams decisions of this node: those that denied or delayed a request, those that a log_only rule would have denied, " +
			"and a sample of the others, whose weight says how many decisions they represent. At most 50 a second are sent, before filtering.",
		Answer: streamDoc(`An event decision is as in GET /events; an event skipped, such as {"n":12}, says how many more were denied or delayed.`), Produces: eventStream,
	}, catalog.Viewer, func(ctx context.Context, in *EventFilter) (*streamed, error) {
		if tap == nil {
			return nil, errNoLive
		}
		q := in.query()
		return a.stream(ctx, &a.streams.follow, newMailbox(maxFollowed, func(e *record.Event) bool { return wanted(&q, e) }), func() {})
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
	return q.Shadow == nil || *q.Shadow == e.Shadow
}
