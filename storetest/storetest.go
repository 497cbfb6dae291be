// Package storetest is the conformance suite of [stint.Store]. A store or layer that passes [Run] decides
// like the specification:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t testing.TB, now func() time.Time) stint.Store {
//			s, err := memstore.New(memstore.Options{Now: now})
//			...
//			return s
//		})
//	}
//
// The suite compares a store with the pure functions of package stint. It runs the behaviour scripts of
// testdata/limits, and compares random traces step by step with [Spec]. It takes from shared counters on
// many goroutines, which must admit exactly what the limits allow, and settles tickets by several callers at once. It records concurrent histories, which
// must be linearizable. It also checks bad input, empty calls, calls of a thousand asks, and Close. It
// never sleeps, and uses only the interface.
//
// For a denial with the basis [stint.Remembered], the suite only checks that the specification denies the
// same ask. The other fields may be out of date.
//
// [Run] does not depend on how fast a store is; [Bench] measures that.
package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

// Open returns an empty store that uses now as its clock. Open arranges that the store is closed when t
// ends.
type Open func(t testing.TB, now func() time.Time) stint.Store

// Clock is the clock of a store under test. It changes only when it is set.
type Clock struct{ micros atomic.Int64 }

// Epoch is the time of a new clock, and the default start of scripts: a Thursday, at midnight.
var Epoch = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// NewClock returns a clock set to [Epoch].
func NewClock() *Clock {
	c := new(Clock)
	c.Set(Epoch)
	return c
}

// Now returns the clock's time.
func (c *Clock) Now() time.Time { return time.UnixMicro(c.micros.Load()) }

// Set moves the clock, forwards or backwards.
func (c *Clock) Set(t time.Time) { c.micros.Store(t.UnixMicro()) }

// Add moves the clock by d.
func (c *Clock) Add(d time.Duration) { c.micros.Add(d.Microseconds()) }

// Agree reports whether the decisions match those of the specification.
func Agree(got, want []stint.Decision) bool {
	if !remembered(got) {
		return slices.EqualFunc(got, want, func(got, want stint.Decision) bool {
			got.Counter = want.Counter // the store's own
			return got == want
		})
	}
	denied := false
	for i := range got {
		if i >= len(want) || (!got[i].Allowed && want[i].Allowed) {
			return false
		}
		denied = denied || !got[i].Allowed
	}
	return denied
}

// remembered reports whether a layer has decided without asking the store.
func remembered(ds []stint.Decision) bool {
	return slices.ContainsFunc(ds, func(d stint.Decision) bool { return d.Basis == stint.Remembered })
}

// Take calls store.Take and returns the decisions, or nil after an error.
func Take(ctx context.Context, s stint.Store, asks []stint.Ask) ([]stint.Decision, error) {
	ds := make([]stint.Decision, len(asks))
	if err := s.Take(ctx, asks, ds); err != nil {
		return nil, err
	}
	return ds, nil
}

// Adjust calls store.Adjust and returns the decisions, or nil after an error.
func Adjust(ctx context.Context, s stint.Store, asks []stint.Ask) ([]stint.Decision, error) {
	ds := make([]stint.Decision, len(asks))
	if err := s.Adjust(ctx, asks, ds); err != nil {
		return nil, err
	}
	return ds, nil
}

// Rewrite returns a store that changes each ask before it passes it on, for a store that looks at more than the suite
// sets, such as policies. What change sees is a copy, and it must not change what the ask points to.
func Rewrite(next stint.Store, change func(*stint.Ask)) stint.Store { return rewriting{next, change} }

type rewriting struct {
	stint.Store
	change func(*stint.Ask)
}

func (r rewriting) asks(asks []stint.Ask) []stint.Ask {
	out := slices.Clone(asks)
	for i := range out {
		r.change(&out[i])
	}
	return out
}

func (r rewriting) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return r.Store.Take(ctx, r.asks(asks), ds)
}

func (r rewriting) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	return r.Store.Adjust(ctx, r.asks(asks), ds)
}

func (r rewriting) Reset(ctx context.Context, asks []stint.Ask) error {
	return r.Store.Reset(ctx, r.asks(asks))
}

// check is one part of the suite, beside the scripts. Each gets its own store.
type check struct {
	name string
	run  func(t rapid.TB, s stint.Store, c *Clock)
}

func checks() []check {
	return []check{
		{"traces", checkTraces},
		{"one key", checkOneKey},
		{"hierarchies", checkHierarchies},
		{"penalty", checkPenalty},
		{"linearizable", checkLinearizable},
		{"plans", checkPlans},
		{"reset", checkReset},
		{"bad input", checkBadInput},
		{"charges", checkCharges},
		{"elsewhere", checkElsewhere},
		{"settlements", checkSettlements},
		{"empty calls", checkEmptyCalls},
		{"many asks", checkMany},
		{"close", checkClose},
	}
}

// Run runs the suite against the stores that open returns.
func Run(t *testing.T, open Open) {
	t.Helper()
	RunExcept(t, open)
}

// RunExcept runs the suite without the checks that have these names, for a layer that says that it promises less.
func RunExcept(t *testing.T, open Open, names ...string) {
	t.Helper()
	for _, c := range checks() {
		if slices.Contains(names, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			clock := NewClock()
			c.run(t, open(t, clock.Now), clock)
		})
	}
	for _, s := range Scripts() {
		if name := "script " + s.Name; !slices.Contains(names, name) {
			t.Run(name, func(t *testing.T) { s.RunOpen(t, open) })
		}
	}
}

// Bench measures takes of one and of several asks, allowed and denied, over a thousand keys. The store uses
// the real clock.
func Bench(b *testing.B, open Open) {
	b.Helper()
	const keys = 1000
	for _, limit := range []string{
		"1000000000/1h", "1000000000/1h fixed_window", "10000/1ms sliding_log",
		"1000000000/1h token_bucket", "1000000000/1h burst=1000000000 leaky_bucket",
		"1/1h fixed_window",
	} {
		for _, n := range []int{1, 3, 10} {
			b.Run(fmt.Sprintf("%s/asks=%d", limit, n), func(b *testing.B) {
				s := open(b, time.Now)
				l := must(stint.ParseLimit(limit))
				asks := make([][]stint.Ask, keys)
				for i := range asks {
					for j := range n {
						asks[i] = append(asks[i], stint.Ask{
							Key:   stint.Key{Subject: fmt.Sprintf("user:%019d", i), Name: fmt.Sprintf("limit-%d", j)},
							Limit: l, Plan: must(l.Compile()), Cost: 1,
						})
					}
				}
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					ds := make([]stint.Decision, n)
					for i := uint32(0); pb.Next(); i = i*1664525 + 1013904223 {
						if err := s.Take(b.Context(), asks[int(i>>8)%keys], ds); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

// must returns v: the limits written in this package are valid.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
