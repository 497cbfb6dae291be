package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/record"
)

// Result is what a run did with a month.
type Result struct {
	Month   record.Month
	Events  int64
	Parts   int
	Bytes   int64
	Resumed bool // an earlier run had begun it
	Dropped bool
	// Held is until when it stays in the database, because it was restored.
	Held time.Time
}

// Report is what a run did, the oldest month first.
type Report struct{ Months []Result }

// Run archives all months that are older than the retention, and drops them. A month that
// cannot be archived stays as it is, and the run continues with the next unless nothing can be
// written at all. A run that was interrupted is continued by the next one.
func (a *Archive) Run(ctx context.Context) (Report, error) {
	var report Report
	months, err := a.source.Months(ctx)
	if err != nil {
		return report, fmt.Errorf("archive: %w", err)
	}
	limit := a.o.Now().Add(-a.o.Retention)
	months = slices.DeleteFunc(months, func(s record.MonthSize) bool { return s.Month.End().After(limit) })
	if len(months) == 0 {
		return report, nil
	}
	slices.SortFunc(months, func(s, t record.MonthSize) int { return s.Month.Start().Compare(t.Month.Start()) })
	if err := a.bucket.Check(ctx); err != nil {
		return report, fmt.Errorf("archive: nothing was dropped: %w", err)
	}
	err = a.alone(ctx, func(l *lease) error {
		var all error
		for _, s := range months {
			done, err := a.archive(ctx, l, s)
			if err != nil {
				all = errors.Join(all, fmt.Errorf("%v: %w", s.Month, err))
				if ctx.Err() != nil || errors.Is(err, ErrBusy) || errors.Is(err, blob.ErrUnreachable) || errors.Is(err, blob.ErrNotPermitted) {
					return all
				}
				continue
			}
			report.Months = append(report.Months, done)
		}
		return all
	})
	if err != nil {
		return report, fmt.Errorf("archive: %w", err)
	}
	return report, nil
}

// archive makes sure that the archive has all events of a month, and drops it.
func (a *Archive) archive(ctx context.Context, l *lease, s record.MonthSize) (Result, error) {
	out := Result{Month: s.Month}
	if s.Events > 0 {
		held, err := a.held(ctx, s.Month)
		if err != nil {
			return out, err
		}
		if held.After(a.o.Now()) {
			out.Held = held
			return out, nil
		}
		m, err := a.write(ctx, l, s, &out)
		if err != nil {
			return out, err
		}
		out.Events, out.Parts, out.Bytes = m.Events, len(m.Parts), m.bytes()
	}
	if err := errors.Join(a.bucket.Delete(ctx, restored(s.Month)), l.renew(ctx)); err != nil {
		return out, err
	}
	if err := a.source.Drop(ctx, s.Month, out.Events); err != nil {
		return out, fmt.Errorf("archived, but not dropped: %w", err)
	}
	out.Dropped = true
	return out, nil
}

// write returns the manifest of an edition that has the events of the month, and was read back.
func (a *Archive) write(ctx context.Context, l *lease, s record.MonthSize, out *Result) (*Manifest, error) {
	m, err := a.manifest(ctx, s.Month)
	if errors.Is(err, ErrNotArchived) {
		return a.writeEdition(ctx, l, s, 1, out)
	}
	if err != nil {
		return nil, err
	}
	same, err := a.same(ctx, l, m, s)
	if err != nil {
		return nil, err
	}
	if !same {
		// It was archived and dropped. The events now are late ones, or from a restore that
		// was interrupted. All of them belong in one edition.
		if _, err = a.restore(ctx, l, m); err == nil {
			s, err = a.recount(ctx, s.Month)
		}
		if err == nil {
			same, err = a.same(ctx, l, m, s)
		}
		if err != nil {
			return nil, err
		}
	}
	if same {
		if err = a.verify(ctx, l, m); err == nil {
			return m, a.sweep(ctx, m)
		}
		if !errors.Is(err, ErrDamaged) {
			return nil, err
		}
	}
	return a.writeEdition(ctx, l, s, m.Edition+1, out)
}

func (a *Archive) recount(ctx context.Context, month record.Month) (record.MonthSize, error) {
	months, err := a.source.Months(ctx)
	for _, s := range months {
		if s.Month == month {
			return s, err
		}
	}
	return record.MonthSize{}, errors.Join(err, errors.New("the month was dropped meanwhile"))
}

// same reports whether the source has exactly the events of a manifest.
func (a *Archive) same(ctx context.Context, l *lease, m *Manifest, s record.MonthSize) (bool, error) {
	if s.Events != m.Events {
		return false, nil
	}
	var (
		sum     digest
		n       int64
		scratch []byte
	)
	for e, err := range a.source.Events(ctx, m.Month, record.Cursor{}) {
		if err != nil {
			return false, err
		}
		r := rowOf(&e)
		scratch = sum.add(&r, scratch)
		n++
		if err := a.step(ctx, l, n, m.Events, "comparing", m.Month); err != nil {
			return false, err
		}
	}
	return n == m.Events && sum == m.Digest, nil
}

// step reports progress, and renews the lease.
func (a *Archive) step(ctx context.Context, l *lease, done, all int64, doing string, m record.Month) error {
	if done%4096 != 0 && done != all {
		return nil
	}
	a.o.Progress(done, all, doing+" "+m.String())
	if err := ctx.Err(); err != nil {
		return err
	}
	if l == nil {
		return nil
	}
	return l.renew(ctx)
}

