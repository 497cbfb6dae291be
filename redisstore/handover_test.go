//go:build torture

package redisstore_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// TestPlannedFailover has a sentinel replace a primary that works, while callers take. What was admitted is counted
// by the new primary, but for what it had not received yet.
func TestPlannedFailover(t *testing.T) {
	t.Parallel()
	r := testredis.StartSentinels(t)
	r.Patience(time.Hour)
	s := openURL(t, r.URL()+"?timeout=500ms&dial_timeout=30s", redisstore.Options{})
	for _, n := range r.Nodes() {
		wait.For(t, "it hears all sentinels", func() bool { return strings.Contains(n.Do(t, "CLIENT", "LIST").(string), " sub=3 ") })
	}
	const limit = 1_000_000_000
	var admitted, failed atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for !stop.Load() {
				out, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: stint.Key{Subject: "alice", Name: "api"}, Limit: parse(t, "1000000000/1000h"), Cost: 1}})
				switch {
				case err != nil:
					only(t, err)
					failed.Add(1)
				case out[0].Allowed:
					admitted.Add(1)
				}
			}
		})
	}
	wait.For(t, "some are admitted", func() bool { return admitted.Load() > 1000 })
	old := r.Primary(t)
	r.Nodes()[2].Do(t, "SENTINEL", "FAILOVER", "primary")
	wait.For(t, "there is another primary", func() bool { return r.Primary(t) != old })
	before := admitted.Load()
	wait.For(t, "some are admitted there", func() bool { return admitted.Load() > before+1000 })
	stop.Store(true)
	wg.Wait()
	wait.For(t, "the old one is a replica", func() bool { return old.Do(t, "ROLE").([]any)[0] == "slave" })
	left := takeOne(t, s, "alice", parse(t, "1000000000/1000h"), 0).Remaining
	t.Logf("%d admitted, %d failed", admitted.Load(), failed.Load())
	torture.AtMost(t, "charges that were lost", admitted.Load()-(limit-left), 0)
}
