package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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

// manyAsks returns asks of n counters, of one subject or each of its own.
func manyAsks(n int, subjects bool) []stint.Ask {
	asks := make([]stint.Ask, n)
	for i := range asks {
		k := stint.Key{Subject: "alice", Name: strconv.Itoa(i)}
		if subjects {
			k.Subject = "user-" + k.Name
		}
		asks[i] = stint.Ask{Key: k, Limit: limitOf(stint.Algorithms()[i%6], 10), Cost: 1}
	}
	return asks
}

// looks returns the asks as peeks.
func looks(asks []stint.Ask) []stint.Ask {
	out := slices.Clone(asks)
	for i := range out {
		out[i].Cost = 0
	}
	return out
}

// pair is a store and the specification, which get the same calls.
type pair struct {
	*redisstore.Store
	spec  stint.Store
	clock *storetest.Clock
}

func newPair(t testing.TB, url string) *pair {
	t.Helper()
	clock := storetest.NewClock()
	s := open(t, url, redisstore.Options{Now: clock.Now})
	return &pair{Store: s, spec: storetest.Spec(clock.Now), clock: clock}
}

// take takes from both, and compares the decisions.
func (p *pair) take(t testing.TB, what string, asks []stint.Ask) {
	t.Helper()
	p.both(t, what, asks, storetest.Take)
}

// adjust adjusts both, and compares the decisions.
func (p *pair) adjust(t testing.TB, what string, asks []stint.Ask) {
	t.Helper()
	p.both(t, what, asks, storetest.Adjust)
}

func (p *pair) both(t testing.TB, what string, asks []stint.Ask, of func(context.Context, stint.Store, []stint.Ask) ([]stint.Decision, error)) {
	t.Helper()
	want, err := of(t.Context(), p.spec, asks)
	if err != nil {
		t.Fatal(err)
	}
	got, err := of(t.Context(), p.Store, asks)
	if err != nil || len(got) != len(want) {
		t.Fatalf("%s: %d answers to %d asks, %v", what, len(got), len(asks), err)
	}
	for i := range got {
		if !storetest.Agree(got[i:i+1], want[i:i+1]) {
			t.Fatalf("%s: answer %d of %d is %v, want %v", what, i, len(asks), got[i], want[i])
		}
	}
}

// manyOn are the deployments that these tests run on: topologies, and a ring that is changed.
var manyOn = []string{"single", "cluster", "changed ring"}

func manyURL(t testing.TB, name string) string {
	t.Helper()
	if urlOf, ok := topologies[name]; ok {
		return urlOf(t)
	}
	r := testredis.SharedRing(t)
	return fmt.Sprintf("%s?was=%s,%s&was_weights=2,1", r.URL(), r.Nodes()[0].Addr(), r.Nodes()[1].Addr())
}

// TestMany takes more asks than fit in one call. All are charged or none, whichever denies.
func TestMany(t *testing.T) {
	t.Parallel()
	for _, name := range manyOn {
		for _, n := range []int{128, 129, 1000, redisstore.MaxAsks} {
			for _, subjects := range []bool{false, true} {
				if n == redisstore.MaxAsks && (name != "single" || subjects) && !torture.Enabled {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/subjects=%v", name, n, subjects), func(t *testing.T) {
					t.Parallel()
					p := newPair(t, manyURL(t, name))
					asks := manyAsks(n, subjects)
					p.take(t, "the first take", asks)
					places := []int{0, n / 2, n - 1}
					if n >= 1000 {
						places = places[1:2] // a cluster of six servers on one machine takes its time
					}
					for _, i := range places {
						denied := slices.Clone(asks)
						denied[i].Cost = 10
						p.take(t, fmt.Sprintf("a take that ask %d denies", i), denied)
						p.take(t, "a look after it", looks(asks))
					}
					if st := p.Stats(); st.Kept > 0 {
						t.Errorf("%+v; want all taken back", st)
					}
					p.clock.Add(time.Minute) // the states, and not only the counts, are as they were
					p.adjust(t, "an adjustment", asks)
					p.take(t, "the last take", asks)
					for _, s := range []stint.Store{p, p.spec} {
						if err := s.Reset(t.Context(), asks); err != nil {
							t.Fatal(err)
						}
					}
					p.take(t, "a look at nothing", looks(asks))
				})
			}
		}
	}
}

// TestTooMany takes more asks than allowed.
func TestTooMany(t *testing.T) {
	t.Parallel()
	s := open(t, testredis.Shared(t).URL(), redisstore.Options{})
	asks := manyAsks(redisstore.MaxAsks+1, false)
	for verb, do := range map[string]func() ([]stint.Decision, error){
		"take":   func() ([]stint.Decision, error) { return storetest.Take(t.Context(), s, asks) },
		"adjust": func() ([]stint.Decision, error) { return storetest.Adjust(t.Context(), s, asks) },
	} {
		var invalid *stint.InvalidError
		if out, err := do(); !errors.As(err, &invalid) || invalid.Field != "asks" || invalid.Value != "4097" || out != nil {
			t.Errorf("%s: %v, %v; want an InvalidError about 4097 asks", verb, out, err)
		}
	}
	if st := s.Stats(); st.Calls > 0 {
		t.Errorf("%d calls; want none", st.Calls)
	}
}

