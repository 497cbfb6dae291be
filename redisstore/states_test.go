package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// keyOf returns the Redis key of an ask's counter in a store that open returned.
func keyOf(a stint.Ask) string {
	return fmt.Sprintf("rl:%s:%s", a.Key, a.Limit.AppendKind(nil))
}

// TestTTL checks the time to live of counters, and that it is restored soon after it was removed.
func TestTTL(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL(), redisstore.Options{})
	var asked time.Time // when the last call was made
	ttl := func(key string) time.Duration {
		ms := server.Do(t, "PTTL", key).(int64)
		return time.Duration(ms) * time.Millisecond
	}
	for _, text := range []string{
		"2/1000h", "2/1000h fixed_window", "2/1000h sliding_log", "2/1000h token_bucket", "2/1000h burst=1 leaky_bucket", "2/year",
	} {
		l, err := stint.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		a := stint.Ask{Key: stint.Key{Subject: "alice", Name: text}, Limit: l, Cost: 1}
		key := keyOf(a)
		check := func(what string, reset time.Duration) {
			t.Helper()
			for range 1000 { // one call in 16 looks for it
				if ttl(key) > 0 {
					break
				}
				if _, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: a.Key, Limit: l}}); err != nil {
					t.Fatal(err)
				}
			}
			if got := ttl(key); got < reset-time.Since(asked) || got > reset+2*time.Second {
				t.Errorf("%s, %s: lives for %v, resets after %v", text, what, got, reset)
			}
		}
		for i := range 4 { // two pass, two are denied
			asked = time.Now()
			out, err := storetest.Take(t.Context(), s, []stint.Ask{a})
			if err != nil || out[0].Allowed != (i < 2) {
				t.Fatal(text, out, err)
			}
			check("take", out[0].ResetAfter)
			server.Do(t, "PERSIST", key)
		}
		for name, call := range map[string]func() ([]stint.Decision, error){
			"peek": func() ([]stint.Decision, error) {
				return storetest.Take(t.Context(), s, []stint.Ask{{Key: a.Key, Limit: l}})
			},
			"adjust":            func() ([]stint.Decision, error) { return storetest.Adjust(t.Context(), s, []stint.Ask{a}) },
			"take with another": func() ([]stint.Decision, error) { return storetest.Take(t.Context(), s, append(ask("bob", 100), a)) },
		} {
			asked = time.Now()
			out, err := call()
			if err != nil {
				t.Fatal(err)
			}
			check(name, out[len(out)-1].ResetAfter)
			server.Do(t, "PERSIST", key)
		}
		if _, err := storetest.Adjust(t.Context(), s, []stint.Ask{{Key: a.Key, Limit: l, Cost: -100}}); err != nil {
			t.Fatal(err)
		}
		// Where a count is written and no more, its time to live is looked for.
		many := a
		many.Limit.Max = 10_000
		for range 2 {
			asked = time.Now()
			out, err := storetest.Take(t.Context(), s, append(ask("bob", 10_000), many))
			if err != nil || !out[1].Allowed {
				t.Fatal(text, out, err)
			}
			check("take of a count with another", out[1].ResetAfter)
			server.Do(t, "PERSIST", key)
		}
		if _, err := storetest.Adjust(t.Context(), s, []stint.Ask{{Key: a.Key, Limit: many.Limit, Cost: -1000}}); err != nil {
			t.Fatal(err)
		}
		if n := server.Do(t, "EXISTS", key); n != int64(0) {
			t.Errorf("%s: a counter of nothing is kept", text)
		}
	}
}

