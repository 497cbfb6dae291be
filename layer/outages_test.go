//go:build scale

package layer_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// redisAt opens a store whose counters others may share.
func redisAt(t testing.TB, url string) stint.Store {
	t.Helper()
	s, err := redisstore.Open(url, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// measured is how an outage went, over all nodes and clients.
type measured struct {
	begin, during, end int64 // the most that a client was admitted in a window: in that of the beginning, later, and after the end
	p99, slowest       time.Duration
	lost               int64
	back               time.Duration // until Redis decided for all nodes again
}

// measure has clients of several nodes ask for four times their limits, before, during and after a fault.
// It begins and ends in the middle of windows, when their limits are used up.
func measure(t *testing.T, nodes int, limit stint.Limit, f fault, length time.Duration) measured {
	t.Helper()
	const budget, clients, callers = 50 * time.Millisecond, 3, 4
	server := testredis.Start(t, "--busy-reply-threshold", "50")
	proxy := testredis.StartProxy(t, server)
	span := limit.Window.Length()
	var (
		m         measured
		mu        sync.Mutex
		latencies []time.Duration
		admitted  = make([]map[int64]int64, clients) // by window
		counted   = make([]atomic.Int64, nodes)
		stop      = make(chan struct{})
		wg        sync.WaitGroup
	)
	for i := range admitted {
		admitted[i] = map[int64]int64{}
	}
	prefix := stores.Add(1)
	for n := range nodes {
		s := must(t)(layer.New(redisAt(t, fmt.Sprintf("%s?dial_timeout=50ms&timeout=500ms&prefix=o%d", proxy.URL(), prefix)), layer.Options{
			Retry:    layer.RetryOptions{Budget: budget, Dial: budget}, // their probes do not come back together
			Fallback: &layer.FallbackOptions{Local: memory(t, nil), Replicas: func() int { return nodes }},
		}))
		for c := range clients * callers {
			client := c % clients
			a := []stint.Ask{{Key: stint.Key{Subject: fmt.Sprint("client:", client)}, Limit: limit, Cost: 1}}
			every := span * time.Duration(nodes*callers) / time.Duration(4*limit.Max)
			wg.Go(func() {
				tick := time.NewTicker(every)
				defer tick.Stop()
				for {
					select {
					case <-stop:
						return
					case <-tick.C:
					}
					begin := time.Now()
					out, err := storetest.Take(context.Background(), s, a)
					took := time.Since(begin)
					mu.Lock()
					latencies = append(latencies, took)
					if err != nil {
						m.lost++
					} else if out[0].Allowed {
						admitted[client][out[0].At/span.Microseconds()]++
					}
					mu.Unlock()
					if err == nil && out[0].Basis == stint.Counted {
						counted[n].Add(1)
					}
				}
			})
		}
	}
	// middle waits for the middle of a window, and returns the window.
	middle := func() int64 {
		now := time.Now()
		<-time.After(now.Truncate(span).Add(3 * span / 2).Sub(now))
		return time.Now().UnixMicro() / span.Microseconds()
	}
	middle()
	middle()
	first := middle()
	f.begin(t, server, proxy)
	if length < span {
		<-time.After(length)
	} else {
		for end := time.Now().Add(length); time.Now().Before(end); {
			middle()
		}
	}
	f.end(t, server, proxy)
	last, healed := time.Now().UnixMicro()/span.Microseconds(), time.Now()
	for i := range counted {
		before := counted[i].Load()
		eventually(t, func() error {
			if n := counted[i].Load(); n < before+20 {
				return fmt.Errorf("Redis has decided %d times", n-before)
			}
			return nil
		})
	}
	m.back = time.Since(healed)
	middle()
	middle()
	close(stop)
	wg.Wait()
	slices.Sort(latencies)
	m.p99, m.slowest = latencies[len(latencies)*99/100], latencies[len(latencies)-1]
	for _, windows := range admitted {
		for w, n := range windows {
			switch {
			case w < first: // buckets begin full
			case w == first:
				m.begin = max(m.begin, n)
			case w < last:
				m.during = max(m.during, n)
			default:
				m.end = max(m.end, n)
			}
		}
	}
	return m
}

// TestOutages measures how much clients are admitted around outages of a real Redis, over all nodes. It takes
// minutes, and says little on a busy machine; TestOutage is its twin in virtual time.
func TestOutages(t *testing.T) { //nolint:paralleltest // it measures
	const stall = "stall of 150 ms"
	table := faults()
	table[stall] = table["stopped"]
	for _, name := range slices.Sorted(maps.Keys(table)) {
		for _, nodes := range []int{2, 3} {
			for _, text := range []string{"100/1s fixed_window", "100/1s sliding_window"} {
				t.Run(fmt.Sprintf("%s/%d nodes/%s", name, nodes, text), func(t *testing.T) {
					length := 2 * time.Second
					if name == stall {
						length = 150 * time.Millisecond
					}
					limit := parse(t, text)
					m := measure(t, nodes, limit, table[name], length)
					t.Logf("| %s | %d | %s | %d | %d | %d | %v | %v | %d | %v |", name, nodes, limit.Algorithm, m.begin, m.during, m.end,
						m.p99.Round(100*time.Microsecond), m.slowest.Round(time.Millisecond), m.lost, m.back.Round(10*time.Millisecond))
					if worst := max(m.begin, m.during, m.end); m.lost > 0 || worst > 120 {
						t.Errorf("%d admitted of 100, %d decisions lost", worst, m.lost)
					}
				})
			}
		}
	}
}
