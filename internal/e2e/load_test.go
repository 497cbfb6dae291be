package e2e_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestTwoNodes has two processes enforce one limit, and share ten places.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	const limit, clients, requests, places = 300, 16, 40, 10
	var served, waiting atomic.Int64
	gates := map[string]chan struct{}{"/first": make(chan struct{}), "/again": make(chan struct{})}
	app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if served.Add(1); gates[r.URL.Path] != nil {
			waiting.Add(1)
			<-gates[r.URL.Path]
		}
	}))
	t.Cleanup(app.Close)
	environ := counting(apart(testredis.Shared(t).URL()))
	config := fmt.Sprintf(`
[[upstreams]]
targets = [%q]
[[rules]]
name = "all"
match = { paths = ["/"] }
limits = [{ name = "all", limit = "%d/1000h fixed_window" }]
on_store_failure = "closed"
[[rules]]
name = "places"
match = { paths = ["/first", "/again"] }
limits = [{ name = "places", limit = "%d/1h concurrency" }]
on_store_failure = "closed"
`, app.URL, limit, places)
	nodes := []*server{serve(t, config, environ...), serve(t, config, environ...)}
	var statuses [600]atomic.Int64
	// each has clients do something, each with a node.
	each := func(clients int, do func(send func(path string) (status int))) *sync.WaitGroup {
		var all sync.WaitGroup
		for i := range clients {
			c := newClient(t, "127.0.0.1", nodes[i%2].gateway)
			all.Go(func() {
				do(func(path string) int {
					w, err := c.Get(c.url + path)
					if err != nil {
						t.Error(err)
						return 0
					}
					w.Body.Close()
					statuses[w.StatusCode].Add(1)
					return w.StatusCode
				})
			})
		}
		return &all
	}
	got := func(status int) int64 { return statuses[status].Swap(0) }

	each(clients, func(send func(string) int) {
		for range requests {
			send("/")
		}
	}).Wait()
	if passed, denied := got(http.StatusOK), got(http.StatusTooManyRequests); passed != limit || passed+denied != clients*requests || served.Load() != limit {
		t.Errorf("%d passed, %d were denied, the app has seen %d, want %d and %d", passed, denied, served.Load(), limit, clients*requests-limit)
	}

	all := each(clients, func(send func(string) int) { send("/first") })
	wait.For(t, "all clients wait or are denied", func() bool {
		return waiting.Load()+statuses[http.StatusTooManyRequests].Load() == clients
	})
	close(gates["/first"])
	all.Wait()
	if passed, denied := got(http.StatusOK), got(http.StatusTooManyRequests); passed != places || denied != clients-places {
		t.Errorf("%d were there at once, and %d were denied, want %d and %d", passed, denied, places, clients-places)
	}
	waiting.Store(0)
	all = each(places, func(send func(string) int) {
		for send("/again") == http.StatusTooManyRequests { // places come back after the answer
		}
	})
	wait.For(t, "all places are back", func() bool { return waiting.Load() == places })
	close(gates["/again"])
	all.Wait()
}

// TestEachAlone takes Redis from two processes: each admits half of the limit, as it knows of the other.
func TestEachAlone(t *testing.T) {
	t.Parallel()
	const limit = 100
	redis := testredis.Start(t)
	config := fmt.Sprintf("[[rules]]\nname = \"all\"\nlimits = [{ name = \"all\", limit = \"%d/1000h fixed_window\" }]\n", limit)
	environ := []string{"STINT_SERVER_COUNTERS=" + redis.URL(), "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0", "STINT_SERVER_CATALOG_POLL=3s"}
	nodes := []*server{serve(t, config, environ...), serve(t, config, environ...)}
	for _, s := range nodes {
		s.measures(t, "stint_replicas 2")
	}
	redis.Kill(t)
	for i, s := range nodes {
		s.ready(t, "Redis cannot be used")
		passed := 0
		for range limit {
			if s.check(t, `{"path": "/"}`).Allowed {
				passed++
			}
		}
		if passed != limit/2 {
			t.Errorf("node %d: %d passed, want %d", i, passed, limit/2)
		}
	}
}
