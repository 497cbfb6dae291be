package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/blob"
)

// What callers of an [Archive] can tell apart.
var (
	// ErrBusy means that another archives at the same place.
	ErrBusy = errors.New("another works on the archive")
	// ErrNotArchived means that the archive does not have the month.
	ErrNotArchived = errors.New("not in the archive")
	// ErrDamaged means that the archive has not what was put into it.
	ErrDamaged = errors.New("damaged")
	// ErrChanged is what Source.Drop returns if a month has not the events that it should.
	ErrChanged = errors.New("the number of events has changed")
)

// Month is a month of UTC.
type Month struct {
	Year  int
	Month time.Month
}

// MonthOf returns the month that a time is in.
func MonthOf(t time.Time) Month {
	t = t.UTC()
	return Month{t.Year(), t.Month()}
}

// ParseMonth reads a month as String writes it.
func ParseMonth(text string) (Month, error) {
	t, err := time.Parse("2006-01", text)
	if err != nil {
		return Month{}, fmt.Errorf("month %.20q: want a year and a month, as 2026-01", text)
	}
	return MonthOf(t), nil
}

// Start returns when the month begins.
func (m Month) Start() time.Time { return time.Date(m.Year, m.Month, 1, 0, 0, 0, 0, time.UTC) }

// End returns when the next one begins.
func (m Month) End() time.Time { return m.Start().AddDate(0, 1, 0) }

// String returns the month as 2026-01.
func (m Month) String() string { return fmt.Sprintf("%04d-%02d", m.Year, m.Month) }

// MarshalText implements [encoding.TextMarshaler].
func (m Month) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *Month) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMonth(string(text))
	return err
}

// MonthSize is how many events a month has.
type MonthSize struct {
	Month  Month
	Events int64
}

// Cursor is a place among events that are in the order of their time, and of their id
// where that is the same: behind the event that it names. The zero Cursor is before all.
type Cursor struct {
	At time.Time
	ID engine.ID
}

// Source is where the events are that are to be archived.
type Source interface {
	// Months returns the months that are over, with their exact number of events.
	Months(ctx context.Context) ([]MonthSize, error)
	// Events goes through those of a month that are behind a cursor, in the order of
	// cursors. It ends with the first error.
	Events(ctx context.Context, m Month, after Cursor) iter.Seq2[Event, error]
	// Drop removes a month if it has so many events, and none of it otherwise: then the
	// error is ErrChanged. It is no error if the month is not there and events is 0.
	Drop(ctx context.Context, m Month, events int64) error
	// Restore adds events of a month, but for those whose ids it has.
	Restore(ctx context.Context, m Month, events []Event) error
}

// ArchiveOptions say what is archived, and for how long.
type ArchiveOptions struct {
	// Retention is how long events stay where they are. A month is archived when all of it
	// is older. 0 is 90 days; at least a day.
	Retention time.Duration
	// Keep is how long a month stays in the archive. 0 is 7 years; negative is for ever.
	Keep time.Duration
	// Hold is how long a month that was restored is not archived again. 0 is 7 days.
	Hold time.Duration
	// Node is who works on the archive, for others to be told. "" is "stint".
	Node string
	// PartEvents is how many events a file has at most. 0 is 1,048,576.
	PartEvents int64
	// Progress is told how many events of how many are done, and of what. nil is no one.
	Progress func(done, all int64, what string)
	// Now is the clock. nil is time.Now.
	Now func() time.Time
}

const (
	day = 24 * time.Hour
	// leaseTime is for how long an archive belongs to one who does not say that he is
	// still there.
	leaseTime = 15 * time.Minute
	// A file ends with the row group that makes it this long. None can be longer than maxPart.
	partBytes = 16 << 20
	maxPart   = 256 << 20
	// maxText bounds what is read of a manifest.
	maxText = 16 << 20
	// batch is how many events are restored at once.
	batch = 5000
)

// Archive moves months of events into files, and back. Its methods are safe to use at
// once, also by several nodes: one of them works, and the others get ErrBusy.
//
// A month has parts, and a manifest that is written when all of them were read back and
// found to have what the source has. Only then is the month dropped. A manifest is never
// changed: if events come later, a new edition has those of the old one too. Nothing that
// a manifest names is written or deleted by one who works on another edition, so that
// even two who both believe to be alone lose nothing.
type Archive struct {
	source Source
	bucket blob.Bucket
	o      ArchiveOptions
}

// NewArchive returns the archive of a source in a bucket.
func NewArchive(source Source, bucket blob.Bucket, o ArchiveOptions) (*Archive, error) {
	if o.Retention == 0 {
		o.Retention = 90 * day
	}
	if o.Keep == 0 {
		o.Keep = 7*365*day + 2*day
	}
	if o.Hold == 0 {
		o.Hold = 7 * day
	}
	if o.PartEvents == 0 {
		o.PartEvents = 1 << 20
	}
	if o.Node == "" {
		o.Node = "stint"
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64, string) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case source == nil || bucket == nil:
		return nil, errors.New("audit: an archive needs a source and a bucket")
	case o.Retention < day:
		return nil, fmt.Errorf("audit: Retention %v: want at least 24h", o.Retention)
	case o.Keep > 0 && o.Keep < o.Retention:
		return nil, fmt.Errorf("audit: Keep %v: want at least the Retention, which is %v, or a negative one for ever", o.Keep, o.Retention)
	case o.Hold < 0:
		return nil, fmt.Errorf("audit: Hold %v: want 0 or more", o.Hold)
	case o.PartEvents < 0:
		return nil, fmt.Errorf("audit: PartEvents %d: want 1 or more", o.PartEvents)
	}
	return &Archive{source: source, bucket: bucket, o: o}, nil
}

