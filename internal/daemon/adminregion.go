package daemon

import (
	"strings"

	"google.golang.org/grpc/status"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/region"
	"github.com/stintdev/stint/internal/region/gossip"
)

// regions returns how this node stands with other regions, for the API. There are some.
func (d *Daemon) regions() admin.Regions {
	r := d.regional
	stats := r.gossip.Stats()
	out := admin.Regions{
		Region: r.own, Node: d.config.nodeName(), Weights: "fixed", Alone: r.gossip.Alone(), Counters: stats.Counters,
		Gossip: admin.RegionGossip{Lost: stats.Lost, Refused: stats.Refused, Duplicate: stats.Duplicate},
	}
	urls := map[string]string{}
	for _, w := range r.all {
		out.Items = append(out.Items, admin.RegionInfo{Name: w.name, Weight: w.weight, Self: w.name == r.own})
		urls[w.name] = w.url
	}
	if r.central != "" {
		since, reason := r.centralAway()
		out.Central = &admin.CentralRegion{Region: r.central, Up: since.IsZero(), Since: since.UTC(), Reason: reason}
	}
	if r.weights != nil {
		if out.Weights = "fresh"; !r.weights.Fresh() {
			out.Weights = "stale"
		}
	}
	for _, s := range r.links.States() {
		out.Links = append(out.Links, newRegionLink(&s, urls[s.Link.Region]))
	}
	for i := range stats.Limits {
		out.Limits = append(out.Limits, newRegionLimit(&stats.Limits[i]))
	}
	if r.server == nil {
		return out
	}
	for _, p := range r.server.Peers() {
		out.Streams = append(out.Streams, admin.RegionStream{
			Region: p.Region, Node: p.Node, Since: p.Since.UTC(), Pings: p.Pings, Delay: p.RoundTrip.Microseconds(), Skew: p.Skew.Microseconds(),
		})
	}
	out.Refused = map[string]uint64{}
	for reason, n := range r.server.Refused() {
		out.Refused[string(reason)] = n
	}
	return out
}

func newRegionLink(s *region.State, url string) admin.RegionLink {
	l, t := &s.Link, &s.Told
	out := admin.RegionLink{
		Region: l.Region, URL: url, Up: l.Up, Since: l.Since.UTC(), Peer: l.Server.Node, Cut: t.Cut, Alone: t.Alone,
		Pings: l.Pings, Delay: l.RoundTrip.Microseconds(), Skew: l.Skew.Microseconds(), Lag: t.Lag.Microseconds(),
		Backlog: t.Backlog, Unacked: t.Unacknowledged, Calls: l.Calls, Sent: l.Sent, Received: l.Received, Refused: l.Refused,
	}
	out.Why = whyDown(l.Why)
	return out
}

// whyDown returns why a link is down, without what gRPC says around it.
func whyDown(err error) string {
	if err == nil {
		return ""
	}
	text := status.Convert(err).Message() // the code says no more
	if inner, ok := strings.CutPrefix(text, `connection error: desc = "transport: `); ok {
		text = strings.TrimPrefix(strings.TrimSuffix(inner, `"`), "Error while dialing: ")
	}
	return text
}

func newRegionLimit(l *gossip.LimitStats) admin.RegionLimit {
	return admin.RegionLimit{
		Limit: l.Limit, Bound: l.Bound, Beyond: l.Beyond, Measured: l.Measured, Admitted: l.Admitted, Received: l.Received, Short: l.Short, Shares: l.Shares,
	}
}
