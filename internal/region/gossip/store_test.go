package gossip

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

func memory(t testing.TB, now func() time.Time) *memstore.Store {
	t.Helper()
	s, err := memstore.New(memstore.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// pair is two regions that are told of each other by hand.
type pair struct {
	a, b *Store
	home map[*Store]stint.Store
}

func newPair(t testing.TB, wait time.Duration) *pair {
	t.Helper()
	p := &pair{home: map[*Store]stint.Store{}}
	open := func(name, other string) *Store {
		home := memory(t, time.Now)
		s, err := New(home, Options{
			Self: Sender{Region: name, Node: "n", Run: 1}, Peers: []string{other}, Weight: 1, Weights: 2, Local: memory(t, time.Now), Wait: wait, Now: time.Now,
		})
		if err != nil {
			t.Fatal(err)
		}
		p.home[s] = home
		return s
	}
	p.a, p.b = open("a", "b"), open("b", "a")
	p.link(t)
	return p
}

// link has both regions hear from each other.
func (p *pair) link(t testing.TB) {
	t.Helper()
	p.ping()
	p.a.Tick(t.Context())
	p.b.Tick(t.Context())
	p.ping()
}

// ping has both regions hear what the other says.
func (p *pair) ping() {
	p.a.Heard("b", 0, p.b.Alone(), p.b.Consents())
	p.b.Heard("a", 0, p.a.Alone(), p.a.Consents())
}

// tell carries what a region has to tell to the other, and the acknowledgement back.
func (p *pair) tell(t testing.TB, from, to *Store) {
	t.Helper()
	for {
		b, ok := from.Next(to.o.Self.Region)
		if !ok {
			return
		}
		if err := to.Receive(t.Context(), from.o.Self, b); err != nil {
			t.Fatal(err)
		}
		from.Acknowledged(to.o.Self.Region, b.Number)
	}
}

func take(t testing.TB, s stint.Store, a stint.Ask, cost int64) stint.Decision {
	t.Helper()
	a.Cost = cost
	var ds [1]stint.Decision
	if err := s.Take(t.Context(), []stint.Ask{a}, ds[:]); err != nil {
		t.Fatal(err)
	}
	return ds[0]
}

func (p *pair) left(t testing.TB, s *Store, a stint.Ask) int64 {
	t.Helper()
	return take(t, p.home[s], a, 0).Remaining
}

func gossip(t *testing.T, limit string, credit int64) stint.Ask {
	t.Helper()
	return simAsk(t, "alice", limit, credit, stint.CreditShare)
}

// TestTold has one region admit, charge, give back and reset, and the other one know of it.
func TestTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []string{"100/1h fixed_window", "100/1h sliding_window", "100/1h sliding_log", "100/1h token_bucket"} {
			p, a := newPair(t, 0), gossip(t, limit, 50)
			d := take(t, p.a, a, 10)
			if !d.Allowed {
				t.Fatal(limit, d)
			}
			take(t, p.a, a, 5)
			p.tell(t, p.a, p.b)
			if left := p.left(t, p.b, a); left != 85 {
				t.Errorf("%s: %d left elsewhere after 15 of 100; want 85", limit, left)
			}
			back, charge := a, d.Charge()
			back.Cost, back.Charge = -10, &charge
			if err := p.a.Adjust(t.Context(), []stint.Ask{back}, make([]stint.Decision, 1)); err != nil {
				t.Fatal(err)
			}
			p.tell(t, p.a, p.b)
			// Of a log, the instant of a charge that was told with others is not known.
			if left := p.left(t, p.b, a); left != 95 && a.Limit.Algorithm != stint.SlidingLog {
				t.Errorf("%s: %d left elsewhere after 10 of 15 were given back; want 95", limit, left)
			}
			if err := p.a.Reset(t.Context(), []stint.Ask{a}); err != nil {
				t.Fatal(err)
			}
			p.tell(t, p.a, p.b)
			if left := p.left(t, p.b, a); left != 100 {
				t.Errorf("%s: %d left elsewhere after a reset; want 100", limit, left)
			}
		}
	})
}

