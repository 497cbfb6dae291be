//go:build torture

package e2e_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// observer is a target that sees how many requests there are at once. It does not count those whose clients
// leave: it learns of that later than the gateway, which may have given their places to others by then.
// It keeps requests for up to 60 ms, and for a second until it has seen enough of them at once: on a busy
// machine, short ones would never meet.
type observer struct {
	now, most, served atomic.Int64
	full              chan struct{} // closed when ten are there at the end
}

// enough is how many requests at once show that the places were used.
const enough = 8

func (o *observer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	longest := 60 * time.Millisecond
	if o.most.Load() < enough {
		longest = time.Second
	}
	hold := rand.N(longest)
	if r.Header.Get("X-Leaves") == "" {
		n := o.now.Add(1)
		defer o.now.Add(-1)
		for most := o.most.Load(); n > most && !o.most.CompareAndSwap(most, n); most = o.most.Load() {
		}
		if r.URL.Path == "/last" {
			if n == 10 {
				close(o.full)
			}
			select {
			case <-o.full:
			case <-r.Context().Done():
			}
			return
		}
	}
	select {
	case <-time.After(hold):
	case <-r.Context().Done():
		return
	}
	if o.served.Add(1)%7 == 0 { // it dies in the middle of a response
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(w, "done")
}

// TestConcurrency has 64 clients ask for 10 places through three nodes, while clients leave, targets die in the
// middle of responses, a node is killed, another one is drained, and Redis is out of reach for a while, and then
// killed. There are never more than 10 at once, and afterwards all places are back.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	o := &observer{full: make(chan struct{})}
	target := httptest.NewUnstartedServer(o)
	target.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // it dies on purpose
	target.Start()
	t.Cleanup(target.Close)
	config := fmt.Sprintf(`
[[upstreams]]
targets = [%q]

[[rules]]
name = "at-once"
action = "throttle"
max_delay = "100ms"
on_store_failure = "closed"
limits = [{ name = "at-once", limit = "10/10s concurrency" }]
`, target.URL)
	store := testredis.Start(t, "--appendonly", "yes", "--appendfsync", "always") // which forgets no place when it is killed
	redis := testredis.StartProxy(t, store)
	var nodes []*server
	for range 3 {
		nodes = append(nodes, serve(t, config, "STINT_SERVER_COUNTERS="+patiently(redis.URL()), "STINT_SERVER_STORE_BUDGET=1s"))
	}
	var passed, denied, undecided atomic.Int64
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	send := func(ctx context.Context, url string, leaves bool) int {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		if leaves {
			r.Header.Set("X-Leaves", "1")
		}
		res, err := transport.RoundTrip(r)
		if err != nil {
			return 0 // its node was killed, or it has left
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	for i := range 64 {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				leaves := (i+n)%5 == 0
				mine, leave := context.WithCancel(t.Context())
				if leaves {
					time.AfterFunc(time.Duration(rand.IntN(30))*time.Millisecond, leave)
				}
				switch send(mine, nodes[(i+n)%len(nodes)].gateway+"/", leaves) {
				case http.StatusOK:
					passed.Add(1)
				case http.StatusTooManyRequests:
					denied.Add(1)
				case http.StatusServiceUnavailable:
					undecided.Add(1)
				}
				leave()
			}
		})
	}
	more := func(what string, of *atomic.Int64, n int64) {
		t.Helper()
		before := of.Load()
		wait.For(t, what, func() bool { return of.Load() >= before+n })
	}
	wait.Nil(t, "the places are used", func() error {
		if o.most.Load() < enough || denied.Load() == 0 {
			return fmt.Errorf("%d at once, %d were denied: too little to tell", o.most.Load(), denied.Load())
		}
		return nil
	})
	more("requests through three nodes", &passed, 50)
	nodes[0].kill(t)
	more("requests through two nodes", &passed, 50)
	nodes[1].terminate()
	more("requests while a node is drained", &passed, 50)
	redis.Set(t, testserver.Fault{Refuse: true})
	more("requests that cannot be decided", &undecided, 1)
	redis.Set(t, testserver.Fault{})
	more("requests after that", &passed, 50)
	store.Kill(t)
	store.Restart(t)
	more("requests through a Redis that has been killed", &passed, 50)
	cancel()
	clients.Wait()
	if most := o.most.Load(); most > 10 {
		t.Errorf("%d were there at once, want at most 10", most)
	}
	// All places are back, if ten requests can be there at once.
	end, stop := context.WithCancel(t.Context())
	defer stop()
	for range 10 {
		clients.Go(func() {
			for end.Err() == nil && send(end, nodes[2].gateway+"/last", false) != http.StatusOK {
			}
		})
	}
	wait.Nil(t, "all places are back", func() error {
		if !isClosed(o.full) {
			return fmt.Errorf("%d are there", o.now.Load())
		}
		return nil
	})
	clients.Wait()
}
