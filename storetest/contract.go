package storetest

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

// checkBadInput makes calls that must be rejected, and calls that look odd but must work.
func checkBadInput(t rapid.TB, store stint.Store, _ *Clock) {
	ctx := context.Background()
	good := stint.Ask{Key: stint.Key{Subject: "alice", Name: "n"}, Limit: stint.PerMinute(10), Cost: 1}
	with := func(change func(a *stint.Ask)) stint.Ask {
		a := good
		change(&a)
		return a
	}
	for name, a := range map[string]stint.Ask{
		"negative cost": with(func(a *stint.Ask) { a.Cost = -1 }),
		"zero limit":    with(func(a *stint.Ask) { a.Limit = stint.Limit{} }),
		"no window":     with(func(a *stint.Ask) { a.Limit.Window = stint.Window{} }),
		"bad algorithm": with(func(a *stint.Ask) { a.Limit.Algorithm = 99 }),
		"burst":         with(func(a *stint.Ask) { a.Limit.Burst = 5 }),
	} {
		calls := map[string]func() ([]stint.Decision, error){
			"take":          func() ([]stint.Decision, error) { return Take(ctx, store, []stint.Ask{a}) },
			"take with one": func() ([]stint.Decision, error) { return Take(ctx, store, []stint.Ask{good, a}) },
			"take beside one": func() ([]stint.Decision, error) {
				other := with(func(a *stint.Ask) { a.Key.Name = "other" })
				return Take(ctx, store, []stint.Ask{other, a})
			},
		}
		if a.Cost >= 0 {
			calls["adjust with one"] = func() ([]stint.Decision, error) { return Adjust(ctx, store, []stint.Ask{good, a}) }
		}
		for verb, do := range calls {
			out, err := do()
			if invalid := new(stint.InvalidError); !errors.As(err, &invalid) || out != nil {
				t.Fatalf("%s, %s: got %v, %v; want no decisions and an InvalidError", verb, name, out, err)
			}
		}
	}
	for _, ds := range [][]stint.Decision{nil, make([]stint.Decision, 2)} {
		take, adjust := store.Take(ctx, []stint.Ask{good}, ds), store.Adjust(ctx, []stint.Ask{good}, ds)
		if invalid := new(stint.InvalidError); !errors.As(take, &invalid) || !errors.As(adjust, &invalid) {
			t.Fatalf("room for %d decisions about one ask: %v, %v; want an InvalidError", len(ds), take, adjust)
		}
	}
	penalty := with(func(a *stint.Ask) { a.Limit, a.Penalty = stint.Limit{}, ladder })
	for name, do := range map[string]func() ([]stint.Decision, error){
		"a penalty without a threshold": func() ([]stint.Decision, error) {
			return Take(ctx, store, []stint.Ask{good, with(func(a *stint.Ask) { a.Penalty = new(stint.Penalty) })})
		},
		"an adjusted penalty": func() ([]stint.Decision, error) { return Adjust(ctx, store, []stint.Ask{penalty}) },
		"a penalty twice":     func() ([]stint.Decision, error) { return Take(ctx, store, []stint.Ask{penalty, penalty}) },
		"a counter twice, and a penalty": func() ([]stint.Decision, error) {
			return Take(ctx, store, []stint.Ask{good, good, penalty})
		},
	} {
		out, err := do()
		if invalid := new(stint.InvalidError); !errors.As(err, &invalid) || out != nil {
			t.Fatalf("%s: got %v, %v; want no decisions and an InvalidError", name, out, err)
		}
	}
	out, err := Take(ctx, store, []stint.Ask{with(func(a *stint.Ask) { a.Cost = 0 })})
	if err != nil || out[0].Remaining != 10 {
		t.Fatalf("after rejected calls: %v, %v; want 10 remaining", out, err)
	}
	out, err = Take(ctx, store, []stint.Ask{with(func(a *stint.Ask) { a.Cost = math.MaxInt64 })})
	if err != nil || out[0].Allowed || out[0].RetryAfter != stint.Never {
		t.Fatalf("cost above capacity: %v, %v; want a denial that says never", out, err)
	}
	for _, cost := range []int64{math.MaxInt64, math.MinInt64} {
		out, err = Adjust(ctx, store, []stint.Ask{with(func(a *stint.Ask) { a.Cost = cost })})
		if want := cost < 0; err != nil || out[0].Allowed != want {
			t.Fatalf("adjust by %d: %v, %v; want allowed to be %v", cost, out, err, want)
		}
	}

	// A penalty and the limits with the same key are separate counters.
	for _, l := range everyLimit(1) {
		k := stint.Key{Subject: "mallory", Name: "same"}
		asks := []stint.Ask{{Key: k, Limit: l, Cost: 1}, {Key: k, Cost: 1, Penalty: ladder}}
		var last []stint.Decision
		for range 2 {
			if last, err = Take(ctx, store, asks); err != nil {
				t.Fatal(err)
			}
		}
		if last[0].Allowed || !last[1].Allowed || last[1].Remaining != 2 {
			t.Fatalf("%v and a penalty under one key: %v; want a denial, and 2 violations left", l, last)
		}
		if err := store.Reset(ctx, asks); err != nil {
			t.Fatal(err)
		}
	}

	// Each of these is a separate counter.
	for i, k := range []stint.Key{
		{Subject: "a", Name: "b_c"},
		{Subject: "a_b", Name: "c"},
		{Subject: "a", Name: "b:c"},
		{Subject: "a:b", Name: "c"},
		{Subject: "{a}", Name: "}:{"},
		{Subject: "a}", Name: ":{"},
		{Subject: "%7B", Name: ""},
		{Subject: "{", Name: ""},
		{Subject: "\x00\xff", Name: "\xff"},
		{Subject: "\x00", Name: "\xff\xff"},
		{Subject: "日本", Name: "語"},
		{Subject: string(make([]byte, 5000)), Name: "x"},
		{Subject: string(make([]byte, 5001)), Name: "x"},
	} {
		out, err := Take(ctx, store, []stint.Ask{{Key: k, Limit: stint.PerMinute(3), Cost: 2}})
		if err != nil || !out[0].Allowed {
			t.Fatalf("key %d, %q: %v, %v; want its first take allowed", i, k, out, err)
		}
	}

	// So are these, although one is a prefix of the other, in the same memory.
	const long = "user:4242"
	for _, short := range []string{long, long[:5], long[:7]} {
		out, err := Take(ctx, store, []stint.Ask{
			{Key: stint.Key{Subject: long[:6]}, Limit: stint.PerMinute(9), Cost: 2},
			{Key: stint.Key{Subject: short}, Limit: stint.PerMinute(9), Cost: 2},
		})
		if err != nil || out[1].Remaining != 7 {
			t.Fatalf("%q beside %q: %v, %v; want 7 remaining", short, long[:6], out, err)
		}
	}
}

