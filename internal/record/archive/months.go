package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/record"
)

// Entry is a month in the archive.
type Entry struct {
	Month record.Month
	// Manifest is that of the newest edition, or nil if there is none or Problem is not nil.
	Manifest *Manifest
	// Bytes is the size of all files of the month.
	Bytes int64
	// Unfinished means that a run has begun the month, or a new edition, and not finished it.
	Unfinished bool
	Problem    error
}

// List returns the months of the archive, the oldest first.
func (a *Archive) List(ctx context.Context) ([]Entry, error) {
	var out []Entry
	for o, err := range a.bucket.List(ctx, "") {
		if err != nil {
			return nil, fmt.Errorf("archive: list the archive: %w", err)
		}
		month, err := record.ParseMonth(path.Dir(o.Name))
		if err != nil {
			continue // not of a month
		}
		if len(out) == 0 || out[len(out)-1].Month != month {
			out = append(out, Entry{Month: month})
		}
		e := &out[len(out)-1]
		e.Bytes += o.Size
		e.Unfinished = e.Unfinished || strings.HasPrefix(path.Base(o.Name), "progress-")
	}
	for i := range out {
		e := &out[i]
		if e.Manifest, e.Problem = a.manifest(ctx, e.Month); errors.Is(e.Problem, ErrNotArchived) {
			e.Problem, e.Unfinished = nil, true
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("archive: list the archive: %w", err)
		}
	}
	return out, nil
}

// Verify reads all of a month, and returns its manifest if all files are as they were written.
// Otherwise the error is ErrDamaged and names every damaged file.
func (a *Archive) Verify(ctx context.Context, month record.Month) (*Manifest, error) {
	m, err := a.manifest(ctx, month)
	if err == nil {
		err = a.verify(ctx, nil, m)
	}
	if err != nil {
		return nil, fmt.Errorf("archive: verify %v: %w", month, err)
	}
	return m, nil
}

// Restore writes the events of a month back to the source, and returns how many the archive
// has. If any file is damaged, it writes none. They stay for Options.Hold, and are archived
// again by the next run after that.
func (a *Archive) Restore(ctx context.Context, month record.Month) (n int64, err error) {
	err = a.alone(ctx, func(l *lease) error {
		m, err := a.manifest(ctx, month)
		if err != nil {
			return err
		}
		mark, err := json.Marshal(hold{a.o.Now().Add(a.o.Hold).UTC()})
		if err == nil {
			err = a.bucket.Put(ctx, restored(month), bytes.NewReader(mark))
		}
		if err == nil {
			n, err = a.restore(ctx, l, m)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("archive: restore %v: %w", month, err)
	}
	return n, nil
}

func (a *Archive) restore(ctx context.Context, l *lease, m *Manifest) (n int64, err error) {
	if err := a.verify(ctx, l, m); err != nil {
		return 0, err
	}
	events := make([]record.Event, 0, batch)
	flush := func() error {
		err := a.source.Restore(ctx, m.Month, events)
		n += int64(len(events))
		clear(events)
		events = events[:0]
		return err
	}
	for _, p := range m.Parts {
		file, err := a.part(ctx, m, p) // it was verified, but may have changed since
		if err != nil {
			return n, err
		}
		for e, err := range Read(bytes.NewReader(file), int64(len(file))) {
			if err != nil {
				return n, err
			}
			events = append(events, e)
			if len(events) < batch {
				continue
			}
			if err := flush(); err != nil {
				return n, err
			}
			a.o.Progress(n, m.Events, "restoring "+m.Month.String())
			if err := l.renew(ctx); err != nil {
				return n, err
			}
		}
	}
	if len(events) > 0 {
		err = flush()
	}
	a.o.Progress(n, m.Events, "restoring "+m.Month.String())
	return n, err
}

// Expire deletes the months that are older than Options.Keep, and returns them.
func (a *Archive) Expire(ctx context.Context) (gone []record.Month, err error) {
	if a.o.Keep < 0 {
		return nil, nil
	}
	limit := a.o.Now().Add(-a.o.Keep)
	err = a.alone(ctx, func(l *lease) error {
		entries, err := a.List(ctx)
		for _, e := range entries {
			if e.Month.End().After(limit) {
				continue
			}
			names, err := a.names(ctx, e.Month.String()+"/")
			if err != nil {
				return err
			}
			// Manifests come first in this order: parts without one are not part of the archive.
			for _, name := range names {
				if err := errors.Join(a.bucket.Delete(ctx, name), l.renew(ctx)); err != nil {
					return err
				}
			}
			gone = append(gone, e.Month)
		}
		return err
	})
	if err != nil {
		return gone, fmt.Errorf("archive: expire: %w", err)
	}
	return gone, nil
}

// restored is the name of the mark that a month was restored.
func restored(m record.Month) string { return m.String() + "/restored.json" }

type hold struct {
	Until time.Time `json:"until"`
}

// held returns until when a month is not archived, or the zero time.
func (a *Archive) held(ctx context.Context, m record.Month) (time.Time, error) {
	text, err := a.get(ctx, restored(m), maxText, 0)
	if errors.Is(err, blob.ErrNotFound) {
		return time.Time{}, nil
	}
	var h hold
	if err == nil {
		if err = json.Unmarshal(text, &h); err != nil {
			err = fmt.Errorf("%s: %w: %w", restored(m), ErrDamaged, err)
		}
	}
	return h.Until, err
}

// Events iterates over the events of a time, in order. Files are verified before their events are used.
func (a *Archive) Events(ctx context.Context, from, to time.Time) iter.Seq2[record.Event, error] {
	return func(yield func(record.Event, error) bool) {
		months, err := a.List(ctx)
		if err != nil {
			yield(record.Event{}, err)
			return
		}
		for _, e := range months {
			if !e.Month.Start().Before(to) || !e.Month.End().After(from) || e.Manifest == nil && e.Problem == nil {
				continue // or it is not finished: then its events are in the database
			}
			if e.Problem != nil {
				yield(record.Event{}, fmt.Errorf("archive: read %v: %w", e.Month, e.Problem))
				return
			}
			if !a.monthEvents(ctx, e.Manifest, from, to, yield) {
				return
			}
		}
	}
}

// monthEvents yields the events of a month, and reports whether to go on.
func (a *Archive) monthEvents(ctx context.Context, m *Manifest, from, to time.Time, yield func(record.Event, error) bool) bool {
	for _, p := range m.Parts {
		if !p.First.Before(to) || p.Last.Before(from) {
			continue
		}
		file, err := a.part(ctx, m, p)
		if err != nil {
			yield(record.Event{}, fmt.Errorf("archive: read %v: %w", m.Month, err))
			return false
		}
		for e, err := range Read(bytes.NewReader(file), int64(len(file))) {
			if err == nil && (e.At.Before(from) || !e.At.Before(to)) {
				continue
			}
			if !yield(e, err) || err != nil {
				return false
			}
		}
	}
	return true
}
