//go:build torture

package e2e_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

// This file is long: an attack on three regions, and what is judged of it.

// TestRegionsAttacked has three regions with two nodes each, 100 to 300 ms apart, attacked at all nodes at once: while all
// is well, while a region is cut off, while one does not hear another, and when a node is killed. No window has more
// than its bound, and every region always has its share.
func TestRegionsAttacked(t *testing.T) {
	t.Parallel()
	limit := fmt.Sprintf("%d/%s fixed_window", attacked, attackWindow)
	w := newWorld(t,
		by("gossip", rule.RegionsGossip, limit, 0), by("quota", rule.RegionsQuota, limit, 0), by("central", rule.RegionsCentral, limit, time.Second),
		by("told", rule.RegionsGossip, "100000/1000h fixed_window", 0),
	)
	w.convergeInTime(t)
	a := w.startAttack(t, "/gossip", "/quota", "/central")

	a.usable(t, "calm")

	begin := windowOf(time.Now())
	w.isolate(t, 2)
	for r := range w.nodes[:2] {
		w.nodes[r][0].ready(t, "degraded", "cut off from us")
	}
	w.nodes[2][0].ready(t, "degraded", "cut off from asia", "cut off from europe")
	a.heldSince(t, "a region is cut off", begin, attacked/3)

	begin = windowOf(time.Now())
	w.heal(t)
	w.silence(t, 0, 1)
	w.nodes[0][0].ready(t, "degraded", "cut off from europe")
	w.nodes[1][0].ready(t, "degraded", "cut off from asia")
	a.heldSince(t, "a region does not hear another", begin, 2*attacked/3) // two have been cut off from the central one
	w.heal(t)
	w.each(func(r, i int) { w.nodes[r][i].ready(t, allWell) })

	a.usable(t, "healed")
	a.stop()
	torture.AtMost(t, "requests that have failed", a.failed, 0)
	torture.AtMost(t, "requests that took too long to tell their window", a.skipped, 20)
	w.killOne(t)
}

// silence has all data from a region to another lost, but not what goes the other way.
func (w *world) silence(t testing.TB, from, to int) {
	t.Helper()
	w.set(t, from, to, testserver.Fault{Mute: true})
	w.set(t, to, from, testserver.Fault{Deaf: true})
}

// patient is for how many windows a machine with much else to do may keep regions from telling each other in time.
const patient = 15

// usable waits for a window in which the limits are used up, nearly. All that it sees hold their bounds.
func (a *attack) usable(t *testing.T, when string) {
	t.Helper()
	a.await(t, when, a.windows(1), 0, func(_ [3]int64, all int64) bool { return all >= attacked*8/10 })
}

// heldSince waits for a window in which every region has its share. All since the first hold their bounds.
func (a *attack) heldSince(t *testing.T, when string, first, apart int64) {
	t.Helper()
	last := a.windows(1)
	a.held(t, when, first, last-first, apart)
	a.await(t, when, last, apart, func(n [3]int64, _ int64) bool { return n[0] > 0 && n[1] > 0 && n[2] > 0 })
}

// await waits for a window, of this one and the next, in which all paths are as they should be.
func (a *attack) await(t *testing.T, when string, window, apart int64, good func(regions [3]int64, all int64) bool) {
	t.Helper()
	for try := 1; ; try++ {
		a.held(t, when, window, 1, apart)
		bad := ""
		for _, path := range a.paths {
			if n, all := a.in(path, window); !good(n, all) {
				bad = fmt.Sprintf("%s, %s: %d admitted in the regions", when, path, n)
			}
		}
		if bad == "" {
			return
		}
		if try == patient {
			t.Errorf("%s, also after %d windows", bad, try)
			return
		}
		window = a.windows(1)
	}
}

// held checks the bounds of windows. Apart is what regions that do not reach the central one may admit.
func (a *attack) held(t *testing.T, when string, first, windows, apart int64) {
	t.Helper()
	for n := first; n < first+windows; n++ {
		for path, most := range map[string]int64{"/gossip": attacked + 2*told, "/quota": attacked, "/central": attacked + apart} {
			regions, all := a.in(path, n)
			t.Logf("%s, window %d, %s: %d of at most %d, %d", when, n-first, path, all, most, regions)
			if all > most {
				t.Errorf("%s, %s: %d admitted in a window, in the regions %d; want at most %d", when, path, all, regions, most)
			}
		}
	}
}

// convergeInTime checks that regions know of what others have used in time. A machine with much else to do has three
// tries.
func (w *world) convergeInTime(t *testing.T) {
	t.Helper()
	const promise = 1500 * time.Millisecond
	for try := range 3 {
		took := w.converge(t, fmt.Sprintf("198.51.%d.", 100+try))
		t.Log("what a region has used is known to another after", quantiles(took))
		if quantile(took, 0.99) <= promise {
			return
		}
	}
	t.Errorf("want what a region has used to be known to others after %v", promise)
}

