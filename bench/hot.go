package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// One counter that several processes ask for much more than its limit.
const (
	hotProcesses = 4
	hotCallers   = 512
	hotLimit     = 500_000
	asHot        = "hot" // the argument of such a process
)

// hotResult is what one process has done.
type hotResult struct {
	Decisions, Admitted int64
	Latencies           []time.Duration // each the mean of some decisions of a caller; of a process, the p50 and the p99
}

// hotRun is what all processes have done.
type hotRun struct {
	perSecond, calls float64 // decisions, and calls of Redis
	admitted         int64
	p50, p99         float64 // of the process where it is highest, in nanoseconds
}

// hotMean is of how many decisions a latency is the mean: a clock is read once for them.
const hotMean = 16

// hot asks for one unit of one key until the time is over, and prints the result. Its arguments are the
// contestant, the address of Redis, and the time.
func hot(args []string) error {
	at := slices.IndexFunc(redisContestants(), func(c redisContestant) bool { return c.name == args[0] })
	length, err := time.ParseDuration(args[2])
	if err != nil || at < 0 {
		return fmt.Errorf("%q: %w", args, err)
	}
	decide, closeIt, err := redisContestants()[at].open(args[1], hotLimit)
	if err != nil {
		return err
	}
	defer closeIt()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		all  hotResult
		fail atomic.Pointer[error]
	)
	start := time.Now()
	for range hotCallers {
		wg.Go(func() {
			mine := hotResult{}
			for begin := start; begin.Sub(start) < length; {
				for range hotMean {
					ok, err := decide(ctx, 0)
					if err != nil {
						fail.Store(&err)
						return
					}
					if mine.Decisions++; ok {
						mine.Admitted++
					}
				}
				now := time.Now()
				mine.Latencies = append(mine.Latencies, now.Sub(begin)/hotMean)
				begin = now
			}
			mu.Lock()
			defer mu.Unlock()
			all.Decisions += mine.Decisions
			all.Admitted += mine.Admitted
			all.Latencies = append(all.Latencies, mine.Latencies...)
		})
	}
	wg.Wait()
	if err := fail.Load(); err != nil {
		return *err
	}
	slices.Sort(all.Latencies)
	all.Latencies = []time.Duration{all.Latencies[len(all.Latencies)/2], all.Latencies[len(all.Latencies)*99/100]}
	return json.NewEncoder(os.Stdout).Encode(all)
}

// compareHot measures the contestants on one hot counter in several processes.
func compareHot(out io.Writer, s settings) error {
	t := table{{"", "decisions/s", "", "×" + redisRival, "admitted of " + thousands(hotLimit), "Redis calls/s", "p50 (µs)", "p99"}}
	speeds := map[string]samples{}
	names := []string{"stint/redis sliding_window, layers", redisLeases, redisRival}
	names = slices.DeleteFunc(names, func(name string) bool { return !s.only.MatchString(name) })
	if len(names) == 0 {
		return nil
	}
	server, err := startRedis()
	if err != nil {
		return err
	}
	defer server.stop()
	admitted, calls := map[string]int64{}, map[string]samples{}
	p50, p99 := map[string]samples{}, map[string]samples{}
	for range s.rounds {
		for _, name := range names {
			r, err := measureHot(server, name, 10*s.cell)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			speeds[name], calls[name] = append(speeds[name], r.perSecond), append(calls[name], r.calls)
			p50[name], p99[name] = append(p50[name], r.p50), append(p99[name], r.p99)
			admitted[name] = max(admitted[name], r.admitted)
		}
	}
	for _, name := range names {
		t.row(name, thousands(int(speeds[name].median())), spread(speeds[name]), ratio(speeds[name], speeds[redisRival]),
			thousands(int(admitted[name])), thousands(int(calls[name].median()+0.5)), micros(p50[name]), micros(p99[name]))
	}
	t.print(out, fmt.Sprintf("One hot counter, %d processes of %d goroutines; latencies are means of %d decisions of a goroutine, of the slowest process",
		hotProcesses, hotCallers, hotMean))
	return nil
}

// measureHot has the processes ask for some time.
func measureHot(server *process, name string, length time.Duration) (out hotRun, err error) {
	client := redis.NewClient(&redis.Options{Addr: server.addr})
	defer client.Close()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return out, err
	}
	_, before, err := redisCost(ctx, client)
	if err != nil {
		return out, err
	}
	var running [hotProcesses]*exec.Cmd
	var said [hotProcesses]bytes.Buffer
	for i := range running {
		running[i] = exec.Command(os.Args[0], asHot, name, server.addr, length.String())
		running[i].Stdout, running[i].Stderr = &said[i], os.Stderr
		if err := running[i].Start(); err != nil {
			return out, err
		}
	}
	all := int64(0)
	for i, p := range running {
		if err := p.Wait(); err != nil {
			return out, err
		}
		var r hotResult
		if err := json.Unmarshal(said[i].Bytes(), &r); err != nil {
			return out, fmt.Errorf("process %s: %w", strconv.Itoa(i), err)
		}
		all += r.Decisions
		out.admitted += r.Admitted
		out.p50, out.p99 = max(out.p50, float64(r.Latencies[0])), max(out.p99, float64(r.Latencies[1]))
	}
	_, after, err := redisCost(ctx, client)
	out.perSecond, out.calls = float64(all)/length.Seconds(), (after-before)/length.Seconds()
	return out, err
}
