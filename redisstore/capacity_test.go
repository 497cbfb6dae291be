//go:build scale

package redisstore_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
)

var (
	capacityUsers  = flag.Int("users", 10_000_000, "how many users have a counter")
	capacityRate   = flag.Int("rate", 100_000, "how many decisions a second are asked for")
	capacityLength = flag.Duration("for", 30*time.Second, "for how long")
)

// TestCapacity gives ten million users a counter each in one Redis, and then asks for 100,000 decisions a
// second of random users. It prints what that costs, from which other loads can be computed.
func TestCapacity(t *testing.T) { //nolint:paralleltest // it measures
	server := testredis.Start(t, "--save", "", "--appendonly", "no")
	s, err := redisstore.Open(server.URL()+"?timeout=5s", redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	info := func(field string) float64 {
		text, _ := server.Do(t, "INFO", "everything").(string)
		_, rest, _ := strings.Cut(text, "\r\n"+field+":")
		value, _, _ := strings.Cut(rest, "\r\n")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("INFO %s: %v", field, err)
		}
		return n
	}
	cpu := func() float64 { return info("used_cpu_user") + info("used_cpu_sys") }
	limit, err := stint.ParseLimit("1000/1d")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := limit.Compile()
	if err != nil {
		t.Fatal(err)
	}
	take := func(asks []stint.Ask, ds []stint.Decision, user int) error {
		asks[0] = stint.Ask{Key: stint.Key{Subject: "user:" + strconv.Itoa(user), Name: "api:daily"}, Limit: limit, Plan: plan, Cost: 1}
		return s.Take(context.Background(), asks, ds)
	}
	const callers = 256
	each := func(f func(caller int, asks []stint.Ask, ds []stint.Decision) error) {
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				if err := f(c, make([]stint.Ask, 1), make([]stint.Decision, 1)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}

	empty, start := info("used_memory"), time.Now()
	each(func(c int, asks []stint.Ask, ds []stint.Decision) error {
		for user := c; user < *capacityUsers; user += callers {
			if err := take(asks, ds, user); err != nil {
				return err
			}
		}
		return nil
	})
	used := info("used_memory") - empty
	t.Logf("%d users after %v: %.2f GB in Redis, %.0f bytes each", *capacityUsers, time.Since(start).Round(time.Second), used/1e9, used/float64(*capacityUsers))

	var (
		mu        sync.Mutex
		latencies []time.Duration
		late      atomic.Int64
	)
	before, calls, begin := cpu(), s.Stats().Calls, time.Now()
	mine := processCPU(t)
	each(func(_ int, asks []stint.Ask, ds []stint.Decision) error {
		// Each caller has a schedule. What comes late counts from when it was due.
		gap := time.Second * callers / time.Duration(*capacityRate)
		var took []time.Duration
		for due := begin.Add(rand.N(gap)); due.Sub(begin) < *capacityLength; due = due.Add(gap) {
			if wait := time.Until(due); wait > 0 {
				<-time.After(wait)
			} else if wait < -time.Second {
				late.Add(1)
			}
			if err := take(asks, ds, rand.IntN(*capacityUsers)); err != nil {
				return err
			}
			took = append(took, time.Since(due))
		}
		mu.Lock()
		defer mu.Unlock()
		latencies = append(latencies, took...)
		return nil
	})
	span := time.Since(begin).Seconds()
	n := float64(len(latencies))
	slices.Sort(latencies)
	redis := cpu() - before
	t.Logf("%.0f decisions a second, %.0f calls a second; p50 %v, p99 %v; %d were more than a second late",
		n/span, float64(s.Stats().Calls-calls)/span, latencies[len(latencies)/2].Round(10*time.Microsecond), latencies[len(latencies)*99/100].Round(10*time.Microsecond), late.Load())
	t.Logf("Redis: %.2f processors, %.1f us a decision; this process: %.2f processors, %.1f us a decision; %.0f connections",
		redis/span, redis/n*1e6, (processCPU(t)-mine)/span, (processCPU(t)-mine)/n*1e6, info("connected_clients"))
}

// processCPU returns the processor time of this process, in seconds.
func processCPU(t testing.TB) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100
}
