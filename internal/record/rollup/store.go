// Package rollup counts events by minute, hour and day, so that queries about millions of them
// read only a few rows: numbers over time ([Store.Series]), who or what was denied most
// ([Store.Top], [Store.Violations]), and how many clients were denied ([Store.Distinct]). It
// also knows the names of the clients that sent requests ([Store.Seen]).
//
// # What holds
//
//   - Numbers are exact: an event is counted once, even a late one, and for as many decisions
//     as it stands for. Percentiles are those of merged sketches, never means of percentiles.
//   - A query sees one snapshot. Roll-ups that are not made yet are replaced by their parts.
//   - One node rolls up. If it stops halfway, the work is rolled back and done by the next.
//   - Memory is bounded, however many clients there are.
//
// It keeps minutes for 7 days, hours for 90 days and days for 7 years.
package rollup

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
)

// Options are the settings of a [Store].
type Options struct {
	// Interval is how often it looks for events to roll up. Default 10 s.
	Interval time.Duration
	// MinFree is that of [record.StoreOptions].
	MinFree int64
	// MaxBytes is how large the record may be. If it is larger, the oldest events are deleted,
	// and their roll-ups stay: first whole months that are over, then the first minutes of this
	// one. 0: there is no bound.
	MaxBytes int64
	// Archive removes all months that are over from the record, when it is too large. Default:
	// the oldest are dropped, until it is small enough.
	Archive func(context.Context) error
	// Log reports failures. Default: none.
	Log *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Store is a store of events and their roll-ups. Any number of nodes may use a database at
// once; one of them rolls up.
type Store struct {
	*record.Store
	db *database.DB
	o  Options

	mu    sync.Mutex // for state
	state State

	folded  time.Time          // the hour in which maintain has added up consumption
	running sync.Mutex         // by this process
	seen    seen               // of those that run
	stop    context.CancelFunc // nil: it was not started
	work    sync.WaitGroup
}

// New returns the store in a database, whose schema has to be up to date when it is used. Start
// it, and Stop it before the database is closed.
func New(db *database.DB, o Options) (*Store, error) {
	o.Interval, o.Log = cmp.Or(o.Interval, 10*time.Second), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Interval < 0 {
		return nil, &stint.InvalidError{Field: "Interval", Value: o.Interval.String(), Want: "some time, or 0 for the default"}
	}
	if o.MaxBytes < 0 {
		return nil, &stint.InvalidError{Field: "MaxBytes", Value: strconv.FormatInt(o.MaxBytes, 10), Want: "a number of bytes, or 0 for no bound"}
	}
	events, err := record.NewStore(db, record.StoreOptions{MinFree: o.MinFree, Now: o.Now})
	if err != nil {
		return nil, err
	}
	return &Store{Store: events, db: db.Record, o: o}, nil
}

// Start creates the tables of events before they are needed, rolls up, and keeps the record as
// small as it has to be, until Stop is called.
func (s *Store) Start(ctx context.Context) {
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.work.Go(func() {
		tick := time.NewTicker(s.o.Interval)
		defer tick.Stop()
		for {
			err := s.maintain(ctx)
			if ctx.Err() != nil {
				return
			}
			problem := ""
			if err != nil {
				problem = err.Error()
			}
			switch before := s.State().Problem; {
			case err != nil && before == "":
				s.o.Log.WarnContext(ctx, "events cannot be rolled up", "problem", problem)
			case err == nil && before != "":
				s.o.Log.InfoContext(ctx, "events are rolled up again")
			}
			s.update(func(t *State) { t.Problem = problem })
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
}

// maintain does all that is to be done from time to time.
func (s *Store) maintain(ctx context.Context) error {
	if err := s.Prepare(ctx); err != nil {
		return err
	}
	moved, err := s.Adopt(ctx)
	if moved > 0 {
		s.o.Log.InfoContext(ctx, "events were moved to the file of the record", "events", moved)
	}
	if err != nil {
		return err
	}
	if _, err := s.Run(ctx); err != nil {
		return err
	}
	if hour := s.o.Now().Truncate(time.Hour); !hour.Equal(s.folded) {
		if err := s.FoldConsumption(ctx); err != nil {
			return err
		}
		s.folded = hour
	}
	return s.Bound(ctx)
}

// Stop stops that, and rolls back what was begun.
func (s *Store) Stop() {
	if s.stop != nil {
		s.stop()
		s.work.Wait()
	}
}

// Drop rolls up all events, and then drops a month as [record.Store.Drop] does.
func (s *Store) Drop(ctx context.Context, m record.Month, events int64) error {
	if _, err := s.Run(ctx); err != nil {
		return err
	}
	return s.Store.Drop(ctx, m, events)
}

func (s *Store) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("rollup: %s: %w", doing, s.db.Wrap(err))
}
