package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// Regions is how this node stands with other regions.
type Regions struct {
	Region   string         `json:"region" doc:"The region of this node. Empty: there are no other regions, and the rest is empty." example:"eu-west"`
	Node     string         `json:"node" doc:"The name of this node." example:"node-7"`
	Items    []RegionInfo   `json:"items" nullable:"false" doc:"All regions, ordered by name."`
	Central  *CentralRegion `json:"central,omitempty" doc:"The region that has the counters of central rules, if there is one."`
	Weights  string         `json:"weights" enum:"fixed,fresh,stale" doc:"Where this node has the weights of quotas that follow demand from: the configuration, because there is no database (fixed); the database (fresh); or nowhere, because it could not read them lately, and applies the lowest part (stale)." example:"fresh"`
	Alone    bool           `json:"alone" doc:"Whether this region is cut off from another one, and applies its share of gossiped limits, or from its own store, and decides them without the others." example:"false"`
	Links    []RegionLink   `json:"links" nullable:"false" doc:"The links of this node to the other regions, ordered by region."`
	Limits   []RegionLimit  `json:"limits" nullable:"false" doc:"The gossiped limits that this node has had to do with since it started, ordered by name: at most 1024, and one more for the rest."`
	Counters int            `json:"counters" doc:"Gossiped counters of which this node has admitted something that has not recovered." example:"120"`
	Gossip   RegionGossip   `json:"gossip" doc:"What went wrong between regions since this node started."`
	Streams  []RegionStream `json:"streams" nullable:"false" doc:"The streams that nodes of other regions have to this node, ordered by region and node."`
	// Refused has no reason at a node that does not listen.
	Refused map[string]uint64 `json:"refused" doc:"Streams of other regions that this node has refused or ended since it started, by reason. Every reason is listed, if it listens." example:"{\"secret\":0,\"other_weights\":2}"`
}

// RegionInfo is a region, as the configuration and the database have it.
type RegionInfo struct {
	Name     string `json:"name" doc:"The name of the region." example:"eu-west"`
	Weight   int    `json:"weight" doc:"Its weight: it means something beside those of the others." example:"40"`
	Self     bool   `json:"self" doc:"Whether it is the region of this node." example:"true"`
	Nodes    int    `json:"nodes" doc:"How many of its nodes have reported to the database of this node within the last minute. 0: none does, or they are of an older version." example:"3"`
	Revision int64  `json:"revision" doc:"The oldest revision of the rules that these nodes use; 0 if there are none." example:"42"`
	Behind   bool   `json:"behind" doc:"Whether a node that shares the database uses a newer revision." example:"false"`
}

// CentralRegion is the region that has the counters of central rules.
type CentralRegion struct {
	Region string    `json:"region" doc:"The name of the region." example:"us-east"`
	Up     bool      `json:"up" doc:"Whether it can be reached, and decides. If not, this node applies its share of central limits." example:"true"`
	Since  time.Time `json:"since,omitzero" doc:"Since when it does not." example:"2026-01-31T12:00:00Z"`
	Reason string    `json:"reason,omitempty" doc:"Why it does not." example:"consecutive failures"`
}

// RegionLink is a link of this node to another region.
type RegionLink struct {
	Region  string    `json:"region" doc:"The other region." example:"us-east"`
	URL     string    `json:"url" doc:"Where its nodes listen." example:"https://stint.us-east.example.com:7443"`
	Up      bool      `json:"up" doc:"Whether this node is connected to it." example:"true"`
	Since   time.Time `json:"since" doc:"Since when it is, or is not." example:"2026-01-31T12:00:00Z"`
	Why     string    `json:"why,omitempty" doc:"Why it is not connected." example:"connection refused"`
	Peer    string    `json:"peer,omitempty" doc:"The node that it is connected to, or was last." example:"node-3-K5XW2A"`
	Cut     bool      `json:"cut" doc:"Whether no node of this region hears from it, so that this region applies its share of gossiped limits." example:"false"`
	Alone   bool      `json:"alone" doc:"Whether it says that it is cut off from some region, or from its own store, so that the others apply their shares." example:"false"`
	Pings   int       `json:"pings" doc:"How many pings were answered on this connection. If none was, delay and skew are unknown." example:"3600"`
	Delay   int64     `json:"round_trip_us" doc:"How long a message there and back takes, in microseconds, smoothed." example:"81000"`
	Skew    int64     `json:"skew_us" doc:"By how much the clock of the store there is ahead of the clock of the store here, in microseconds." example:"-1200"`
	Lag     int64     `json:"lag_us" doc:"How long the last batch took to be acknowledged, or takes, in microseconds." example:"95000"`
	Backlog int       `json:"backlog" doc:"Of how many counters the region has to be told." example:"12"`
	Unacked int       `json:"unacknowledged" doc:"Batches that were made and are not acknowledged." example:"1"`
	Calls   int       `json:"calls" doc:"Calls of central counters that are not answered." example:"0"`

	Sent     uint64 `json:"sent_bytes" doc:"Bytes of messages sent, since this node started." example:"1048576"`
	Received uint64 `json:"received_bytes" doc:"Bytes of messages received, since this node started." example:"524288"`
	Refused  uint64 `json:"refused" doc:"How often the other side has refused a connection, since this node started." example:"0"`
}

