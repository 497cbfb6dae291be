package layer_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/storetest"
)

// TestSplitSettled settles a reservation twice: the second settlement changes nothing, and says so.
func TestSplitSettled(t *testing.T) {
	t.Parallel()
	const reserved = 800
	limit := parse(t, "10000/365d fixed_window")
	for _, parts := range []int{0, 2, 8} {
		for _, used := range [][2]int64{{0, 1700}, {300, 1700}, {803, 0}, {800, 900}, {1200, 0}} {
			t.Run(fmt.Sprint(parts, used), func(t *testing.T) {
				t.Parallel()
				base := memory(t, nil)
				node := func() stint.Store { return must(t)(layer.Split(base)) }
				c := take(t, node(), splitAsk(limit, parts, reserved))[0].Charge()
				c.ID = "settle"
				for n, to := range used {
					a := splitAsk(limit, parts, to-reserved)
					a.Charge = &c
					ds, err := storetest.Adjust(t.Context(), node(), []stint.Ask{a})
					if err != nil || ds[0].Repeated != (n == 1) || ds[0].Remaining != 10000-used[0] {
						t.Errorf("settlement %d: %+v, %v; want %d used, repeated %v", n+1, ds, err, used[0], n == 1)
					}
				}
			})
		}
	}
}

// parted is an independent model of a split fixed_window in one window: what each part holds, and what was charged.
type parted struct {
	max, used map[uint32]int64 // by the part's mark
	late      map[uint32]int64 // what was added to charges of a part since it last passed a take
	open      []reservation
}

type reservation struct {
	stint.Charge
	settled bool
}

func (l *parted) remaining() (all, most int64) {
	for mark, n := range l.max {
		left := max(n-l.used[mark], 0)
		all, most = all+left, max(most, left)
	}
	return all, most
}

// TestSplitBound has nodes reserve and settle in any order, and settle again. A take passes if a part holds it; so takes
// charge no more than the limit. What settlements add comes on top: all that is charged is above the limit by
// at most what was added to each part after its last take.
func TestSplitBound(outer *testing.T) {
	outer.Parallel()
	rapid.Check(outer, func(t *rapid.T) {
		parts := rapid.IntRange(2, 6).Draw(t, "parts")
		limit := stint.Limit{Algorithm: stint.FixedWindow, Max: rapid.Int64Range(int64(parts), 100).Draw(t, "max"), Window: stint.Every(stint.MaxWindow)}
		base, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var nodes []stint.Store
		for range 3 {
			n, err := layer.Split(base)
			if err != nil {
				t.Fatal(err)
			}
			nodes = append(nodes, n)
		}
		ask := func(s stint.Store, a stint.Ask) stint.Decision {
			ds, err := storetest.Take(context.Background(), s, []stint.Ask{a})
			if err != nil {
				t.Fatal(err)
			}
			return ds[0]
		}
		l := &parted{max: map[uint32]int64{}, used: map[uint32]int64{}, late: map[uint32]int64{}}
		for _, a := range partsOf(outer, limit, parts) {
			l.max[ask(base, stint.Ask{Key: a.Key, Limit: a.Limit}).Counter] = a.Limit.Max
		}
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			node := nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "node")]
			cost := rapid.Int64Range(1, limit.Max/int64(parts)+1).Draw(t, "cost")
			if len(l.open) > 0 && rapid.Bool().Draw(t, "settle") {
				l.settle(t, node, limit, parts, cost-1)
				all, _ := l.remaining()
				if d := ask(node, splitAsk(limit, parts, 0)); d.Remaining != all {
					t.Fatalf("after a settlement: %+v; want %d that remain", d, all)
				}
				continue
			}
			all, most := l.remaining()
			d := ask(node, splitAsk(limit, parts, cost))
			if d.Allowed != (cost <= most) || !d.Allowed && d.Remaining != all {
				t.Fatalf("%d units, of which a part has %d, and all have %d: %+v", cost, most, all, d)
			}
			if d.Allowed {
				l.used[d.Counter] += cost
				l.late[d.Counter] = 0
				c := d.Charge()
				c.ID = strconv.Itoa(n)
				l.open = append(l.open, reservation{Charge: c})
			}
			sum, late := int64(0), int64(0)
			for mark, n := range l.used {
				sum, late = sum+n, late+l.late[mark]
			}
			if sum > limit.Max+late {
				t.Fatalf("%d charged of %v, and %d since", sum, limit, late)
			}
		}
	})
}

func (l *parted) settle(t *rapid.T, node stint.Store, limit stint.Limit, parts int, to int64) {
	r := &l.open[rapid.IntRange(0, len(l.open)-1).Draw(t, "reservation")]
	a := splitAsk(limit, parts, to-r.Cost)
	c := r.Charge
	a.Charge = &c
	ds, err := storetest.Adjust(context.Background(), node, []stint.Ask{a})
	if err != nil || ds[0].Repeated != r.settled {
		t.Fatalf("%+v, %v; want repeated %v", ds, err, r.settled)
	}
	if !r.settled {
		r.settled = true
		l.used[r.Counter] += a.Cost
		l.late[r.Counter] += max(a.Cost, 0)
	}
}

// TestSplitOverrun has one client reserve less than it uses, until it is denied.
func TestSplitOverrun(t *testing.T) {
	t.Parallel()
	const reserved, used, units = 10, 50, 10_000
	limit := parse(t, "10000/365d fixed_window")
	for parts, want := range map[int]int64{0: units, 2: units, 8: units, 16: units + 16*25} { // 650 are charged to a part of 625
		s, sum := must(t)(layer.Split(memory(t, nil))), int64(0)
		for {
			d := take(t, s, splitAsk(limit, parts, reserved))[0]
			if !d.Allowed {
				break
			}
			c := d.Charge()
			c.ID = strconv.FormatInt(sum, 10)
			a := splitAsk(limit, parts, used-reserved)
			a.Charge = &c
			if _, err := storetest.Adjust(t.Context(), s, []stint.Ask{a}); err != nil {
				t.Fatal(err)
			}
			sum += used
		}
		if sum != want {
			t.Errorf("in %d parts, %d units were used, want %d", parts, sum, want)
		}
	}
}
