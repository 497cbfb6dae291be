package redisstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// workerURL is set for the processes that startWorker starts.
const workerURL = "STINT_TEST_WORKER"

// eternity is a window that does not end during a test.
var eternity = stint.Every(stint.MaxWindow)

// limitOf returns a limit of the algorithm whose capacity is n, for eternity.
func limitOf(a stint.Algorithm, n int64) stint.Limit {
	l := stint.Limit{Algorithm: a, Max: n, Window: eternity}
	if a == stint.LeakyBucket {
		l.Burst = n - 1
	}
	return l
}

// A worker has 8 goroutines that take from a shared limit and from a user's limit until the shared one
// is used up.
const (
	processes, takers, users = 3, 8, 4
	wholeLimit, userLimit    = 600, 200
)

// work is the main function of a worker. It prints how many units it was admitted, by counter.
func work(url string) int {
	s, err := redisstore.Open(url, redisstore.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer s.Close()
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		admitted = map[string]int64{}
	)
	for taker := range takers {
		wg.Go(func() {
			mine := map[string]int64{}
			for _, a := range stint.Algorithms() {
				whole := stint.Ask{Key: stint.Key{Subject: a.String(), Name: "all"}, Limit: limitOf(a, wholeLimit), Cost: 1}
				user := stint.Ask{Key: stint.Key{Subject: a.String(), Name: fmt.Sprint("user-", taker%users)}, Limit: limitOf(a, userLimit), Cost: 1}
				for range 60 {
					out, err := storetest.Take(context.Background(), s, []stint.Ask{whole, user})
					if err != nil {
						fmt.Fprintln(os.Stderr, err)
						os.Exit(1)
					}
					if out[0].Allowed && out[1].Allowed {
						mine[whole.Key.String()]++
						mine[user.Key.String()]++
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for k, n := range mine {
				admitted[k] += n
			}
		})
	}
	wg.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(admitted); err != nil {
		return 1
	}
	return 0
}

// worker is a process that runs this test's binary as a worker.
type worker struct {
	*exec.Cmd
	out, errs bytes.Buffer
}

// startWorker starts a process that uses the store at a URL.
func startWorker(t testing.TB, url string, env ...string) *worker {
	t.Helper()
	w := &worker{Cmd: exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")}
	w.Env = append(append(os.Environ(), workerURL+"="+url), env...)
	w.Stdout, w.Stderr = &w.out, &w.errs
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestProcesses takes from the same counters in several processes. Together they are admitted exactly
// the limit.
func TestProcesses(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"single", "cluster", "ring"} { // sentinels have a single server for it
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := patient(addPrefix(topologies[name](t)))
			var workers [processes]*worker
			for i := range workers {
				workers[i] = startWorker(t, url)
			}
			admitted := map[string]int64{}
			for _, w := range workers {
				if err := w.Wait(); err != nil {
					t.Fatalf("%v: %s", err, w.errs.String())
				}
				var mine map[string]int64
				if err := json.Unmarshal(w.out.Bytes(), &mine); err != nil {
					t.Fatal(err)
				}
				for k, n := range mine {
					admitted[k] += n
				}
			}
			s, err := redisstore.Open(url, redisstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for _, a := range stint.Algorithms() {
				key := stint.Key{Subject: a.String(), Name: "all"}
				if got := admitted[key.String()]; got != wholeLimit {
					t.Errorf("%v: %d admitted, want %d", a, got, wholeLimit)
				}
				for user := range users {
					k := stint.Key{Subject: a.String(), Name: fmt.Sprint("user-", user)}
					out, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: k, Limit: limitOf(a, userLimit)}})
					if err != nil {
						t.Fatal(err)
					}
					if got := userLimit - out[0].Remaining; got != admitted[k.String()] {
						t.Errorf("%v: %d admitted, %d charged", k, admitted[k.String()], got)
					}
				}
			}
			if t.Failed() {
				t.Log(maps.Collect(maps.All(admitted)))
			}
		})
	}
}

// TestClocks uses stores with wrong clocks. They only guess the calendar window by them, and no decision
// depends on the guess.
func TestClocks(t *testing.T) {
	t.Parallel()
	for name, urlOf := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := fmt.Sprintf("%s?prefix=c%d", urlOf(t), stores.Add(1))
			for _, text := range []string{"100/day", "100/month tz=Asia/Tokyo", "100/1h token_bucket", "100/100h", "100/1h sliding_log"} {
				l, err := stint.ParseLimit(text)
				if err != nil {
					t.Fatal(err)
				}
				remaining := int64(100)
				for _, skew := range []time.Duration{0, time.Hour, -time.Hour, 400 * 24 * time.Hour, -50 * 365 * 24 * time.Hour} {
					s, err := redisstore.Open(url, redisstore.Options{})
					if err != nil {
						t.Fatal(err)
					}
					redisstore.SetWall(s, func() time.Time { return time.Now().Add(skew) })
					for range 2 {
						out, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: stint.Key{Subject: "alice", Name: text}, Limit: l, Cost: 1}})
						if remaining--; err != nil || out[0].Remaining != remaining {
							t.Errorf("%s, clock off by %v: %v, %v; want %d remaining", text, skew, out, err, remaining)
						}
						if most := 32 * 24 * time.Hour; err == nil && out[0].ResetAfter > 2*most {
							t.Errorf("%s, clock off by %v: resets after %v", text, skew, out[0].ResetAfter)
						}
					}
					s.Close()
				}
			}
		})
	}
}

// only reports an error that is not ErrUnavailable.
func only(t testing.TB, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, stint.ErrUnavailable) {
		t.Errorf("%v; want ErrUnavailable or none", err)
	}
}
