package gossip

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stintdev/stint"
)

// adjust changes what a decision has charged, once for each ID.
func adjust(t testing.TB, s stint.Store, a stint.Ask, d stint.Decision, by int64, id string) {
	t.Helper()
	c := d.Charge()
	c.ID, a.Cost, a.Charge = id, by, &c
	if err := s.Adjust(t.Context(), []stint.Ask{a}, make([]stint.Decision, 1)); err != nil {
		t.Fatal(err)
	}
}

// TestRepeated has a change with an ID made twice before others are told: it is told once, and gives credit once.
func TestRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 90)
		d := take(t, p.a, a, 80)
		adjust(t, p.a, a, d, -70, "one")
		adjust(t, p.a, a, d, -70, "one")
		if d := take(t, p.a, a, 81); d.Allowed {
			t.Errorf("10 of 90 units of credit are used, and 81 pass: %+v", d)
		}
		p.tell(t, p.a, p.b)
		if left := p.left(t, p.b, a); left != 90 {
			t.Errorf("%d left elsewhere after 10 of 100; want 90", left)
		}
		adjust(t, p.a, a, d, -70, "one")
		p.tell(t, p.a, p.b)
		if left := p.left(t, p.b, a); left != 90 {
			t.Errorf("%d left elsewhere after the change was made once more; want 90", left)
		}
	})
}

// TestRepeatedUnsure has the store not say whether it has made a change, and the caller make it once more: then it is told.
func TestRepeatedUnsure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 50)
		d := take(t, p.a, a, 10)
		p.a.next = &unsure{Store: p.a.next, fails: []error{stint.ErrUnavailable}}
		c := d.Charge()
		more := a
		c.ID, more.Cost, more.Charge = "one", 5, &c
		if err := p.a.Adjust(t.Context(), []stint.Ask{more}, make([]stint.Decision, 1)); !errors.Is(err, stint.ErrUnavailable) {
			t.Fatal(err)
		}
		for range 2 {
			adjust(t, p.a, a, d, 5, "one")
		}
		p.tell(t, p.a, p.b)
		if left := p.left(t, p.b, a); left != 85 {
			t.Errorf("%d left elsewhere after 15 of 100; want 85", left)
		}
	})
}

// TestManyChanges has more changes of a counter than fit into a batch: the other region takes them all.
func TestManyChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "10000/1h fixed_window", 5000)
		d := take(t, p.a, a, 100)
		for i := range 3000 {
			adjust(t, p.a, a, d, 1, fmt.Sprint("change ", i))
		}
		b, ok := p.a.Next("b")
		if !ok || len(b.Entries) != MaxEntries {
			t.Fatalf("the first batch has %d entries; want %d", len(b.Entries), MaxEntries)
		}
		p.a.Unsent("b")
		p.tell(t, p.a, p.b)
		if left := p.left(t, p.b, a); left != 6900 {
			t.Errorf("%d left elsewhere after 3100 of 10000; want 6900", left)
		}
		if d := take(t, p.a, a, 5000); !d.Allowed {
			t.Errorf("when all is acknowledged, all of the credit is there: %+v", d)
		}
	})
}

// TestLongIDs has batches fit into a message, however long the names and IDs are.
func TestLongIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "10000/1h fixed_window", 5000)
		long := func(n, length int) string { return fmt.Sprintf("%0*d", length, n) }
		n := 0
		for i := range 1000 {
			a.Key = stint.Key{Subject: long(i, stint.MaxKeyPart), Name: long(i, stint.MaxKeyPart)}
			d := take(t, p.a, a, 10)
			for range 2 {
				n++
				adjust(t, p.a, a, d, 1, long(n, stint.MaxChargeID))
			}
		}
		entries := 0
		for {
			b, ok := p.a.Next("b")
			if !ok {
				break
			}
			size := 0
			for i := range b.Entries {
				e := &b.Entries[i]
				size += entryBytes + len(e.Key.Subject) + len(e.Key.Name) + len(e.ID)
			}
			if size > 1<<20-64 {
				t.Fatalf("a batch of %d bytes; want less than a megabyte", size)
			}
			entries += len(b.Entries)
			if err := p.b.Receive(t.Context(), p.a.o.Self, b); err != nil {
				t.Fatal(err)
			}
			p.a.Acknowledged("b", b.Number)
		}
		if entries != 3000 {
			t.Errorf("%d entries told; want 3000", entries)
		}
	})
}

// TestHugeChange has a change charge more than others take: they take as much as makes a difference.
func TestHugeChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 50)
		d := take(t, p.a, a, 10)
		adjust(t, p.a, a, d, 1_000_000, "one")
		adjust(t, p.a, a, d, 700, "")
		adjust(t, p.a, a, d, 700, "")
		other := a
		other.Key.Subject = "bob"
		take(t, p.a, other, 10)
		p.tell(t, p.a, p.b)
		if left := p.left(t, p.b, a); left != 0 {
			t.Errorf("%d left elsewhere of what is used up", left)
		}
		if left := p.left(t, p.b, other); left != 90 {
			t.Errorf("%d left elsewhere of another counter, after 10 of 100", left)
		}
		if n := p.a.Stats().Lost; n != 1_000_000-800 {
			t.Errorf("%d units are not told; want %d", n, 1_000_000-800)
		}
	})
}

