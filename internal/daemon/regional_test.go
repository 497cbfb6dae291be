package daemon_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testserver"
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
	// The central region stops: the others have their shares.
	if err := all[0].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	all[1].becomes(t, "regions", "degraded", "this region is cut off from asia")
	if ask(all[1], "/far") {
		t.Error("an exhausted central limit begins anew when the central region is away")
	}
}
