package layer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/storetest"
)

// heard is a store that notes what it is asked, and fails where it is told to.
type heard struct {
	stint.Store
	mu    sync.Mutex
	calls int
	asks  []stint.Ask
	fails func(*stint.Ask) error
}

func (h *heard) note(asks []stint.Ask) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	h.asks = append(h.asks, asks...)
	for i := range asks {
		if h.fails != nil {
			if err := h.fails(&asks[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *heard) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := h.note(asks); err != nil {
		return err
	}
	return h.Store.Take(ctx, asks, ds)
}

func (h *heard) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if err := h.note(asks); err != nil {
		return err
	}
	return h.Store.Adjust(ctx, asks, ds)
}

func (h *heard) Reset(ctx context.Context, asks []stint.Ask) error {
	if err := h.note(asks); err != nil {
		return err
	}
	return h.Store.Reset(ctx, asks)
}

// since returns the number of calls since it was last called.
func (h *heard) since() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.calls
	h.calls, h.asks = 0, nil
	return n
}

// take is a take that must not fail.
func take(t testing.TB, s stint.Store, asks ...stint.Ask) []stint.Decision {
	t.Helper()
	ds, err := storetest.Take(t.Context(), s, asks)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// partsOf returns a question about each part of a counter.
func partsOf(t testing.TB, limit stint.Limit, parts int) []stint.Ask {
	t.Helper()
	h := &heard{Store: memory(t, nil)}
	take(t, must(t)(layer.Split(h)), splitAsk(limit, parts, 0))
	return h.asks
}

// TestSplitParts checks what the parts of a counter are: limits that add up to the whole, names that no client can make,
// and the same client.
func TestSplitParts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit        string
		split, parts int
	}{
		{"1000/1s", 8, 8},
		{"1001/1h fixed_window", 64, 64},
		{"100/1m burst=77 token_bucket", 9, 9},
		{"100/1m token_bucket", 7, 7},
		{"5/1m sliding_log", 8, 5},
		{"100/1m burst=3 token_bucket", 8, 3},
		{"1/1m", 8, 1},
		{"100/1m burst=50 leaky_bucket", 8, 1},
		{"100/1m concurrency", 8, 1},
		{"604800/7d burst=9000000000000000 token_bucket", 11, 1},
		{"1000/1s", 1000, 64},
		{"1000/1s", 1, 1},
		{"1000/1s", -1, 1},
	} {
		h := &heard{Store: memory(t, nil)}
		s := must(t)(layer.Split(h))
		limit := parse(t, c.limit)
		take(t, s, splitAsk(limit, c.split, 0))
		names, maxes, caps := map[string]bool{}, int64(0), int64(0)
		for _, a := range h.asks {
			names[a.Key.Subject] = true
			maxes += a.Limit.Max
			caps += a.Limit.Cap()
			if plain := a.Key.Subject == "everyone"; plain == !utf8.ValidString(a.Key.Subject) || !plain && a.Client != "everyone" {
				t.Errorf("%s in %d parts: %+v", c.limit, c.split, a)
			}
		}
		if len(names) != c.parts || len(h.asks) != c.parts || maxes != limit.Max || caps != limit.Cap() || !names["everyone"] {
			t.Errorf("%s in %d parts: %d parts, %d units and a capacity of %d", c.limit, c.split, len(names), maxes, caps)
		}
		if err := s.Reset(t.Context(), []stint.Ask{splitAsk(limit, c.split, 0)}); err != nil {
			t.Error(err)
		}
	}
}

