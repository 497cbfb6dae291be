package layer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(leaseWorkerEnv); text != "" {
		var w leaseWorker
		err := json.Unmarshal([]byte(text), &w)
		if err == nil {
			err = w.run()
		}
		if err != nil {
			log.Fatal(err)
		}
		return
	}
	defer testredis.StopShared()
	m.Run()
}

func memory(t testing.TB, now func() time.Time) stint.Store {
	t.Helper()
	s, err := memstore.New(memstore.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var stores atomic.Int64

func redis(t testing.TB, url string, now func() time.Time) stint.Store {
	t.Helper()
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	s, err := redisstore.Open(fmt.Sprintf("%s%sprefix=l%d", url, sep, stores.Add(1)), redisstore.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// must is for layers whose options are written here.
func must(t testing.TB) func(stint.Store, error) stint.Store {
	t.Helper()
	return func(s stint.Store, err error) stint.Store {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
}

// patient are options for a machine that is busy with tests: what is slow here is
// not the store.
func patient(t testing.TB, now func() time.Time) layer.Options {
	t.Helper()
	return layer.Options{
		Retry:    layer.RetryOptions{Budget: 20 * time.Second},
		Breaker:  layer.BreakerOptions{Slow: -1},
		Fallback: &layer.FallbackOptions{Local: memory(t, now)},
		Deny:     layer.DenyCacheOptions{Now: now},
	}
}

// TestStores runs the suite on each layer in memory, and on the whole stack, over
// Redis, too.
func TestStores(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(testing.TB, stint.Store, func() time.Time) (stint.Store, error){
		"retry": func(t testing.TB, s stint.Store, now func() time.Time) (stint.Store, error) {
			t.Helper()
			return layer.Retry(s, patient(t, now).Retry)
		},
		"breaker": func(t testing.TB, s stint.Store, now func() time.Time) (stint.Store, error) {
			t.Helper()
			return layer.Breaker(s, patient(t, now).Breaker)
		},
		"split": func(_ testing.TB, s stint.Store, _ func() time.Time) (stint.Store, error) { return layer.Split(s) },
		"fallback": func(t testing.TB, s stint.Store, now func() time.Time) (stint.Store, error) {
			t.Helper()
			return layer.Fallback(s, *patient(t, now).Fallback)
		},
		"denycache": func(t testing.TB, s stint.Store, now func() time.Time) (stint.Store, error) {
			t.Helper()
			return layer.DenyCache(s, patient(t, now).Deny)
		},
		"lease": func(_ testing.TB, s stint.Store, _ func() time.Time) (stint.Store, error) {
			return layer.Lease(s, layer.LeaseOptions{})
		},
		"failmode": func(_ testing.TB, s stint.Store, _ func() time.Time) (stint.Store, error) {
			return layer.FailMode(s, layer.FailModeOptions{})
		},
		"observe": func(_ testing.TB, s stint.Store, _ func() time.Time) (stint.Store, error) {
			return layer.Observe(s, "test", new(layer.Meter))
		},
		"stack": func(t testing.TB, s stint.Store, now func() time.Time) (stint.Store, error) {
			t.Helper()
			o := patient(t, now)
			o.Observer = new(layer.Meter)
			return layer.New(s, o)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bases := map[string]storetest.Open{"memory": memory}
			if name == "stack" {
				bases["redis"] = func(t testing.TB, now func() time.Time) stint.Store {
					t.Helper()
					return redis(t, testredis.Shared(t).URL()+"?timeout=30s&dial_timeout=30s", now)
				}
			}
			for on, base := range bases {
				open := func(t testing.TB, now func() time.Time) stint.Store {
					t.Helper()
					return must(t)(wrap(t, base(t, now), now))
				}
				t.Run(on, func(t *testing.T) {
					t.Parallel()
					if on == "redis" { // package redisstore runs the others, too
						storetest.RunExcept(t, open, "traces", "one key", "hierarchies", "linearizable", "many asks")
						return
					}
					storetest.Run(t, open)
					t.Run("across subjects", func(t *testing.T) { storetest.AcrossSubjects(t, open) })
				})
			}
		})
	}
}

// faulty is a store that fails as it is told. It stands for what real faults do
// to errors, where a test is about what a layer makes of them; faults_test.go has
// the real ones.
type faulty struct {
	stint.Store
	fault atomic.Pointer[func(context.Context) error]
	calls atomic.Int64
}

func (f *faulty) fail(how func(context.Context) error) { f.fault.Store(&how) }
func (f *faulty) heal()                                { f.fault.Store(nil) }

func (f *faulty) ask(ctx context.Context) error {
	f.calls.Add(1)
	if how := f.fault.Load(); how != nil {
		return (*how)(ctx)
	}
	return nil
}

func (f *faulty) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := f.ask(ctx); err != nil {
		return err
	}
	return f.Store.Take(ctx, asks, ds)
}

func (f *faulty) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := f.ask(ctx); err != nil {
		return err
	}
	return f.Store.Adjust(ctx, asks, ds)
}

func (f *faulty) Reset(ctx context.Context, asks []stint.Ask) error {
	if err := f.ask(ctx); err != nil {
		return err
	}
	return f.Store.Reset(ctx, asks)
}

var (
	errAway    = fmt.Errorf("%w: away; %w", stint.ErrUnavailable, stint.ErrNotApplied)
	errUnknown = fmt.Errorf("%w: who knows", stint.ErrUnavailable)
)

func away(context.Context) error    { return errAway }
func unknown(context.Context) error { return errUnknown }
func hang(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", stint.ErrUnavailable, ctx.Err())
}

func ask(subject string, n, cost int64) []stint.Ask {
	return []stint.Ask{{Key: stint.Key{Subject: subject, Name: "api"}, Limit: stint.PerHour(n), Cost: cost}}
}

// TestRefused builds what must not be built.
func TestRefused(t *testing.T) {
	t.Parallel()
	base := memory(t, nil)
	retry := must(t)(layer.Retry(base, layer.RetryOptions{}))
	breaker := must(t)(layer.Breaker(retry, layer.BreakerOptions{}))
	fallback := must(t)(layer.Fallback(breaker, layer.FallbackOptions{Local: memory(t, nil)}))
	deny := must(t)(layer.DenyCache(fallback, layer.DenyCacheOptions{}))
	fail := must(t)(layer.FailMode(deny, layer.FailModeOptions{}))
	seen := must(t)(layer.Observe(deny, "x", new(layer.Meter)))
	for says, build := range map[string]func() (stint.Store, error){
		"layer budget":     func() (stint.Store, error) { return layer.Retry(base, layer.RetryOptions{Budget: -1}) },
		"layer pause":      func() (stint.Store, error) { return layer.Retry(base, layer.RetryOptions{Pause: -1}) },
		"may take to conn": func() (stint.Store, error) { return layer.Retry(base, layer.RetryOptions{Dial: time.Second}) },
		"layer failures":   func() (stint.Store, error) { return layer.Breaker(base, layer.BreakerOptions{Failures: -1}) },
		"layer rate":       func() (stint.Store, error) { return layer.Breaker(base, layer.BreakerOptions{Rate: 2}) },
		"layer probe":      func() (stint.Store, error) { return layer.Breaker(base, layer.BreakerOptions{Probe: -1}) },
		"layer local":      func() (stint.Store, error) { return layer.Fallback(base, layer.FallbackOptions{}) },
		"layer replicas": func() (stint.Store, error) {
			return layer.Fallback(base, layer.FallbackOptions{Local: memory(t, nil), Replicas: func() int { return 0 }})
		},
		"own": func() (stint.Store, error) { return layer.Fallback(base, layer.FallbackOptions{Local: base}) },
		"without layers": func() (stint.Store, error) {
			return layer.Fallback(base, layer.FallbackOptions{Local: fail})
		},
		"layer window": func() (stint.Store, error) {
			return layer.Breaker(base, layer.BreakerOptions{Window: time.Nanosecond})
		},
		"layer for":  func() (stint.Store, error) { return layer.DenyCache(base, layer.DenyCacheOptions{For: -1}) },
		"layer size": func() (stint.Store, error) { return layer.DenyCache(base, layer.DenyCacheOptions{Size: 1 << 30}) },
		"layer retry": func() (stint.Store, error) {
			return layer.FailMode(base, layer.FailModeOptions{Retry: -1})
		},
		"Retry around Breaker":      func() (stint.Store, error) { return layer.Retry(breaker, layer.RetryOptions{}) },
		"Retry around Retry":        func() (stint.Store, error) { return layer.Retry(retry, layer.RetryOptions{}) },
		"Breaker around Fallback":   func() (stint.Store, error) { return layer.Breaker(fallback, layer.BreakerOptions{}) },
		"Split around Fallback":     func() (stint.Store, error) { return layer.Split(fallback) },
		"Fallback around DenyCache": func() (stint.Store, error) { return layer.Fallback(seen, layer.FallbackOptions{Local: base}) },
		"DenyCache around FailMode": func() (stint.Store, error) { return layer.DenyCache(fail, layer.DenyCacheOptions{}) },
		"around no store":           func() (stint.Store, error) { return layer.Breaker(nil, layer.BreakerOptions{}) },
		"layer observer":            func() (stint.Store, error) { return layer.Observe(base, "x", nil) },
		"budget \"-1s\"": func() (stint.Store, error) {
			return layer.New(base, layer.Options{Retry: layer.RetryOptions{Budget: -time.Second}})
		},
	} {
		s, err := build()
		if err == nil || s != nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v; want an error that says it", says, s, err)
		}
	}
}

// TestFailModes has takes that only this node could decide: what holds is what their policies say,
// and nothing is charged for what does not pass.
func TestFailModes(t *testing.T) {
	t.Parallel()
	with := func(mode stint.FailMode, a stint.Ask) stint.Ask {
		a.Policy = &stint.Policy{OnFailure: mode}
		return a
	}
	limit := func(name string, n int64) stint.Ask {
		return stint.Ask{Key: stint.Key{Subject: "alice", Name: name}, Limit: stint.PerHour(n), Cost: 1}
	}
	penalty := stint.Ask{
		Key: stint.Key{Subject: "alice", Name: "ban"}, Cost: 1,
		Penalty: &stint.Penalty{Threshold: 10, Within: time.Hour, Cooldown: time.Hour},
	}
	for name, c := range map[string]struct {
		asks []stint.Ask
		want []string // of each take: the basis of each decision, with a - before those that deny; or an error
		used []int64  // of each limit, afterwards
	}{
		"local":  {[]stint.Ask{limit("a", 1)}, []string{"local", "-local"}, []int64{1}},
		"open":   {[]stint.Ask{with(stint.FailOpen, limit("a", 1))}, []string{"open", "open"}, []int64{1}},
		"closed": {[]stint.Ask{with(stint.FailClosed, limit("a", 1))}, []string{"-closed", "-closed"}, []int64{0}},
		"error":  {[]stint.Ask{with(stint.FailError, limit("a", 1))}, []string{"unavailable", "unavailable"}, []int64{0}},
		"an open one that is used up does not keep another from being counted": {
			[]stint.Ask{with(stint.FailOpen, limit("a", 1)), limit("b", 3)},
			[]string{"open local", "open local", "open local", "open -local"},
			[]int64{1, 3},
		},
		"a violation counts once": {
			[]stint.Ask{with(stint.FailOpen, limit("a", 1)), limit("b", 1), penalty},
			[]string{"open local local", "open -local local", "open -local local"},
			[]int64{1, 1, 2},
		},
		"closed beside local": {
			[]stint.Ask{limit("a", 3), with(stint.FailClosed, limit("b", 3))},
			[]string{"open -closed", "open -closed"},
			[]int64{0, 0},
		},
		"error before closed": {
			[]stint.Ask{with(stint.FailClosed, limit("a", 3)), with(stint.FailError, limit("b", 3))},
			[]string{"unavailable"},
			[]int64{0, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, local := &faulty{Store: memory(t, nil)}, memory(t, nil)
			f.fail(unknown)
			s := must(t)(layer.FailMode(must(t)(layer.Fallback(f, layer.FallbackOptions{Local: local})), layer.FailModeOptions{}))
			for n, want := range c.want {
				out, err := storetest.Take(t.Context(), s, c.asks)
				var got []string
				for _, d := range out {
					text := d.Basis.String()
					if !d.Allowed {
						text = "-" + text
					}
					got = append(got, text)
				}
				if errors.Is(err, stint.ErrUnavailable) {
					got, err = []string{"unavailable"}, nil
				}
				if err != nil || strings.Join(got, " ") != want {
					t.Errorf("take %d: %v, %v; want %s", n, got, err, want)
				}
			}
			for i, a := range c.asks {
				a.Cost, a.Policy = 0, nil
				if out, err := storetest.Take(t.Context(), local, []stint.Ask{a}); err != nil || out[0].Limit-out[0].Remaining != c.used[i] {
					t.Errorf("ask %d: %v, %v; want %d used", i, out, err, c.used[i])
				}
			}
			adjusted := s.Adjust(t.Context(), c.asks[:1], make([]stint.Decision, 1))
			if fails := c.asks[0].OnFailure() == stint.FailError; errors.Is(adjusted, stint.ErrUnavailable) != fails {
				t.Errorf("adjust: %v", adjusted)
			}
		})
	}
}

// TestFailMode has takes that no one can decide.
func TestFailMode(t *testing.T) {
	t.Parallel()
	f := &faulty{Store: memory(t, nil)}
	s := must(t)(layer.FailMode(f, layer.FailModeOptions{}))
	bank := ask("bank", 5, 1)
	bank[0].Policy = &stint.Policy{OnFailure: stint.FailClosed}
	f.fail(unknown)
	out, err := storetest.Take(t.Context(), s, ask("alice", 10, 1))
	if err != nil || out[0] != (stint.Decision{Allowed: true, Basis: stint.Open, Limit: 10}) {
		t.Errorf("open: %+v, %v", out, err)
	}
	out, err = storetest.Take(t.Context(), s, append(ask("alice", 10, 1), bank...))
	if err != nil || !out[0].Allowed || out[1] != (stint.Decision{Basis: stint.Closed, Limit: 5, RetryAfter: time.Second}) {
		t.Errorf("closed: %+v, %v", out, err)
	}
	if _, err := storetest.Adjust(t.Context(), s, ask("alice", 10, 1)); !errors.Is(err, stint.ErrUnavailable) {
		t.Errorf("adjust: %v", err)
	}
	f.fail(func(context.Context) error { return errors.New("broken") })
	if _, err := storetest.Take(t.Context(), s, ask("alice", 10, 1)); err == nil || errors.Is(err, stint.ErrUnavailable) {
		t.Errorf("another error: %v; want it as it is", err)
	}
	f.heal()
	if out, err := storetest.Take(t.Context(), s, ask("alice", 10, 1)); err != nil || out[0].Basis != stint.Counted || out[0].Remaining != 9 {
		t.Errorf("healed: %+v, %v", out, err)
	}
}
