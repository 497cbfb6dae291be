package admin_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestRegions has nodes of two regions, one of which is behind, and a node of an older version, which reports no
// region.
func TestRegions(t *testing.T) {
	t.Parallel()
	h := newTestAPI(t, func(o *admin.Options) {
		status, state := o.Status, o.NodeState
		o.Status = func() admin.Status {
			s := status()
			s.Revision = 1 << 40 // newer than what is told
			return s
		}
		o.NodeState = func() admin.NodeState {
			s := state()
			s.Region = "eu"
			return s
		}
		o.Regions = func() admin.Regions {
			return admin.Regions{
				Region: "eu", Node: "node-1", Weights: "fresh", Items: []admin.RegionInfo{{Name: "asia", Weight: 1}, {Name: "eu", Weight: 1, Self: true}, {Name: "us", Weight: 1}},
				Links: []admin.RegionLink{{Region: "us", Up: true, Delay: 80_000, Skew: -5}},
			}
		}
	})
	for name, text := range map[string]string{"us-1": `{"status":"ok","region":"us"}`, "us-2": `{"status":"ok","region":"us"}`, "old": `{"status":"ok"}`} {
		n, err := h.catalog.NewNode(catalog.NodeOptions{
			Name: name, Version: "2", Poll: time.Hour, Log: slog.New(slog.DiscardHandler), State: func() json.RawMessage { return json.RawMessage(text) },
		})
		if err == nil {
			_, err = n.First(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		n.Start(t.Context(), nil)
		defer n.Stop(t.Context())
	}
	var r admin.Regions
	wait.For(t, "both nodes of a region", func() bool {
		r = admin.Regions{}
		h.get("/regions").want(http.StatusOK).into(&r)
		return len(r.Items) == 3 && r.Items[2].Nodes == 2
	})
	if asia := r.Items[0]; asia.Nodes != 0 || asia.Revision != 0 || asia.Behind {
		t.Errorf("a region of which no node reports: %+v", asia)
	}
	if eu := r.Items[1]; !eu.Self || eu.Nodes != 1 {
		t.Errorf("this region: %+v", eu)
	}
	if us := r.Items[2]; us.Nodes != 2 || us.Self || !us.Behind {
		t.Errorf("a region that is behind: %+v", us)
	}
	if len(r.Links) != 1 || r.Links[0].Delay != 80_000 || r.Links[0].Skew != -5 || r.Streams == nil || r.Limits == nil || r.Refused == nil {
		t.Errorf("%+v", r)
	}
}

// TestNoRegions has a node without other regions.
func TestNoRegions(t *testing.T) {
	t.Parallel()
	newTestAPI(t).get("/regions").want(http.StatusOK).says(`"region":""`, `"items":[]`, `"links":[]`, `"limits":[]`, `"streams":[]`, `"refused":{}`)
}
