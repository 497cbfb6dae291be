// Package archive moves old months of events from the database to Parquet files in a directory
// or in S3, and back.
//
// # What holds
//
//   - A month is dropped from the database only after its files were read back and have
//     exactly its events.
//   - Files that a manifest names are never changed: late events make a new edition.
//   - A run that is interrupted or killed is continued by the next one.
//   - One node works on an archive at a time. If two believe they do, nothing is lost.
package archive

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/stintdev/stint/internal/kit/blob"
	"github.com/stintdev/stint/internal/record"
)

// What callers of an [Archive] can tell apart.
var (
	// ErrBusy means that another process is working on the same archive.
	ErrBusy = errors.New("another process is working on the archive")
	// ErrNotArchived means that the archive does not have the month.
	ErrNotArchived = errors.New("not in the archive")
	// ErrDamaged means that files of the archive are missing or changed.
	ErrDamaged = errors.New("damaged")
)

// Source has the events to archive. A rollup.Store is one.
type Source interface {
	// Months returns the months that are over, with their exact number of events.
	Months(ctx context.Context) ([]record.MonthSize, error)
	// Events iterates over the events of a month after a cursor, in order. It ends with the
	// first error.
	Events(ctx context.Context, m record.Month, after record.Cursor) iter.Seq2[record.Event, error]
	// Drop removes a month if it has this number of events. Otherwise it removes nothing, and
	// the error is record.ErrChanged. It is no error if the month does not exist and events
	// is 0.
	Drop(ctx context.Context, m record.Month, events int64) error
	// Restore adds events of a month, except those that it has.
	Restore(ctx context.Context, m record.Month, events []record.Event) error
}

// Options say what is archived, and for how long.
type Options struct {
	// Retention is how long events stay in the database. A month is archived when all of it is
	// older. 0 is 90 days; at least a day.
	Retention time.Duration
	// Keep is how long a month stays in the archive. 0 is 7 years; negative is for ever.
	Keep time.Duration
	// Hold is how long a month that was restored is not archived again. 0 is 7 days.
	Hold time.Duration
	// Node is the name that other nodes see while this one works. "" is "stint".
	Node string
	// PartEvents is the largest number of events of a file. 0 is 1,048,576.
	PartEvents int64
	// Progress is called with the number of events done, their total, and the step. May be nil.
	Progress func(done, all int64, what string)
	// Now is the clock. nil is time.Now.
	Now func() time.Time
}

const (
	day = 24 * time.Hour
	// leaseTime is how long an archive belongs to a process that does not renew its lease.
	leaseTime = 15 * time.Minute
	// A file ends with the row group that makes it this long. None can be longer than maxPart.
	partBytes = 16 << 20
	maxPart   = 256 << 20
	// maxText is the largest size of a manifest.
	maxText = 16 << 20
	// batch is how many events are restored at once.
	batch = 5000
)

// Archive moves months of events to files, and back. Its methods may be called concurrently,
// also by several nodes: one of them works, and the others get ErrBusy.
//
// A month has parts, and a manifest that is written after all parts were read back and have
// the events of the source. Only then is the month dropped. A manifest is never changed: late
// events make a new edition with all events. A process that works on one edition neither writes
// nor deletes files that the manifest of another names, so even two processes that both believe
// to be alone lose nothing.
type Archive struct {
	source Source
	bucket blob.Bucket
	o      Options
}

// New returns the archive of a source in a bucket.
func New(source Source, bucket blob.Bucket, o Options) (*Archive, error) {
	o.Retention, o.Keep, o.Hold = cmp.Or(o.Retention, 90*day), cmp.Or(o.Keep, 7*365*day+2*day), cmp.Or(o.Hold, 7*day)
	o.PartEvents, o.Node = cmp.Or(o.PartEvents, 1<<20), cmp.Or(o.Node, "stint")
	if o.Progress == nil {
		o.Progress = func(int64, int64, string) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case source == nil || bucket == nil:
		return nil, errors.New("archive: an archive needs a source and a bucket")
	case o.Retention < day:
		return nil, fmt.Errorf("archive: Retention %v: want at least 24h", o.Retention)
	case o.Keep > 0 && o.Keep < o.Retention:
		return nil, fmt.Errorf("archive: Keep %v: want at least the Retention, which is %v, or a negative one for ever", o.Keep, o.Retention)
	case o.Hold < 0:
		return nil, fmt.Errorf("archive: Hold %v: want 0 or more", o.Hold)
	case o.PartEvents < 0:
		return nil, fmt.Errorf("archive: PartEvents %d: want 1 or more", o.PartEvents)
	}
	return &Archive{source: source, bucket: bucket, o: o}, nil
}

// names returns the names that begin with a prefix.
func (a *Archive) names(ctx context.Context, prefix string) (out []string, err error) {
	for o, err := range a.bucket.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		out = append(out, o.Name)
	}
	return out, nil
}

// get reads a file of at most limit bytes, into a buffer of size at first.
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

// alone runs do with the lease of the archive.
func (a *Archive) alone(ctx context.Context, do func(*lease) error) error {
	l, err := a.acquire(ctx)
	if err != nil {
		return err
	}
	return errors.Join(do(l), l.release(ctx))
}

// Discard drops the months that ended before a time, without archiving them.
func Discard(ctx context.Context, source Source, before time.Time) error {
	months, err := source.Months(ctx)
	if err != nil {
		return err
	}
	for _, m := range months {
		if m.Month.End().After(before) {
			continue
		}
		if err := source.Drop(ctx, m.Month, m.Events); err != nil && !errors.Is(err, record.ErrChanged) { // late events are dropped the next time
			return err
		}
	}
	return nil
}
