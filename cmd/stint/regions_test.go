package main_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
)

// TestRegions shows regions that work together, that do not, and none.
func TestRegions(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	well := admin.Regions{
		Region: "eu", Node: "node-1", Weights: "fresh", Central: &admin.CentralRegion{Region: "us", Up: true}, Counters: 3,
		Items: []admin.RegionInfo{{Name: "eu", Weight: 40, Self: true, Nodes: 3, Revision: 42}, {Name: "us", Weight: 60, Nodes: 2, Revision: 41, Behind: true}},
		Links: []admin.RegionLink{{
			Region: "us", URL: "https://us:7443", Up: true, Since: at, Peer: "node-9-K5XW2A", Pings: 12, Delay: 81_000, Skew: -1200, Lag: 95_000, Backlog: 2, Unacked: 1, Sent: 2048, Received: 1024,
		}},
		Limits:  []admin.RegionLimit{{Limit: "search:n", Bound: 50, Beyond: 7, Measured: true, Admitted: 900, Received: 1200, Short: 1}, {Bound: 5}},
		Streams: []admin.RegionStream{}, Refused: map[string]uint64{"secret": 0},
	}
	ill := well
	ill.Alone, ill.Weights, ill.Refused = true, "stale", map[string]uint64{"secret": 2, "other_weights": 1}
	ill.Central = &admin.CentralRegion{Region: "us", Since: at, Reason: "5 failures in a row"}
	ill.Links = []admin.RegionLink{{Region: "us", Since: at, Why: "connection refused", Cut: true, Lag: 12_000_000, Backlog: 900}}
	ill.Limits = []admin.RegionLimit{{Limit: "search:n", Bound: 50, Beyond: 51, Measured: true, Shares: 77}}
	var got strings.Builder
	for _, c := range []struct {
		name string
		r    admin.Regions
		args string
	}{{"well", well, ""}, {"well", well, " -o csv"}, {"well", well, " -o json"}, {"ill", ill, ""}, {"none", admin.Regions{}, ""}} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(c.r)
		}))
		defer s.Close()
		line := "regions" + c.args
		got.WriteString(transcript(t, line+" # "+c.name, strings.Fields(line), []string{"STINT_SERVER=" + s.URL, "STINT_TOKEN=" + adminToken}))
	}
	compare(t, "testdata/regions.txt", got.String())
}