// checkPlans asks with plans, without plans, and with plans of other limits: only the limit matters.
func checkPlans(t rapid.TB, store stint.Store, _ *Clock) {
	other := must(stint.PerSecond(1_000_000).Compile())
	for _, l := range everyLimit(3) {
		for left, plan := range []*stint.Plan{nil, other, must(l.Compile())} {
			asks := []stint.Ask{{Key: stint.Key{Subject: "alice", Name: "planned"}, Limit: l, Plan: plan, Cost: 1}}
			if left == 1 {
				asks = append(asks, stint.Ask{Key: stint.Key{Subject: "alice", Name: "beside"}, Limit: l, Plan: plan, Cost: 1})
			}
			out, err := Take(context.Background(), store, asks)
			if err != nil || out[0].Limit != 3 || out[0].Remaining != int64(2-left) {
				t.Fatalf("%v, take %d: %v, %v; want %d remaining of 3", l, left, out, err, 2-left)
			}
		}
	}
}

// checkReset resets the counters of a key, one for each algorithm and a penalty, one by one.
func checkReset(t rapid.TB, store stint.Store, _ *Clock) {
	ctx := context.Background()
	k := stint.Key{Subject: "mallory", Name: "reset"}
	var asks []stint.Ask
	for _, l := range everyLimit(3) {
		asks = append(asks, stint.Ask{Key: k, Limit: l, Cost: 3})
	}
	asks = append(asks, stint.Ask{Key: k, Penalty: ladder, Cost: 1})
	peek := slices.Clone(asks)
	for i := range peek {
		peek[i].Cost = 0
	}
	for range 2 { // the first is allowed, the second is a violation
		if _, err := Take(ctx, store, asks); err != nil {
			t.Fatal(err)
		}
	}
	for i := range asks {
		if err := store.Reset(ctx, asks[i:i+1]); err != nil {
			t.Fatal(err)
		}
		out, err := Take(ctx, store, peek)
		if err != nil {
			t.Fatal(err)
		}
		for j, d := range out {
			if fresh := d.Remaining == d.Limit; fresh != (j <= i) {
				t.Fatalf("after a reset of asks 0 to %d, ask %d: %s", i, j, Format(d))
			}
		}
	}
}

