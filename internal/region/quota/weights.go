package quota

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
)

// The times of the protocol, which the package describes.
const (
	// Valid is for how long a node uses what it has read.
	Valid = 30 * time.Second
	// margin is for what differs between clocks, and for takes on their way to the store.
	margin = 5 * time.Second

	readEvery   = 5 * time.Second
	reportEvery = 10 * time.Second
	callLimit   = 5 * time.Second // of a call to the database

	// fresh is for how long a report of a node counts, and forgotten after how long without one a rule is gone.
	fresh     = 30 * time.Second
	forgotten = 10 * time.Minute
)

// MaxRules is the most rules whose weights follow demand. The others have the lowest part.
const MaxRules = 1024

// WeightsOptions are the options of weights.
type WeightsOptions struct {
	Table *Table // required
	// Node names this process. No other one has the same name, also not of another region.
	Node string
	// Log, if not nil, is told when the database cannot be reached, and when it can again.
	Log *slog.Logger
	// Now replaces the clock, which must never be set back, nor stand still. It defaults to the time since
	// NewWeights.
	Now func() time.Duration
}

// Weights are the weights of the rules whose parts follow demand, as far as this node knows them. They are safe
// for concurrent use.
type Weights struct {
	o    WeightsOptions
	book book

	until atomic.Int64 // until when what was read is used, by Now
	rules atomic.Pointer[map[string]*follower]

	mu     sync.Mutex // held while rules or rows change
	rows   map[place]*row
	failed bool // the last read
}

// place is what weights are for: a rule, and a class of its limits.
type place struct {
	rule  string
	class int
}

// follower is a rule whose weights follow demand.
type follower struct{ classes [len(classes)]following }

// following is a class of limits of a rule.
type following struct {
	division atomic.Pointer[division] // as read last; nil: as the table says
	asked    atomic.Int64             // units since the last report
	takes    atomic.Bool              // there were some since then
	demand   int64                    // smoothed
	reports  int                      // that are to be made, even if there are no more takes
}

// NewWeights returns the weights that are kept in a database. They are the lowest ones until Run has read them.
func NewWeights(db *database.DB, o WeightsOptions) (*Weights, error) {
	if db == nil {
		return nil, invalid("database", "", "one that all regions share")
	}
	return newWeights(&tables{db}, o)
}

func newWeights(b book, o WeightsOptions) (*Weights, error) {
	switch {
	case o.Table == nil:
		return nil, invalid("table", "", "the regions among which limits are divided")
	case o.Node == "":
		return nil, invalid("node", "", "a name that no other node has")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		began := time.Now()
		o.Now = func() time.Duration { return time.Since(began) }
	}
	w := &Weights{o: o, book: b}
	w.until.Store(-1)
	w.rules.Store(&map[string]*follower{})
	return w, nil
}

// Run reads the weights, reports the demand and has a part in changing them, until ctx ends.
func (w *Weights) Run(ctx context.Context) {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		w.step(ctx, n%int(reportEvery/readEvery) == 0)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// step does what is due every readEvery.
func (w *Weights) step(ctx context.Context, report bool) {
	within := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		return f(ctx)
	}
	err := within(w.read)
	if err == nil && report {
		err = within(w.report)
	}
	if err == nil {
		err = within(w.turn)
	}
	w.note(ctx, err)
}

// note logs that the database is out of reach, or no longer.
func (w *Weights) note(ctx context.Context, err error) {
	failed := err != nil && ctx.Err() == nil
	switch {
	case failed && !w.failed:
		w.o.Log.WarnContext(ctx, "cannot read or change the weights of regions", "error", err, "valid", Valid.String())
	case !failed && w.failed:
		w.o.Log.InfoContext(ctx, "weights of regions are read again")
	}
	w.failed = failed
}

// Fresh reports whether the node knows the weights. Otherwise it has the lowest parts.
func (w *Weights) Fresh() bool { return w.now() < w.until.Load() }

func (w *Weights) now() int64 { return int64(w.o.Now()) }

// division returns how the limits of a class of a rule are divided now, and counts the demand.
func (w *Weights) division(rule string, class int, cost int64) *division {
	f := (*w.rules.Load())[rule]
	if f == nil {
		if f = w.add(rule); f == nil {
			return w.o.Table.lowest
		}
	}
	c := &f.classes[class]
	if cost > 0 {
		c.asked.Add(min(cost, maxDemand))
	}
	if !c.takes.Load() {
		c.takes.Store(true)
	}
	if !w.Fresh() {
		return w.o.Table.lowest
	}
	if d := c.division.Load(); d != nil {
		return d
	}
	return w.o.Table.start
}

// maxDemand bounds the demand of a take, and of a node, so that the sums of all fit.
const maxDemand = 1 << 40

// add has a rule followed. It returns nil if there are too many.
func (w *Weights) add(rule string) *follower {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := *w.rules.Load()
	if f := known[rule]; f != nil || len(known) >= MaxRules || rule == "" {
		return f
	}
	f := new(follower)
	for class := range f.classes {
		f.classes[class].division.Store(w.rows[place{rule, class}].divisionOf())
	}
	more := maps.Clone(known)
	more[strings.Clone(rule)] = f
	w.rules.Store(&more)
	return f
}

// read reads the weights. Whoever uses them until then has read them after they were written.
func (w *Weights) read(ctx context.Context) error {
	until := w.now() + int64(Valid)
	rows, err := w.book.rows(ctx)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make(map[place]*row, len(rows))
	for i := range rows {
		r := &rows[i]
		at := place{r.rule, r.class}
		if old := w.rows[at]; old.is(r) {
			r = old // with the division that it has
		} else {
			r.division = r.divide(w.o.Table.names[w.o.Table.own])
		}
		all[at] = r
	}
	w.rows = all
	for rule, f := range *w.rules.Load() {
		for class := range f.classes {
			f.classes[class].division.Store(all[place{rule, class}].divisionOf())
		}
	}
	w.until.Store(until) // after the weights: those from before hold until before that
	return nil
}

// report writes down the demand since the last report, and a quarter of what was reported then: so what counts of
// demand that has ended is less than a hundredth after 40 seconds.
func (w *Weights) report(ctx context.Context) error {
	t := w.o.Table
	var ds []demand
	w.mu.Lock()
	left := maps.Clone(*w.rules.Load())
	for _, rule := range slices.Sorted(maps.Keys(left)) {
		idle := true
		for class := range left[rule].classes {
			c := &left[rule].classes[class]
			if c.takes.Swap(false) {
				c.reports = int(forgotten / reportEvery)
			}
			if c.demand = c.demand/4 + min(c.asked.Swap(0), maxDemand); c.reports > 0 {
				c.reports--
				idle = false
				ds = append(ds, demand{place: place{rule, class}, region: t.names[t.own], node: w.o.Node, units: c.demand})
			}
		}
		if idle {
			delete(left, rule)
		}
	}
	w.rules.Store(&left)
	w.mu.Unlock()
	if len(ds) == 0 {
		return nil
	}
	return w.book.report(ctx, ds)
}

// turn changes weights, if it is time to, and no other node does so.
func (w *Weights) turn(ctx context.Context) error {
	return w.book.turn(ctx, func(now time.Time, rows []row, ds []demand) []change { return w.o.Table.turn(now, rows, ds) })
}
