//go:build scale || torture

package e2e_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/rule"
)

// regionNames are the regions of a world. The first one is central.
var regionNames = [3]string{"asia", "europe", "us"}

// nodesEach is how many nodes a region has.
const nodesEach = 2

// world is three regions, with a Redis and two nodes each, one database, and the network between them. A node calls
// the node of the same number in each other region, through a proxy of its own.
type world struct {
	redis   [3]*testredis.Server
	doors   [3][nodesEach]string               // where nodes listen for other regions
	paths   [3][3][nodesEach]*testserver.Proxy // from a region to another
	delay   [3][3]time.Duration                // in each direction
	url     string                             // of the database
	catalog *catalog.Catalog
	nodes   [3][nodesEach]*server
	client  *http.Client
}

// newWorld starts a world with these rules. The round trips take 100, 200 and 300 ms.
func newWorld(t testing.TB, rules ...rule.Rule) *world {
	t.Helper()
	w := &world{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: patience}}
	t.Cleanup(w.client.CloseIdleConnections)
	w.catalog, w.url = newCatalog(t)
	apply(t, w.catalog, &catalog.Document{File: rule.File{Rules: rules}})
	for r := range w.nodes {
		w.redis[r] = testredis.Start(t)
		for i := range w.doors[r] {
			w.doors[r][i] = freeAddress(t)
		}
	}
	for from := range w.nodes {
		for to := range w.nodes {
			w.delay[from][to] = time.Duration(from+to) * 50 * time.Millisecond
			for i := range w.doors[to] {
				w.paths[from][to][i] = testserver.StartProxy(t, w.doors[to][i])
			}
		}
	}
	w.heal(t)
	for r := range w.nodes {
		for i := range w.nodes[r] {
			w.start(t, r, i)
		}
	}
	w.well(t)
	return w
}

// start starts a node.
func (w *world) start(t testing.TB, region, node int) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "[server]\ncounters = %q\nstore_budget = \"30s\"\n", patiently(w.redis[region].URL()))
	fmt.Fprintf(&b, "[region]\nname = %q\ncentral = %q\nsecret = \"the secret of three regions\"\n[region.listener]\naddress = %q\n",
		regionNames[region], regionNames[0], w.doors[region][node])
	for to, name := range regionNames {
		if to != region {
			fmt.Fprintf(&b, "[[region.peers]]\nname = %q\nurl = \"http://%s\"\n", name, w.paths[region][to][node].Addr())
		}
	}
	w.nodes[region][node] = serve(t, b.String(), following(t, w.url)...)
}

// well waits until all nodes say that nothing is wrong, and know how many nodes there are.
func (w *world) well(t testing.TB) {
	t.Helper()
	w.each(func(r, i int) {
		w.nodes[r][i].ready(t, allWell)
		w.nodes[r][i].measures(t, fmt.Sprintf("stint_replicas %d", nodesEach))
	})
}

// each calls a function for every node.
func (w *world) each(call func(region, node int)) {
	for r := range w.nodes {
		for i := range w.nodes[r] {
			call(r, i)
		}
	}
}

// set sets the fault of what a region calls another through.
func (w *world) set(t testing.TB, from, to int, f testserver.Fault) {
	t.Helper()
	f.Latency = w.delay[from][to]
	for _, p := range w.paths[from][to] {
		p.Set(t, f)
	}
}

// heal ends all faults.
func (w *world) heal(t testing.TB) {
	t.Helper()
	for from := range w.paths {
		for to := range w.paths[from] {
			w.set(t, from, to, testserver.Fault{})
		}
	}
}

// isolate cuts a region off from all others.
func (w *world) isolate(t testing.TB, region int) {
	t.Helper()
	for other := range w.paths {
		w.set(t, region, other, testserver.Fault{Refuse: true})
		w.set(t, other, region, testserver.Fault{Refuse: true})
	}
}

// verdictOf is what a node says of a rule with one limit, and when it was asked and has answered.
type verdictOf struct {
	Allowed bool
	Limits  []struct {
		Max, Remaining int64
		ResetAfter     float64 `json:"reset_after"`
		Basis          string
	}
	asked, answered time.Time
}

// ask asks a node.
func (w *world) ask(s *server, path, ip string) (v verdictOf, err error) {
	v.asked = time.Now()
	err = post(w.client, s.api+"/v1/check", fmt.Sprintf(`{"path": %q, "ip": %q}`, path, ip), &v)
	if v.answered = time.Now(); err == nil && len(v.Limits) != 1 {
		err = fmt.Errorf("%+v: want one limit", v)
	}
	return v, err
}

// used returns how much of a counter of each address is used in the region of a node.
func (w *world) used(s *server, path string, ips ...string) ([]int64, error) {
	var requests []string
	for _, ip := range ips {
		requests = append(requests, fmt.Sprintf(`{"path": %q, "ip": %q, "peek": true}`, path, ip))
	}
	var got struct{ Verdicts []verdictOf }
	if err := post(w.client, s.api+"/v1/check/batch", `{"requests": [`+strings.Join(requests, ",")+`]}`, &got); err != nil {
		return nil, err
	}
	var out []int64
	for i := range got.Verdicts {
		if len(got.Verdicts[i].Limits) != 1 {
			return nil, fmt.Errorf("%+v: want one limit", got.Verdicts[i])
		}
		l := &got.Verdicts[i].Limits[0]
		out = append(out, l.Max-l.Remaining)
	}
	if len(out) != len(ips) {
		return nil, errors.New("not all addresses have a verdict")
	}
	return out, nil
}

// attacked is the limit of each counter that is attacked, and told the credit of a region where it is gossiped.
const attacked, told = 60, 6

// by returns a rule whose counters regions share in that way, for a path of its name.
func by(name string, regions rule.Regions, limit string, lease time.Duration) rule.Rule {
	return rule.Rule{
		Name: name, Match: rule.Match{Paths: []string{"/" + name}}, CountBy: []rule.Dimension{"ip"}, Regions: regions,
		Limits: []rule.Limit{{Name: name, Limit: limit, Lease: rule.Duration(lease)}},
	}
}

// quantiles formats durations for people.
func quantiles(all []time.Duration) string {
	return fmt.Sprintf("p50 %v, p99 %v, max %v", quantile(all, 0.5), quantile(all, 0.99), quantile(all, 1))
}

func quantile(all []time.Duration, q float64) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[int(math.Ceil(q*float64(len(all))))-1].Round(10 * time.Microsecond)
}

// rss returns the current and the maximum resident memory of the process, in bytes.
func (p *process) rss(t testing.TB) (now, peak int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	field := func(name string) int64 {
		_, rest, _ := strings.Cut(string(status), name+":")
		value, _, _ := strings.Cut(rest, " kB")
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n << 10
	}
	return field("VmRSS"), field("VmHWM")
}
