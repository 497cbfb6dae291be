package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/testpostgres"
	"github.com/stintdev/stint/rule"
)

// soon is how long a change may take to be enforced. Documented is a second, on a machine
// that is not as busy as one that runs tests.
const soon = 5 * time.Second

// verdict is the part of a response of the decision API that these tests use. A failed
// request has no outcome.
type verdict struct {
	Allowed bool
	Outcome string
	Rule    string
	Status  int
	Reason  string
	Limits  []struct {
		Rule string
		Max  int64
	}
}

// post asks the decision API.
func post(c *http.Client, url, body string, into any) error {
	w, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil || w.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("%s: %s", w.Status, text), err)
	}
	return json.Unmarshal(text, into)
}

// check asks for one decision.
func (s *server) check(t testing.TB, request string) verdict {
	t.Helper()
	var v verdict
	if err := post(http.DefaultClient, s.api+"/v1/check", request, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// load requests decisions at a constant rate.
type load struct {
	decided atomic.Int64
	batches []atomic.Int64 // of each node
	slowest atomic.Int64   // batch, in nanoseconds
	begun   time.Time
	quit    chan struct{}
	work    sync.WaitGroup
}

// batch is how many decisions a load requests at once, and pace how often.
const (
	batch = 25
	pace  = 10 * time.Millisecond
)

// startLoad requests 2,500 decisions per second from each node, if the machine can, until
// the load is stopped. The requests are used in turn. Every verdict is checked, in the
// order of the requests of a node; an error ends that load.
func startLoad(t *testing.T, nodes []*server, requests []string, look func(node int, v *verdict) error) *load {
	t.Helper()
	var body strings.Builder
	for i := range batch {
		fmt.Fprintf(&body, "%s,", requests[i%len(requests)])
	}
	text := `{"requests": [` + strings.TrimSuffix(body.String(), ",") + `]}`
	l := &load{batches: make([]atomic.Int64, len(nodes)), begun: time.Now(), quit: make(chan struct{})}
	t.Cleanup(func() { l.stop() })
	for node, s := range nodes {
		c := newClient(t, "127.0.0.1", s.api)
		l.work.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-l.quit:
					return
				}
				var got struct{ Verdicts []verdict }
				asked := time.Now()
				err := post(&c.Client, c.url+"/v1/check/batch", text, &got)
				if err == nil && len(got.Verdicts) != batch {
					err = fmt.Errorf("%d verdicts, want %d", len(got.Verdicts), batch)
				}
				for i := range got.Verdicts {
					err = errors.Join(err, look(node, &got.Verdicts[i]))
				}
				if err != nil {
					t.Errorf("node %d, after %d decisions: %v", node, l.decided.Load(), err)
					return
				}
				for took := int64(time.Since(asked)); ; {
					if slowest := l.slowest.Load(); took <= slowest || l.slowest.CompareAndSwap(slowest, took) {
						break
					}
				}
				l.decided.Add(batch)
				l.batches[node].Add(1)
			}
		})
	}
	return l
}

// stop ends the load, and logs its size.
func (l *load) stop() string {
	select {
	case <-l.quit:
	default:
		close(l.quit)
	}
	l.work.Wait()
	took := time.Since(l.begun)
	return fmt.Sprintf("%d decisions in %.1f s, %.0f/s, the slowest %d of them in %v", l.decided.Load(), took.Seconds(),
		float64(l.decided.Load())/took.Seconds(), batch, time.Duration(l.slowest.Load()).Round(time.Millisecond))
}

// moves waits until each node has made another decision.
func (l *load) moves(t testing.TB) {
	t.Helper()
	for node := range l.batches {
		before := l.batches[node].Load()
		eventually(t, patience, func() error {
			if n := l.batches[node].Load() - before; n < 2 { // the first may have been asked before
				return fmt.Errorf("node %d has decided %d batches", node, n)
			}
			return nil
		})
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

// Generations start here: no limit of a generation is ever reached.
const generations = 1_000_000_000

// generation is a catalog in which three rules that apply to every request have the same
// limit, one of them by a tier.
func generation(n int64) *catalog.Document {
	limit := fmt.Sprintf("%d/1h fixed_window", generations+n)
	by := func(name, limit string) rule.Rule {
		return rule.Rule{Name: name, CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: name, Limit: limit}}}
	}
	return &catalog.Document{File: rule.File{
		Rules: []rule.Rule{by("one", limit), by("three", "1/1h"), by("two", limit)},
		Tiers: []rule.Tier{{Name: "gold", Limits: map[string]string{"three": limit}}},
	}}
}

// generationOf returns the generation that has decided, or an error if there is not exactly
// one.
func generationOf(v *verdict) (int64, error) {
	if v.Outcome != "allowed" || len(v.Limits) != 3 {
		return 0, fmt.Errorf("%+v, want it allowed by three limits", *v)
	}
	for _, l := range v.Limits {
		if l.Max != v.Limits[0].Max {
			return 0, fmt.Errorf("%+v, want all of one generation", v.Limits)
		}
	}
	return v.Limits[0].Max - generations, nil
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
			const alone, inARow = 5, 10
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
				end := time.NewTimer(patience)
				defer end.Stop()
				for range nodes {
					select {
					case s := <-sightings:
						if s.generation != n {
							t.Fatalf("node %d is at generation %d, want %d", s.node, s.generation, n)
						}
						took[s.node] = s.at.Sub(begun)
					case <-end.C:
						t.Fatalf("generation %d is not enforced after %v", n, patience)
					}
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
					if p99 := quantile(all, 0.99); p99 > soon {
						t.Errorf("changes %s: node %d took %v, want at most %v", what, node, p99, soon)
					}
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
			eventually(t, patience, func() error {
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
	compare := func() error {
		start := s.decided(t)
		before := sample(3*time.Second, false)
		quiet := s.decided(t)
		during := sample(3*time.Second, true)
		busy := s.decided(t)
		t.Logf("by the server's own clock, p99 of decisions is below %v without, and below %v while rules are reloaded", start.until(quiet, 0.99), quiet.until(busy, 0.99))
		ratio := float64(quantile(during, 0.99)) / float64(quantile(before, 0.99))
		t.Logf("%d rules: %d decisions, %s", rules, len(before), quantiles(before))
		t.Logf("%d reloads: %d decisions, %s; p99 is %.1f times as long", reloads, len(during), quantiles(during), ratio)
		if p99 := quantile(during, 0.99); p99 > max(least, worst*quantile(before, 0.99)) {
			return fmt.Errorf("p99 is %v while rules are reloaded, want at most %d times as long as without, or %v", p99, worst, least)
		}
		return nil
	}
	err := compare()
	if err != nil && !t.Failed() {
		t.Log("once more, as others may have taken the processors in that half:", err)
		err = compare()
	}
	if err != nil {
		t.Error(err)
	}
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