// Archived is what became of a month.
type Archived struct {
	Month   Month
	Events  int64
	Parts   int
	Bytes   int64
	Resumed bool // a run before had begun it
	Dropped bool
	// Held is until when it stays where it is, since it was restored.
	Held time.Time
}

// Report is what a run did, the oldest month first.
type Report struct{ Months []Archived }

// Run archives all months that are older than the retention, and drops them. A month that
// cannot be archived is left as it is and does not keep others from it, unless nothing
// can be written at all. A run that was interrupted is continued by the next.
func (a *Archive) Run(ctx context.Context) (Report, error) {
	var report Report
	months, err := a.source.Months(ctx)
	if err != nil {
		return report, fmt.Errorf("audit: archive: %w", err)
	}
	limit := a.o.Now().Add(-a.o.Retention)
	months = slices.DeleteFunc(months, func(s MonthSize) bool { return s.Month.End().After(limit) })
	if len(months) == 0 {
		return report, nil
	}
	slices.SortFunc(months, func(s, t MonthSize) int { return s.Month.Start().Compare(t.Month.Start()) })
	if err := a.bucket.Check(ctx); err != nil {
		return report, fmt.Errorf("audit: archive: nothing was dropped: %w", err)
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
		return report, fmt.Errorf("audit: archive: %w", err)
	}
	return report, nil
}

// archive makes sure that the archive has what a month has, and drops it.
func (a *Archive) archive(ctx context.Context, l *lease, s MonthSize) (Archived, error) {
	out := Archived{Month: s.Month}
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
		return out, fmt.Errorf("it is in the archive, and was not dropped: %w", err)
	}
	out.Dropped = true
	return out, nil
}