// TestTwice has a batch arrive twice, at two nodes of a region: it is charged once.
func TestTwice(t *testing.T) {
	t.Parallel()
	p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 50)
	take(t, p.a, a, 7)
	b, ok := p.a.Next("b")
	if !ok || len(b.Entries) != 1 || b.Number != 1 {
		t.Fatal(b, ok)
	}
	for range 2 {
		if err := p.b.Receive(t.Context(), p.a.o.Self, b); err != nil {
			t.Fatal(err)
		}
	}
	other, err := New(p.home[p.b], Options{Self: Sender{"b", "m", 9}, Peers: []string{"a"}, Weight: 1, Weights: 2, Local: memory(t, nil)})
	if err != nil {
		t.Fatal(err)
	}
	p.a.Connected("b")
	again, ok := p.a.Next("b")
	if !ok || again.Number != 1 {
		t.Fatalf("after a connection was lost: %v, %v; want batch 1 again", again, ok)
	}
	if err := other.Receive(t.Context(), p.a.o.Self, again); err != nil {
		t.Fatal(err)
	}
	if left := p.left(t, p.b, a); left != 93 {
		t.Errorf("%d left after 7 of 100 were told three times; want 93", left)
	}
	// A process that has started anew has other batches of the same numbers.
	from := p.a.o.Self
	from.Run++
	if err := p.b.Receive(t.Context(), from, b); err != nil {
		t.Fatal(err)
	}
	if left := p.left(t, p.b, a); left != 86 {
		t.Errorf("%d left after another process has told 7 more; want 86", left)
	}
}

// TestCredit has a region be ahead by its credit, and no more, until that is acknowledged.
func TestCredit(t *testing.T) {
	t.Parallel()
	p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 10)
	for n := range 10 {
		if d := take(t, p.a, a, 1); !d.Allowed {
			t.Fatalf("take %d of 10: %+v", n+1, d)
		}
	}
	d := take(t, p.a, a, 1)
	if d.Allowed || d.Basis != stint.Local || d.RetryAfter <= 0 || d.Remaining != 90 {
		t.Fatalf("beyond the credit: %+v; want a denial of this node, with 90 left", d)
	}
	select {
	case <-p.a.Urgent():
	default:
		t.Error("no one is told that a take waits for credit")
	}
	p.tell(t, p.a, p.b)
	if d := take(t, p.a, a, 25); !d.Allowed {
		t.Errorf("a cost above the credit, when all is acknowledged: %+v", d)
	}
	if d := take(t, p.a, a, 1); d.Allowed {
		t.Errorf("after a cost above the credit: %+v", d)
	}
}

// TestCreditWait has a take wait until the others have acknowledged.
func TestCreditWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 300*time.Millisecond), gossip(t, "100/1h fixed_window", 10)
		take(t, p.a, a, 10)
		var wg sync.WaitGroup
		wg.Go(func() {
			<-p.a.Urgent()
			<-time.After(150 * time.Millisecond)
			p.tell(t, p.a, p.b)
		})
		began := time.Now()
		if d := take(t, p.a, a, 5); !d.Allowed || time.Since(began) != 150*time.Millisecond {
			t.Errorf("after %v: %+v; want to pass after 150ms", time.Since(began), d)
		}
		wg.Wait()
		began = time.Now()
		if d := take(t, p.a, a, 6); d.Allowed || time.Since(began) != 300*time.Millisecond {
			t.Errorf("after %v: %+v; want a denial after 300ms", time.Since(began), d)
		}
	})
}