// writeEdition writes the parts of a month, or the missing ones of an edition that was begun,
// reads them back, and writes the manifest.
func (a *Archive) writeEdition(ctx context.Context, l *lease, s record.MonthSize, edition int, out *Result) (*Manifest, error) {
	m, err := a.begun(ctx, s.Month, edition)
	if err != nil {
		return nil, err
	}
	out.Resumed = m.Events > 0
	if err = a.writeParts(ctx, l, s, m); err == nil && m.Events != s.Events && out.Resumed {
		// Late events belong before those that were written already.
		m, out.Resumed = &Manifest{Month: s.Month, Edition: edition, Schema: SchemaVersion}, false
		err = a.writeParts(ctx, l, s, m)
	}
	if err != nil {
		return nil, err
	}
	progress := progressName(m.Month, m.Edition)
	if m.Events != s.Events {
		return nil, errors.Join(fmt.Errorf("it had %d events when they were counted, and %d when they were read: new events are still arriving, so it was not archived", s.Events, m.Events),
			a.bucket.Delete(ctx, progress))
	}
	if err := a.verify(ctx, l, m); err != nil {
		return nil, errors.Join(err, a.bucket.Delete(ctx, progress)) // so that it is written again
	}
	m.Written = a.o.Now().UTC().Truncate(time.Second)
	text := m.seal()
	if err := l.renew(ctx); err != nil {
		return nil, err
	}
	if err := a.bucket.PutIfAbsent(ctx, m.name(), text); err != nil {
		return nil, err
	}
	return m, a.sweep(ctx, m)
}

// sweep deletes files of this edition and older ones that the manifest does not name. An
// edition that has a manifest is complete; another process may be writing the next one.
func (a *Archive) sweep(ctx context.Context, m *Manifest) error {
	names, err := a.names(ctx, m.Month.String()+"/")
	if err != nil {
		return err
	}
	for _, name := range names {
		kind, rest, _ := strings.Cut(path.Base(name), "-")
		edition, _ := strconv.Atoi(rest[:min(4, len(rest))])
		old := edition <= m.Edition && (kind == "part" || kind == "progress" || (kind == "manifest" && name != m.name()))
		if old && !slices.ContainsFunc(m.Parts, func(p Part) bool { return m.file(p.Name) == name }) {
			err = errors.Join(err, a.bucket.Delete(ctx, name))
		}
	}
	return err
}

// writeParts writes the events after the last part of m. After each part it writes a progress
// file, for a run that continues this one.
func (a *Archive) writeParts(ctx context.Context, l *lease, s record.MonthSize, m *Manifest) error {
	var (
		file    bytes.Buffer
		w       *Writer
		rows    []row // the room for a row group, from part to part
		part    Part
		scratch []byte
	)
	last, err := m.cursor()
	if err != nil {
		return err
	}
	finish := func() error {
		if err := w.Close(); err != nil {
			return err
		}
		sum := sha256.Sum256(file.Bytes())
		part.Bytes, part.SHA256 = int64(file.Len()), hex.EncodeToString(sum[:])
		part.LastID = last.ID.String()
		part.Name = fmt.Sprintf("part-%04d-%05d-%s.parquet", m.Edition, len(m.Parts)+1, part.SHA256[:16])
		if err := a.bucket.Put(ctx, m.file(part.Name), bytes.NewReader(file.Bytes())); err != nil {
			return err
		}
		m.add(part)
		rows, w, part = w.rows, nil, Part{}
		if err := l.renew(ctx); err != nil {
			return err
		}
		return a.bucket.Put(ctx, progressName(m.Month, m.Edition), bytes.NewReader(m.seal()))
	}
	for e, err := range a.source.Events(ctx, m.Month, last) {
		if err != nil {
			return err
		}
		r := rowOf(&e)
		at := time.UnixMicro(r.At).UTC()
		if record.MonthOf(at) != m.Month || at.Before(last.At) || (at.Equal(last.At) && bytes.Compare(e.ID[:], last.ID[:]) <= 0) {
			return fmt.Errorf("event %v of %v is not in its place", e.ID, at)
		}
		last = record.Cursor{At: at, ID: e.ID}
		if w == nil {
			file.Reset()
			w, part.First = NewWriter(&file), at
			w.rows = rows
		}
		scratch = part.Digest.add(&r, scratch)
		part.Events++
		part.Last = at
		if err := w.write(r); err != nil {
			return err
		}
		if part.Events >= a.o.PartEvents || file.Len() >= partBytes {
			if err := finish(); err != nil {
				return err
			}
		}
		if err := a.step(ctx, l, m.Events+part.Events, s.Events, "writing", m.Month); err != nil {
			return err
		}
	}
	if w == nil {
		return nil
	}
	return finish()
}

// begun returns the edition that an earlier run has begun, or an empty one. If the progress is
// damaged the edition starts again, which costs only time.
func (a *Archive) begun(ctx context.Context, month record.Month, edition int) (*Manifest, error) {
	m, err := a.load(ctx, progressName(month, edition), month)
	switch {
	case errors.Is(err, ErrDamaged), errors.Is(err, blob.ErrNotFound), err == nil && m.Edition != edition:
		return &Manifest{Month: month, Edition: edition, Schema: SchemaVersion}, nil
	case err != nil:
		return nil, err
	}
	return m, nil
}

func progressName(m record.Month, edition int) string {
	return fmt.Sprintf("%v/progress-%04d.json", m, edition)
}
