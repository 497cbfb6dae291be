package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// Status is the configuration and the health of this node.
type Status struct {
	Version  string    `json:"version" doc:"The version of the program." example:"1.0.0"`
	Mode     string    `json:"mode" enum:"file,database" doc:"Where the rules are stored." example:"database"`
	File     string    `json:"file,omitempty" doc:"The file with the rules, in file mode." example:"stint.toml"`
	Database string    `json:"database" enum:"none,sqlite,postgres" doc:"The database of the catalog." example:"postgres"`
	Counters string    `json:"counters" enum:"memory,redis" doc:"Where counters are stored." example:"redis"`
	Record   bool      `json:"record" doc:"Whether decisions are recorded." example:"true"`
	Envoy    bool      `json:"envoy" doc:"Whether the node serves the rate limit service of Envoy." example:"false"`
	Revision int64     `json:"revision" doc:"The revision of the catalog in use; 0 in file mode." example:"42"`
	Rules    int       `json:"rules" doc:"The number of rules in use." example:"12"`
	Node     string    `json:"node" doc:"The name of the node." example:"node-7"`
	Region   string    `json:"region,omitempty" doc:"The name of its region. Empty: it has none." example:"eu-west"`
	Health   Health    `json:"health" doc:"Its health."`
	Doors    Doors     `json:"doors" doc:"The addresses that it listens on."`
	Now      time.Time `json:"now" doc:"The time of the node." example:"2026-01-31T12:00:00Z"`
}

// Health is the health of a node.
type Health struct {
	Status string  `json:"status" enum:"ok,degraded,not_ready" doc:"Whether the node works, works with restrictions, or should get no traffic." example:"ok"`
	Checks []Check `json:"checks" nullable:"false" doc:"The checks."`
}

// Check is the result of a health check.
type Check struct {
	Name   string `json:"name" doc:"The name of the check." example:"database"`
	Status string `json:"status" doc:"The result." example:"ok"`
	Detail string `json:"detail,omitempty" doc:"The problem, if there is one." example:"it does not answer"`
}

// Doors are the URLs of the listeners. One that is off has none.
type Doors struct {
	HTTP    string `json:"http,omitempty" doc:"The decision API." example:"http://127.0.0.1:8080"`
	Gateway string `json:"gateway,omitempty" doc:"The gateway." example:"http://127.0.0.1:8000"`
	GRPC    string `json:"grpc,omitempty" doc:"The rate limit service for Envoy." example:"http://127.0.0.1:8081"`
	Admin   string `json:"admin,omitempty" doc:"This API." example:"http://127.0.0.1:9090"`
}

// Node is a node that shares the catalog.
type Node struct {
	ID       string     `json:"id,omitempty" doc:"The id of the node, which is unique." example:"0f8a2c7e"`
	Name     string     `json:"name" doc:"The name of the node." example:"node-7"`
	Version  string     `json:"version" doc:"The version of the program." example:"1.0.0"`
	Started  time.Time  `json:"started,omitzero" doc:"When it started." example:"2026-01-31T08:00:00Z"`
	Seen     time.Time  `json:"seen" doc:"When it was last seen." example:"2026-01-31T12:00:00Z"`
	Revision int64      `json:"revision" doc:"The revision in use." example:"42"`
	Problem  string     `json:"problem,omitempty" doc:"Why it does not use the newest revision." example:"rule \"search\": unknown tier \"gold\""`
	Self     bool       `json:"self" doc:"Whether it is the node that answers." example:"true"`
	Behind   bool       `json:"behind" doc:"Whether another node uses a newer revision." example:"false"`
	State    *NodeState `json:"state,omitempty" doc:"The state that it reports."`
}

// NodeState is the state that a node reports.
type NodeState struct {
	Status   string  `json:"status" enum:"ok,degraded,not_ready" doc:"The result." example:"ok"`
	Checks   []Check `json:"checks" nullable:"false" doc:"The checks."`
	Region   string  `json:"region,omitempty" doc:"The name of its region. Empty: it has none, or is of an older version." example:"eu-west"`
	Counters string  `json:"counters" enum:"memory,redis" doc:"Where counters are stored." example:"redis"`
	Store    string  `json:"store" doc:"The state of the store." example:"ok"`
	Breaker  string  `json:"breaker" enum:"closed,open,half_open,none" doc:"The state of the circuit breakers of the store: open if the breaker of any server is. Only nodes of older versions report half_open." example:"closed"`
	Replicas int     `json:"replicas" doc:"The number of nodes that share limits while the store is unreachable." example:"3"`
	Requests float64 `json:"requests_per_second" doc:"Requests, per second." example:"1200.5"`
	Refused  float64 `json:"refused_per_second" doc:"Requests that did not pass, per second." example:"34.2"`
	P99      int64   `json:"p99_us" doc:"99th percentile of latency, in microseconds." example:"900"`
	// Servers is left out where there is one, or none.
	Servers []CounterServer `json:"servers,omitempty" doc:"The servers that have the counters, if there are several."`
}

