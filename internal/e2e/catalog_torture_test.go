//go:build torture

package e2e_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestCatalogReload changes one of very many rules again and again, and compares the
// latency of decisions with that during as many writes that do not concern the server: the
// database and the writer share its processors.
func TestCatalogReload(t *testing.T) {
	t.Parallel()
	const (
		rules, clients = 10_000, 4
		// Where p99 is a millisecond, that others have the processors is most of it.
		worst, least = 5, 50 * time.Millisecond
	)
	_, url := newCatalog(t)
	// By SQL, so that a writer need not read and check all rules on this machine.
	const body = `jsonb_build_object('name', 'rule' || n, 'match', jsonb_build_object('paths', jsonb_build_array('/area' || n %% 100 || '/thing' || n || '/*')),
		'count_by', jsonb_build_array('user'), 'limits', jsonb_build_array(jsonb_build_object('name', 'limit' || n, 'limit', '%d/1h')))`
	testpostgres.Exec(t, url, raise("rule1", fmt.Sprintf(`insert into stint_rules
		select 'rule' || n, `+body+`, 1, now(), now(), 'test' from generate_series(1, %d) n`, generations, rules)))
	s := follow(t, url)
	update := func(n, limit int64) string {
		return fmt.Sprintf(`update stint_rules set version = (select revision from stint_catalog), body = `+body+` from (select %d as n) one where id = 'rule' || n`, limit, n)
	}

	var reloads int64
	sample := func(d time.Duration, reload bool) []time.Duration {
		var mu sync.Mutex
		var all []time.Duration
		var last atomic.Int64
		last.Store(reloads)
		stop := make(chan struct{})
		var work sync.WaitGroup
		for range clients {
			c := newClient(t, "127.0.0.1", s.api)
			work.Go(func() {
				tick := time.NewTicker(5 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-tick.C:
					case <-stop:
						return
					}
					begun := time.Now()
					var v verdict
					err := post(&c.Client, s.api+"/v1/check", `{"path": "/area1/thing1/x", "user": "user1"}`, &v)
					took := time.Since(begun)
					if err != nil || v.Outcome != "allowed" || len(v.Limits) != 1 {
						t.Errorf("%+v, %v", v, err)
						return
					}
					mu.Lock()
					all = append(all, took)
					mu.Unlock()
					last.Store(max(last.Load(), v.Limits[0].Max-generations)) // or another client, soon
				}
			})
		}
		for end := time.Now().Add(d); time.Now().Before(end) && !t.Failed(); {
			if !reload {
				testpostgres.Exec(t, url, update(2, generations))
				<-time.After(200 * time.Millisecond) // as often as rules are reloaded, about
				continue
			}
			reloads++
			testpostgres.Exec(t, url, raise("rule1", update(1, generations+reloads)))
			wait.Nil(t, "the change is enforced", func() error {
				if n := last.Load(); n != reloads {
					return fmt.Errorf("change %d is enforced, not %d", n, reloads)
				}
				return nil
			})
		}
		close(stop)
		work.Wait()
		return all
	}
	start := s.decided(t)
	before := sample(3*time.Second, false)
	quiet := s.decided(t)
	during := sample(3*time.Second, true)
	busy := s.decided(t)
	t.Logf("by the server's own clock, p99 of decisions is below %v without, and below %v while rules are reloaded", start.until(quiet, 0.99), quiet.until(busy, 0.99))
	t.Logf("%d rules: %d decisions, %s", rules, len(before), quantiles(before))
	t.Logf("%d reloads: %d decisions, %s", reloads, len(during), quantiles(during))
	torture.AtMost(t, "p99 while rules are reloaded", quantile(during, 0.99), max(least, worst*quantile(before, 0.99)))
}

// decided is the number of decisions up to each latency bound, in seconds.
type decided map[float64]float64

func (s *server) decided(t testing.TB) decided {
	t.Helper()
	out := decided{}
	_, text := get(t, s.url("admin")+"/metrics")
	for line := range strings.Lines(text) {
		var count float64
		if _, err := fmt.Sscanf(strings.ReplaceAll(line, "+Inf", "1e9"), "stint_decision_seconds_bucket{le=%q} %g", new(string), &count); err != nil {
			continue
		}
		_, rest, _ := strings.Cut(line, `le="`)
		text, _, _ := strings.Cut(rest, `"`)
		bound, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		out[bound] = count
	}
	return out
}