// TestCut has two regions lose each other: each keeps to its share of what remained, and neither acknowledges.
func TestCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 10)
		strict := simAsk(t, "bob", "100/1h fixed_window", 10, stint.CreditDeny)
		take(t, p.a, a, 10)
		take(t, p.a, strict, 10)
		p.tell(t, p.a, p.b)
		take(t, p.a, a, 10)
		take(t, p.b, a, 10)
		for range 26 {
			<-time.After(500 * time.Millisecond)
			p.a.Tick(t.Context())
			p.b.Tick(t.Context())
		}
		if !p.a.Alone() || !p.b.Alone() || p.a.Consents() > 0 || p.b.Consents() > 0 {
			t.Fatal("regions that have not heard from each other for 13s are not cut off")
		}
		total := 30
		for range 100 {
			for _, s := range []*Store{p.a, p.b} {
				if take(t, s, a, 1).Allowed {
					total++
				}
			}
		}
		// 80 remained, and neither knew of the 10 of the other: 40 each.
		if total != 110 {
			t.Errorf("%d admitted by both; want 110: 30 before, and half of 80 each", total)
		}
		if d := take(t, p.a, strict, 11); !d.Allowed { // a cost above the credit, when nothing else is unknown
			t.Errorf("cut off, with credit: %+v", d)
		}
		if d := take(t, p.a, strict, 1); d.Allowed {
			t.Errorf("cut off, without credit, where that denies: %+v", d)
		}
		p.link(t)
		p.link(t) // now they have heard that neither is alone
		for range 6 {
			p.tell(t, p.a, p.b)
			p.tell(t, p.b, p.a)
			<-time.After(500 * time.Millisecond)
			p.link(t)
		}
		if p.a.Alone() || p.b.Alone() {
			t.Fatal("regions that hear from each other are cut off")
		}
		p.tell(t, p.a, p.b)
		p.tell(t, p.b, p.a)
		for _, s := range []*Store{p.a, p.b} {
			if d := take(t, s, a, 1); d.Allowed || d.Basis != stint.Counted {
				t.Errorf("after all was told: %+v; want a denial by the count", d)
			}
		}
		for _, l := range p.a.Stats().Limits {
			if l.Limit == "rule:alice" && (l.Beyond > l.Bound || l.Beyond == 0 || !l.Measured) {
				t.Errorf("%+v: want beyond the limit, and within the bound", l)
			}
		}
	})
}

// TestBadBatches has another region send what it cannot have admitted: nothing is charged.
func TestBadBatches(t *testing.T) {
	t.Parallel()
	p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 10)
	good := Entry{Key: a.Key, Limit: a.Limit, At: time.Now().UnixMicro(), Units: 5}
	with := func(change func(e *Entry)) Batch {
		e := good
		change(&e)
		return Batch{Number: 1, Entries: []Entry{good, e}}
	}
	for name, b := range map[string]Batch{
		"no number":        {Entries: []Entry{good}},
		"too many":         {Number: 1, Entries: make([]Entry, MaxEntries+1)},
		"no units":         with(func(e *Entry) { e.Units = 0 }),
		"enormous":         with(func(e *Entry) { e.Units = 1 << 50 }),
		"enormous refund":  with(func(e *Entry) { e.Units = -1 << 50 }),
		"least number":     with(func(e *Entry) { e.Units = -1 << 63 }),
		"no subject":       with(func(e *Entry) { e.Key.Subject = "" }),
		"not UTF-8":        with(func(e *Entry) { e.Key.Name = "\xff" }),
		"no limit":         with(func(e *Entry) { e.Limit.Max = 0 }),
		"held, not spent":  with(func(e *Entry) { e.Limit.Algorithm = stint.Concurrency }),
		"from the future":  with(func(e *Entry) { e.At += time.Hour.Microseconds() }),
		"before all times": with(func(e *Entry) { e.At = -1 }),
		"a long ID":        with(func(e *Entry) { e.ID = strings.Repeat("x", 200) }),
	} {
		if err := p.b.Receive(t.Context(), p.a.o.Self, b); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v; want that it is refused", name, err)
		}
	}
	if err := p.b.Receive(t.Context(), Sender{Region: "z", Node: "n", Run: 1}, Batch{Number: 1, Entries: []Entry{good}}); !errors.Is(err, ErrRefused) {
		t.Errorf("of an unknown region: %v; want that it is refused", err)
	}
	if left := p.left(t, p.b, a); left != 100 {
		t.Errorf("%d of 100 left after batches that were refused", left)
	}
	if n := p.b.Stats().Refused; n != 14 {
		t.Errorf("%d batches refused; want 14", n)
	}
}