// TestSplitRounds counts the calls to the store.
func TestSplitRounds(t *testing.T) {
	t.Parallel()
	h := &heard{Store: memory(t, nil)}
	s := must(t)(layer.Split(h))
	limit := parse(t, "40/1h fixed_window")
	check := func(what string, want int, do func() error) {
		t.Helper()
		h.since()
		err := do()
		if calls := h.since(); err != nil || calls != want {
			t.Errorf("%s: %d calls, %v; want %d", what, calls, err, want)
		}
	}
	takes := func(cost int64, passes bool) func() error {
		return func() error {
			d := take(t, s, splitAsk(limit, 4, cost))[0]
			if d.Allowed != passes {
				return fmt.Errorf("%+v", d)
			}
			return nil
		}
	}
	check("a take", 1, takes(8, true))
	check("a take of a part that is exhausted", 3, takes(4, true))
	check("the next one", 1, takes(4, true))
	check("a peek", 1, takes(0, true))
	check("a cost that no part can hold", 2, takes(11, false))
	check("a part that nothing was used of", 3, takes(9, true))
	check("the last one", 3, takes(10, true))
	check("a denial, while all parts have 5 together", 2, takes(3, false))
	check("what one of them has", 3, takes(2, true))
	check("a reset", 1, func() error { return s.Reset(t.Context(), []stint.Ask{splitAsk(limit, 4, 0)}) })
	d := take(t, s, splitAsk(limit, 4, 3))[0]
	charge := d.Charge()
	refund := splitAsk(limit, 4, -2)
	refund.Charge = &charge
	adjusts := func(a stint.Ask, want int64) func() error {
		return func() error {
			ds, err := storetest.Adjust(t.Context(), s, []stint.Ask{a})
			if err == nil && ds[0].Remaining != want {
				err = fmt.Errorf("%+v", ds)
			}
			return err
		}
	}
	check("a refund of a charge", 1, adjusts(refund, 39))
	check("a refund of what is used", 2, adjusts(splitAsk(limit, 4, -1), 40))
	plain := splitAsk(limit, 4, 1)
	plain.Policy = nil
	check("an ask without a split", 1, func() error { take(t, s, plain); return nil })
	ban := stint.Ask{Key: plain.Key, Penalty: &stint.Penalty{Threshold: 9, Within: time.Hour, Cooldown: time.Hour}, Cost: 1, Policy: &stint.Policy{Split: 4}}
	for text, calls := range map[string]int{"4/1h fixed_window": 3, "1/1h leaky_bucket": 1} { // which is not split
		check("a denial that is a violation of "+text, calls, func() error {
			for take(t, s, splitAsk(parse(t, text), 4, 1), ban)[0].Allowed {
			}
			h.since()
			if d := take(t, s, splitAsk(parse(t, text), 4, 1), ban); d[0].Allowed {
				return fmt.Errorf("%+v", d)
			}
			return nil
		})
	}
}

// TestSplitCharges gives charges back through another node, which has to find out where they were made, and rejects those
// of other counters.
func TestSplitCharges(t *testing.T) {
	t.Parallel()
	limit := parse(t, "40/1h fixed_window")
	base := memory(t, nil)
	adjust := func(by int64, c stint.Charge) (stint.Decision, error) {
		a := splitAsk(limit, 4, by)
		a.Charge = &c
		ds := make([]stint.Decision, 1)
		err := must(t)(layer.Split(base)).Adjust(t.Context(), []stint.Ask{a}, ds)
		return ds[0], err
	}
	var charges []stint.Charge
	for range 4 { // one for each part
		charges = append(charges, take(t, must(t)(layer.Split(base)), splitAsk(limit, 4, 7))[0].Charge())
	}
	for n, c := range charges {
		if d, err := adjust(-7, c); err != nil || d.Remaining != 12+7*int64(n+1) {
			t.Errorf("%d charges given back: %+v, %v", n+1, d, err)
		}
		c.Counter += 12345
		_, err := adjust(-1, c)
		if invalid := new(stint.InvalidError); !errors.As(err, &invalid) {
			t.Errorf("a charge of another counter: %v", err)
		}
	}
	// What another store has charged names no part. It is charged to those that have something left, once.
	elsewhere := stint.Charge{At: charges[0].At, Cost: 25, ID: "a"}
	for n, by := range []int64{25, 25, 12} {
		if d, err := adjust(by, elsewhere); err != nil || d.Remaining != 15 || d.Repeated != (n > 0) {
			t.Errorf("charged elsewhere: %+v, %v", d, err)
		}
	}
	for n, by := range []int64{-25, -25, 5} {
		elsewhere.ID = "b"
		if d, err := adjust(by, elsewhere); err != nil || d.Remaining != 40 || d.Repeated != (n > 0) {
			t.Errorf("given back elsewhere: %+v, %v", d, err)
		}
	}
}