// CounterServer is a server that has counters.
type CounterServer struct {
	Name  string  `json:"name" doc:"Its address." example:"10.0.0.7:6379"`
	Up    bool    `json:"up" doc:"Whether it makes decisions." example:"true"`
	Share float64 `json:"share" doc:"The part of all subjects that it has, from 0 to 1." example:"0.334"`
}

// NodeList is all nodes.
type NodeList struct {
	Items []Node `json:"items" nullable:"false" doc:"The nodes seen within the last hour, ordered by name. A node that shuts down is removed at once."`
}

// Setting is a setting of this node.
type Setting struct {
	Name   string `json:"name" doc:"The name in the config file." example:"server.admin.address"`
	Env    string `json:"env" doc:"The environment variable." example:"STINT_SERVER_ADMIN_ADDRESS"`
	Value  string `json:"value" doc:"The value; secrets are masked." example:"127.0.0.1:9090"`
	Origin string `json:"origin" doc:"Where the value comes from." example:"default"`
	Doc    string `json:"doc" doc:"The description." example:"Where the admin API listens."`
}

// SettingList is all settings.
type SettingList struct {
	Items []Setting `json:"items" nullable:"false" doc:"All settings, including those that are not set."`
}

// nodesWithin is how long a node is shown after its last report.
const nodesWithin = time.Hour

func (a *API) addStatus() {
	addQuery(a, operation{
		ID: "getStatus", Method: http.MethodGet, Path: "/status", Tag: tagSystem, Scoped: true,
		Summary: "Get the status", Description: "Returns the configuration and the health of this node. Who is restricted to tenants gets only what is needed to use it.",
	}, catalog.Viewer, func(ctx context.Context, _ *struct{}) (Status, error) {
		s := a.status()
		if p := personOf(ctx); p.scoped() {
			s = Status{Version: s.Version, Mode: s.Mode, Database: s.Database, Counters: s.Counters, Record: s.Record, Revision: s.Revision, Health: Health{Status: s.Health.Status, Checks: []Check{}}, Now: s.Now}
		}
		return s, nil
	})

	addQuery(a, operation{
		ID: "listNodes", Method: http.MethodGet, Path: "/nodes", Tag: tagSystem,
		Summary: "List nodes", Description: "Returns the nodes that share the catalog, and the state that each reports.",
	}, catalog.Viewer, func(ctx context.Context, _ *struct{}) (NodeList, error) {
		all, err := a.nodes(ctx, nodesWithin)
		return NodeList{all}, err
	})

	addQuery(a, operation{
		ID: "listSettings", Method: http.MethodGet, Path: "/settings", Tag: tagSystem,
		Summary: "List settings", Description: "Returns the settings of this node: their values, where these come from, and what they do. Secrets are masked.",
	}, catalog.Administrator, func(context.Context, *struct{}) (SettingList, error) {
		if a.options.Settings == nil {
			return SettingList{[]Setting{}}, nil
		}
		return SettingList{a.options.Settings()}, nil
	})
}

func (a *API) status() Status {
	var s Status
	if a.options.Status != nil {
		s = a.options.Status()
	}
	s.Health.Checks = append([]Check{}, s.Health.Checks...)
	s.Now = a.now().UTC()
	return s
}

// nodes returns the nodes that were seen within this time; without a catalog, only this one.
func (a *API) nodes(ctx context.Context, within time.Duration) ([]Node, error) {
	status := a.status()
	var state *NodeState
	if a.options.NodeState != nil {
		state = new(a.options.NodeState())
		state.Checks = append([]Check{}, state.Checks...)
	}
	if a.options.Catalog == nil {
		return []Node{{Name: status.Node, Version: status.Version, Seen: status.Now, Self: true, State: state}}, nil
	}
	all, err := a.options.Catalog.Nodes(ctx, within)
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
			out[i].State = state // which is newer than its last report
		}
	}
	for i := range out {
		out[i].Behind = out[i].Revision < newest
	}
	return out, nil
}

// stateOf returns the state that a node reported, which may be of another version.
func stateOf(text json.RawMessage) *NodeState {
	var s NodeState
	if text == nil || json.Unmarshal(text, &s) != nil {
		return nil
	}
	s.Checks = append([]Check{}, s.Checks...)
	return &s
}