// TestBadStates writes invalid states to the keys of counters.
func TestBadStates(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL(), redisstore.Options{})
	failed := uint64(0)
	for _, a := range stint.Algorithms() {
		bad := stint.Ask{Key: stint.Key{Subject: "mallory", Name: "api"}, Limit: limitOf(a, 10), Cost: 1}
		key := keyOf(bad)
		for name, put := range map[string][]string{
			"a list":         {"RPUSH", key, "x"},
			"a hash":         {"HSET", key, "x", "1"},
			"a number":       {"SET", key, "17"},
			"text":           {"SET", key, strings.Repeat("x", 27)},
			"another schema": {"SET", key, "\xff" + strings.Repeat("\x01", 27)},
			"a large number": {"SET", key, strings.Repeat("\x01", 7) + strings.Repeat("\xff", 7) + strings.Repeat("\x01", 14)},
		} {
			server.Do(t, "DEL", key)
			server.Do(t, put...)
			var wg sync.WaitGroup
			for i := range 8 { // some of them in one call
				wg.Go(func() {
					asks := []stint.Ask{bad}
					switch i {
					case 0, 1, 2:
						asks = ask("alice", 1000)
					case 3:
						asks = append(ask("alice", 1000), bad)
					}
					out, err := storetest.Take(t.Context(), s, asks)
					if i < 3 {
						if err != nil || !out[0].Allowed {
							t.Errorf("%v, %s: beside it: %v, %v", a, name, out, err)
						}
						return
					}
					var state *redisstore.StateError
					if !errors.As(err, &state) || !slices.Contains(state.Keys, key) || errors.Is(err, stint.ErrUnavailable) || out != nil {
						t.Errorf("%v, %s: %v, %v; want a StateError that names the key", a, name, out, err)
					}
				})
			}
			wg.Wait()
			failed += 5
			if _, err := storetest.Adjust(t.Context(), s, []stint.Ask{bad}); err == nil {
				t.Errorf("%v, %s: adjusted", a, name)
			}
			failed++
		}
		if err := s.Reset(t.Context(), []stint.Ask{bad}); err != nil {
			t.Fatal(err)
		}
		if out, err := storetest.Take(t.Context(), s, []stint.Ask{bad}); err != nil || out[0].Remaining != 9 {
			t.Errorf("%v: after reset: %v, %v", a, out, err)
		}
	}
	if n := s.Stats().BadStates; n != failed {
		t.Errorf("%d bad states counted, want %d", n, failed)
	}
	out, err := storetest.Take(t.Context(), s, []stint.Ask{{Key: ask("alice", 1)[0].Key, Limit: limitOf(stint.SlidingWindow, 1000)}})
	if want := int64(1000 - 3*6*6); err != nil || out[0].Remaining != want {
		t.Errorf("%v, %v; want %d remaining: what was asked with a bad counter is not charged", out, err, want)
	}
}

// TestForeignStates writes the state of one algorithm to the key of another.
func TestForeignStates(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL(), redisstore.Options{})
	for _, from := range []string{"10/1h", "10/3601001us", "10/1h fixed_window", "10/1h token_bucket", "10/1h sliding_log"} {
		for _, to := range []string{"10/1h", "10/1h fixed_window", "10/1h token_bucket", "10/1h burst=3 leaky_bucket", "10/1h sliding_log"} {
			a := stint.Ask{Key: stint.Key{Subject: "alice", Name: "api"}, Limit: parse(t, from), Cost: 3}
			b := stint.Ask{Key: a.Key, Limit: parse(t, to), Cost: 1}
			if _, err := storetest.Take(t.Context(), s, []stint.Ask{a}); err != nil {
				t.Fatal(err)
			}
			server.Do(t, "RENAME", keyOf(a), keyOf(b))
			var state *redisstore.StateError
			for range 3 { // an answer, or an error that says why there is none
				if _, err := storetest.Take(context.Background(), s, []stint.Ask{b}); err != nil && !errors.As(err, &state) {
					t.Errorf("%s as %s: %v", from, to, err)
				}
			}
			server.Do(t, "FLUSHALL")
		}
	}
}