// TestSplitEstimate checks what remains by a node that has not asked the parts of others.
func TestSplitEstimate(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock()
	base := memory(t, clock.Now)
	limit := parse(t, "40/1h fixed_window")
	one, two := must(t)(layer.Split(base)), must(t)(layer.Split(base))
	if d := take(t, one, splitAsk(limit, 4, 1))[0]; d.Remaining != 39 || d.Limit != 40 {
		t.Errorf("the first take: %+v; want 39 of 40, since nothing was heard of others", d)
	}
	for range 3 {
		take(t, two, splitAsk(limit, 4, 10))
	}
	take(t, one, splitAsk(limit, 4, 0))
	if d := take(t, one, splitAsk(limit, 4, 1))[0]; d.Remaining != 8 {
		t.Errorf("after a peek: %+v; want 8 of 40", d)
	}
	clock.Add(time.Hour)
	if d := take(t, one, splitAsk(limit, 4, 1))[0]; d.Remaining != 39 {
		t.Errorf("in the next window: %+v; want 39 of 40", d)
	}
}

// TestSplitChanged splits a counter that was used before, in other numbers of parts, and unsplits it.
func TestSplitChanged(t *testing.T) {
	t.Parallel()
	limit := parse(t, "64/1h fixed_window")
	s := must(t)(layer.Split(memory(t, nil)))
	take(t, s, splitAsk(limit, 0, 10))
	for _, c := range []struct {
		parts int
		want  int64
	}{{4, 54}, {8, 56}, {64, 63}, {2, 54}, {0, 54}} { // of the first part, no more can be used than it has
		if d := take(t, s, splitAsk(limit, c.parts, 0))[0]; d.Remaining != c.want {
			t.Errorf("in %d parts: %+v; want %d", c.parts, d, c.want)
		}
	}
}

// TestSplitPenalties checks that a denial is a violation, once, and that a take that other parts pass is none.
func TestSplitPenalties(t *testing.T) {
	t.Parallel()
	limit := parse(t, "4/1h fixed_window")
	ladder := &stint.Penalty{Threshold: 9, Within: time.Hour, Cooldown: time.Hour}
	ban := func(subject string) stint.Ask {
		return stint.Ask{Key: stint.Key{Subject: subject, Name: "ban"}, Penalty: ladder, Cost: 1, Policy: &stint.Policy{Split: 4}}
	}
	user := stint.Ask{Key: stint.Key{Subject: "user", Name: "api"}, Limit: stint.PerHour(2), Cost: 1}
	for name, c := range map[string]struct {
		asks []stint.Ask
		want []int64 // violations left of the last ask, after each take
	}{
		"of a split limit":   {[]stint.Ask{splitAsk(limit, 4, 1), ban("everyone")}, []int64{9, 9, 9, 9, 8, 7}},
		"in pieces":          {[]stint.Ask{splitAsk(parse(t, "12/1h fixed_window"), 4, 2), ban("everyone")}, []int64{9, 9, 9, 9, 8, 7}},
		"above the capacity": {[]stint.Ask{splitAsk(limit, 4, 2), ban("everyone")}, []int64{8, 7}},
		"of another limit":   {[]stint.Ask{splitAsk(limit, 4, 1), user, ban("user")}, []int64{9, 9, 8, 7, 6}},
		"of no limit":        {[]stint.Ask{user, splitAsk(limit, 4, 1), ban("user")}, []int64{9, 9, 9, 9}},
		"beside a peek":      {[]stint.Ask{user, splitAsk(limit, 4, 0), ban("user")}, []int64{9, 9, 9, 9}},
		"of another subject": {[]stint.Ask{splitAsk(limit, 4, 1), ban("user")}, []int64{9, 9, 9, 9, 9, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := must(t)(layer.Split(memory(t, nil)))
			for n, want := range c.want {
				ds := take(t, s, c.asks...)
				if got := ds[len(ds)-1]; got.Remaining != want || !got.Allowed {
					t.Errorf("take %d: %+v; want %d violations left", n+1, ds, want)
				}
			}
		})
	}
}