// until returns the bound of a quantile of the decisions that were made until later.
func (d decided) until(later decided, part float64) time.Duration {
	bounds := slices.Sorted(maps.Keys(later))
	all := later[bounds[len(bounds)-1]] - d[bounds[len(bounds)-1]]
	for _, b := range bounds {
		if later[b]-d[b] >= part*all {
			return time.Duration(b * float64(time.Second))
		}
	}
	return 0
}

// sighting is the first time that a node enforced a generation.
type sighting struct {
	node       int
	generation int64
	at         time.Time
}

// TestCatalogPropagates changes rules and a tier together, again and again, while two nodes
// use them.
func TestCatalogPropagates(t *testing.T) {
	t.Parallel()
	for name, counters := range map[string]func(testing.TB) []string{
		"memory": func(testing.TB) []string { return nil }, "Redis": inRedis,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const alone, inARow = 3, 6
			c, url := newCatalog(t)
			write := func(n int64) {
				t.Helper()
				if _, err := c.Apply(t.Context(), generation(n), catalog.ApplyOptions{Actor: "test"}); err != nil {
					t.Fatal(err)
				}
			}
			write(0)
			environ := append(counters(t), "STINT_SERVER_CATALOG_POLL=1m") // or that would be soon
			nodes := []*server{follow(t, url, environ...), follow(t, url, environ...)}
			var requests []string
			for i := range batch {
				requests = append(requests, fmt.Sprintf(`{"path": "/", "user": "user%d", "tier": "gold"}`, i))
			}
			sightings := make(chan sighting, 2*(alone+inARow))
			var last [2]int64
			l := startLoad(t, nodes, requests, func(node int, v *verdict) error {
				n, err := generationOf(v)
				switch {
				case err != nil:
					return err
				case n < last[node]-1: // one batch may have been decided by two
					return fmt.Errorf("generation %d after %d", n, last[node])
				case n > last[node]:
					last[node] = n
					sightings <- sighting{node, n, time.Now()}
				}
				return nil
			})
			enforced := func(n int64) (took [2]time.Duration) {
				t.Helper()
				begun := time.Now()
				write(n)
				for range nodes {
					wait.For(t, fmt.Sprint("generation ", n), func() bool { return len(sightings) > 0 || t.Failed() })
					if t.Failed() {
						t.FailNow()
					}
					s := <-sightings
					if s.generation != n {
						t.Fatalf("node %d is at generation %d, want %d", s.node, s.generation, n)
					}
					took[s.node] = s.at.Sub(begun)
				}
				return took
			}
			measure := func(what string, changes []int64, before func()) {
				t.Helper()
				var took [2][]time.Duration
				for _, n := range changes {
					before()
					for node, d := range enforced(n) {
						took[node] = append(took[node], d)
					}
				}
				for node, all := range took {
					t.Logf("%d changes %s, node %d: %s", len(changes), what, node, quantiles(all))
					torture.AtMost(t, fmt.Sprintf("changes %s, node %d, p99", what, node), quantile(all, 0.99), time.Second)
				}
			}
			var numbers []int64
			for n := range int64(alone + inARow) {
				numbers = append(numbers, n+1)
			}
			const idle = 500 * time.Millisecond // longer than nodes let changes gather
			measure("one at a time", numbers[:alone], func() { <-time.After(idle) })
			measure("in a row", numbers[alone:], func() {})
			t.Log(l.stop())
		})
	}
}

// raise returns SQL that changes a rule like a writer, but without checks.
func raise(id, sql string) string {
	return `update stint_catalog set revision = revision + 1, stamp = gen_random_uuid();
		` + sql + `;
		insert into stint_changes (revision, place, stamp, at, actor, kind, subject)
			select revision, 0, stamp, now(), 'test', 'rule', '` + id + `' from stint_catalog;
		notify stint_catalog`
}
