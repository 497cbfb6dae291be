package quota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/database"
)

// Whole, Target, FloorOf, Follows and Start are for tests of the division.
func Whole(sum int, weights []int) []int { return whole(sum, weights) }

func Target(t *Table, demand []int64) []int { return t.target(demand) }

func FloorOf(t *Table, l stint.Limit) stint.Limit { return floorOf(l, t.floor) }

func Follows(t *Table, l stint.Limit) bool {
	_, ok := t.follows(&l)
	return ok
}

// Start returns the weights at which following ones begin, and the floor.
func Start(t *Table) (weights []int, floor int) { return t.start.after, t.floor }

// Book is a database in memory, for simulations.
type Book struct {
	Now    func() time.Time
	stored map[place]row
	demand map[demand]demand // by all that names it
}

// view is a book that a node may be cut off from.
type view struct {
	*Book
	cut func() bool
}

var errCut = errors.New("the database is cut off")

func (v view) rows(context.Context) ([]row, error) {
	if v.cut() {
		return nil, errCut
	}
	return v.sorted(), nil
}

func (b *Book) sorted() (out []row) {
	for _, r := range b.stored {
		r.shares = slices.Clone(r.shares)
		out = append(out, r)
	}
	slices.SortFunc(out, func(x, y row) int { return cmp.Or(strings.Compare(x.rule, y.rule), x.class-y.class) })
	return out
}

func (v view) report(_ context.Context, ds []demand) error {
	if v.cut() {
		return errCut
	}
	if v.demand == nil {
		v.demand = map[demand]demand{}
	}
	for _, d := range ds {
		name := demand{place: d.place, region: d.region, node: d.node}
		d.at = v.Now()
		v.demand[name] = d
	}
	return nil
}

func (v view) turn(_ context.Context, next func(time.Time, []row, []demand) []change) error {
	if v.cut() {
		return errCut
	}
	now := v.Now()
	maps.DeleteFunc(v.demand, func(_, d demand) bool { return now.Sub(d.at) > forgotten })
	ds := slices.SortedFunc(maps.Values(v.demand), func(a, b demand) int {
		return cmp.Or(strings.Compare(a.rule, b.rule), a.class-b.class, strings.Compare(a.region, b.region), strings.Compare(a.node, b.node))
	})
	for _, c := range next(now, v.sorted(), ds) {
		if c.delete {
			delete(v.stored, c.place)
		} else {
			v.stored[c.place] = c.row
		}
	}
	return nil
}

// Rows returns how many rows there are, and how many of them are settled.
func (b *Book) Rows() (all, settled int) {
	for _, r := range b.stored {
		if r.settled {
			settled++
		}
	}
	return len(b.stored), settled
}

// Weights returns the weight of a region before and after the change of the first row.
func (b *Book) Weights(region string) (before, after int, settled bool) {
	rows := b.sorted()
	if len(rows) == 0 {
		return 0, 0, false
	}
	for _, s := range rows[0].shares {
		if s.Region == region {
			return s.Before, s.After, rows[0].settled
		}
	}
	return 0, 0, rows[0].settled
}

// Join returns the weights of a node that has its database in memory.
func (b *Book) Join(t testing.TB, cut func() bool, o WeightsOptions) *Weights {
	t.Helper()
	if b.stored == nil {
		b.stored, b.demand = map[place]row{}, map[demand]demand{}
	}
	w, err := newWeights(view{b, cut}, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Step has a node do what is due every ReadEvery.
func (w *Weights) Step(ctx context.Context, report bool) { w.step(ctx, report) }

// The times that simulations need.
const (
	ReadEvery   = readEvery
	ReportEvery = reportEvery
	Forgotten   = forgotten
)

// Wait is how long a change takes for a limit.
func Wait(l stint.Limit) time.Duration {
	class, _ := classOf(Recovery(l))
	return wait(class)
}

// Known returns weights that were just read.
func Known(t testing.TB, table *Table) *Weights {
	t.Helper()
	b := &Book{Now: time.Now}
	w := b.Join(t, func() bool { return false }, WeightsOptions{Table: table, Node: "n"})
	if err := w.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.until.Store(1 << 62)
	return w
}

// StepIn has a node with its database in a database do what is due, and returns the error.
func StepIn(ctx context.Context, w *Weights, report bool) error {
	if err := w.read(ctx); err != nil {
		return err
	}
	if report {
		if err := w.report(ctx); err != nil {
			return err
		}
	}
	return w.turn(ctx)
}

// Backdate moves all that is in the database into the past, as if so much time had passed.
func Backdate(ctx context.Context, db *database.DB, by time.Duration) error {
	before := strconv.FormatInt(by.Microseconds(), 10)
	if db.Postgres() {
		before = "interval '" + before + " microseconds'"
	}
	for _, set := range []string{
		"stint_quota_weights SET began_at = began_at - " + before + ", seen_at = seen_at - " + before,
		"stint_quota_demand SET at = at - " + before,
	} {
		if _, err := db.Write.ExecContext(ctx, "UPDATE "+set); err != nil {
			return err
		}
	}
	return nil
}

// Kept returns the weights in a database as text: number, whether it is settled, and the shares.
func Kept(ctx context.Context, db *database.DB) (out []string, err error) {
	rows, err := (&tables{db}).rows(ctx)
	for _, r := range rows {
		out = append(out, fmt.Sprint(r.rule, " ", classes[r.class], " ", r.number, " ", r.settled, " ", r.shares))
	}
	return out, err
}