// TestSplitAway has parts that cannot be reached.
func TestSplitAway(t *testing.T) {
	t.Parallel()
	limit := parse(t, "40/1h fixed_window")
	var subjects []string
	for _, a := range partsOf(t, limit, 4) {
		subjects = append(subjects, a.Key.Subject)
	}
	open := func(t *testing.T, err error, away ...string) (stint.Store, *heard) {
		t.Helper()
		h := &heard{Store: memory(t, nil)}
		h.fails = func(a *stint.Ask) error {
			if slices.Contains(away, a.Key.Subject) {
				return err
			}
			return nil
		}
		return must(t)(layer.Split(h)), h
	}
	t.Run("some", func(t *testing.T) {
		t.Parallel()
		for _, part := range subjects { // takes begin at one of them
			s, h := open(t, errAway, part)
			for n := range 30 {
				if d := take(t, s, splitAsk(limit, 4, 1))[0]; !d.Allowed {
					t.Fatalf("take %d: %+v", n, d)
				}
			}
			d := take(t, s, splitAsk(limit, 4, 1))[0]
			if d.Allowed || d.RetryAfter != time.Second {
				t.Errorf("without %q, 31 of 40: %+v; want a denial for a second", part, d)
			}
			if ds, err := storetest.Adjust(t.Context(), s, []stint.Ask{splitAsk(limit, 4, -30)}); err != nil || ds[0].Remaining != 30 {
				t.Errorf("a refund: %+v, %v; want 30 that remain", ds, err)
			}
			h.since()
			take(t, s, splitAsk(limit, 4, 1))
			if n := h.since(); n != 1 {
				t.Errorf("a take takes %d calls, want one: it does not begin at what is away", n)
			}
		}
	})
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		s, _ := open(t, errAway, subjects...)
		_, err := storetest.Take(t.Context(), s, []stint.Ask{splitAsk(limit, 4, 1)})
		if !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, stint.ErrNotApplied) {
			t.Errorf("%v; want that nothing was changed", err)
		}
	})
	t.Run("perhaps charged", func(t *testing.T) {
		t.Parallel()
		s, h := open(t, errUnknown, subjects...)
		_, err := storetest.Take(t.Context(), s, []stint.Ask{splitAsk(limit, 4, 1)})
		if !errors.Is(err, stint.ErrUnavailable) || errors.Is(err, stint.ErrNotApplied) || h.since() != 1 {
			t.Errorf("%v; want the error of the store", err)
		}
		// A peek changes nothing.
		_, err = storetest.Take(t.Context(), s, []stint.Ask{splitAsk(limit, 4, 0)})
		if !errors.Is(err, stint.ErrUnavailable) || !errors.Is(err, stint.ErrNotApplied) {
			t.Errorf("a peek: %v; want that nothing was changed", err)
		}
	})
	t.Run("the part of a charge", func(t *testing.T) {
		t.Parallel()
		base, failed := memory(t, nil), 0
		d := take(t, must(t)(layer.Split(base)), splitAsk(limit, 4, 5))[0]
		charge := d.Charge()
		back := splitAsk(limit, 4, -1)
		back.Charge = &charge
		for _, part := range subjects {
			h := &heard{Store: base, fails: func(a *stint.Ask) error {
				if a.Key.Subject == part {
					return errAway
				}
				return nil
			}}
			_, err := storetest.Adjust(t.Context(), must(t)(layer.Split(h)), []stint.Ask{back})
			switch {
			case errors.Is(err, stint.ErrNotApplied):
				failed++
			case err != nil:
				t.Errorf("without %q: %v", part, err)
			}
		}
		if d := take(t, must(t)(layer.Split(base)), splitAsk(limit, 4, 0))[0]; failed != 1 || d.Remaining != 38 {
			t.Errorf("%d refunds failed, of one for each part that is away: %+v", failed, d)
		}
	})
	t.Run("another ask", func(t *testing.T) {
		t.Parallel()
		s, _ := open(t, errAway, "bob")
		_, err := storetest.Take(t.Context(), s, append(ask("bob", 5, 1), splitAsk(limit, 4, 1)))
		if !errors.Is(err, stint.ErrNotApplied) {
			t.Errorf("%v; want the error of the store", err)
		}
		if d := take(t, s, splitAsk(limit, 4, 0))[0]; d.Remaining != 40 {
			t.Errorf("afterwards: %+v; want that nothing was charged", d)
		}
	})
}