// TestManyTogether takes asks that must be decided together, wherever they are among others: those of one
// counter, and a penalty with the asks it guards.
func TestManyTogether(t *testing.T) {
	t.Parallel()
	penalty, err := stint.ParsePenalty("2/1h cooldown=1h")
	if err != nil {
		t.Fatal(err)
	}
	// guarded returns asks of which the last are a user's, and a penalty.
	guarded := func(before, own, after int) []stint.Ask {
		asks := manyAsks(before+own+1+after, true)
		for i := range own + 1 {
			asks[before+i].Key.Subject = "mallory"
		}
		asks[before+own].Limit, asks[before+own].Penalty = stint.Limit{}, penalty
		return asks
	}
	// again returns asks of so many counters, in turn.
	again := func(n, counters int) []stint.Ask {
		asks := manyAsks(n, true)
		for i := range asks {
			asks[i] = asks[i%counters]
			asks[i].Limit = limitOf(asks[i].Limit.Algorithm, 3*int64((n+counters-1)/counters))
		}
		return asks
	}
	rows := map[string]struct {
		asks []stint.Ask
		deny int // the ask that denies, when it wants too much
	}{
		"a counter first and last":    {append(manyAsks(999, true), manyAsks(1, true)...), 999},
		"every counter ten times":     {again(1000, 100), 999},
		"every counter twice":         {again(1000, 500), 500},
		"one counter":                 {again(300, 1), 299},
		"one counter, all asks":       {again(redisstore.MaxAsks, 1), redisstore.MaxAsks - 1},
		"a penalty for a whole part":  {guarded(0, 127, 300), 126},
		"a penalty for more":          {guarded(10, 300, 100), 11},
		"a penalty for all":           {guarded(0, 999, 0), 0},
		"a penalty after the border":  {guarded(126, 3, 200), 126},
		"a penalty on the border":     {guarded(125, 2, 200), 125},
		"a penalty before the border": {guarded(124, 2, 200), 125},
		"a penalty at the end":        {guarded(300, 2, 0), 301},
		"a penalty that is not meant": {guarded(300, 2, 100), 0},
	}
	for _, name := range manyOn {
		for what, row := range rows {
			if len(row.asks) > 1000 && name != "single" {
				continue
			}
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				p := newPair(t, manyURL(t, name))
				p.take(t, "the first take", row.asks)
				denied := slices.Clone(row.asks)
				denied[row.deny].Cost = 1000 * int64(len(row.asks))
				for range 3 { // violations lead to a ban
					p.take(t, "a denied take", denied)
					p.take(t, "a look after it", looks(row.asks))
				}
				p.clock.Add(2 * time.Hour)
				p.take(t, "the last take", row.asks)
			})
		}
	}
}

// TestManyAtOnce makes concurrent takes of many asks, which ask the same counters in different orders. Each
// is charged completely or not at all, and no limit is exceeded.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	for _, name := range manyOn {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const counters, each, takers, rounds = 400, 300, 6, 3
			p := newPair(t, manyURL(t, name))
			all := manyAsks(counters, true)
			var mu sync.Mutex
			used := map[stint.Key]int64{}
			passed := 0
			var wg sync.WaitGroup
			for taker := range takers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(taker), 1))
					for range rounds {
						asks := slices.Clone(all)
						r.Shuffle(counters, func(i, j int) { asks[i], asks[j] = asks[j], asks[i] })
						asks = asks[:each]
						out, err := storetest.Take(t.Context(), p, asks)
						if err != nil {
							t.Error(err)
							return
						}
						if slices.ContainsFunc(out, func(d stint.Decision) bool { return !d.Allowed }) {
							continue
						}
						mu.Lock()
						passed++
						for _, a := range asks {
							used[a.Key]++
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			out, err := storetest.Take(t.Context(), p, looks(all))
			if err != nil {
				t.Fatal(err)
			}
			for i, a := range all {
				if n := used[a.Key]; n > 10 || out[i].Remaining != 10-n {
					t.Fatalf("counter %d: %d passed of 10, and %d remain", i, n, out[i].Remaining)
				}
			}
			t.Logf("%d of %d takes passed, %d parts undone", passed, takers*rounds, p.Stats().Undone)
			if passed == 0 {
				t.Error("no take passed")
			}
		})
	}
}

