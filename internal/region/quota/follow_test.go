package quota_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/quota"
	"github.com/stintdev/stint/storetest"
)

// world is regions with one node each, and a database, in virtual time.
type world struct {
	t       *testing.T
	now     time.Duration
	book    *quota.Book
	limit   string
	regions map[string]*member
}

type member struct {
	weights *quota.Weights
	store   stint.Store
	cut     bool
	demand  int64 // units each step
	steps   int
}

func newWorld(t *testing.T, limit string, names ...string) *world {
	t.Helper()
	w := &world{t: t, limit: limit, regions: map[string]*member{}}
	w.book = &quota.Book{Now: func() time.Time { return storetest.Epoch.Add(w.now) }}
	for _, name := range names {
		w.join(name, names...)
	}
	return w
}

// join starts the node of a region, again if there was one.
func (w *world) join(name string, names ...string) *member {
	regions := make([]quota.Region, len(names))
	for i := range names {
		regions[i].Name = names[i]
	}
	m := &member{}
	of := table(w.t, name, regions...)
	m.weights = w.book.Join(w.t, func() bool { return m.cut }, quota.WeightsOptions{
		Table: of, Node: name + strconv.Itoa(int(w.now)), Now: func() time.Duration { return w.now },
	})
	m.store = around(w.t, memory(w.t, w.book.Now), quota.Options{Table: of, Weights: m.weights})
	if before := w.regions[name]; before != nil {
		m.demand = before.demand
	}
	w.regions[name] = m
	return m
}

// part returns the part of a region.
func (w *world) part(name string) int64 {
	w.t.Helper()
	return take(w.t, w.regions[name].store, ask(w.t, w.limit, 0, following))[0].Limit
}

// pass lets time pass, and looks whether the parts are ever more than the limit.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	for end := w.now + d; w.now < end; w.now += quota.ReadEvery {
		sum := int64(0)
		for _, name := range slices.Sorted(maps.Keys(w.regions)) {
			m := w.regions[name]
			if m.demand > 0 {
				take(w.t, m.store, ask(w.t, w.limit, m.demand, following))
			}
			m.steps++
			m.weights.Step(w.t.Context(), m.steps%2 == 0)
		}
		for name := range w.regions {
			sum += w.part(name)
		}
		if most := limitOf(w.t, w.limit).Cap(); sum > most {
			w.t.Fatalf("at %v the parts are %d together", w.now, sum)
		}
	}
}

func (w *world) expect(want map[string]int64) {
	w.t.Helper()
	for name, n := range want {
		if got := w.part(name); got != n {
			w.t.Errorf("at %v %s has %d, want %d", w.now, name, got, n)
		}
	}
}

// TestSteps has demand move from one region to another, which gains nothing before the time is over.
func TestSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "1000/1m fixed_window", "eu", "us")
	w.expect(map[string]int64{"eu": 20, "us": 20}) // nothing was read yet
	w.regions["eu"].demand = 100
	w.pass(10 * time.Second)
	w.expect(map[string]int64{"eu": 500, "us": 20})
	w.pass(90 * time.Second)
	w.expect(map[string]int64{"eu": 500, "us": 20})
	w.pass(20 * time.Second)
	w.expect(map[string]int64{"eu": 980, "us": 20})

	// The region with all of it is cut off, and the demand moves.
	w.regions["eu"].cut = true
	w.pass(20 * time.Second)
	w.expect(map[string]int64{"eu": 980, "us": 20})
	w.pass(5 * time.Second) // and so 30 s after it was last read
	w.expect(map[string]int64{"eu": 20, "us": 20})
	w.regions["us"].demand = 50
	w.pass(3 * time.Minute)
	w.expect(map[string]int64{"eu": 20, "us": 980})

	// It is back, and a node of the other one restarts, without the database at first.
	w.regions["eu"].cut = false
	w.join("us", "eu", "us").cut = true
	w.pass(30 * time.Second)
	w.expect(map[string]int64{"us": 20})
	w.regions["us"].cut = false
	w.pass(4 * time.Minute)
	if eu, us := w.part("eu"), w.part("us"); eu < 640 || us < 300 || eu+us != 1000 {
		t.Errorf("%d and %d, for demands of 100 and 50", eu, us)
	}
}