// RegionLimit is a gossiped limit.
type RegionLimit struct {
	Limit    string `json:"limit" doc:"The rule and its limit. Empty: further limits, together." example:"search:hourly"`
	Bound    int64  `json:"bound" doc:"How many units all regions together may admit beyond the limit: (regions - 1) x credit." example:"100"`
	Beyond   int64  `json:"beyond" doc:"The most units beyond the limit that this node has seen. Changes of what was charged, as by metered costs, do not count, and of a cost above the credit as much as the credit." example:"7"`
	Measured bool   `json:"measured" doc:"Whether that is measured: it is for fixed_window and sliding_window. Of others, beyond is 0." example:"true"`
	Admitted int64  `json:"admitted" doc:"Units that this node has admitted." example:"90000"`
	Received int64  `json:"received" doc:"Units that other regions have admitted, as this node was told." example:"60000"`
	Short    int64  `json:"short" doc:"Requests that were denied for want of credit, or of a share." example:"3"`
	Shares   int64  `json:"shares" doc:"Requests that were decided by the share of this node." example:"0"`
}

// RegionGossip counts what went wrong between regions.
type RegionGossip struct {
	Lost      int64 `json:"lost_units" doc:"Units that other regions may never learn of. What a node had not told when it was killed is not among them: nobody can count that." example:"0"`
	Refused   int64 `json:"refused_batches" doc:"Batches of others that were refused." example:"0"`
	Duplicate int64 `json:"duplicate_batches" doc:"Batches of others that came again, and were not charged again." example:"2"`
}

// RegionStream is the stream of a node of another region.
type RegionStream struct {
	Region string    `json:"region" doc:"The region of the node." example:"us-east"`
	Node   string    `json:"node" doc:"The node." example:"node-3-K5XW2A"`
	Since  time.Time `json:"since" doc:"Since when it is connected." example:"2026-01-31T12:00:00Z"`
	Pings  int       `json:"pings" doc:"How many pings it has answered. If none, delay and skew are unknown." example:"3600"`
	Delay  int64     `json:"round_trip_us" doc:"How long a message there and back takes, in microseconds, smoothed." example:"81000"`
	Skew   int64     `json:"skew_us" doc:"By how much the clock of the store there is ahead of the clock of the store here, in microseconds." example:"-1200"`
}

// regionNodesWithin is how long ago the last report of a node may be, so that its revision counts as in use.
const regionNodesWithin = time.Minute

func (a *API) addRegions() {
	addQuery(a, operation{
		ID: "getRegions", Method: http.MethodGet, Path: "/regions", Tag: tagSystem,
		Summary:     "Get the regions",
		Description: "Returns how this node stands with other regions: its links to them, what they may admit beyond gossiped limits and what was measured, and which revision of the rules each uses. Without other regions, it is empty.",
	}, catalog.Viewer, func(ctx context.Context, _ *struct{}) (Regions, error) {
		r := Regions{Weights: "fixed"}
		if a.options.Regions != nil {
			r = a.options.Regions()
		}
		err := a.findRevisions(ctx, r.Items)
		r.Items, r.Links = append([]RegionInfo{}, r.Items...), append([]RegionLink{}, r.Links...)
		r.Limits, r.Streams = append([]RegionLimit{}, r.Limits...), append([]RegionStream{}, r.Streams...)
		if r.Refused == nil {
			r.Refused = map[string]uint64{}
		}
		return r, err
	})
}

// findRevisions sets the revision that the nodes of each region use, by what they report.
func (a *API) findRevisions(ctx context.Context, regions []RegionInfo) error {
	if len(regions) == 0 {
		return nil
	}
	nodes, err := a.nodes(ctx, regionNodesWithin)
	if err != nil {
		return err
	}
	for i := range regions {
		r := &regions[i]
		for j := range nodes {
			n := &nodes[j]
			if n.State == nil || n.State.Region != r.Name {
				continue
			}
			if r.Nodes++; r.Nodes == 1 || n.Revision < r.Revision {
				r.Revision = n.Revision
			}
			r.Behind = r.Behind || n.Behind
		}
	}
	return nil
}
