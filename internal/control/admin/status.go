package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// Status is how the node that answers is.
type Status struct {
	Version  string    `json:"version" doc:"The version of the program." example:"1.0.0"`
	Mode     string    `json:"mode" enum:"file,database" doc:"Where the rules are." example:"database"`
	File     string    `json:"file,omitempty" doc:"The file that the rules are in, if they are." example:"stint.toml"`
	Database string    `json:"database" enum:"none,sqlite,postgres" doc:"What the catalog is in." example:"postgres"`
	Counters string    `json:"counters" enum:"memory,redis" doc:"What counts." example:"redis"`
	Record   bool      `json:"record" doc:"Whether there is a record of decisions." example:"true"`
	Envoy    bool      `json:"envoy" doc:"Whether Envoy is served, as by envoyproxy/ratelimit." example:"false"`
	Revision int64     `json:"revision" doc:"The revision of the catalog that is in use; 0 of a file." example:"42"`
	Rules    int       `json:"rules" doc:"How many rules are in use." example:"12"`
	Node     string    `json:"node" doc:"The name of the node." example:"node-7"`
	Health   Health    `json:"health" doc:"How it is."`
	Doors    Doors     `json:"doors" doc:"Where it listens."`
	Now      time.Time `json:"now" doc:"Its clock." example:"2026-01-31T12:00:00Z"`
}

// Health is how a node is.
type Health struct {
	Status string  `json:"status" enum:"ok,degraded,not_ready" doc:"Whether it works as it should, works all the same, or should not be asked." example:"ok"`
	Checks []Check `json:"checks" nullable:"false" doc:"What that rests on."`
}

// Check is one thing that a node looks at.
type Check struct {
	Name   string `json:"name" doc:"What it is." example:"database"`
	Status string `json:"status" doc:"How it is." example:"ok"`
	Detail string `json:"detail,omitempty" doc:"What is wrong with it." example:"it does not answer"`
}

// Doors are the URLs of what listens. One that does not has none.
type Doors struct {
	HTTP    string `json:"http,omitempty" doc:"The decision API." example:"http://127.0.0.1:8080"`
	Gateway string `json:"gateway,omitempty" doc:"The gateway." example:"http://127.0.0.1:8000"`
	GRPC    string `json:"grpc,omitempty" doc:"What Envoy asks." example:"http://127.0.0.1:8081"`
	Admin   string `json:"admin,omitempty" doc:"This API." example:"http://127.0.0.1:9090"`
}

// Node is a node, as the others see it.
type Node struct {
	ID       string     `json:"id,omitempty" doc:"Tells it from others of its name." example:"0f8a2c7e"`
	Name     string     `json:"name" doc:"Its name." example:"node-7"`
	Version  string     `json:"version" doc:"The version of its program." example:"1.0.0"`
	Started  time.Time  `json:"started,omitzero" doc:"When it has started." example:"2026-01-31T08:00:00Z"`
	Seen     time.Time  `json:"seen" doc:"When it was last seen." example:"2026-01-31T12:00:00Z"`
	Revision int64      `json:"revision" doc:"The revision that it serves." example:"42"`
	Problem  string     `json:"problem,omitempty" doc:"Why it does not serve the newest." example:"rule \"search\": unknown tier \"gold\""`
	Self     bool       `json:"self" doc:"It is the one that answers." example:"true"`
	Behind   bool       `json:"behind" doc:"Another serves a newer revision." example:"false"`
	State    *NodeState `json:"state,omitempty" doc:"What it says of itself."`
}

// NodeState is what a node says of itself.
type NodeState struct {
	Status   string  `json:"status" enum:"ok,degraded,not_ready" doc:"How it is." example:"ok"`
	Checks   []Check `json:"checks" nullable:"false" doc:"What that rests on."`
	Counters string  `json:"counters" enum:"memory,redis" doc:"What counts." example:"redis"`
	Store    string  `json:"store" doc:"How what counts is." example:"ok"`
	Breaker  string  `json:"breaker" enum:"closed,open,half_open,none" doc:"Whether it is asked." example:"closed"`
	Replicas int     `json:"replicas" doc:"How many nodes it shares limits with, while what counts is away." example:"3"`
	Requests float64 `json:"requests_per_second" doc:"How many requests it decides." example:"1200.5"`
	Refused  float64 `json:"refused_per_second" doc:"How many it refuses." example:"34.2"`
	P99      int64   `json:"p99_us" doc:"What 99 in 100 decisions take at most, in microseconds." example:"900"`
}

