package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
)

// The contestants over Redis. Both sides decide about one key in one call, with
// their defaults.
const (
	redisRival  = "redis_rate"
	redisLeases = "stint/redis sliding_window, leases"
	redisKeys   = 100_000
)

// redisCell is a load, with the keys it is spread over.
type redisCell struct {
	name       string
	keys       int
	goroutines int
	exhausted  bool // nothing is admitted
}

var redisCells = []redisCell{
	{"one hot key, 512 goroutines", 1, 512, false},
	{"100,000 random keys, 128 goroutines", redisKeys, 128, false},
	{"100,000 random keys, 1 goroutine", redisKeys, 1, false},
	{"one exhausted key, 128 goroutines", 1, 128, true},
}

// redisDecide asks for one unit of the i-th key.
type redisDecide func(ctx context.Context, i int) (bool, error)

type redisContestant struct {
	name, module string
	open         func(addr string, limit int) (redisDecide, func(), error)
}

func redisContestants() []redisContestant {
	return []redisContestant{
		{"stint/redis sliding_window", "", openRedis(stint.Limit{Algorithm: stint.SlidingWindow}, 1)},
		{"stint/redis fixed_window", "", openRedis(stint.Limit{Algorithm: stint.FixedWindow}, 1)},
		{"stint/redis token_bucket", "", openRedis(stint.Limit{Algorithm: stint.TokenBucket}, 1)},
		{"stint/redis sliding_window, 10 limits", "", openRedis(stint.Limit{Algorithm: stint.SlidingWindow}, 10)},
		{"stint/redis sliding_window, layers", "", openLayers(nil)},
		{redisLeases, "", openLayers(&stint.Policy{Lease: 100 * time.Millisecond})},
		{redisRival, "github.com/go-redis/redis_rate/v10", openRedisRate},
	}
}

func openRedis(l stint.Limit, limits int) func(string, int) (redisDecide, func(), error) {
	return func(addr string, limit int) (redisDecide, func(), error) {
		s, err := redisstore.Open("redis://"+addr, redisstore.Options{})
		if err != nil {
			return nil, nil, err
		}
		return takes(s, l, nil, limits, limit)
	}
}

// openLayers is the store inside the recommended layers, on a machine so busy
// that a decision may take a second.
func openLayers(policy *stint.Policy) func(string, int) (redisDecide, func(), error) {
	return func(addr string, limit int) (redisDecide, func(), error) {
		s, err := redisstore.Open("redis://"+addr, redisstore.Options{})
		if err != nil {
			return nil, nil, err
		}
		stack, err := layer.New(s, layer.Options{
			Retry:    layer.RetryOptions{Budget: time.Second},
			Breaker:  layer.BreakerOptions{Slow: -1},
			Fallback: &layer.FallbackOptions{Local: newStore(memstore.Options{}), Replicas: func() int { return hotProcesses }},
		})
		if err != nil {
			return nil, nil, err
		}
		return takes(stack, stint.Limit{Algorithm: stint.SlidingWindow}, policy, 1, limit)
	}
}

func takes(s stint.Store, l stint.Limit, policy *stint.Policy, limits, limit int) (redisDecide, func(), error) {
	// So long that no window ends in a cell, which would admit another unit.
	l.Max, l.Window = int64(limit), stint.Every(30*24*time.Hour)
	plan := must(l.Compile())
	return func(ctx context.Context, i int) (bool, error) {
		asks, ds := make([]stint.Ask, limits), make([]stint.Decision, limits)
		subject := "user:" + strconv.Itoa(i)
		for j := range asks {
			asks[j] = stint.Ask{Key: stint.Key{Subject: subject, Name: names[j]}, Limit: l, Plan: plan, Cost: 1, Policy: policy}
		}
		err := s.Take(ctx, asks, ds)
		return err == nil && ds[0].Allowed, err
	}, func() { s.Close() }, nil
}

// names are the names of limits.
var names = [...]string{"api", "api-1", "api-2", "api-3", "api-4", "api-5", "api-6", "api-7", "api-8", "api-9"}

func openRedisRate(addr string, limit int) (redisDecide, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	l := redis_rate.NewLimiter(client)
	rate := redis_rate.Limit{Rate: limit, Burst: limit, Period: window}
	return func(ctx context.Context, i int) (bool, error) {
		r, err := l.Allow(ctx, "user:"+strconv.Itoa(i), rate)
		return err == nil && r.Allowed == 1, err
	}, func() { client.Close() }, nil
}

// redisResult is the measurements of a contestant in a cell.
type redisResult struct {
	perSecond, p50, p99, cpu, calls, allocs, bytes samples
}

func startRedis() (*process, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	cmd.Dir = os.TempDir()
	s, err := startProcess(cmd, addr, nil)
	if err != nil {
		return nil, fmt.Errorf("%w (make deps installs redis-server)", err)
	}
	return s, nil
}