// TestSplitOvertaken has others exhaust each part right before this node takes from it: as long as there is one left, the
// take passes.
func TestSplitOvertaken(t *testing.T) {
	t.Parallel()
	limit := parse(t, "40/1h fixed_window")
	for faster := range 5 {
		base := memory(t, nil)
		h, left, looks := &heard{Store: base}, faster, false
		h.fails = func(a *stint.Ask) error {
			asked := looks
			if looks = strings.HasSuffix(a.Key.Name, "\xff"); !asked && !looks && left > 0 {
				left--
				others := *a
				others.Cost = take(t, base, stint.Ask{Key: a.Key, Limit: a.Limit})[0].Remaining
				take(t, base, others)
			}
			return nil
		}
		d := take(t, must(t)(layer.Split(h)), splitAsk(limit, 4, 1))[0]
		if d.Allowed != (faster < 4) || left > 0 && d.Allowed {
			t.Errorf("%d parts exhausted before: %+v", faster, d)
		}
	}
}

// TestSplitTwice takes from one counter twice in one take: both go to one part, all or nothing.
func TestSplitTwice(t *testing.T) {
	t.Parallel()
	s := must(t)(layer.Split(memory(t, nil)))
	limit := parse(t, "40/1h fixed_window")
	for _, c := range []struct{ costs, remaining, allowed []int64 }{
		{[]int64{3, 6}, []int64{37, 31}, []int64{1, 1}},
		{[]int64{5, 5}, []int64{26, 21}, []int64{1, 1}}, // of another part
		{[]int64{9, 2}, []int64{21, 21}, []int64{1, 0}}, // of which no part has both
		{[]int64{8, 0}, []int64{13, 13}, []int64{1, 1}},
	} {
		ds := take(t, s, splitAsk(limit, 4, c.costs[0]), splitAsk(limit, 4, c.costs[1]))
		for i, d := range ds {
			if d.Allowed != (c.allowed[i] == 1) || d.Allowed && d.Remaining != c.remaining[i] {
				t.Errorf("%v: %+v", c, ds)
			}
		}
	}
}

// TestSplitTogether exhausts a counter on many goroutines and several nodes: exactly the limit passes.
func TestSplitTogether(t *testing.T) {
	t.Parallel()
	const units, nodes, callers = 1000, 4, 8
	for _, parts := range []int{2, 8, 64} {
		base := memory(t, nil)
		limit := stint.Limit{Algorithm: stint.FixedWindow, Max: units, Window: parse(t, "1/year").Window}
		var passed atomic.Int64
		var wg sync.WaitGroup
		for range nodes {
			s := must(t)(layer.Split(base))
			for range callers {
				wg.Go(func() {
					for range 2 * units / nodes / callers {
						ds, err := storetest.Take(context.Background(), s, []stint.Ask{splitAsk(limit, parts, 1)})
						if err != nil {
							t.Error(err)
							return
						}
						if ds[0].Allowed {
							passed.Add(1)
						}
					}
				})
			}
		}
		wg.Wait()
		if n := passed.Load(); n != units {
			t.Errorf("%d passed in %d parts, want %d", n, parts, units)
		}
	}
}
