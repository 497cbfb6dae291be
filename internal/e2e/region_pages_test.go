package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testserver"
)

// TestRegionPages looks at the pages of regions, and of a gossiped rule, with three regions, of which one then goes
// away. It writes screenshots like TestDashboardPages.
func TestRegionPages(t *testing.T) {
	t.Parallel()
	names := []string{"asia", "europe", "us"}
	listeners := [3]string{testserver.FreeAddr(t), testserver.FreeAddr(t), testserver.FreeAddr(t)}
	var all []*site
	for own, name := range names {
		var b strings.Builder
		fmt.Fprintf(&b, "[region]\nname = %q\ncentral = \"asia\"\nsecret = \"the secret of three regions\"\ninterval = \"100ms\"\n[region.listener]\naddress = %q\n", name, listeners[own])
		for i, peer := range names {
			if i != own {
				fmt.Fprintf(&b, "[[region.peers]]\nname = %q\nurl = \"http://%s\"\n", peer, listeners[i])
			}
		}
		b.WriteString("[[rules]]\nname = \"search\"\nregions = \"gossip\"\ncount_by = [\"ip\"]\nlimits = [{ name = \"hourly\", limit = \"300/1h\" }]\n")
		s := &site{server: serve(t, b.String(), "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0", "STINT_SERVER_ADMIN_TOKEN="+adminToken, "STINT_SERVER_CATALOG_NODE="+name+"-1")}
		s.findAdmin(t)
		all = append(all, s)
	}
	w := all[1].signIn(t, wide)
	w.open("/")
	w.injectAxe()
	w.visit(at("/regions"))
	w.settled("Regions")
	w.says("europe-1 in europe is connected to 2 other regions")
	for i := range 120 {
		if err := post(http.DefaultClient, all[i%3].api+"/v1/check", `{"path": "/", "ip": "192.0.2.1"}`, new(struct{ Allowed bool })); err != nil {
			t.Fatal(err)
		}
	}
	w.says("search:hourly", "Declared beyond")
	w.looks("regions", wide, "All is well", "search:hourly")
	w.visit(at("/rules/edit/search"))
	w.settled("search")
	w.looks("rule-gossiped", wide, "Between regions", "At most 60 units beyond the limit")

	all[0].stop(t)
	phone := all[1].signIn(t, narrow)
	phone.open("/")
	phone.injectAxe()
	phone.visit(at("/regions"))
	phone.looks("regions-cut", narrow, "This region is cut off from asia", "cut off", "search:hourly")
	w.visit(at("/regions"))
	w.looks("regions-cut", wide, "This region is cut off from asia", "connection refused")
}