// checkCharges changes charges as they must not be changed: nothing changes. Then it gives back what each
// has charged, twice.
func checkCharges(t rapid.TB, store stint.Store, clock *Clock) {
	ctx := context.Background()
	for _, l := range everyLimit(10) {
		ask := stint.Ask{Key: stint.Key{Subject: "alice", Name: "charged"}, Limit: l, Cost: 4}
		other := ask
		other.Key.Name = "other"
		for _, a := range []stint.Ask{other, ask} {
			if _, err := Take(ctx, store, []stint.Ask{a}); err != nil {
				t.Fatal(err)
			}
		}
		clock.Add(time.Millisecond)
		ds, err := Take(ctx, store, []stint.Ask{ask})
		if err != nil {
			t.Fatal(err)
		}
		charge := ds[0].Charge()
		if charge.Cost != 4 || charge.At < clock.Now().UnixMicro() {
			t.Fatalf("%v: the charge of %+v is %v", l, ds[0], charge)
		}
		with := func(change func(a *stint.Ask, c *stint.Charge)) stint.Ask {
			a, c := ask, charge
			a.Cost, a.Charge = -4, &c
			change(&a, &c)
			return a
		}
		for name, a := range map[string]stint.Ask{
			"another counter":     with(func(a *stint.Ask, _ *stint.Charge) { a.Key.Name = "other" }),
			"another subject":     with(func(a *stint.Ask, _ *stint.Charge) { a.Key.Subject = "bob" }),
			"another window":      with(func(a *stint.Ask, _ *stint.Charge) { a.Limit.Window = stint.Every(time.Minute) }),
			"another algorithm":   with(func(a *stint.Ask, _ *stint.Charge) { a.Limit.Algorithm, a.Limit.Burst = (l.Algorithm+1)%6, 0 }),
			"the future":          with(func(_ *stint.Ask, c *stint.Charge) { c.At += 1_000_000 }),
			"a charge of nothing": with(func(_ *stint.Ask, c *stint.Charge) { c.Cost = 0 }),
			"more than it was":    with(func(a *stint.Ask, _ *stint.Charge) { a.Cost = -5 }),
			"a long ID":           with(func(_ *stint.Ask, c *stint.Charge) { c.ID = string(make([]byte, 200)) }),
		} {
			out, err := Adjust(ctx, store, []stint.Ask{a})
			if invalid := new(stint.InvalidError); !errors.As(err, &invalid) || out != nil {
				t.Fatalf("%v, %s: got %v, %v; want no decisions and an InvalidError", l, name, out, err)
			}
		}
		if _, err := Take(ctx, store, []stint.Ask{with(func(a *stint.Ask, _ *stint.Charge) { a.Cost = 1 })}); err == nil {
			t.Fatalf("%v: a take of a charge", l)
		}
		for n, want := range []int64{6, 6} {
			a := with(func(_ *stint.Ask, c *stint.Charge) { c.ID = "undo" })
			out, err := Adjust(ctx, store, []stint.Ask{a})
			if err != nil || out[0].Remaining != want || out[0].Cost != 0 {
				t.Fatalf("%v, undone %d times: %v, %v; want %d remaining", l, n+1, out, err, want)
			}
		}
	}
}

// checkElsewhere charges what was charged by another store, at the instant at which that was, and gives back a part
// of it.
func checkElsewhere(t rapid.TB, store stint.Store, clock *Clock) {
	ctx := context.Background()
	for _, l := range everyLimit(10) {
		if l.Algorithm == stint.Concurrency {
			continue // what another store holds is held there
		}
		key := stint.Key{Subject: "alice", Name: "elsewhere"}
		peek := stint.Ask{Key: key, Limit: l}
		before, err := Take(ctx, store, []stint.Ask{peek})
		if err != nil {
			t.Fatal(err)
		}
		at := clock.Now().UnixMicro()
		clock.Add(time.Millisecond)
		for _, by := range []int64{4, -1, 2} {
			a := peek
			a.Cost, a.Charge = by, &stint.Charge{At: at, Cost: max(by, -by)}
			if _, err := Adjust(ctx, store, []stint.Ask{a}); err != nil {
				t.Fatalf("%v: %v", l, err)
			}
		}
		after, err := Take(ctx, store, []stint.Ask{peek})
		if err != nil {
			t.Fatal(err)
		}
		most := int64(5)
		if l.Algorithm == stint.TokenBucket || l.Algorithm == stint.LeakyBucket {
			most++ // it is charged now, and what may have drained since is not given back
		}
		if used := before[0].Remaining - after[0].Remaining; used < 5 || used > most {
			t.Fatalf("%v: %d units used after 4, -1 and 2 that were charged elsewhere; want 5, and of a bucket at most 6", l, used)
		}
	}
}

