package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/torture"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

// Environment of the processes that TestRefundsOfProcesses starts.
const (
	ledgerFile   = "STINT_TEST_LEDGER"
	refunderName = "STINT_TEST_REFUNDER" // 0 and up
)

const (
	refunders, refundTakers = 4, 32
	tenantsOf, usersOf      = 2, 8
	perAlgorithm            = 1 + tenantsOf + usersOf
)

// shared is a counter that the processes share.
type shared struct {
	index int // in the ledger
	ask   stint.Ask
}

// sharedCounters returns the counters of a level by algorithm: of all, of tenants or of users. All are in
// different slots, and none recovers during the test.
func sharedCounters() (all []shared, tenants, users [][]shared) {
	for _, a := range stint.Algorithms() {
		n := int(a) * perAlgorithm
		next := func(name string, limit int64) shared {
			n++
			return shared{n - 1, stint.Ask{Key: stint.Key{Subject: fmt.Sprint(name, "-", a), Name: "refunds"}, Limit: limitOf(a, limit)}}
		}
		all = append(all, next("all", 60))
		var ts, us []shared
		for i := range tenantsOf {
			ts = append(ts, next(fmt.Sprint("tenant-", i), 40))
		}
		for i := range usersOf {
			us = append(us, next(fmt.Sprint("user-", i), 12))
		}
		tenants, users = append(tenants, ts), append(users, us)
	}
	return all, tenants, users
}

// heldCounter is used through Hold. The places of a process that was killed come back by themselves.
func heldCounter() shared {
	return shared{perAlgorithm * len(stint.Algorithms()), stint.Ask{
		Key:   stint.Key{Subject: "held", Name: "refunds"},
		Limit: stint.Limit{Algorithm: stint.Concurrency, Max: 12, Window: stint.Every(2 * time.Second)},
	}}
}

// ledger is memory that the processes share, and that survives them.
type ledger struct {
	stop, turns, passed, denied, beyond atomic.Int64

	// held is what all processes hold, sure what each holds for sure, and may what it may hold at most:
	// it has asked for it, or not given it back completely.
	held [128]atomic.Int64
	sure [refunders][128]atomic.Int64
	may  [refunders][128]atomic.Int64
}

// refunder is one process.
type refunder struct {
	*ledger
	store stint.Store
	name  int

	all            []shared
	tenants, users [][]shared
}

// admitted records that units are held. They must not be more than the limit.
func (p *refunder) admitted(c shared, cost int64) {
	p.sure[p.name][c.index].Add(cost)
	if p.held[c.index].Add(cost) > c.ask.Limit.Max {
		p.beyond.Add(1)
		fmt.Fprintf(os.Stderr, "%v of %v: beyond the limit\n", c.ask.Key, c.ask.Limit)
	}
}

// giving records that units are about to be given back.
func (p *refunder) giving(c shared, cost int64) {
	p.held[c.index].Add(-cost)
	p.sure[p.name][c.index].Add(-cost)
}

// grant is a take that passed.
type grant struct {
	counters []shared
	cost     int64
	asks     []stint.Ask
	charges  []stint.Charge
}

// take takes from a user, a tenant and all, each with another algorithm. It returns nil if it is denied.
func (p *refunder) take(r *rand.Rand) (*grant, error) {
	n := len(p.all)
	a := r.IntN(n)
	// A process shares its users with the next two processes.
	user := (2*p.name + r.IntN(usersOf-2)) % usersOf
	g := &grant{cost: 1 + r.Int64N(2), counters: []shared{p.all[a], p.tenants[(a+1)%n][r.IntN(tenantsOf)], p.users[(a+2)%n][user]}}
	for _, c := range g.counters {
		ask := c.ask
		ask.Cost = g.cost
		g.asks = append(g.asks, ask)
		p.may[p.name][c.index].Add(g.cost)
	}
	out, err := storetest.Take(context.Background(), p.store, g.asks)
	if err != nil {
		return nil, err
	}
	for i := range out {
		if out[i].Cost == 0 {
			p.denied.Add(1)
			p.gone(g)
			return nil, nil //nolint:nilnil // a denial is no error
		}
		g.charges = append(g.charges, out[i].Charge())
	}
	p.passed.Add(1)
	for _, c := range g.counters {
		p.admitted(c, g.cost)
	}
	return g, nil
}

// gone records that nothing is left of a take.
func (p *refunder) gone(g *grant) {
	for _, c := range g.counters {
		p.may[p.name][c.index].Add(-g.cost)
	}
}

// change changes all charges of a grant by so much, or renews what is held if by is 0.
func (p *refunder) change(g *grant, by int64, id string) error {
	asks := make([]stint.Ask, 0, len(g.asks))
	charges := make([]stint.Charge, len(g.charges))
	copy(charges, g.charges)
	for i, a := range g.asks {
		a.Cost, a.Charge = by, &charges[i]
		charges[i].ID = id
		asks = append(asks, a)
	}
	out, err := storetest.Adjust(context.Background(), p.store, asks)
	if err != nil || by != 0 {
		return err
	}
	for i, a := range g.asks {
		if a.Limit.Algorithm == stint.Concurrency {
			if g.charges[i] = out[i].Charge(); g.charges[i].Cost != g.cost {
				return fmt.Errorf("%v: renewed %d of %d", a.Key, g.charges[i].Cost, g.cost)
			}
		}
	}
	return nil
}