// TestLongLogs compares logs with the specification that are too long to be read and written as a whole.
func TestLongLogs(t *testing.T) {
	t.Parallel()
	for _, max := range []int64{100, 500, 3000} {
		t.Run(strconv.FormatInt(max, 10), func(t *testing.T) {
			t.Parallel()
			clock := storetest.NewClock()
			store := open(t, testredis.Shared(t).URL(), redisstore.Options{Now: clock.Now})
			spec := storetest.Spec(clock.Now)
			r := rand.New(rand.NewPCG(uint64(max), 1))
			steps := 2000 + int(max)
			if torture.Enabled {
				steps *= 10
			}
			for step := range steps {
				l := stint.Limit{Algorithm: stint.SlidingLog, Max: max, Window: stint.Every(time.Second)}
				switch r.IntN(200) {
				case 0:
					l.Window = stint.Every(2 * time.Second)
				case 1:
					l.Window = stint.Every(500 * time.Millisecond)
				case 2:
					l.Max = 1 + r.Int64N(max)
				}
				a := stint.Ask{Key: stint.Key{Subject: "alice"}, Limit: l, Cost: 1 + r.Int64N(2)}
				verb, of := "take", storetest.Take
				switch r.IntN(100) {
				case 0:
					a.Cost = r.Int64N(max + 2)
				case 1:
					verb, of = "adjust", storetest.Adjust
				case 2:
					verb, of, a.Cost = "adjust", storetest.Adjust, -r.Int64N(max)
				case 3:
					clock.Add(time.Duration(r.Int64N(int64(900 * time.Millisecond))))
				case 4:
					clock.Add(-100 * time.Microsecond)
				default:
					clock.Add(time.Duration(r.Int64N(int64(2*time.Second) / max)))
				}
				asks := []stint.Ask{a}
				if r.IntN(10) == 0 {
					asks = append(asks, a)
				}
				want, err := of(t.Context(), spec, asks)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := of(t.Context(), store, asks); err != nil || !storetest.Agree(got, want) {
					t.Fatalf("step %d, %s of %d x%d: got %v, %v; want %v", step, verb, a.Cost, len(asks), got, err, want)
				}
			}
		})
	}
}

// TestSlots takes from several slots of a cluster at once.
func TestSlots(t *testing.T) {
	t.Parallel()
	s := open(t, testredis.SharedCluster(t).URL(), redisstore.Options{})
	asks := append(append(ask("alice", 3), ask("bob", 100)...), ask("carol", 100)...)
	for i := range int64(5) {
		before := s.Stats()
		out, err := storetest.Take(t.Context(), s, asks)
		if err != nil {
			t.Fatal(err)
		}
		after := s.Stats()
		calls, undone := after.Calls-before.Calls, after.Undone-before.Undone
		if i < 3 && (calls != 3 || undone != 0) {
			t.Errorf("take %d: %d calls, %d undone; want one for each slot, none undone", i, calls, undone)
		}
		if i >= 3 && (calls != 5 || undone != 2) {
			t.Errorf("denied take %d: %d calls, %d undone; want 3 and 2 more that undo", i, calls, undone)
		}
		if used := min(i+1, 3); out[0].Allowed != (i < 3) || out[1].Remaining != 100-used || out[2].Remaining != 100-used {
			t.Errorf("take %d: %v", i, out)
		}
	}
}

// TestSharedCalls takes from one counter on many goroutines, while the server does not answer. They share calls, but
// each gets a different Remaining.
func TestSharedCalls(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL(), redisstore.Options{})
	const takers = 200
	if _, err := storetest.Take(t.Context(), s, ask("alice", takers+1)); err != nil {
		t.Fatal(err)
	}
	before := s.Stats()
	server.Pause(t)
	var mu sync.Mutex
	var remaining []int64
	var wg sync.WaitGroup
	for range takers {
		wg.Go(func() {
			out, err := storetest.Take(context.Background(), s, ask("alice", takers+1))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			remaining = append(remaining, out[0].Remaining)
			mu.Unlock()
		})
	}
	wait.For(t, "all are on their way, or wait", func() bool {
		return redisstore.Waiting(s, &ask("alice", 1)[0])+int(s.Stats().Requests-before.Requests) == takers
	})
	server.Resume(t)
	wg.Wait()
	slices.Sort(remaining)
	for i, n := range remaining {
		if n != int64(i) {
			t.Fatalf("%d takers: the one after %d was told that %d remain", len(remaining), i, n)
		}
	}
	if calls := s.Stats().Calls - before.Calls; calls > takers/10 {
		t.Errorf("%d calls for %d takes", calls, takers)
	}
}