// TestClockAhead has the clock of another region be ahead: its units are charged when this one's is there, and
// so in their window.
func TestClockAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "100/1m fixed_window", 10)
		<-time.After(59800 * time.Millisecond) // a bubble begins at midnight
		at := time.Now().Add(500 * time.Millisecond)
		err := p.b.Receive(t.Context(), p.a.o.Self, Batch{Number: 1, Entries: []Entry{{Key: a.Key, Limit: a.Limit, At: at.UnixMicro(), Units: 9}}})
		if err != nil || time.Now().Before(at) {
			t.Fatalf("%v at %v; want to wait until %v", err, time.Now(), at)
		}
		if left := p.left(t, p.b, a); left != 91 {
			t.Errorf("%d left in the window of the units; want 91", left)
		}
	})
}

// TestFull has more counters than there is room for: of further ones, a node admits its share.
func TestFull(t *testing.T) {
	t.Parallel()
	s, err := New(memory(t, nil), Options{Self: Sender{"a", "n", 1}, Peers: []string{"b"}, Weight: 1, Weights: 4, Local: memory(t, nil), MaxCounters: 64})
	if err != nil {
		t.Fatal(err)
	}
	a := gossip(t, "8/1h fixed_window", 8)
	few := 0
	for n := range 1000 {
		a.Key.Subject = "user:" + string(rune('a'+n%26)) + string(rune('a'+n/26))
		if !take(t, s, a, 3).Allowed { // a share is two
			few++
		}
	}
	if got := s.Stats().Counters; few != 1000-got || got > 64 || got < 32 {
		t.Errorf("%d of 1000 denied, with %d counters of at most 64", few, got)
	}
}

// TestConformance has a single region do what every store does.
func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() time.Time) stint.Store {
		t.Helper()
		s, err := New(memory(t, now), Options{Self: Sender{"a", "n", 1}, Weight: 1, Weights: 1, Local: memory(t, now), Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return storetest.Rewrite(s, func(a *stint.Ask) { a.Policy = &stint.Policy{Regions: stint.RegionsGossip} })
	})
}

// TestUsable has all the traffic in one of three regions: nearly all of the limit can be used.
func TestUsable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 3, 2, []stint.Ask{simAsk(t, "a", "100/10s fixed_window", 0, stint.CreditShare), simAsk(t, "b", "600/1m sliding_window", 0, stint.CreditShare)})
	w.run(10 * time.Second)
	for i := range w.limits {
		w.admitted[i] = nil
		w.every(50*time.Millisecond, func() { w.request(w.regions[0], i, 1) })
	}
	w.run(10 * time.Minute)
	for i, all := range w.admitted {
		if n := len(all); n < 5700 {
			t.Errorf("%v: %d admitted in ten minutes; want at least 95 %% of 6000", w.limits[i].Limit, n)
		} else {
			t.Logf("%v: %d of 6000", w.limits[i].Limit, n)
		}
	}
}

// TestWithoutCredit shows that the attack of the simulation breaks the bound, if a region may be as far ahead as it
// likes.
func TestWithoutCredit(t *testing.T) {
	t.Parallel()
	asks := simAsks(t)
	for i := range asks {
		asks[i].Policy = &stint.Policy{Regions: stint.RegionsGossip, Credit: 1 << 30}
	}
	w := newWorld(t, 1, 3, 1, asks)
	w.attack()
	w.run(20 * time.Minute)
	for i, a := range simAsks(t) {
		if w.check(i, 2*Credit(a.Policy, a.Limit)) == 0 {
			t.Errorf("%v: the bound holds without credit: the attack proves nothing", a.Limit)
		}
		if n := w.beyond(i); (n > 2*Credit(a.Policy, a.Limit)) != Measured(&a.Limit) {
			t.Errorf("%v: %d units beyond the limit were measured without credit", a.Limit, n)
		}
	}
}

// unsure is a store that fails to say whether it has made a change, or says that it has not.
type unsure struct {
	stint.Store
	fails []error // of the next adjustments
}

