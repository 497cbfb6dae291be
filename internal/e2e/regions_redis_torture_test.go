//go:build torture

package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// bereaved are two regions with a node each. The Redis of the second one, which is central, is killed.
type bereaved struct {
	*world
	redis [2]*testredis.Server
	nodes [2]*server
	asked map[string]*[2]*asking // by path, in each region
	quit  chan struct{}
	work  sync.WaitGroup
}

// asking is who asks a node for one counter, again and again.
type asking struct {
	mu       sync.Mutex
	admitted int64
	local    int64 // of them, those that no Redis has counted before it was killed
	lost     int64 // what was admitted when the node had noticed that it was
	killed   bool
	noticed  chan struct{} // closed by the first local decision after that
	err      error
}

const mourning, survivor = 1, 0 // which region loses its Redis, and which does not

// newBereaved starts two regions. The Redis that is killed has these arguments.
func newBereaved(t *testing.T, args ...string) *bereaved {
	t.Helper()
	b := &bereaved{world: &world{client: &http.Client{Timeout: patience}}, quit: make(chan struct{}), asked: map[string]*[2]*asking{}}
	t.Cleanup(b.client.CloseIdleConnections)
	b.redis = [2]*testredis.Server{survivor: testredis.Start(t), mourning: testredis.Start(t, args...)}
	doors := [2]string{freeAddress(t), freeAddress(t)}
	for r := range b.nodes {
		var text strings.Builder
		// The survivor never decides on its own. The other one is to notice before long that its Redis is gone.
		budget := [2]string{survivor: "30s", mourning: "5s"}[r]
		fmt.Fprintf(&text, "[server]\ncounters = %q\nstore_budget = %q\n", patiently(b.redis[r].URL()), budget)
		fmt.Fprintf(&text, "[region]\nname = %q\ncentral = %q\nsecret = \"the secret of two regions\"\ninterval = \"200ms\"\n[region.listener]\naddress = %q\n",
			regionNames[r], regionNames[mourning], doors[r])
		fmt.Fprintf(&text, "[[region.peers]]\nname = %q\nurl = \"http://%s\"\n", regionNames[1-r], doors[1-r])
		for _, way := range []string{"gossip", "quota", "central"} {
			fmt.Fprintf(&text, "[[rules]]\nname = %q\nmatch = { paths = [\"/%[1]s\"] }\ncount_by = [\"ip\"]\nregions = %[1]q\nlimits = [{ name = \"hourly\", limit = \"1000000/1000h fixed_window\" }]\n", way)
		}
		b.nodes[r] = serve(t, text.String(), "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0")
	}
	for _, s := range b.nodes {
		s.ready(t, allWell)
	}
	return b
}

// mournedIP is whose counters are asked for.
const mournedIP = "192.0.2.1"

// start has all counters asked for in both regions, until stop.
func (b *bereaved) start(t *testing.T) {
	t.Helper()
	for _, path := range []string{"/gossip", "/quota", "/central"} {
		b.asked[path] = new([2]*asking)
		for r := range b.nodes {
			a := &asking{noticed: make(chan struct{})}
			b.asked[path][r] = a
			b.work.Go(func() { b.keepAsking(a, b.nodes[r], path) })
		}
	}
	t.Cleanup(b.stop)
}

func (b *bereaved) stop() {
	select {
	case <-b.quit:
	default:
		close(b.quit)
	}
	b.work.Wait()
}

func (b *bereaved) keepAsking(a *asking, s *server, path string) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-b.quit:
			return
		case <-tick.C:
		}
		v, err := b.ask(s, path, mournedIP)
		a.note(&v, err)
	}
}

// note counts an answer. Who asks waits for one before the next, so that the first local one after the Redis was killed
// tells what the old Redis has counted from what it has not.
func (a *asking) note(v *verdictOf, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.err = errors.Join(a.err, err)
		return
	}
	here := v.Limits[0].Basis == "local"
	if a.killed && here && !isClosed(a.noticed) {
		a.lost = a.admitted
		close(a.noticed)
	}
	if v.Allowed {
		if a.admitted++; here && !isClosed(a.noticed) {
			a.local++
		}
	}
}

// counts returns what was admitted, and how much of it the Redis that was killed had counted: at least and at most.
func (a *asking) counts() (admitted, least, most int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !isClosed(a.noticed) {
		return a.admitted, 0, a.admitted
	}
	return a.admitted, a.lost - a.local, a.lost
}

// more waits until so much more was admitted, of every counter in every region.
func (b *bereaved) more(t *testing.T, n int64) {
	t.Helper()
	want := map[*asking]int64{}
	for _, regions := range b.asked {
		for _, a := range regions {
			admitted, _, _ := a.counts()
			want[a] = admitted + n
		}
	}
	for path, regions := range b.asked {
		for r, a := range regions {
			wait.Nil(t, "more is admitted", func() error {
				if admitted, _, _ := a.counts(); admitted < want[a] {
					return fmt.Errorf("%s, region %d: %d admitted, want %d", path, r, admitted, want[a])
				}
				return nil
			})
		}
	}
}

