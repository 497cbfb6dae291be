package e2e_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
)

// TestLeasedRule has two nodes with a rule whose limit is leased and divided, on a Cluster. They decide by
// themselves, admit exactly the limit together, and show what they have done. A node that stops gives back
// what it holds.
func TestLeasedRule(t *testing.T) {
	t.Parallel()
	const limit = 3000
	config := fmt.Sprintf(`
[server]
counters = %q
replicas = 2
store_budget = "30s" # the machine may be busy
[[rules]]
name   = "everyone"
limits = [{ name = "total", limit = "%d/1000h fixed_window", lease = "1s", split = 4 }]
`, patiently(apart(testredis.SharedCluster(t).URL())), limit)
	var nodes []*server
	for range 2 {
		nodes = append(nodes, serve(t, config, "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0", "STINT_SERVER_DRAIN_DELAY=0s"))
	}
	admitted, leased := 0, false
	ask := func(s *server) (allowed bool) {
		t.Helper()
		var v struct {
			Allowed bool
			Limits  []struct{ Basis string }
		}
		if err := post(http.DefaultClient, s.api+"/v1/check", `{"path": "/", "ip": "192.0.2.1"}`, &v); err != nil {
			t.Fatal(err)
		}
		leased = leased || v.Limits[0].Basis == "leased"
		if v.Allowed {
			admitted++
		}
		return v.Allowed
	}
	for range 500 {
		for _, s := range nodes {
			ask(s)
		}
	}
	shown := nodes[0].scrape(t)
	t.Logf("leased: %t", leased) // that takes a rate
	torture.AtLeast(t, "units lent", shown[`stint_lease_units_total{limit="everyone:total",what="lent"}`], 100)
	// The first node stops in the middle of its term. The other gets all that is left, at once.
	nodes[0].stop(t)
	for ask(nodes[1]) {
	}
	if admitted != limit {
		t.Errorf("%d admitted, want %d: the node that has stopped gives back what it held", admitted, limit)
	}
}

// TestOwnLimitsOfBusyRule has users with limits of their own, for which the split and the lease of the rule are too much,
// or of an algorithm that has neither. They hold exactly.
func TestOwnLimitsOfBusyRule(t *testing.T) {
	t.Parallel()
	config := fmt.Sprintf(`
[server]
counters = %q
store_budget = "30s" # the machine may be busy
[[rules]]
name     = "busy"
count_by = ["user"]
limits   = [{ name = "total", limit = "1000/1000h fixed_window", lease = "10s", split = 64 }]
`, patiently(apart(testredis.SharedCluster(t).URL())))
	for user, own := range map[string]string{
		"few":   "5/1000h fixed_window",
		"one":   "1/1000h fixed_window",
		"slide": "7/1000h",
		"drip":  "5/1000h leaky_bucket",
		"burst": "5/1000h burst=3 token_bucket",
	} {
		config += fmt.Sprintf("[[users]]\nid = %q\nlimits = { total = %q }\n", user, own)
	}
	s := serve(t, config, "STINT_SERVER_DRAIN_DELAY=0s")
	for user, want := range map[string]int{"few": 5, "one": 1, "slide": 7, "drip": 1, "burst": 3} {
		admitted := 0
		for range 30 {
			var v struct{ Allowed bool }
			if err := post(http.DefaultClient, s.api+"/v1/check", fmt.Sprintf(`{"path": "/", "user": %q}`, user), &v); err != nil {
				t.Fatal(err)
			}
			if v.Allowed {
				admitted++
			}
		}
		if admitted != want {
			t.Errorf("%s: %d admitted, want %d", user, admitted, want)
		}
	}
}
