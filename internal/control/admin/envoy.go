package admin

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
)

// EnvoyLimit is a limit of Envoy's descriptors, on the node that answers.
type EnvoyLimit struct {
	Path   string    `json:"path" doc:"The domain, and the keys and values that lead to it." example:"edge.remote_address"`
	Name   string    `json:"name,omitempty" doc:"Its name, if it has one." example:"by-address"`
	Limit  string    `json:"limit" doc:"What may pass, or unlimited." example:"100/minute"`
	Shadow bool      `json:"shadow" doc:"It is only tried out, and refuses nothing."`
	Quota  bool      `json:"quota" doc:"What is over it is told to Envoy, and passes."`
	Hits   EnvoyHits `json:"hits"`
}

// EnvoyHits are what has come of it since the node has started.
type EnvoyHits struct {
	Within uint64 `json:"within" doc:"Hits within the limit." example:"1200"`
	Near   uint64 `json:"near" doc:"Of these, those near it." example:"80"`
	Over   uint64 `json:"over" doc:"Hits over it." example:"15"`
	Shadow uint64 `json:"shadow" doc:"Of these, those that passed since it is only tried out." example:"0"`
}

// EnvoyList is what Envoy is limited by.
type EnvoyList struct {
	Served bool         `json:"served" doc:"Whether this node serves Envoy at all." example:"true"`
	Items  []EnvoyLimit `json:"items" nullable:"false"`
	Next   string       `json:"next" doc:"What after has to be, to go on; empty at the end."`
}

// addEnvoy adds what Envoy is limited by.
func (a *API) addEnvoy() {
	type input struct {
		Limit int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"At most so many." example:"100"`
		After int    `query:"after" default:"0" minimum:"0" doc:"How many to leave out, as the answer before has told it." example:"100"`
		Q     string `query:"q" maxLength:"256" doc:"A part of the path or the name." example:"remote"`
	}
	type output struct{ Body EnvoyList }
	add(a, operation{
		ID: "listEnvoyLimits", Method: http.MethodGet, Path: "/envoy", Tag: "Envoy",
		Summary:     "What Envoy is limited by",
		Description: "The limits of descriptors on the node that answers, in the order of their declaration, and how many hits each has had there since it started. They are configured in files, or by a management server, and can only be read here.",
	}, catalog.Viewer, func(_ context.Context, in *input) (*output, error) {
		out := output{EnvoyList{Items: []EnvoyLimit{}}}
		if a.options.Envoy == nil {
			return &out, nil
		}
		out.Body.Served = true
		all := a.options.Envoy()
		for i := in.After; i < len(all); i++ {
			if l := &all[i]; !strings.Contains(l.Path, in.Q) && !strings.Contains(l.Name, in.Q) {
				continue
			}
			if len(out.Body.Items) == in.Limit {
				out.Body.Next = strconv.Itoa(i)
				break
			}
			out.Body.Items = append(out.Body.Items, all[i])
		}
		return &out, nil
	})
}