// checkEmptyCalls makes calls without asks, and calls with a hundred.
func checkEmptyCalls(t rapid.TB, store stint.Store, _ *Clock) {
	ctx := context.Background()
	if out, err := Take(ctx, store, nil); err != nil || len(out) != 0 {
		t.Fatalf("take of nothing: %v, %v", out, err)
	}
	if out, err := Adjust(ctx, store, nil); err != nil || len(out) != 0 {
		t.Fatalf("adjust of nothing: %v, %v", out, err)
	}
	if err := store.Reset(ctx, nil); err != nil {
		t.Fatalf("reset of nothing: %v", err)
	}
	const many = 100
	limits := everyLimit(3)
	asks := make([]stint.Ask, many)
	for i := range asks {
		asks[i] = stint.Ask{Key: stint.Key{Subject: "alice", Name: strconv.Itoa(i)}, Limit: limits[i%len(limits)], Cost: 1}
	}
	for want := int64(2); want >= 0; want-- {
		out, err := Take(ctx, store, asks)
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range out {
			if !d.Allowed || d.Remaining != want {
				t.Fatalf("ask %d of %d: %s; want %d remaining", i, many, Format(d), want)
			}
		}
	}
}

// checkMany makes calls of a thousand asks, and compares the decisions with the specification. One ask
// denies, at various positions; counters are asked twice, far apart; penalties guard a few of the asks.
func checkMany(t rapid.TB, store stint.Store, clock *Clock) {
	const many, subjects = 1000, 7
	limits := everyLimit(30)
	for name, askOf := range map[string]func(i int) stint.Ask{
		"counters asked once": func(i int) stint.Ask {
			return stint.Ask{Key: stint.Key{Subject: strconv.Itoa(i % subjects), Name: strconv.Itoa(i)}, Limit: limits[i%len(limits)], Cost: 1}
		},
		"counters asked again": func(i int) stint.Ask {
			i %= many / 3
			return stint.Ask{Key: stint.Key{Subject: strconv.Itoa(i % subjects), Name: "again-" + strconv.Itoa(i)}, Limit: limits[i%len(limits)], Cost: 1}
		},
		"penalties": func(i int) stint.Ask {
			a := stint.Ask{Key: stint.Key{Subject: "p" + strconv.Itoa(i/6%subjects), Name: strconv.Itoa(i)}, Limit: limits[i%len(limits)], Cost: 1}
			if i%6 == 5 {
				a.Limit, a.Penalty = stint.Limit{}, ladder
			}
			return a
		},
	} {
		asks := make([]stint.Ask, many)
		for i := range asks {
			asks[i] = askOf(i)
		}
		spec := Spec(clock.Now)
		both := func(step string, do func(stint.Store) ([]stint.Decision, error)) {
			want, err := do(spec)
			if err != nil {
				t.Fatal(err)
			}
			got, err := do(store)
			if err != nil || !Agree(got, want) {
				t.Fatalf("%d asks, %s, %s: %v\ngot  %v\nwant %v", many, name, step, err, got, want)
			}
		}
		take := func(step string, asks []stint.Ask) {
			both(step, func(s stint.Store) ([]stint.Decision, error) { return Take(context.Background(), s, asks) })
		}
		peek := slices.Clone(asks)
		for i := range peek {
			peek[i].Cost = 0
		}
		take("the first take", asks)
		for _, i := range []int{0, many / 2, many - 2} {
			denied := slices.Clone(asks)
			denied[i].Cost = 30
			take("a take that ask "+strconv.Itoa(i)+" denies", denied)
			take("a peek after it", peek)
			clock.Add(time.Second)
		}
		if name != "penalties" {
			both("an adjustment", func(s stint.Store) ([]stint.Decision, error) { return Adjust(context.Background(), s, asks) })
		}
		take("the last take", asks)
		both("a reset", func(s stint.Store) ([]stint.Decision, error) { return nil, s.Reset(context.Background(), asks) })
		take("a peek after the reset", peek)
	}
}

// checkClose uses a closed store.
func checkClose(t rapid.TB, store stint.Store, _ *Clock) {
	ctx := context.Background()
	ask := stint.Ask{Key: stint.Key{Subject: "alice"}, Limit: stint.PerMinute(10), Cost: 1}
	for range 2 {
		if err := store.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	_, take := Take(ctx, store, []stint.Ask{ask})
	_, adjust := Adjust(ctx, store, []stint.Ask{ask})
	reset := store.Reset(ctx, []stint.Ask{ask})
	for verb, err := range map[string]error{"take": take, "adjust": adjust, "reset": reset} {
		if !errors.Is(err, stint.ErrClosed) {
			t.Fatalf("%s after close: %v; want ErrClosed", verb, err)
		}
	}
}