func (u *unsure) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if len(u.fails) == 0 {
		return u.Store.Adjust(ctx, asks, ds)
	}
	err := u.fails[0]
	u.fails = u.fails[1:]
	if !errors.Is(err, stint.ErrNotApplied) {
		_ = u.Store.Adjust(ctx, asks, ds)
	}
	return err
}

// TestUnsure has the store of a region fail while it charges a batch, under the layer that decides without it. If it may
// have charged it, it is not charged again.
func TestUnsure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		home := &unsure{Store: memory(t, time.Now), fails: []error{errors.Join(stint.ErrUnavailable, stint.ErrNotApplied), stint.ErrUnavailable}}
		layered, err := layer.New(home, layer.Options{Fallback: &layer.FallbackOptions{Local: memory(t, time.Now)}})
		if err != nil {
			t.Fatal(err)
		}
		defer layered.Close()
		s, err := New(layered, Options{Self: Sender{"b", "n", 1}, Peers: []string{"a"}, Weight: 1, Weights: 2, Local: memory(t, time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 50)
		take(t, p.a, a, 7)
		batch, _ := p.a.Next("b")
		if err := s.Receive(t.Context(), p.a.o.Self, batch); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second) // the layers pay what they owe
		take(t, layered, a, 1)
		synctest.Wait()
		if left := take(t, home.Store, a, 0).Remaining; left != 92 {
			t.Errorf("%d left after 7 of 100 were told, and 1 taken; want 92", left)
		}
	})
}

// gone is a store that can be out of reach.
type gone struct {
	stint.Store
	away atomic.Bool
}

func (g *gone) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if g.away.Load() {
		return errors.Join(stint.ErrUnavailable, stint.ErrNotApplied)
	}
	return g.Store.Take(ctx, asks, ds)
}

func (g *gone) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if g.away.Load() {
		return errors.Join(stint.ErrUnavailable, stint.ErrNotApplied)
	}
	return g.Store.Adjust(ctx, asks, ds)
}

// TestStoreAway has a region lose its own store. It decides without it, and the other one does not wait for it: it keeps to its
// share of what remained. When the store is back, both know what the other has admitted.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "1000/1h fixed_window", 10)
		home := &gone{Store: p.home[p.b]}
		layered, err := layer.New(home, layer.Options{Fallback: &layer.FallbackOptions{Local: memory(t, time.Now)}})
		if err != nil {
			t.Fatal(err)
		}
		defer layered.Close()
		if p.b, err = New(layered, Options{Self: Sender{"b", "n", 1}, Peers: []string{"a"}, Weight: 1, Weights: 2, Local: memory(t, time.Now), Now: time.Now}); err != nil {
			t.Fatal(err)
		}
		p.home[p.b] = home.Store
		turn := func() {
			<-time.After(500 * time.Millisecond)
			p.link(t)
			for from, to := range map[*Store]*Store{p.a: p.b, p.b: p.a} {
				for b, ok := from.Next(to.o.Self.Region); ok; b, ok = from.Next(to.o.Self.Region) {
					if to.Receive(t.Context(), from.o.Self, b) != nil {
						break // it is sent again
					}
					from.Acknowledged(to.o.Self.Region, b.Number)
				}
			}
		}
		admit := func(s *Store) (n int) {
			for range 100 {
				if take(t, s, a, 1).Allowed {
					n++
				}
			}
			return n
		}
		turn()
		home.away.Store(true)
		for range 30 {
			turn()
		}
		if n := admit(p.a); n != 100 {
			t.Errorf("a region that hears from one without a store admits %d of 100", n)
		}
		if n := admit(p.b); n != 100 {
			t.Errorf("a region without a store admits %d of 100", n)
		}
		home.away.Store(false)
		for range 60 {
			turn()
		}
		if p.a.Alone() || p.b.Alone() {
			t.Fatal("regions that hear from each other are cut off")
		}
		for name, s := range map[string]*Store{"a": p.a, "b": p.b} {
			if left := p.left(t, s, a); left != 800 {
				t.Errorf("%s: %d left of 1000 after both have admitted 100", name, left)
			}
			if n := admit(s); n != 10 {
				t.Errorf("%s admits %d, and has a credit of 10", name, n)
			}
		}
	})
}

