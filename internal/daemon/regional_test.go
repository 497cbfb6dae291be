package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// regionsText returns the configuration of one of several regions, which listen at these addresses.
func regionsText(own int, names, addresses []string, more string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[region]\nname = %q\ncentral = %q\nsecret = \"the secret of three regions\"\ninterval = \"100ms\"\n[region.listener]\naddress = %q\n", names[own], names[0], addresses[own])
	for i, name := range names {
		if i != own {
			fmt.Fprintf(&b, "[[region.peers]]\nname = %q\nurl = \"http://%s\"\n", name, addresses[i])
		}
	}
	return b.String() + more
}

const regionRules = `
[[rules]]
name = "told"
regions = "gossip"
count_by = ["ip"]
match = { paths = ["/told"] }
limits = [{ name = "l", limit = "30/1h" }]
[[rules]]
name = "far"
regions = "central"
count_by = ["ip"]
match = { paths = ["/far"] }
limits = [{ name = "l", limit = "5/1h" }]
[[rules]]
name = "part"
regions = "quota"
count_by = ["ip"]
match = { paths = ["/part"] }
limits = [{ name = "l", limit = "7/1h" }]
`

// TestRegionsTogether starts three regions: what they admit together is the limit, whichever way a rule shares it.
func TestRegionsTogether(t *testing.T) {
	t.Parallel()
	names := []string{"asia", "europe", "us"}
	var addresses []string
	for range names {
		addresses = append(addresses, testserver.FreeAddr(t))
	}
	var all []*process
	for i := range names {
		all = append(all, start(t, regionsText(i, names, addresses, regionRules)))
	}
	for _, p := range all {
		p.becomes(t, "regions", "ok", "")
	}
	ask := func(p *process, path string) bool {
		_, text := p.send(t, p.client, http.MethodPost, p.URL("http")+"/v1/check", `{"path": "`+path+`", "ip": "192.0.2.1"}`)
		return strings.Contains(text, `"allowed":true`)
	}
	// Central: five in all, wherever they are asked for.
	n := 0
	for i := range 9 {
		if ask(all[i%3], "/far") {
			n++
		}
	}
	if n != 5 {
		t.Errorf("%d of 5 admitted by a central rule", n)
	}
	// Quota: three, two and two.
	n = 0
	for range 5 {
		for _, p := range all {
			if ask(p, "/part") {
				n++
			}
		}
	}
	if n != 7 {
		t.Errorf("%d of 7 admitted by a quota", n)
	}
	// Gossip: the limit, and at most two credits of three more.
	n = 0
	for range 20 {
		for _, p := range all {
			if ask(p, "/told") {
				n++
			}
		}
	}
	if n < 30 || n > 36 {
		t.Errorf("%d admitted by a gossiped rule of 30; want at most 36", n)
	}
	if _, text := all[0].get(t, "admin", "/metrics"); !strings.Contains(text, `stint_region_bound_units{limit="told:l"} 6`) {
		t.Errorf("the bound is not among the metrics:\n%s", text)
	}
	r := regionsOf(t, all[1])
	if r.Region != "europe" || len(r.Items) != 3 || r.Items[1].Weight != 1 || !r.Items[1].Self || r.Items[1].Nodes != 1 || r.Central == nil || r.Central.Region != "asia" || !r.Central.Up || r.Alone {
		t.Errorf("%+v", r)
	}
	if l := r.Links; len(l) != 2 || l[0].Region != "asia" || l[1].Region != "us" || !l[1].Up || l[1].Peer == "" || l[1].URL != "http://"+addresses[2] || l[1].Sent == 0 || l[1].Received == 0 {
		t.Errorf("links: %+v", l)
	}
	if l := r.Limits; len(l) != 1 || l[0].Limit != "told:l" || l[0].Bound != 6 || l[0].Beyond > 6 || l[0].Admitted == 0 || l[0].Received == 0 {
		t.Errorf("limits: %+v", l)
	}
	if s := r.Streams; len(s) != 2 || s[0].Region != "asia" || s[1].Region != "us" || len(r.Refused) == 0 || r.Refused["secret"] != 0 {
		t.Errorf("streams: %+v, refused: %v", s, r.Refused)
	}
	// The central region stops: the others have their shares.
	if err := all[0].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	all[1].becomes(t, "regions", "degraded", "this region is cut off from asia")
	if ask(all[1], "/far") {
		t.Error("an exhausted central limit begins anew when the central region is away")
	}
	if r := regionsOf(t, all[1]); !r.Alone || !r.Links[0].Cut || r.Links[0].Up || r.Links[0].Why == "" {
		t.Errorf("without the central region: %+v", r)
	}
	if c := regionsOf(t, all[1]).Central; c.Up || c.Since.IsZero() || c.Reason == "" {
		t.Errorf("the central region: %+v", c)
	}
	metric := func(p *process, line string) func() bool {
		return func() bool {
			_, text := p.get(t, "admin", "/metrics")
			return strings.Contains(text, "\n"+line+"\n")
		}
	}
	wait.For(t, "another region says that it is alone", metric(all[1], `stint_region_alone{region="us"} 1`))
	other := func() bool {
		_, text := all[1].send(t, all[1].client, http.MethodPost, all[1].URL("http")+"/v1/check", `{"path": "/far", "ip": "192.0.2.2"}`)
		return strings.Contains(text, `"allowed":true`)
	}
	if !other() {
		t.Error("without the central region, a share of a central limit denies at once")
	}
	// It is back: it is charged for that.
	all[0] = start(t, regionsText(0, names, addresses, regionRules))
	nothing := metric(all[1], `stint_region_central_units_total{what="charged"} 0`)
	wait.For(t, "the central region is charged for what was admitted without it", func() bool {
		ask(all[1], "/far")
		return !nothing()
	})
}

// regionsOf returns how a node stands with other regions.
func regionsOf(t *testing.T, p *process) (r admin.Regions) {
	t.Helper()
	code, text := p.get(t, "admin", "/admin/v1/regions")
	if err := json.Unmarshal([]byte(text), &r); err != nil || code != http.StatusOK {
		t.Fatal(code, text, err)
	}
	return r
}