// scriptKeys returns how many keys each call of the script had, in the order in
// which the server ran them. The server must log every command.
func scriptKeys(t testing.TB, server *testredis.Server) (out []int) {
	t.Helper()
	for _, entry := range server.Do(t, "SLOWLOG", "GET", "-1").([]any) {
		args := entry.([]any)[3].([]any)
		if args[0] != "EVALSHA" && args[0] != "EVAL" {
			continue
		}
		n, err := strconv.Atoi(args[2].(string))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	slices.Reverse(out)
	return out
}

// TestManyHoldNoOne takes single units during takes of many asks, whose calls must be short enough to let
// others in between.
func TestManyHoldNoOne(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	server.Do(t, "CONFIG", "SET", "slowlog-max-len", "1000000")
	server.Do(t, "CONFIG", "SET", "slowlog-log-slower-than", "0")
	s := openURL(t, server.URL(), redisstore.Options{})
	if _, err := storetest.Take(t.Context(), s, ask("bob", 1_000_000)); err != nil { // the server knows the script
		t.Fatal(err)
	}
	server.Do(t, "SLOWLOG", "RESET")
	asks := manyAsks(redisstore.MaxAsks, true)
	denied := slices.Clone(asks)
	denied[0].Cost = 100 // and the rest is undone
	done := make(chan error, 1)
	go func() {
		_, err := storetest.Take(t.Context(), s, asks)
		if err == nil {
			_, err = storetest.Take(t.Context(), s, denied)
		}
		done <- err
	}()
	for running := true; running; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
			if _, err := storetest.Take(t.Context(), s, ask("bob", 1_000_000)); err != nil {
				t.Fatal(err)
			}
		}
	}
	keys := scriptKeys(t, server)
	parts, row, longest := 0, 0, 0
	for _, n := range keys {
		if row++; n == 1 {
			row = 0
		} else {
			parts++
		}
		longest = max(longest, row)
	}
	if most := slices.Max(keys); most > 256 { // of 128 counters, and for an undo their marks
		t.Errorf("a call of %d keys, want at most 256", most)
	}
	if want := 2*redisstore.MaxAsks/128 + redisstore.MaxAsks/128 - 1; parts != want {
		t.Errorf("%d calls of two takes of which one is undone, want %d", parts, want)
	}
	t.Logf("%d parts, and %d other calls", parts, len(keys)-parts)
	torture.AtMost(t, "parts in a row, with no other call in between", longest, redisstore.MaxAsks/128*3/4)
}

// TestManyStop stops the server during a take, which must not wait for each remaining part.
func TestManyStop(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	s := openURL(t, server.URL()+"?timeout=500ms&dial_timeout=30s", redisstore.Options{})
	asks := manyAsks(redisstore.MaxAsks, true)
	wait.Nil(t, "a take", func() error { _, err := storetest.Take(t.Context(), s, ask("bob", 10)); return err })
	server.Pause(t)
	before := s.Stats()
	out, err := storetest.Take(t.Context(), s, asks)
	calls := s.Stats().Calls - before.Calls // before the server goes on: what it then has passed is undone, by another call
	server.Resume(t)
	if !errors.Is(err, stint.ErrUnavailable) || errors.Is(err, stint.ErrNotApplied) || out != nil {
		t.Errorf("%v, %v; want ErrUnavailable", out, err)
	}
	if calls != 1 {
		t.Errorf("%d calls to a server that does not answer, want 1", calls)
	}
	server.Kill(t)
	wait.Nil(t, "the server is gone", func() error {
		if _, err := storetest.Take(t.Context(), s, asks); !errors.Is(err, stint.ErrNotApplied) {
			return fmt.Errorf("%w; want ErrNotApplied from a server that is gone", err)
		}
		return nil
	})
}

// TestManyLeft cancels a take half way, whose charges are undone.
func TestManyLeft(t *testing.T) {
	t.Parallel()
	p := newPair(t, testredis.Shared(t).URL())
	asks := manyAsks(redisstore.MaxAsks, true)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	done := make(chan error, 1)
	go func() {
		_, err := storetest.Take(ctx, p, asks)
		done <- err
	}()
	remaining := func(i int) int64 {
		out, err := storetest.Take(t.Context(), p, looks(asks[i:i+1]))
		if err != nil {
			t.Fatal(err)
		}
		return out[0].Remaining
	}
	wait.Nil(t, "the first part is charged", func() error {
		if remaining(0) == 10 {
			return errors.New("the first part is not charged yet")
		}
		return nil
	})
	leave()
	want := int64(10)
	if err := <-done; err == nil {
		want = 9 // it was done sooner
	} else if !errors.Is(err, stint.ErrUnavailable) {
		t.Error(err)
	}
	wait.Nil(t, "all is charged or nothing", func() error {
		for i := 0; i < len(asks); i += 64 {
			if got := remaining(i); got != want {
				return fmt.Errorf("counter %d: %d remain, want %d", i, got, want)
			}
		}
		return nil
	})
}