// converge has clients of a network use something in one region, and measures when the others know of it.
func (w *world) converge(t *testing.T, network string) (took []time.Duration) {
	t.Helper()
	const clients = 48
	var (
		mu    sync.Mutex
		ips   [3][]string // of those that have used something there
		since = map[string]time.Time{}
		work  sync.WaitGroup
	)
	known := [3]map[string]bool{{}, {}, {}}
	look := func(r int) {
		mu.Lock()
		var asked []string
		for other, all := range ips {
			for _, ip := range all {
				if other != r && !known[r][ip] {
					asked = append(asked, ip)
				}
			}
		}
		mu.Unlock()
		if len(asked) == 0 {
			return
		}
		used, err := w.used(w.nodes[r][1], "/told", asked...)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range used {
			if used[i] > 0 {
				known[r][asked[i]] = true
				took = append(took, time.Since(since[asked[i]]))
			}
		}
	}
	work.Go(func() { // a client every 40 ms, so that they are anywhere in the intervals
		tick := time.NewTicker(40 * time.Millisecond)
		defer tick.Stop()
		for i := range clients {
			<-tick.C
			ip, r := fmt.Sprint(network, i), i%3
			v, err := w.ask(w.nodes[r][i/3%nodesEach], "/told", ip)
			if err != nil || !v.Allowed {
				t.Errorf("%+v, %v", v, err)
			}
			mu.Lock()
			ips[r], since[ip] = append(ips[r], ip), v.answered
			mu.Unlock()
		}
	})
	err := testserver.Poll(patience, func() error {
		for r := range known {
			look(r)
		}
		mu.Lock()
		defer mu.Unlock()
		if want := clients * (len(known) - 1); len(took) < want {
			return fmt.Errorf("%d of %d have arrived", len(took), want)
		}
		return nil
	})
	work.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return took
}

// killOne kills a node while all are used, and starts it anew. Nothing is counted twice, and lost is at most what was
// admitted in the last interval.
func (w *world) killOne(t *testing.T) {
	t.Helper()
	const region, node, ip = 1, 0, "203.0.113.1"
	var (
		mu         sync.Mutex
		admitted   [3][nodesEach][]time.Time
		unanswered int64
		work       sync.WaitGroup
		quit       = make(chan struct{})
		total      = func() (n int64) {
			for r := range admitted {
				for i := range admitted[r] {
					n += int64(len(admitted[r][i]))
				}
			}
			return n
		}
	)
	w.each(func(r, i int) {
		s := w.nodes[r][i]
		work.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-quit:
					return
				case <-tick.C:
				}
				v, err := w.ask(s, "/told", ip)
				mu.Lock()
				switch {
				case err != nil && (r != region || i != node):
					t.Error(err)
				case err != nil:
					unanswered++
					mu.Unlock()
					return
				case v.Allowed:
					admitted[r][i] = append(admitted[r][i], v.answered)
				}
				mu.Unlock()
			}
		})
	})
	await := func(more int64) {
		t.Helper()
		mu.Lock()
		want := total() + more
		mu.Unlock()
		wait.Nil(t, "more is admitted", func() error {
			mu.Lock()
			defer mu.Unlock()
			if n := total(); n < want {
				return fmt.Errorf("%d admitted of %d", n, want)
			}
			return nil
		})
	}
	await(400)
	killed := time.Now()
	w.nodes[region][node].kill(t)
	await(100)
	w.start(t, region, node)
	await(100)
	close(quit)
	work.Wait()
	w.each(func(r, i int) { w.nodes[r][i].ready(t, allWell) })

	late := func(all []time.Time, within time.Duration) (n int64) {
		for _, at := range all {
			if d := killed.Sub(at); d >= 0 && d < within {
				n++
			}
		}
		return n
	}
	// Lost may be what the node had not told, and what it was about to charge.
	const interval = 1500 * time.Millisecond // with the way
	var lost [3]int64
	for r := range lost {
		lost[r] = late(admitted[region][node], interval)
	}
	lost[region] = late(admitted[0][node], 2*interval) + late(admitted[2][node], 2*interval)
	for r := range w.nodes {
		wait.Nil(t, "all regions know", func() error {
			used, err := w.used(w.nodes[r][0], "/told", ip)
			if err == nil && used[0] < total()-lost[r] {
				err = fmt.Errorf("region %d: %d used of %d; at most %d may be lost", r, used, total(), lost[r])
			}
			return err
		})
	}
	<-time.After(interval) // what is sent again comes until then
	for r := range w.nodes {
		used, err := w.used(w.nodes[r][0], "/told", ip)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("region %d: %d used of %d admitted, %d unanswered; at most %d may be lost", r, used, total(), unanswered, lost[r])
		if most := total() + unanswered; used[0] > most {
			t.Errorf("region %d: %d used, of %d admitted: some was counted twice", r, used, most)
		}
	}
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