// TestForgotten has nobody ask any more: the weights go back to those of the table, and then there are none.
func TestForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "1000/1s", "ap", "eu", "us")
	w.regions["ap"].demand = 10
	w.pass(5 * time.Minute)
	if all, settled := w.book.Rows(); all != 1 || settled != 1 {
		t.Fatalf("%d rows, %d settled", all, settled)
	}
	w.expect(map[string]int64{"ap": 960, "eu": 20})
	w.regions["ap"].demand = 0
	for range int((2*quota.Forgotten + 5*time.Minute) / quota.ReadEvery) { // a peek would be an ask
		w.now += quota.ReadEvery
		for _, m := range w.regions {
			m.steps++
			m.weights.Step(t.Context(), m.steps%2 == 0)
		}
	}
	if all, _ := w.book.Rows(); all != 0 {
		before, after, settled := w.book.Weights("ap")
		t.Fatalf("%d rows: %d to %d, settled %v", all, before, after, settled)
	}
	w.expect(map[string]int64{"ap": 334, "eu": 333, "us": 333})
}

// TestRegions has a region come, and one go.
func TestRegions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "1000/1s", "eu", "us")
	w.regions["eu"].demand, w.regions["us"].demand = 10, 10
	w.pass(3 * time.Minute)
	w.expect(map[string]int64{"eu": 500, "us": 500})
	w.regions["us"].demand = 1
	w.pass(3 * time.Minute)

	for _, name := range []string{"ap", "eu", "us"} {
		w.join(name, "ap", "eu", "us")
		w.regions[name].weights.Step(t.Context(), false)
	}
	w.regions["ap"].demand = 10
	w.expect(map[string]int64{"ap": 0})
	w.pass(10 * time.Second)
	w.expect(map[string]int64{"ap": 0})
	w.pass(5 * time.Minute)
	if ap, eu := w.part("ap"), w.part("eu"); ap < 400 || eu < 400 {
		t.Errorf("ap has %d, eu has %d", ap, eu)
	}

	delete(w.regions, "eu")
	for _, name := range []string{"ap", "us"} {
		w.join(name, "ap", "us")
	}
	w.pass(10 * time.Second)
	if ap := w.part("ap"); ap > 500 {
		t.Errorf("ap has %d, what eu may still have used", ap)
	}
	w.pass(5 * time.Minute)
	if ap, us := w.part("ap"), w.part("us"); ap < 800 || ap+us != 1000 {
		t.Errorf("ap has %d, us %d", ap, us)
	}
}

// TestManyRules has one more than can be followed.
func TestManyRules(t *testing.T) {
	t.Parallel()
	of := table(t, "eu", quota.Region{Name: "eu"}, quota.Region{Name: "us"})
	s := around(t, memory(t, nil), quota.Options{Table: of, Weights: quota.Known(t, of)})
	for i := range quota.MaxRules + 1 {
		policy := *following
		policy.Rule = strconv.Itoa(i)
		want := int64(50)
		if i == quota.MaxRules {
			want = 2
		}
		if d := take(t, s, ask(t, "100/1s", 1, &policy))[0]; d.Limit != want {
			t.Fatalf("rule %d has a part of %d", i, d.Limit)
		}
	}
}

// TestTogether takes while weights are read, reported and changed, for the race detector.
func TestTogether(t *testing.T) {
	t.Parallel()
	of := table(t, "eu", quota.Region{Name: "eu"}, quota.Region{Name: "us"})
	book := &quota.Book{Now: time.Now}
	weights := book.Join(t, func() bool { return false }, quota.WeightsOptions{Table: of, Node: "n"})
	s := around(t, memory(t, nil), quota.Options{Table: of, Weights: weights})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for j := range 200 {
				policy := *following
				policy.Rule = strconv.Itoa(j % 20)
				if _, err := storetest.Take(t.Context(), s, []stint.Ask{ask(t, "1000/1s", int64(i), &policy)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 50 {
		weights.Step(t.Context(), i%2 == 0)
	}
	group.Wait()
}

// TestRun runs a node, whose database is away for a while.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var cut atomic.Bool
		book := &quota.Book{Now: time.Now}
		w := book.Join(t, cut.Load, quota.WeightsOptions{
			Table: table(t, "eu", quota.Region{Name: "eu"}, quota.Region{Name: "us"}), Node: "n", Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if w.Fresh() {
			t.Error("it knows the weights before it has read them")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.Run(ctx); close(done) }()
		fresh := func(after time.Duration, want bool) {
			t.Helper()
			<-time.After(after)
			synctest.Wait()
			if w.Fresh() != want {
				t.Errorf("fresh: %v", !want)
			}
		}
		fresh(time.Second, true)
		cut.Store(true)
		fresh(quota.Valid-2*time.Second, true)
		fresh(2*time.Second, false)
		fresh(time.Minute, false)
		cut.Store(false)
		fresh(quota.ReadEvery, true)
		cancel()
		<-done
		if got := log.String(); strings.Count(got, "cannot read") != 1 || strings.Count(got, "read again") != 1 {
			t.Error(got)
		}
	})
}