// kept returns how many changes with IDs a region keeps of a counter.
func kept(s *Store, a stint.Ask) (n int) {
	acc := s.ledger.account(&a, s.clock())
	defer acc.shard.mu.Unlock()
	for i := range acc.spans {
		n += len(acc.spans[i].changes)
	}
	if n != acc.shard.changes {
		return -1
	}
	return n
}

// TestChangesForgotten has changes kept until others know of them, and no more than there is room for. Further ones are told
// without their IDs, and what they give back is not told.
func TestChangesForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "100000/1h fixed_window", 50000)
		d := take(t, p.a, a, 10_000)
		p.tell(t, p.a, p.b)
		for i := range 100 {
			adjust(t, p.a, a, d, -1, fmt.Sprint("a ", i))
		}
		if n := kept(p.a, a); n != 100 {
			t.Errorf("%d of 100 changes are kept before they are told", n)
		}
		p.tell(t, p.a, p.b)
		if n := kept(p.a, a); n != 0 {
			t.Errorf("%d changes are kept that the other region knows of", n)
		}
		if left := p.left(t, p.b, a); left != 90_100 {
			t.Errorf("%d left elsewhere; want 90100", left)
		}
		for i := range 2 * maxChanges {
			adjust(t, p.a, a, d, -1, fmt.Sprint("b ", i))
		}
		if n := kept(p.a, a); n != maxChanges {
			t.Errorf("%d changes are kept; want %d", n, maxChanges)
		}
		select {
		case <-p.a.Urgent():
		default:
			t.Error("no one is told that many changes wait")
		}
		p.tell(t, p.a, p.b)
		if left := p.left(t, p.b, a); left != 90_100+maxChanges {
			t.Errorf("%d left elsewhere; want %d, without what the oldest changes have given back", left, 90_100+maxChanges)
		}
		// In flight, when there is no room for them any more.
		for i := range maxChanges {
			adjust(t, p.a, a, d, 2, fmt.Sprint("c ", i))
		}
		var flying []Batch
		for b, ok := p.a.Next("b"); ok; b, ok = p.a.Next("b") {
			flying = append(flying, b)
		}
		for i := range maxChanges {
			adjust(t, p.a, a, d, 1, fmt.Sprint("d ", i))
		}
		for _, b := range flying {
			if err := p.b.Receive(t.Context(), p.a.o.Self, b); err != nil {
				t.Fatal(err)
			}
			p.a.Acknowledged("b", b.Number)
		}
		p.tell(t, p.a, p.b)
		if left := p.left(t, p.b, a); left != 90_100-2*maxChanges {
			t.Errorf("%d left elsewhere; want %d", left, 90_100-2*maxChanges)
		}
		if n := kept(p.a, a); n != 0 {
			t.Errorf("%d changes are kept that the other region knows of", n)
		}
		if d := take(t, p.a, a, 50_000); !d.Allowed {
			t.Errorf("when all is acknowledged, all of the credit is there: %+v", d)
		}
	})
}

// TestLateRefund has units given back when their window is over: that gives no credit in the next one.
func TestLateRefund(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []string{"100/1m fixed_window", "100/1m token_bucket"} {
			p, a := newPair(t, 0), gossip(t, limit, 10)
			d := take(t, p.a, a, 80)
			p.tell(t, p.a, p.b)
			<-time.After(time.Minute + time.Second)
			p.link(t)
			adjust(t, p.a, a, d, -70, "one")
			take(t, p.a, a, 10)
			if d := take(t, p.a, a, 1); d.Allowed {
				t.Errorf("%s: beyond the credit, after units of another window were given back: %+v", limit, d)
			}
		}
	})
}

// TestResetOnTheWay has a counter reset while what it was told of is on the way: its acknowledgement gives no credit for
// what came afterwards.
func TestResetOnTheWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := newPair(t, 0), gossip(t, "100/1h fixed_window", 10)
		take(t, p.a, a, 10)
		b, _ := p.a.Next("b")
		if err := p.a.Reset(t.Context(), []stint.Ask{a}); err != nil {
			t.Fatal(err)
		}
		take(t, p.a, a, 10)
		if err := p.b.Receive(context.Background(), p.a.o.Self, b); err != nil {
			t.Fatal(err)
		}
		p.a.Acknowledged("b", b.Number)
		if d := take(t, p.a, a, 1); d.Allowed {
			t.Errorf("beyond the credit, after a reset: %+v", d)
		}
	})
}
