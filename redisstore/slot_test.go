package redisstore_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// TestMovingSlots migrates a slot in one cluster.
func TestMovingSlots(t *testing.T) {
	t.Parallel()
	c := testredis.StartPrimaries(t, 3)
	for name, run := range map[string]func(*testing.T, *testredis.Cluster){
		"under load": migration, "some have moved": movingSlot, "many": manyMoving, "a penalty": penaltyMoving,
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // they move the same slot
			for _, n := range c.Nodes() {
				n.Do(t, "FLUSHALL")
			}
			run(t, c)
		})
	}
}

// split starts the migration of alice's slot, and migrates one of her counters. The rest follows when the test ends.
func split(t testing.TB, c *testredis.Cluster, key string) {
	t.Helper()
	from, to := c.Primary(t, "{alice}"), c.Nodes()[0]
	if to == from {
		to = c.Nodes()[1]
	}
	number := from.Do(t, "CLUSTER", "KEYSLOT", "{alice}").(int64)
	slot := strconv.FormatInt(number, 10)
	t.Cleanup(func() { c.Migrate(t, int(number), from, to) })
	to.Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.Do(t, "CLUSTER", "MYID").(string))
	from.Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.Do(t, "CLUSTER", "MYID").(string))
	host, port, _ := strings.Cut(to.Addr(), ":")
	from.Do(t, "MIGRATE", host, port, key, "0", "60000")
}

// movingSlot takes from counters of which some have been migrated.
func movingSlot(t *testing.T, c *testredis.Cluster) {
	t.Helper()
	s := openURL(t, c.URL(), redisstore.Options{})
	l, once := parse(t, "20/1000h"), parse(t, "1/1000h")
	asks := []stint.Ask{
		{Key: stint.Key{Subject: "alice", Name: "a"}, Limit: l, Cost: 1},
		{Key: stint.Key{Subject: "alice", Name: "b"}, Limit: l, Cost: 1},
		{Key: stint.Key{Subject: "alice", Name: "a"}, Limit: parse(t, "20/1000h token_bucket"), Cost: 1},
	}
	takeOne(t, s, "bob", once, 1)
	if _, err := storetest.Take(t.Context(), s, asks); err != nil {
		t.Fatal(err)
	}
	split(t, c, keyOf(asks[0]))
	// Denied elsewhere, so nothing is charged here.
	out, err := storetest.Take(t.Context(), s, append(asks, stint.Ask{Key: stint.Key{Subject: "bob", Name: "api"}, Limit: once, Cost: 1}))
	if err != nil || out[3].Allowed {
		t.Fatal(out, err)
	}
	for i, a := range asks {
		if out[i].Remaining != 19 || !out[i].Allowed {
			t.Errorf("ask %d is told that %d remain, want 19", i, out[i].Remaining)
		}
		a.Cost = 0
		if out, err := storetest.Take(t.Context(), s, []stint.Ask{a}); err != nil || out[0].Remaining != 19 {
			t.Errorf("ask %d: %v, %v; want 19 remaining", i, out, err)
		}
	}
	if out, err = storetest.Take(t.Context(), s, asks); err != nil || out[0].Remaining != 18 || out[1].Remaining != 18 {
		t.Errorf("%v, %v; want 18 remaining", out, err)
	}
	if err := s.Reset(t.Context(), []stint.Ask{asks[0], asks[2]}); err != nil {
		t.Errorf("reset: %v", err)
	}
	if out, err = storetest.Take(t.Context(), s, asks); err != nil || out[0].Remaining != 19 || out[1].Remaining != 17 || out[2].Remaining != 19 {
		t.Errorf("after reset: %v, %v", out, err)
	}
}

// migration migrates a slot back and forth under load, which callers do not notice.
func migration(t *testing.T, c *testredis.Cluster) {
	t.Helper()
	const admits = 600
	s := open(t, c.URL(), redisstore.Options{})
	asks := func(i int) []stint.Ask {
		var out []stint.Ask
		for _, a := range stint.Algorithms() {
			out = append(out, stint.Ask{Key: stint.Key{Subject: "alice", Name: "all"}, Limit: limitOf(a, admits), Cost: 1})
		}
		// A counter that may not exist yet.
		return append(out, stint.Ask{Key: stint.Key{Subject: "alice", Name: strconv.Itoa(i)}, Limit: limitOf(stint.FixedWindow, 1), Cost: 1})
	}
	var admitted, next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				out, err := storetest.Take(t.Context(), s, asks(int(next.Add(1))))
				if err != nil {
					t.Error(err)
					return
				}
				for _, d := range out {
					if !d.Allowed {
						return
					}
				}
				admitted.Add(1)
			}
		})
	}
	from, to := c.Primary(t, "{alice}"), c.Nodes()[0]
	if to == from {
		to = c.Nodes()[1]
	}
	slot := int(from.Do(t, "CLUSTER", "KEYSLOT", "{alice}").(int64))
	moves := 0
	for ; moves < 20 && admitted.Load() < admits*4/5; moves++ {
		c.Migrate(t, slot, from, to)
		from, to = to, from
	}
	wg.Wait()
	if n := admitted.Load(); n != admits {
		t.Errorf("%d admitted over %d moves, want %d (%+v)", n, moves, admits, s.Stats())
	}
	t.Logf("%d moves, %+v", moves, s.Stats())
}

// manyMoving takes from counters of which some have been migrated.
func manyMoving(t *testing.T, c *testredis.Cluster) {
	t.Helper()
	clock := storetest.NewClock()
	p := &pair{
		Store: openURL(t, c.URL(), redisstore.Options{Now: clock.Now}),
		spec:  storetest.Spec(clock.Now), clock: clock,
	}
	asks := append(manyAsks(300, false), manyAsks(10, true)...)
	p.take(t, "the first take", asks)
	split(t, c, keyOf(asks[0]))
	p.take(t, "a take of what moves", asks)
	for _, i := range []int{0, 200, 305} {
		denied := slices.Clone(asks)
		denied[i].Cost = 10
		p.take(t, fmt.Sprintf("a take that ask %d denies", i), denied)
		p.take(t, "a look after it", looks(asks))
	}
}

// penaltyMoving takes while some counters have been migrated: bans hold, though denials may not
// count as violations meanwhile.
func penaltyMoving(t *testing.T, c *testredis.Cluster) {
	t.Helper()
	s := openURL(t, c.URL(), redisstore.Options{})
	asks := penalized(t, "2/1000h cooldown=1h")
	for range 2 {
		if _, err := storetest.Take(t.Context(), s, asks); err != nil {
			t.Fatal(err)
		}
	}
	split(t, c, keyOf(asks[0]))
	if out, err := storetest.Take(t.Context(), s, asks); err != nil || out[0].Allowed || !out[2].Allowed || out[1].Remaining != 8 {
		t.Fatalf("%v, %v; want a denial by the first limit", out, err)
	}
	// What the moving server has is decided there.
	if out, err := storetest.Take(t.Context(), s, asks[1:]); err != nil || !out[0].Allowed || !out[1].Allowed {
		t.Fatalf("%v, %v; want it allowed", out, err)
	}
	asks[1].Cost = 100
	if out, err := storetest.Take(t.Context(), s, asks[1:]); err != nil || out[0].Allowed || out[1].Allowed {
		t.Fatalf("%v, %v; want a ban", out, err)
	}
	asks[1].Cost = 1
	if out, err := storetest.Take(t.Context(), s, asks); err != nil || out[2].Allowed || out[1].Remaining != 7 {
		t.Fatalf("%v, %v; want the ban, and nothing charged", out, err)
	}
}
