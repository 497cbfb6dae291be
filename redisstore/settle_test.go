package redisstore_test

import (
	"testing"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// TestSettlementIsCompleted has a settlement fail at the second of two servers. Another one with other amounts changes
// nothing, and the same one, sent again, does what is missing.
func TestSettlementIsCompleted(t *testing.T) {
	t.Parallel()
	r := testredis.StartRing(t, 2)
	s := openURL(t, r.URL(), redisstore.Options{})
	limit := parse(t, "100/1000h")
	asks := make([]stint.Ask, 2)
	for i, n := range r.Nodes() {
		asks[i] = stint.Ask{Key: stint.Key{Subject: subjectAt(s, n), Name: "api"}, Limit: limit, Cost: 10}
	}
	ds, err := storetest.Take(t.Context(), s, asks)
	if err != nil {
		t.Fatal(err)
	}
	settle := func(by int64) ([]stint.Decision, error) {
		changes, charges := make([]stint.Ask, 2), make([]stint.Charge, 2)
		for i := range changes {
			charges[i] = ds[i].Charge()
			charges[i].ID, charges[i].Together = "ticket.0", true
			changes[i] = asks[i]
			changes[i].Charge, changes[i].Cost = &charges[i], by
		}
		return storetest.Adjust(t.Context(), s, changes)
	}
	second := r.Nodes()[1]
	second.Do(t, "CONFIG", "SET", "min-replicas-to-write", "1") // it takes no writes
	if out, err := settle(-3); err == nil {
		t.Fatalf("a settlement without its second server: %+v", out)
	}
	second.Do(t, "CONFIG", "SET", "min-replicas-to-write", "0")
	for _, c := range []struct{ by, user, tenant int64 }{{-7, 93, 90}, {-3, 93, 93}, {-7, 93, 93}} {
		out, err := settle(c.by)
		if err != nil || !out[0].Repeated || !out[1].Repeated || out[0].Remaining != c.user || out[1].Remaining != c.tenant {
			t.Errorf("settled by %d: %+v, %v; want %d and %d remaining, and that it was settled before", c.by, out, err, c.user, c.tenant)
		}
	}
}

// subjectAt returns a subject whose counters a server of a ring has.
func subjectAt(s *redisstore.Store, n *testredis.Server) string {
	for i := 0; ; i++ {
		who := string(rune('a' + i))
		if a := ask(who, 1); s.Server(&a[0]) == n.Addr() {
			return who
		}
	}
}