// TestRegionRedisKilled kills the Redis of a region while both use all kinds of counters, and starts it again. The
// region goes on deciding. What it had counted is lost if the server comes back without its data, and nothing else; what
// the other region knows stays what it is, and nothing is counted twice, but for takes of which the reply was lost.
func TestRegionRedisKilled(t *testing.T) {
	t.Parallel()
	for name, kept := range map[string]bool{"comes back empty": false, "comes back with its data": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var args []string
			if kept {
				args = []string{"--appendonly", "yes", "--appendfsync", "no"} // it writes before it answers, and a kill loses nothing of that
			}
			b := newBereaved(t, args...)
			b.start(t)
			b.more(t, 100)
			toldBefore := b.kill(t)
			b.more(t, 50)
			b.redis[mourning].Restart(t)
			b.nodes[mourning].ready(t, allWell)
			b.more(t, 50)
			b.stop()
			b.settle(t)
			b.check(t, kept, toldBefore)
		})
	}
}

// kill kills the Redis, and waits until its node decides without it. It returns what the survivor had admitted of the
// gossiped counter by then: the Redis may have known all of that.
func (b *bereaved) kill(t *testing.T) (told int64) {
	t.Helper()
	b.redis[mourning].Kill(t)
	// Only now: a local decision before, on a busy machine, says nothing of what the Redis counts after it.
	for _, regions := range b.asked {
		for _, a := range regions {
			a.mu.Lock()
			a.killed = true
			a.mu.Unlock()
		}
	}
	told, _, _ = b.asked["/gossip"][survivor].counts()
	b.nodes[mourning].ready(t, `"status": "degraded"`, "cannot be used", b.redis[mourning].Addr())
	for _, a := range []*asking{b.asked["/gossip"][mourning], b.asked["/quota"][mourning], b.asked["/central"][mourning], b.asked["/central"][survivor]} {
		wait.For(t, "decisions fall back", func() bool { return isClosed(a.noticed) })
	}
	return told
}

// settle waits until both regions have told each other everything: what is told last is charged last.
func (b *bereaved) settle(t *testing.T) {
	t.Helper()
	for r, s := range b.nodes {
		s.ready(t, allWell)
		ip := fmt.Sprint("198.51.100.", r)
		if v, err := b.ask(s, "/gossip", ip); err != nil || !v.Allowed {
			t.Fatalf("%+v, %v", v, err)
		}
		wait.Nil(t, "the other region knows", func() error {
			used, err := b.used(b.nodes[1-r], "/gossip", ip)
			if err == nil && used[0] != 1 {
				err = fmt.Errorf("region %d knows of %d used in the other, want 1", 1-r, used[0])
			}
			return err
		})
	}
}

// check compares what the regions know with what they have admitted.
func (b *bereaved) check(t *testing.T, kept bool, told int64) {
	t.Helper()
	var admitted, least, most [2]int64
	of := func(path string) {
		for r, a := range b.asked[path] {
			admitted[r], least[r], most[r] = a.counts()
			if a.err != nil {
				t.Errorf("%s, region %d: %v", path, r, a.err)
			}
		}
	}
	within := func(path string, region int, low, high int64) {
		t.Helper()
		var used []int64
		wait.Nil(t, "what a region knows", func() (err error) {
			if used, err = b.used(b.nodes[region], path, mournedIP); err == nil && used[0] < low {
				err = fmt.Errorf("%s, region %d: %d used, want %d to %d of %d admitted", path, region, used[0], low, high, admitted)
			}
			return err
		})
		t.Logf("%s, region %d: %d used, want %d to %d of %d admitted", path, region, used[0], low, high, admitted)
		if used[0] > high {
			t.Errorf("%s, region %d: %d used, want %d to %d of %d admitted", path, region, used[0], low, high, admitted)
		}
	}

	of("/gossip")
	all := admitted[0] + admitted[1]
	within("/gossip", survivor, all, all)
	// A take whose reply was lost, or late, is decided again. A batch whose mark was made is not charged if that is not known.
	again := func() int64 { return 1 + most[mourning] - least[mourning] }
	if kept {
		within("/gossip", mourning, all-told, all+again())
	} else {
		within("/gossip", mourning, all-told-most[mourning], all-least[mourning])
	}

	of("/quota")
	within("/quota", survivor, admitted[survivor], admitted[survivor])
	if kept {
		within("/quota", mourning, admitted[mourning], admitted[mourning]+again())
	} else {
		within("/quota", mourning, admitted[mourning]-most[mourning], admitted[mourning]-least[mourning])
	}

	of("/central")
	all = admitted[0] + admitted[1]
	ended := b.nodes[mourning].metric(t, `stint_region_refused_total{reason="receiver"}`) // and calls with them
	if kept {
		within("/central", mourning, all, all+again()+1+most[survivor]-least[survivor]+ended)
	} else {
		within("/central", mourning, all-most[0]-most[1], all-least[0]-least[1]+ended)
	}
}