// TestStoodStill has a node stand still for longer than counts as cut off: it has its credit then, and no more.
func TestStoodStill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "1000/1h fixed_window", 10)
		take(t, p.a, a, 10)
		<-time.After(time.Minute)
		if d := take(t, p.a, a, 1); d.Allowed {
			t.Errorf("%+v: want a denial, since the other region knows of nothing", d)
		}
	})
}

// step is a store that calls a function before each adjustment, and keeps to its context.
type step struct {
	stint.Store
	adjust func(n int) error
	n      int
}

func (s *step) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	s.n++
	if err := s.adjust(s.n); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.Join(stint.ErrUnavailable, stint.ErrNotApplied, ctx.Err())
	}
	return s.Store.Adjust(ctx, asks, ds)
}

// TestUnsureMark has the store not say whether it has marked a batch, though it has: what is in it is known to be lost.
func TestUnsureMark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 50)
		take(t, p.a, a, 7)
		b, _ := p.a.Next("b")
		home := p.b.next
		p.b.next = mute{home}
		if err := p.b.Receive(t.Context(), p.a.o.Self, b); err == nil {
			t.Error("a batch is acknowledged, though the store does not say whether it has marked it")
		}
		p.b.next = home
		for range 2 {
			if err := p.b.Receive(t.Context(), p.a.o.Self, b); err != nil {
				t.Error(err)
			}
		}
		if lost := p.b.Stats().Lost; lost != 7 {
			t.Errorf("%d units are known to be lost; want 7", lost)
		}
	})
}

// mute is a store that does what it is asked, and does not answer.
type mute struct{ stint.Store }

func (m mute) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	_ = m.Store.Take(ctx, asks, ds)
	return stint.ErrUnavailable
}

// TestCutWhileCharging has the stream end while a batch is charged. The rest of it is charged, or is known to be lost.
func TestCutWhileCharging(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		adjust  func(n int, cut func()) error
		charged int64
	}{
		{"the store works", func(n int, cut func()) error {
			if n == 2 {
				cut()
			}
			return nil
		}, 200},
		{"the store has not charged", func(n int, cut func()) error {
			if n == 2 {
				cut()
			}
			if n >= 2 {
				return errors.Join(stint.ErrUnavailable, stint.ErrNotApplied)
			}
			return nil
		}, atOnce},
		{"the store is back a second later", func(n int, cut func()) error {
			if n == 2 {
				cut()
			}
			if n >= 2 && n < 12 {
				return errors.Join(stint.ErrUnavailable, stint.ErrNotApplied)
			}
			return nil
		}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 50)
				ctx, cut := context.WithCancel(t.Context())
				defer cut()
				p.b.next = &step{Store: p.b.next, adjust: func(n int) error { return c.adjust(n, cut) }}
				b := Batch{Number: 1}
				for i := range 200 {
					e := Entry{Key: a.Key, Limit: a.Limit, At: time.Now().UnixMicro(), Units: 1}
					e.Key.Subject = fmt.Sprint("user ", i)
					b.Entries = append(b.Entries, e)
				}
				began := time.Now()
				if err := p.b.Receive(ctx, p.a.o.Self, b); (err == nil) != (c.charged == 200) {
					t.Errorf("%v after %d of 200 units were charged", err, c.charged)
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("a stream that has ended is kept for %v", took)
				}
				// It is sent again, and acknowledged.
				if err := p.b.Receive(t.Context(), p.a.o.Self, b); err != nil {
					t.Error(err)
				}
				charged := int64(0)
				for i := range b.Entries {
					a.Key = b.Entries[i].Key
					charged += 100 - p.left(t, p.b, a)
				}
				if lost := p.b.Stats().Lost; charged != c.charged || lost != 200-c.charged {
					t.Errorf("%d charged, %d lost; want %d and %d", charged, lost, c.charged, 200-c.charged)
				}
			})
		})
	}
}