// NodeList is all nodes.
type NodeList struct {
	Items []Node `json:"items" nullable:"false" doc:"The nodes that were seen within the last hour, by name. One that has stopped as it should is gone at once."`
}

// Setting is a setting of the node that answers.
type Setting struct {
	Name   string `json:"name" doc:"Where it stands in the config." example:"server.admin.address"`
	Env    string `json:"env" doc:"The variable of the environment that sets it." example:"STINT_SERVER_ADMIN_ADDRESS"`
	Value  string `json:"value" doc:"What it is; a secret is not shown." example:"127.0.0.1:9090"`
	Origin string `json:"origin" doc:"Who says so." example:"default"`
	Doc    string `json:"doc" doc:"What it does." example:"Where the admin API listens."`
}

// SettingList is all settings.
type SettingList struct {
	Items []Setting `json:"items" nullable:"false" doc:"All settings, those that no one has set, too."`
}

// nodesWithin is how long a node that does not beat any more is shown.
const nodesWithin = time.Hour

func (a *API) addStatus() {
	add(a, operation{
		ID: "getStatus", Method: http.MethodGet, Path: "/status", Tag: tagSystem,
		Summary: "How this node is", Description: "Returns what the node that answers is made of, and how it is.",
	}, catalog.Viewer, func(context.Context, *struct{}) (*struct{ Body Status }, error) {
		return &struct{ Body Status }{a.status()}, nil
	})

	add(a, operation{
		ID: "listNodes", Method: http.MethodGet, Path: "/nodes", Tag: tagSystem,
		Summary: "All nodes", Description: "Returns the nodes that share the catalog, and what each says of itself.",
	}, catalog.Viewer, func(ctx context.Context, _ *struct{}) (*struct{ Body NodeList }, error) {
		all, err := a.nodes(ctx)
		return &struct{ Body NodeList }{NodeList{all}}, err
	})

	add(a, operation{
		ID: "listSettings", Method: http.MethodGet, Path: "/settings", Tag: tagSystem,
		Summary: "How this node is set up", Description: "Returns the settings of the node that answers, where each comes from and what it does. Secrets are not shown.",
	}, catalog.Administrator, func(context.Context, *struct{}) (*struct{ Body SettingList }, error) {
		list := SettingList{Items: []Setting{}}
		if a.options.Settings != nil {
			list.Items = append(list.Items, a.options.Settings()...)
		}
		return &struct{ Body SettingList }{list}, nil
	})
}

func (a *API) status() Status {
	var s Status
	if a.options.Status != nil {
		s = a.options.Status()
	}
	if s.Health.Checks == nil {
		s.Health.Checks = []Check{}
	}
	s.Now = a.now().UTC()
	return s
}

// nodes returns all nodes; without a catalog, that is this one.
func (a *API) nodes(ctx context.Context) ([]Node, error) {
	status := a.status()
	var state *NodeState
	if a.options.NodeState != nil {
		s := a.options.NodeState()
		if s.Checks == nil {
			s.Checks = []Check{}
		}
		state = &s
	}
	if a.options.Catalog == nil {
		return []Node{{Name: status.Node, Version: status.Version, Seen: status.Now, Self: true, State: state}}, nil
	}
	all, err := a.options.Catalog.Nodes(ctx, nodesWithin)
	if err != nil {
		return nil, err
	}
	out, newest := make([]Node, len(all)), status.Revision
	for i := range all {
		n := &all[i]
		newest = max(newest, n.Revision)
		out[i] = Node{
			ID: n.ID, Name: n.Name, Version: n.Version, Started: n.Started, Seen: n.Seen, Revision: n.Revision, Problem: n.Problem,
			Self: n.ID == a.options.NodeID && n.ID != "", State: stateOf(n.State),
		}
		if out[i].Self && state != nil {
			out[i].State = state // which is newer than what it has last told
		}
	}
	for i := range out {
		out[i].Behind = out[i].Revision < newest
	}
	return out, nil
}

// stateOf returns what a node has said of itself, which may be of another version.
func stateOf(text json.RawMessage) *NodeState {
	s := NodeState{Checks: []Check{}}
	if text == nil || json.Unmarshal(text, &s) != nil {
		return nil
	}
	if s.Checks == nil {
		s.Checks = []Check{}
	}
	return &s
}
