//go:build scale

package redisstore_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// cost is how long an operation takes: for its caller, and in Redis.
type cost struct{ wall, redis time.Duration }

// costs measures operations in turn, so that a busy machine slows down all of them alike. Of each it
// returns the lower quartile of many short rounds.
func costs(t testing.TB, server *testredis.Server, ops []func()) []cost {
	t.Helper()
	const rounds, each = 15, 20
	inScripts := func() time.Duration {
		info := server.Do(t, "INFO", "commandstats").(string)
		_, rest, _ := strings.Cut(info, "cmdstat_evalsha:calls=")
		_, rest, _ = strings.Cut(rest, "usec=")
		usec, _, _ := strings.Cut(rest, ",")
		n, err := strconv.Atoi(usec)
		if err != nil {
			t.Fatal(err, info)
		}
		return time.Duration(n) * time.Microsecond
	}
	walls, inRedis := make([][]time.Duration, len(ops)), make([][]time.Duration, len(ops))
	for range rounds {
		for i, op := range ops {
			op() // not the first after another
			before, start := inScripts(), time.Now()
			for range each {
				op()
			}
			walls[i] = append(walls[i], time.Since(start)/each)
			inRedis[i] = append(inRedis[i], (inScripts()-before)/each)
		}
	}
	out := make([]cost, len(ops))
	for i := range ops {
		slices.Sort(walls[i])
		slices.Sort(inRedis[i])
		out[i] = cost{walls[i][rounds/4], inRedis[i][rounds/4]}
	}
	return out
}

// TestConcurrencyCost compares the operations of concurrency with takes. A busy machine gets five tries.
func TestConcurrencyCost(t *testing.T) {
	server := testredis.Start(t)
	s := openURL(t, server.URL(), redisstore.Options{})
	window := []stint.Ask{{Key: stint.Key{Subject: "alice", Name: "api"}, Limit: parse(t, "1000000/1h"), Cost: 1}}
	few, many := holders(t, s, 1), holders(t, s, 1000)
	var extra []stint.Charge
	ops := []func(){
		func() { // a take
			if _, err := storetest.Take(t.Context(), s, window); err != nil {
				t.Fatal(err)
			}
		},
		func() { few.change(few.take(), -1) },
		func() { extra = append(extra, many.take()) },
		func() { // releases one of the 1,000, in whose place is then what the operation before has taken
			c := many.pick()
			many.change(*c, -1)
			*c, extra = extra[0], extra[1:]
		},
		many.renew,
	}
	for tries := 1; ; tries++ {
		got := costs(t, server, ops)
		take, both, hold, release, renew := got[0], got[1], got[2], got[3], got[4]
		times := func(a, b cost) string {
			return fmt.Sprintf("%.2f (in Redis %.2f)", float64(a.wall)/float64(b.wall), float64(a.redis)/float64(b.redis))
		}
		t.Logf("a take of a sliding_window: %v (in Redis %v); a hold and a release: %s times that", take.wall, take.redis, times(both, take))
		t.Logf("a hold beside 1,000 others: %v (in Redis %v); a release %s, a renewal %s times that", hold.wall, hold.redis, times(release, hold), times(renew, hold))
		switch {
		case both.wall <= 3*take.wall && release.wall <= 3*hold.wall && renew.wall <= 3*hold.wall &&
			release.redis <= 3*hold.redis && renew.redis <= 3*hold.redis:
			return
		case tries == 5:
			t.Fatal("want at most 3 times a take, which is 1.9 to 2.4 on a quiet machine, and 3 times a hold")
		}
	}
}

// TestReserveCost compares a reservation, and its settlement by what was used, with a take. A busy machine gets five tries.
func TestReserveCost(t *testing.T) {
	server := testredis.Start(t)
	s := openURL(t, server.URL(), redisstore.Options{})
	ask := stint.Ask{Key: stint.Key{Subject: "alice", Name: "tokens"}, Limit: parse(t, "1000000000/1h"), Cost: 100}
	n := 0
	ops := []func(){
		func() { // a take
			if _, err := storetest.Take(t.Context(), s, []stint.Ask{ask}); err != nil {
				t.Fatal(err)
			}
		},
		func() { // a reservation that is settled
			ds, err := storetest.Take(t.Context(), s, []stint.Ask{ask})
			if err != nil {
				t.Fatal(err)
			}
			a, c := ask, ds[0].Charge()
			n++
			c.ID = "reservation." + strconv.Itoa(n)
			a.Cost, a.Charge = -40, &c
			if err := s.Adjust(t.Context(), []stint.Ask{a}, ds); err != nil || ds[0].Repeated {
				t.Fatal(ds, err)
			}
		},
	}
	for tries := 1; ; tries++ {
		got := costs(t, server, ops)
		wall, inRedis := float64(got[1].wall)/float64(got[0].wall), float64(got[1].redis)/float64(got[0].redis)
		t.Logf("a take: %v (in Redis %v); a reservation and its settlement: %.2f times that (in Redis %.2f)", got[0].wall, got[0].redis, wall, inRedis)
		if wall <= 3 {
			return
		}
		if tries == 5 {
			t.Fatal("want at most 3 times a take, which is 2.1 to 2.6 on a quiet machine")
		}
	}
}
