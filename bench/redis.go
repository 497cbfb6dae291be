package main

import (
	"bytes"
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
	"syscall"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/redisstore"
)

// The contestants over Redis. Both sides decide about one key in one call, with
// their defaults.
const (
	redisRival = "redis_rate"
	redisKeys  = 100_000
)

// redisCell is a load, with the keys it is spread over.
type redisCell struct {
	name       string
	keys       int
	goroutines int
}

var redisCells = []redisCell{
	{"one hot key, 512 goroutines", 1, 512},
	{"100,000 random keys, 128 goroutines", redisKeys, 128},
	{"100,000 random keys, 1 goroutine", redisKeys, 1},
}

// redisDecide asks for one unit of the i-th key.
type redisDecide func(ctx context.Context, i int) (bool, error)

type redisContestant struct {
	name, module string
	open         func(addr string) (redisDecide, func(), error)
}

func redisContestants() []redisContestant {
	return []redisContestant{
		{"stint/redis sliding_window", "", openRedis(stint.Limit{Algorithm: stint.SlidingWindow}, 1)},
		{"stint/redis fixed_window", "", openRedis(stint.Limit{Algorithm: stint.FixedWindow}, 1)},
		{"stint/redis token_bucket", "", openRedis(stint.Limit{Algorithm: stint.TokenBucket}, 1)},
		{"stint/redis sliding_window, 10 limits", "", openRedis(stint.Limit{Algorithm: stint.SlidingWindow}, 10)},
		{redisRival, "github.com/go-redis/redis_rate/v10", openRedisRate},
	}
}

func openRedis(l stint.Limit, limits int) func(string) (redisDecide, func(), error) {
	l.Max, l.Window = most, stint.Every(window)
	return func(addr string) (redisDecide, func(), error) {
		s, err := redisstore.Open("redis://"+addr, redisstore.Options{})
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context, i int) (bool, error) {
			asks := make([]stint.Ask, limits)
			subject := "user:" + strconv.Itoa(i)
			for j := range asks {
				asks[j] = stint.Ask{Key: stint.Key{Subject: subject, Name: names[j]}, Limit: l, Cost: 1}
			}
			d, err := s.Take(ctx, asks)
			return err == nil && d[0].Allowed, err
		}, func() { s.Close() }, nil
	}
}

// names are the names of limits.
var names = [...]string{"api", "api-1", "api-2", "api-3", "api-4", "api-5", "api-6", "api-7", "api-8", "api-9"}

func openRedisRate(addr string) (redisDecide, func(), error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	l := redis_rate.NewLimiter(client)
	limit := redis_rate.Limit{Rate: most, Burst: most, Period: window}
	return func(ctx context.Context, i int) (bool, error) {
		r, err := l.Allow(ctx, "user:"+strconv.Itoa(i), limit)
		return err == nil && r.Allowed == 1, err
	}, func() { client.Close() }, nil
}

// redisResult is what was measured of a contestant in a cell.
type redisResult struct {
	perSecond, p50, p99, cpu, allocs, bytes samples
}

// redisServer is a server of the benchmark's own.
type redisServer struct {
	addr string
	cmd  *exec.Cmd
	out  bytes.Buffer
}

func startRedis(ctx context.Context) (*redisServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &redisServer{addr: l.Addr().String()}
	_, port, _ := net.SplitHostPort(s.addr)
	l.Close()
	s.cmd = exec.CommandContext(ctx, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	s.cmd.Dir = os.TempDir()
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w (make deps installs it)", err)
	}
	client := redis.NewClient(&redis.Options{Addr: s.addr})
	defer client.Close()
	for deadline := time.Now().Add(5 * time.Second); ; {
		if err := client.Ping(ctx).Err(); err == nil {
			return s, nil
		} else if time.Now().After(deadline) {
			s.stop()
			return nil, fmt.Errorf("redis-server: %w: %s", err, s.out.String())
		}
	}
}

func (s *redisServer) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// redisCPU is the time that the server has used.
func redisCPU(ctx context.Context, client *redis.Client) (time.Duration, error) {
	text, err := client.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, field := range []string{"used_cpu_user:", "used_cpu_sys:"} {
		_, rest, ok := strings.Cut(text, field)
		value, _, _ := strings.Cut(rest, "\r\n")
		f, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			return 0, errors.New("INFO cpu: no " + field)
		}
		sum += f
	}
	return time.Duration(sum * float64(time.Second)), nil
}

// compareRedis measures every contestant in every cell, in rounds.
func compareRedis(out io.Writer, s settings) error {
	list := slices.DeleteFunc(redisContestants(), func(c redisContestant) bool { return !s.only.MatchString(c.name) })
	if len(list) == 0 {
		return nil
	}
	server, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer server.stop()
	results := map[string][]redisResult{}
	for _, cell := range redisCells {
		results[cell.name] = make([]redisResult, len(list))
	}
	for range s.rounds {
		for _, i := range rand.Perm(len(list)) {
			for _, cell := range redisCells {
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

func measureRedis(server *redisServer, c redisContestant, cell redisCell, length time.Duration, r *redisResult) error {
	client := redis.NewClient(&redis.Options{Addr: server.addr})
	defer client.Close()
	decide, closeIt, err := c.open(server.addr)
	if err != nil {
		return err
	}
	defer closeIt()
	// Connections, the script, and most of the counters.
	if _, err := loadRedis(decide, cell, length/4+1); err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start, err := redisCPU(ctx, client)
	if err != nil {
		return err
	}
	each, err := loadRedis(decide, cell, length)
	if err != nil {
		return err
	}
	end, err := redisCPU(ctx, client)
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
				if err == nil && !ok {
					err = errors.New("denied")
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
	t := table{{"", "decisions/s", "", "×" + redisRival, "p50 µs", "×" + redisRival, "p99 µs", "Redis CPU µs", "×" + redisRival, "allocs", "bytes"}}
	for i, c := range list {
		r := results[i]
		t.row(c.name+version(c.module),
			thousands(int(r.perSecond.median())), spread(r.perSecond), ratio(r.perSecond, riv.perSecond),
			micros(r.p50), ratio(r.p50, riv.p50), micros(r.p99),
			micros(r.cpu), ratio(r.cpu, riv.cpu),
			fmt.Sprintf("%.1f", r.allocs.median()), thousands(int(r.bytes.median())))
	}
	t.print(out, "One decision over Redis: "+name)
}

func micros(s samples) string { return fmt.Sprintf("%.1f", s.median()/1000) }
