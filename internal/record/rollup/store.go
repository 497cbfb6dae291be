// Package rollup counts the events of the record by minute, hour and day, so that questions
// about millions of them are answered from a few rows: how numbers have changed ([Store.Series]),
// who or what was denied most ([Store.Top], [Store.Violations]), and how many were
// ([Store.Distinct]).
//
// # What holds
//
//   - Numbers are exact: an event is counted once, also one that comes late, and for as many
//     decisions as it stands for. Percentiles are those of sketches that are merged, never
//     means of others.
//   - A question sees one moment. What is not made yet is answered from its parts.
//   - One node rolls up. What it has begun when it ends is undone, and done by the next.
//   - Memory is bounded, however many clients there are.
//
// It keeps minutes for 7 days, hours for 90 days and days for 7 years.
package rollup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
)

// Options are the settings of a [Store].
type Options struct {
	// Interval is how often it looks what there is to roll up. Default 10 s.
	Interval time.Duration
	// Log is told when that fails. Default: nothing is.
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

	running sync.Mutex         // by this process
	stop    context.CancelFunc // nil: it was not started
	work    sync.WaitGroup
}

// New returns the store in a database, whose schema has to be up to date by the time that it
// is used. Start it, and Stop it before the database is closed.
func New(db *database.DB, o Options) (*Store, error) {
	o.Interval, o.Log = cmp.Or(o.Interval, 10*time.Second), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Interval < 0 {
		return nil, &stint.InvalidError{Field: "Interval", Value: o.Interval.String(), Want: "some time, or 0 for the default"}
	}
	events, err := record.NewStore(db, record.StoreOptions{Now: o.Now})
	if err != nil {
		return nil, err
	}
	return &Store{Store: events, db: db, o: o}, nil
}

// Start makes the tables of events before they are needed, and rolls up, until Stop is called.
func (s *Store) Start(ctx context.Context) {
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.work.Go(func() {
		tick := time.NewTicker(s.o.Interval)
		defer tick.Stop()
		failed := false
		for {
			err := s.Prepare(ctx)
			_, rolling := s.Run(ctx)
			err = errors.Join(err, rolling)
			if ctx.Err() != nil {
				return
			}
			switch {
			case err != nil && !failed:
				s.o.Log.WarnContext(ctx, "events cannot be rolled up", "problem", err.Error())
			case err == nil && failed:
				s.o.Log.InfoContext(ctx, "events are rolled up again")
			}
			failed = err != nil
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
}

// Stop ends that, and undoes what was begun.
func (s *Store) Stop() {
	if s.stop != nil {
		s.stop()
		s.work.Wait()
	}
}

// Drop rolls up what there is to roll up, and then drops a month as [record.Store.Drop] does.
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