// redisCost returns the processor time that the server has used, and how many scripts it ran.
func redisCost(ctx context.Context, client *redis.Client) (cpu time.Duration, calls float64, err error) {
	text, err := client.Info(ctx, "cpu", "commandstats").Result()
	if err != nil {
		return 0, 0, err
	}
	number := func(field, end string) (n float64) {
		_, rest, _ := strings.Cut(text, field)
		value, _, _ := strings.Cut(rest, end)
		n, _ = strconv.ParseFloat(value, 64) // 0 if it is missing
		return n
	}
	sum := number("used_cpu_user:", "\r\n") + number("used_cpu_sys:", "\r\n")
	if sum == 0 {
		return 0, 0, errors.New("INFO has no processor time")
	}
	return time.Duration(sum * float64(time.Second)), number("cmdstat_evalsha:calls=", ","), nil
}

// compareRedis measures every contestant in every cell, in rounds.
func compareRedis(out io.Writer, s settings) error {
	list := slices.DeleteFunc(redisContestants(), func(c redisContestant) bool { return !s.only.MatchString(c.name) })
	if len(list) == 0 {
		return nil
	}
	server, err := startRedis()
	if err != nil {
		return err
	}
	defer server.stop()
	results := map[string][]redisResult{}
	for _, cell := range redisCells {
		results[cell.name] = make([]redisResult, len(list))
	}
	for range s.rounds {
		for _, cell := range redisCells {
			for _, i := range rand.Perm(len(list)) {
				if err := measureRedis(server, list[i], cell, s.cell, &results[cell.name][i]); err != nil {
					return fmt.Errorf("%s: %w", list[i].name, err)
				}
			}
		}
	}
	for _, cell := range redisCells {
		printRedis(out, cell.name, list, results[cell.name])
	}
	return nil
}

func measureRedis(server *process, c redisContestant, cell redisCell, length time.Duration, r *redisResult) error {
	client := redis.NewClient(&redis.Options{Addr: server.addr})
	defer client.Close()
	limit := int(most)
	if cell.exhausted {
		limit = 1
		// What was admitted in other cells counts against a smaller limit, too.
		if err := client.FlushAll(ctx).Err(); err != nil {
			return err
		}
	}
	decide, closeIt, err := c.open(server.addr, limit)
	if err != nil {
		return err
	}
	defer closeIt()
	// Make connections, load the script, and make most of the counters.
	if _, err := loadRedis(decide, cell, length/4+1); err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start, startCalls, err := redisCost(ctx, client)
	if err != nil {
		return err
	}
	each, err := loadRedis(decide, cell, length)
	if err != nil {
		return err
	}
	end, endCalls, err := redisCost(ctx, client)
	if err != nil {
		return err
	}
	runtime.ReadMemStats(&after)
	n := float64(len(each.latencies))
	slices.Sort(each.latencies)
	r.perSecond = append(r.perSecond, n/each.took.Seconds())
	r.p50 = append(r.p50, float64(each.latencies[len(each.latencies)/2]))
	r.p99 = append(r.p99, float64(each.latencies[len(each.latencies)*99/100]))
	r.cpu = append(r.cpu, float64(end-start)/n)
	r.calls = append(r.calls, (endCalls-startCalls)/each.took.Seconds())
	r.allocs = append(r.allocs, float64(after.Mallocs-before.Mallocs)/n)
	r.bytes = append(r.bytes, float64(after.TotalAlloc-before.TotalAlloc)/n)
	return nil
}

type redisLoad struct {
	latencies []time.Duration
	took      time.Duration
}

func loadRedis(decide redisDecide, cell redisCell, length time.Duration) (redisLoad, error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		all   redisLoad
		fail  atomic.Pointer[error]
		start = time.Now()
	)
	for g := range cell.goroutines {
		wg.Go(func() {
			w := walk(g)
			each := make([]time.Duration, 0, 1024)
			for begin := start; begin.Sub(start) < length; {
				ok, err := decide(ctx, w.next(cell.keys))
				if err == nil && ok == cell.exhausted && len(each) > 0 {
					err = fmt.Errorf("admitted: %t", ok)
				}
				if err != nil {
					fail.Store(&err)
					return
				}
				now := time.Now()
				each = append(each, now.Sub(begin))
				begin = now
			}
			mu.Lock()
			all.latencies = append(all.latencies, each...)
			mu.Unlock()
		})
	}
	wg.Wait()
	all.took = time.Since(start)
	if err := fail.Load(); err != nil {
		return all, *err
	}
	return all, nil
}

func printRedis(out io.Writer, name string, list []redisContestant, results []redisResult) {
	var riv redisResult
	for i, c := range list {
		if c.name == redisRival {
			riv = results[i]
		}
	}
	t := table{{"", "decisions/s", "", "×" + redisRival, "p50 µs", "×" + redisRival, "p99 µs", "Redis CPU µs", "×" + redisRival, "calls/s", "allocs", "bytes"}}
	for i, c := range list {
		r := results[i]
		t.row(c.name+version(c.module),
			thousands(int(r.perSecond.median())), spread(r.perSecond), ratio(r.perSecond, riv.perSecond),
			micros(r.p50), ratio(r.p50, riv.p50), micros(r.p99),
			micros(r.cpu), ratio(r.cpu, riv.cpu), thousands(int(r.calls.median()+0.5)),
			fmt.Sprintf("%.1f", r.allocs.median()), thousands(int(r.bytes.median())))
	}
	t.print(out, "One decision over Redis: "+name)
}

func micros(s samples) string { return fmt.Sprintf("%.1f", s.median()/1000) }
