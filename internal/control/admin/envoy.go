package admin

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
)

// EnvoyLimit is a limit of an Envoy descriptor on this node.
type EnvoyLimit struct {
	Path   string    `json:"path" doc:"The domain, and the keys and values of the descriptor." example:"edge.remote_address"`
	Name   string    `json:"name,omitempty" doc:"The name, if it has one." example:"by-address"`
	Limit  string    `json:"limit" doc:"The limit, or unlimited." example:"100/minute"`
	Shadow bool      `json:"shadow" doc:"Whether the limit is in shadow mode and denies nothing."`
	Quota  bool      `json:"quota" doc:"Whether hits over the limit pass, unless all quotas of the request are used up."`
	Hits   EnvoyHits `json:"hits"`
}

// EnvoyHits counts hits since the node started.
type EnvoyHits struct {
	Within uint64 `json:"within" doc:"Hits within the limit." example:"1200"`
	Near   uint64 `json:"near" doc:"Of these, hits near the limit." example:"80"`
	Over   uint64 `json:"over" doc:"Hits over the limit." example:"15"`
	Shadow uint64 `json:"shadow" doc:"Of these, hits that passed because of shadow mode." example:"0"`
}

// EnvoySkipped is a file or a directory that was not read.
type EnvoySkipped struct {
	Path string `json:"path" doc:"The path on this node." example:"/data/ratelimit/config/.shop.yaml"`
	Why  string `json:"why" doc:"Why it was not read." example:"its name begins with a dot"`
}

// EnvoyList is a page of limits.
type EnvoyList struct {
	Served  bool           `json:"served" doc:"Whether this node serves Envoy." example:"true"`
	Items   []EnvoyLimit   `json:"items" nullable:"false"`
	Skipped []EnvoySkipped `json:"skipped,omitempty" doc:"The first 100 files and directories in envoy.config that were not read: their limits do not apply."`
	Next    string         `json:"next" doc:"The value of after for the next page. Empty on the last page."`
}

// maxSkipped is how many skipped files are shown.
const maxSkipped = 100

// addEnvoy adds the operation that lists limits of Envoy.
func (a *API) addEnvoy() {
	type input struct {
		Limit int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"100"`
		After int    `query:"after" default:"0" minimum:"0" doc:"How many to skip: the next of the previous page." example:"100"`
		Q     string `query:"q" maxLength:"256" doc:"A part of the path or of the name." example:"remote"`
	}
	addQuery(a, operation{
		ID: "listEnvoyLimits", Method: http.MethodGet, Path: "/envoy", Tag: tagEnvoy,
		Summary:     "List Envoy limits",
		Description: "Returns the limits of Envoy descriptors on this node, in the order of their declaration, and the hits of each since the node started. They are configured in files or by a management server, and are read-only here.",
	}, catalog.Viewer, func(_ context.Context, in *input) (EnvoyList, error) {
		out := EnvoyList{Items: []EnvoyLimit{}}
		if a.options.Envoy == nil {
			return out, nil
		}
		out.Served = true
		all, skipped := a.options.Envoy()
		out.Skipped = skipped[:min(len(skipped), maxSkipped)]
		for i := in.After; i < len(all); i++ {
			if l := &all[i]; !strings.Contains(l.Path, in.Q) && !strings.Contains(l.Name, in.Q) {
				continue
			}
			if len(out.Items) == in.Limit {
				out.Next = strconv.Itoa(i)
				break
			}
			out.Items = append(out.Items, all[i])
		}
		return out, nil
	})
}
