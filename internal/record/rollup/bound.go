package rollup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
)

// deletedAtOnce is how many events or settlements one transaction deletes.
const deletedAtOnce = 5000

// State is the state of a store, as far as this process knows it.
type State struct {
	Bytes   int64 // about how large the record is
	Deleted int64 // events that were deleted because it was too large
	// Cut is when that happened last, and Before the time before which events were deleted.
	Cut, Before time.Time
	Problem     string // why nothing is rolled up or deleted; empty: all is well
}

// State returns the current state.
func (s *Store) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Bound deletes the oldest events if the record is larger than [Options.MaxBytes], so that a
// tenth of that is free. It deletes only what was rolled up; so events of the last minute or two
// stay, however many they are.
func (s *Store) Bound(ctx context.Context) error {
	size, err := s.measure(ctx)
	if err != nil || !s.tooLarge(size) {
		return err
	}
	if s.o.Archive != nil {
		err = s.o.Archive(ctx)
	} else {
		err = s.dropOldest(ctx)
	}
	// If months that are over cannot be removed, this one has to give way.
	size, again := s.measure(ctx)
	if again == nil && size > s.o.MaxBytes {
		before := s.State().Deleted
		again = s.cut(ctx, size-s.o.MaxBytes/10*9)
		if again == nil && s.State().Deleted == before {
			again = fmt.Errorf("rollup: the record has %d bytes, and at most %d are wanted (server.record.max_size), but there is nothing to delete: the rest is roll-ups, and events that are not rolled up yet", size, s.o.MaxBytes)
		}
	}
	return errors.Join(err, again)
}

func (s *Store) tooLarge(size int64) bool { return s.o.MaxBytes > 0 && size > s.o.MaxBytes }

func (s *Store) update(f func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.state)
}

// measure returns the size, and updates the state.
func (s *Store) measure(ctx context.Context) (int64, error) {
	size, err := s.Size(ctx, s.o.MaxBytes)
	if err == nil {
		s.update(func(t *State) { t.Bytes = size })
	}
	return size, err
}

// gone logs and counts events that were deleted.
func (s *Store) gone(ctx context.Context, events int64, until time.Time) {
	if events > 0 {
		s.update(func(t *State) { t.Deleted, t.Cut, t.Before = t.Deleted+events, s.o.Now(), until })
		s.o.Log.WarnContext(ctx, "the record has reached its maximum size, and its oldest events were deleted", "events", events, "before", until, "max_size", s.o.MaxBytes)
	}
}

// dropOldest drops months that are over, oldest first, until the record is small enough.
func (s *Store) dropOldest(ctx context.Context) error {
	months, err := s.Months(ctx)
	for _, m := range months {
		size, err := s.measure(ctx)
		if err != nil || !s.tooLarge(size) {
			return err
		}
		if err := s.Drop(ctx, m.Month, m.Events); err != nil {
			return err
		}
		s.gone(ctx, m.Events, m.Month.End())
	}
	return err
}

// cut deletes the first minutes of the oldest month, of about so many bytes, and what became of
// their reservations, which is not counted and leaves more room. What arrives for
// these minutes later is not counted: a minute is counted from all of its events.
func (s *Store) cut(ctx context.Context, bytes int64) error {
	var m record.Month
	var until time.Time
	var deleted int64
	err := s.Alone(ctx, func(begin func() (*sql.Tx, error)) error {
		step := func(f func(*sql.Tx) error) error {
			tx, err := begin()
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }() // after a commit it does nothing
			if err := f(tx); err != nil {
				return err
			}
			return tx.Commit()
		}
		err := step(func(tx *sql.Tx) (err error) {
			if m, until, err = s.cutAt(ctx, tx, bytes); err != nil || until.IsZero() {
				return err
			}
			return setSince(ctx, tx, stored, s.db.Time(until))
		})
		if err != nil || until.IsZero() {
			return err
		}
		text := fmt.Sprintf("DELETE FROM %[1]s WHERE at >= $1 AND at < $2 AND (at, id) IN (SELECT at, id FROM %[1]s WHERE at >= $1 AND at < $2 ORDER BY at, id LIMIT %[2]d)", s.Table(m), deletedAtOnce)
		for n := int64(1); n > 0; deleted += n {
			err := step(func(tx *sql.Tx) error {
				result, err := tx.ExecContext(ctx, text, s.db.Time(m.Start()), s.db.Time(until))
				if err == nil {
					n, err = result.RowsAffected()
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		for n := int64(1); n > 0; {
			err := step(func(tx *sql.Tx) (err error) {
				n, err = s.DeleteSettlements(ctx, tx, until, deletedAtOnce)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	s.gone(ctx, deleted, until)
	if err == nil && deleted > 0 {
		err = s.Reclaim(ctx, m)
	}
	if err == nil {
		_, err = s.measure(ctx)
	}
	return s.wrap("delete old events", err)
}

// cutAt returns the oldest month, and the minute before which it has about so many bytes of
// events. Minutes that are not counted stay. The time is zero if there is nothing to delete.
func (s *Store) cutAt(ctx context.Context, tx *sql.Tx, bytes int64) (m record.Month, until time.Time, err error) {
	months, err := s.Stored(ctx, tx)
	if err != nil {
		return m, until, err
	}
	for _, m = range months {
		first, err := s.nth(ctx, tx, m, 0)
		if err != nil {
			return m, until, err
		}
		if first.IsZero() {
			continue
		}
		each, err := s.RowBytes(ctx, m)
		if err != nil {
			return m, until, err
		}
		until, err = s.nth(ctx, tx, m, bytes/each)
		if err != nil {
			return m, until, err
		}
		if until.IsZero() {
			until = m.End()
		}
		until = query.Earlier(query.Ceil(until, time.Minute), s.o.Now().UTC().Truncate(time.Minute))
		open, err := query.Times(ctx, tx, "SELECT start FROM stint_rollup_todo WHERE level = 0 ORDER BY start LIMIT 1")
		if err == nil && len(open) > 0 {
			until = query.Earlier(until, open[0])
		}
		if !first.Before(until) {
			until = time.Time{}
		}
		return m, until, err
	}
	return m, until, nil
}

// nth returns the time of an event of a month after n others, or zero if it has fewer.
func (s *Store) nth(ctx context.Context, tx *sql.Tx, m record.Month, n int64) (at time.Time, err error) {
	var stamp database.Stamp
	err = tx.QueryRowContext(ctx, "SELECT at FROM "+s.Table(m)+" WHERE at >= $1 AND at < $2 ORDER BY at, id LIMIT 1 OFFSET $3", s.db.Time(m.Start()), s.db.Time(m.End()), n).Scan(&stamp)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return stamp.Time, err
}

// setSince notes that what a level has before a time was deleted.
func setSince(ctx context.Context, tx *sql.Tx, l level, before any) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO stint_rollup_since (level, start) VALUES ($1, $2)
		ON CONFLICT (level) DO UPDATE SET start = excluded.start WHERE stint_rollup_since.start < excluded.start`, l, before)
	return err
}
