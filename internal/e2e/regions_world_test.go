package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
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

// silence has all data from a region to another lost, but not what goes the other way.
func (w *world) silence(t testing.TB, from, to int) {
	t.Helper()
	w.set(t, from, to, testserver.Fault{Mute: true})
	w.set(t, to, from, testserver.Fault{Deaf: true})
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

// attack has all nodes asked for the same counters, in bursts at the same instants, and counts what they admit.
type attack struct {
	w     *world
	paths []string
	quit  chan struct{}
	work  sync.WaitGroup

	mu       sync.Mutex
	admitted map[string]map[int64]*[3]int64 // by path and window, in each region
	skipped  int                            // answers of which the window is not known
	failed   int
}

// attackWindow is the window of what is attacked, and burst how many requests a node gets at once for a path. There
// are four bursts in a window.
const (
	attackWindow = 2 * time.Second
	burst        = 8
)

// startAttack attacks until it is stopped.
func (w *world) startAttack(t testing.TB, paths ...string) *attack {
	t.Helper()
	a := &attack{w: w, paths: paths, quit: make(chan struct{}), admitted: map[string]map[int64]*[3]int64{}}
	for _, p := range paths {
		a.admitted[p] = map[int64]*[3]int64{}
	}
	w.each(func(r, i int) {
		for _, p := range paths {
			a.work.Go(func() { a.run(r, i, p) })
		}
	})
	t.Cleanup(a.stop)
	return a
}

func (a *attack) stop() {
	select {
	case <-a.quit:
	default:
		close(a.quit)
	}
	a.work.Wait()
}

func (a *attack) run(region, node int, path string) {
	const pause = attackWindow / 4
	for {
		now := time.Now()
		select {
		case <-a.quit:
			return
		case <-time.After(now.Truncate(pause).Add(pause).Sub(now)):
		}
		var all sync.WaitGroup
		for range burst {
			all.Go(func() {
				v, err := a.w.ask(a.w.nodes[region][node], path, "192.0.2.1")
				a.note(region, path, &v, err)
			})
		}
		all.Wait()
	}
}

// note counts an answer.
func (a *attack) note(region int, path string, v *verdictOf, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.failed++
		return
	}
	if !v.Allowed {
		return
	}
	n, ok := v.window()
	if !ok {
		a.skipped++
		return
	}
	if a.admitted[path][n] == nil {
		a.admitted[path][n] = new([3]int64)
	}
	a.admitted[path][n][region]++
}

// window returns the window in which it was admitted: that which ends when the answer says. An answer by a lease says
// so as of when its units were charged, but they are spent in the same window. It is not known if the answer took
// too long.
func (v *verdictOf) window() (n int64, ok bool) {
	if v.Limits[0].Basis == "leased" {
		n = windowOf(v.answered)
		return n, n == windowOf(v.asked)
	}
	took, reset := v.answered.Sub(v.asked), time.Duration(v.Limits[0].ResetAfter*float64(time.Second))
	return windowOf(v.asked.Add(took/2 + reset - attackWindow/2)), took < attackWindow*3/4 // in its middle, but for half of what it took
}

// windowOf returns the number of the window that has the instant.
func windowOf(at time.Time) int64 { return at.UnixMicro() / attackWindow.Microseconds() }

// windows waits until so many windows have passed as a whole, and returns the first of them.
func (a *attack) windows(n int64) (first int64) {
	first = windowOf(time.Now()) + 1
	// What was asked at the end of the last one is answered in the next one.
	end := time.UnixMicro((first+n)*attackWindow.Microseconds() + attackWindow.Microseconds()/2)
	<-time.After(time.Until(end))
	return first
}

// in returns what was admitted in a window, in each region and in all.
func (a *attack) in(path string, window int64) (regions [3]int64, all int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.admitted[path][window]; n != nil {
		regions = *n
	}
	return regions, regions[0] + regions[1] + regions[2]
}