// giveBack gives a grant back, in one of several ways.
func (p *refunder) giveBack(r *rand.Rand, g *grant) error {
	var err error
	if r.IntN(3) == 0 {
		if err = p.change(g, 0, ""); err != nil {
			return err
		}
	}
	for _, c := range g.counters {
		p.giving(c, g.cost)
	}
	switch {
	case r.IntN(3) == 0: // sent twice at once, and applied once
		id := strconv.FormatUint(r.Uint64(), 36)
		again := make(chan error, 1)
		go func() { again <- p.change(g, -g.cost, id) }()
		err = errors.Join(p.change(g, -g.cost, id), <-again)
	case g.cost == 2 && r.IntN(2) == 0: // in two steps
		if err = p.change(g, -1, ""); err == nil {
			for i := range g.charges {
				g.charges[i] = g.charges[i].Amended(-1)
			}
			err = p.change(g, -1, "")
		}
	default:
		err = p.change(g, -g.cost, "")
	}
	if err == nil {
		p.gone(g)
	}
	return err
}

// run takes and gives back until the ledger says stop, and then gives everything back.
func (p *refunder) run(r *rand.Rand) error {
	var grants []*grant
	for p.stop.Load() == 0 {
		p.turns.Add(1)
		g, err := p.take(r)
		if err != nil {
			return err
		}
		if g != nil {
			grants = append(grants, g)
		}
		if len(grants) > 2 || (g == nil && len(grants) > 0) {
			i := r.IntN(len(grants))
			if err := p.giveBack(r, grants[i]); err != nil {
				return err
			}
			grants = append(grants[:i], grants[i+1:]...)
		}
	}
	for _, g := range grants {
		if err := p.giveBack(r, g); err != nil {
			return err
		}
	}
	return nil
}

// hold holds places and releases them until the ledger says stop.
func (p *refunder) hold() error {
	c := heldCounter()
	l, err := stint.New(p.store, stint.Options{Limit: c.ask.Limit, Name: c.ask.Key.Name})
	if err != nil {
		return err
	}
	for p.stop.Load() == 0 {
		release, d, err := l.Hold(context.Background(), c.ask.Key.Subject)
		if err != nil {
			return err
		}
		if d.Allowed {
			p.admitted(c, 1)
			runtime.Gosched()
			p.giving(c, 1)
		}
		release()
	}
	return nil
}

// refund is the main function of a process.
func refund(url string) int {
	name, err := strconv.Atoi(os.Getenv(refunderName))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p := &refunder{name: name}
	if p.ledger, err = testserver.Memory[ledger](os.Getenv(ledgerFile)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := redisstore.Open(url, redisstore.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer s.Close()
	p.store = s
	p.all, p.tenants, p.users = sharedCounters()
	var wg sync.WaitGroup
	errs := make(chan error, refundTakers)
	for i := range refundTakers {
		wg.Go(func() {
			if i%8 == 0 {
				errs <- p.hold()
			} else {
				errs <- p.run(rand.New(rand.NewPCG(uint64(name), uint64(i))))
			}
		})
	}
	wg.Wait()
	close(errs)
	code := 0
	for err := range errs {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// TestRefundsOfProcesses has processes take, renew and give back at once, from counters of every algorithm
// in several slots, and kills one of them. Never is more admitted than the limits, and in the end no more
// is used than what the killed process held.
func TestRefundsOfProcesses(t *testing.T) {
	t.Parallel()
	turns := int64(400)
	if torture.Enabled {
		turns = 4000
	}
	url := fmt.Sprintf("%s?prefix=p%d&timeout=30s&dial_timeout=30s", testredis.SharedCluster(t).URL(), stores.Add(1))
	file := filepath.Join(t.TempDir(), "ledger")
	l, err := testserver.Memory[ledger](file)
	if err != nil {
		t.Fatal(err)
	}
	var workers [refunders]*worker
	for i := range workers {
		workers[i] = startWorker(t, url, ledgerFile+"="+file, refunderName+"="+strconv.Itoa(i))
	}
	reach := func(n int64) {
		t.Helper()
		wait.Nil(t, "turns", func() error {
			if got := l.turns.Load(); got < n {
				return fmt.Errorf("%d turns of %d", got, n)
			}
			return nil
		})
	}
	reach(turns)
	killed := workers[0]
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait() // it was killed
	reach(l.turns.Load() + turns)
	l.stop.Store(1)
	for _, w := range workers[1:] {
		if err := w.Wait(); err != nil {
			t.Errorf("%v: %s", err, w.errs.String())
		}
	}
	t.Logf("%d passed, %d denied", l.passed.Load(), l.denied.Load())
	if n := l.beyond.Load(); n > 0 {
		t.Errorf("%d takes were admitted beyond a limit", n)
		for _, w := range workers {
			t.Log(w.errs.String())
		}
	}
	s := openURL(t, url, redisstore.Options{})
	all, tenants, users := sharedCounters()
	counters := append(slices.Clone(all), heldCounter())
	for i := range tenants {
		counters = append(append(counters, tenants[i]...), users[i]...)
	}
	empty, left := 0, int64(0)
	for _, c := range counters {
		// What the killed process had sent may still be on its way.
		wait.Nil(t, "what is used was held", func() error {
			out, err := storetest.Take(t.Context(), s, []stint.Ask{c.ask})
			if err != nil {
				return err
			}
			used := out[0].Limit - out[0].Remaining
			least, most := l.sure[0][c.index].Load(), l.may[0][c.index].Load()
			if c == heldCounter() {
				least = 0 // for a while only
			}
			if a := c.ask.Limit.Algorithm; a == stint.TokenBucket || a == stint.LeakyBucket {
				most++ // a remainder of seconds, where a unit takes months: see bucketAmend
			}
			if used < least || used > most {
				return fmt.Errorf("%v of %v: %d are used, but the killed process held %d to %d", c.ask.Key, c.ask.Limit, used, least, most)
			}
			if left += used; used == 0 {
				empty++
			}
			return nil
		})
	}
	t.Logf("the killed process has left %d units, in %d of %d counters", left, len(counters)-empty, len(counters))
}
