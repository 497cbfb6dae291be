package layer_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// TestShardDown kills one of three shards, its replica first.
func TestShardDown(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t)
	for _, n := range cluster.Nodes() {
		n.Do(t, "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	serverDown(t, cluster.URL(), cluster.Nodes()[0], func() { cluster.Nodes()[3].Kill(t) })
}

// TestRingServerDown kills one of the three servers of a ring.
func TestRingServerDown(t *testing.T) {
	t.Parallel()
	r := testredis.StartRing(t, 3)
	serverDown(t, r.URL(), r.Nodes()[0], func() {})
}

// serverDown kills one of three servers, after what begin does. What the others have is counted by them as
// before; what needs the dead one is decided here, as a whole, and charges the others nothing. When it is
// back, it decides again.
func serverDown(t *testing.T, url string, dead *testredis.Server, begin func()) {
	t.Helper()
	shared, err := redisstore.Open(url+"?dial_timeout=50ms&timeout=500ms", redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan layer.Change, 1000)
	s := must(t)(layer.New(shared, layer.Options{
		Breaker:  layer.BreakerOptions{Server: shared.Server, OnChange: func(c layer.Change) { changes <- c }},
		Fallback: &layer.FallbackOptions{Local: memory(t, nil)},
	}))
	eventually(t, func() error {
		if names := shared.Servers(); len(names) != 3 {
			return fmt.Errorf("%v", names)
		}
		return shared.Ping(t.Context())
	})
	var gone, well []string // subjects
	for i := 0; len(gone) < 20 || len(well) < 20; i++ {
		who := fmt.Sprint("user:", i)
		if shared.Server(&ask(who, 1000, 1)[0]) == dead.Addr() {
			gone = append(gone, who)
		} else {
			well = append(well, who)
		}
	}
	basis := func(asks ...stint.Ask) (b stint.Basis) {
		t.Helper()
		out, err := storetest.Take(t.Context(), s, asks)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range out {
			b = max(b, d.Basis)
		}
		return b
	}
	for _, who := range slices.Concat(gone, well) {
		eventually(t, func() error {
			if b := basis(ask(who, 1_000_000, 1)...); b != stint.Counted {
				return errors.New(b.String())
			}
			return nil
		})
	}
	begin()
	dead.Kill(t)
	const rounds = 100
	counted, local, both := 0, 0, 0
	for i := range rounds {
		if basis(ask(well[i%20], 1_000_000, 1)...) == stint.Counted {
			counted++
		}
		if basis(ask(gone[i%20], 1_000_000, 1)...) == stint.Local {
			local++
		}
		// The second ask is charged nowhere else.
		if basis(append(ask(gone[i%20], 1_000_000, 1), ask("both:"+well[i%20], 1_000_000, 1)...)...) == stint.Local {
			both++
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Logf("of %d each: %d counted by shards that live, %d and %d decided here", rounds, counted, local, both)
	torture.AtLeast(t, "percent counted by shards that live", counted*100/rounds, 95)
	torture.AtLeast(t, "percent of the dead one decided here", local*100/rounds, 95)
	torture.AtLeast(t, "percent of both decided here", both*100/rounds, 95)
	for n := len(changes); n > 0; n-- {
		if c := <-changes; c.Server != dead.Addr() {
			t.Errorf("%+v; want changes of %s only", c, dead.Addr())
		}
	}
	charged := int64(0)
	for _, who := range well[:20] {
		out, err := storetest.Take(t.Context(), shared, ask("both:"+who, 1_000_000, 0))
		if err == nil {
			charged += out[0].Limit - out[0].Remaining
		}
	}
	// What was admitted here is charged there afterwards, once.
	if charged > int64(both) {
		t.Errorf("%d units charged on shards that live, of %d takes that were decided here", charged, both)
	}
	if err := shared.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), dead.Addr()) {
		t.Errorf("ping: %v; want the server that is down", err)
	}
	dead.Restart(t)
	eventually(t, func() error { return shared.PingServer(t.Context(), dead.Addr()) })
	start := torture.Start(t)
	eventually(t, func() error {
		if b := basis(ask(gone[0], 1_000_000, 1)...); b != stint.Counted {
			return errors.New(b.String())
		}
		return nil
	})
	torture.AtMost(t, "until a server that is back decides", start.Took(), 2*time.Second)
}

// TestShardStops stops a primary, which keeps its connections open: when its replica takes over, the
// replica decides.
func TestShardStops(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t)
	shared, err := redisstore.Open(cluster.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := must(t)(layer.New(shared, layer.Options{
		Breaker: layer.BreakerOptions{Server: shared.Server}, Fallback: &layer.FallbackOptions{Local: memory(t, nil)},
	}))
	counted := func() error {
		out, err := storetest.Take(t.Context(), s, ask("alice", 1_000_000, 1))
		if err == nil && out[0].Basis != stint.Counted {
			err = errors.New(out[0].Basis.String())
		}
		return err
	}
	eventually(t, counted)
	old := cluster.Primary(t, "{alice}")
	old.Pause(t)
	defer old.Resume(t)
	eventually(t, func() error {
		_ = counted()
		if p := cluster.Primary(t, "{alice}"); p == old {
			return errors.New("no other server has taken over")
		}
		return nil
	})
	start := torture.Start(t)
	eventually(t, counted)
	torture.AtMost(t, "until a server that has taken over decides", start.Took(), 2*time.Second)
	eventually(t, func() error {
		if at := shared.Server(&ask("alice", 1, 1)[0]); at == old.Addr() {
			return errors.New("the counter is still said to be on " + at)
		}
		return nil
	})
}