// write returns the manifest of an edition that has what the month has, and was read
// back.
func (a *Archive) write(ctx context.Context, l *lease, s MonthSize, out *Archived) (*Manifest, error) {
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
		// It was archived and dropped, and what is there now came later, or is what a
		// restore that was interrupted left. All of it belongs into one edition.
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

func (a *Archive) recount(ctx context.Context, month Month) (MonthSize, error) {
	months, err := a.source.Months(ctx)
	for _, s := range months {
		if s.Month == month {
			return s, err
		}
	}
	return MonthSize{}, errors.Join(err, errors.New("the month has gone"))
}

// same tells whether the source has what a manifest says.
func (a *Archive) same(ctx context.Context, l *lease, m *Manifest, s MonthSize) (bool, error) {
	if s.Events != m.Events {
		return false, nil
	}
	var (
		sum     Digest
		n       int64
		scratch []byte
	)
	for e, err := range a.source.Events(ctx, m.Month, Cursor{}) {
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

// step reports progress, and sees to it that the archive is still ours.
func (a *Archive) step(ctx context.Context, l *lease, done, all int64, doing string, m Month) error {
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

// writeEdition writes the parts of a month, or those that are missing of an edition that
// was begun, reads them back, and writes the manifest.
func (a *Archive) writeEdition(ctx context.Context, l *lease, s MonthSize, edition int, out *Archived) (*Manifest, error) {
	m, err := a.begun(ctx, s.Month, edition)
	if err != nil {
		return nil, err
	}
	out.Resumed = m.Events > 0
	if err = a.writeParts(ctx, l, s, m); err == nil && m.Events != s.Events && out.Resumed {
		// Some came that belong before what was written already.
		m, out.Resumed = &Manifest{Month: s.Month, Edition: edition, Schema: SchemaVersion}, false
		err = a.writeParts(ctx, l, s, m)
	}
	if err != nil {
		return nil, err
	}
	progress := progressName(m.Month, m.Edition)
	if m.Events != s.Events {
		return nil, errors.Join(fmt.Errorf("it had %d events when they were counted, and %d when they were read: events still come in, so it was not archived", s.Events, m.Events),
			a.bucket.Delete(ctx, progress))
	}
	if err := a.verify(ctx, l, m); err != nil {
		return nil, errors.Join(err, a.bucket.Delete(ctx, progress)) // so that it is written anew
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

// sweep deletes what is left of this edition and older ones and is not in the manifest.
// Nothing is ever added to an edition that has one; another may be writing the next.
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

// writeParts writes what comes behind the last part of m. Each that is written is in the
// progress of the month, for a run that continues this one.
func (a *Archive) writeParts(ctx context.Context, l *lease, s MonthSize, m *Manifest) error {
	var (
		file    bytes.Buffer
		w       *ParquetWriter
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
		if MonthOf(at) != m.Month || at.Before(last.At) || (at.Equal(last.At) && bytes.Compare(e.ID[:], last.ID[:]) <= 0) {
			return fmt.Errorf("event %v of %v is not in its place", e.ID, at)
		}
		last = Cursor{at, e.ID}
		if w == nil {
			file.Reset()
			w, part.First = NewParquetWriter(&file), at
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

// begun returns the edition that a run before has begun, or an empty one. What is not
// sound is begun anew: it has cost time, and nothing else.
func (a *Archive) begun(ctx context.Context, month Month, edition int) (*Manifest, error) {
	m, err := a.load(ctx, progressName(month, edition), month)
	switch {
	case errors.Is(err, ErrDamaged), errors.Is(err, blob.ErrNotFound), err == nil && m.Edition != edition:
		return &Manifest{Month: month, Edition: edition, Schema: SchemaVersion}, nil
	case err != nil:
		return nil, err
	}
	return m, nil
}

// Entry is a month in the archive.
type Entry struct {
	Month Month
	// Manifest is that of the newest edition, or nil if there is none or Problem is not nil.
	Manifest *Manifest
	// Bytes is the size of all that there is of the month.
	Bytes int64
	// Unfinished says that a run has begun it, or a new edition of it, and not finished.
	Unfinished bool
	Problem    error
}

// List returns the months of the archive, the oldest first.
func (a *Archive) List(ctx context.Context) ([]Entry, error) {
	var out []Entry
	for o, err := range a.bucket.List(ctx, "") {
		if err != nil {
			return nil, fmt.Errorf("audit: list the archive: %w", err)
		}
		month, err := ParseMonth(path.Dir(o.Name))
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
			return nil, fmt.Errorf("audit: list the archive: %w", err)
		}
	}
	return out, nil
}

// Verify reads all of a month, and returns its manifest if the archive has what was put
// into it. Otherwise the error is ErrDamaged and names every file that is not right.
func (a *Archive) Verify(ctx context.Context, month Month) (*Manifest, error) {
	m, err := a.manifest(ctx, month)
	if err == nil {
		err = a.verify(ctx, nil, m)
	}
	if err != nil {
		return nil, fmt.Errorf("audit: verify %v: %w", month, err)
	}
	return m, nil
}

// Restore puts the events of a month back where they were, and returns how many the
// archive has. If any file of it is damaged, it puts none. They stay for the time that
// the options say, and are archived again with the next run after it.
func (a *Archive) Restore(ctx context.Context, month Month) (n int64, err error) {
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
		return 0, fmt.Errorf("audit: restore %v: %w", month, err)
	}
	return n, nil
}

func (a *Archive) restore(ctx context.Context, l *lease, m *Manifest) (n int64, err error) {
	if err := a.verify(ctx, l, m); err != nil {
		return 0, err
	}
	events := make([]Event, 0, batch)
	flush := func() error {
		err := a.source.Restore(ctx, m.Month, events)
		n += int64(len(events))
		clear(events)
		events = events[:0]
		return err
	}
	for _, p := range m.Parts {
		file, err := a.part(ctx, m, p) // as it was a moment ago, or an error
		if err != nil {
			return n, err
		}
		for e, err := range ReadParquet(bytes.NewReader(file), int64(len(file))) {
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

// Expire deletes the months that the archive has kept for long enough, and returns them.
func (a *Archive) Expire(ctx context.Context) (gone []Month, err error) {
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
			// Manifests go first (m is before p): what no manifest names is no archive.
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
		return gone, fmt.Errorf("audit: expire: %w", err)
	}
	return gone, nil
}

// names returns the names that begin with a prefix. There are as many as a month has
// files.
func (a *Archive) names(ctx context.Context, prefix string) (out []string, err error) {
	for o, err := range a.bucket.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		out = append(out, o.Name)
	}
	return out, nil
}

// get reads a file of at most limit bytes into memory, where there is room for size.
func (a *Archive) get(ctx context.Context, name string, limit, size int64) ([]byte, error) {
	r, err := a.bucket.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	var data bytes.Buffer
	data.Grow(int(size) + bytes.MinRead)
	_, err = data.ReadFrom(io.LimitReader(r, limit+1))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", name, blob.ErrUnreachable, err)
	}
	if int64(data.Len()) > limit {
		return nil, fmt.Errorf("%s: %w: it has more than %d bytes", name, ErrDamaged, limit)
	}
	return data.Bytes(), nil
}

func progressName(m Month, edition int) string {
	return fmt.Sprintf("%v/progress-%04d.json", m, edition)
}

// restored is the name of the mark that a month was restored.
func restored(m Month) string { return m.String() + "/restored.json" }

type hold struct {
	Until time.Time `json:"until"`
}

// held returns until when a month is not archived, or the zero time.
func (a *Archive) held(ctx context.Context, m Month) (time.Time, error) {
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

// alone runs do while the archive belongs to no one else.
func (a *Archive) alone(ctx context.Context, do func(*lease) error) error {
	l, err := a.acquire(ctx)
	if err != nil {
		return err
	}
	return errors.Join(do(l), l.release(ctx))
}
