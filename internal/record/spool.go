package record

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/kit/disk"
)

// SpoolOptions are the settings of a [Spool]. Dir is required.
type SpoolOptions struct {
	// Dir is its directory. It is created if it is missing, and belongs to one process.
	Dir string
	// MaxBytes is how large all files may be together, including those in quarantine. Append
	// fails beyond it. Default 1 GiB.
	MaxBytes int64
	// MinFree is how many bytes the disk must have left. Append fails below it. Default 0: it is
	// not checked.
	MinFree int64
	// SegmentBytes is the size at which a new file begins. Default 16 MiB.
	SegmentBytes int64
}

// Spool is a queue of events on disk, for while the database is down.
//
// It consists of numbered files, segments. Events are added at the end of the last segment
// and read from the first, which is deleted when all of it is [Spool.Done]. So after a process
// was killed, the next one may read events again that were written already; it never misses
// any. Each process begins a new segment, since the last one may end in the middle of an
// event, which is ignored. A damaged segment is renamed to .bad and kept, and the next one is
// read.
//
// It must be used by one goroutine at a time.
type Spool struct {
	o        SpoolOptions
	lock     *os.File
	segments []segment // oldest first
	last     uint64    // the highest number so far
	total    int64     // bytes of all files
	bad      int       // segments in quarantine

	w     *os.File // the last segment, for writing; nil: the next write begins one
	r     *os.File // the first segment, for reading; nil: not opened yet
	at    int64    // how much of the first segment is done
	chunk []byte
}

type segment struct {
	number uint64
	size   int64
}

// segmentHeader begins every segment. Its last byte is the version.
const segmentHeader = "STSPOOL\x01"

const (
	segmentEnding = ".spool"
	badEnding     = ".bad"
	// chunkBytes is how much is read at once. A record fits.
	chunkBytes = 1 << 20
)

// OpenSpool opens the spool in a directory. Close it.
func OpenSpool(o SpoolOptions) (_ *Spool, err error) {
	o.MaxBytes, o.SegmentBytes = cmp.Or(o.MaxBytes, 1<<30), cmp.Or(o.SegmentBytes, 16<<20)
	switch {
	case o.Dir == "":
		return nil, invalid("Dir", "", "a directory")
	case o.MaxBytes < 0:
		return nil, invalid("MaxBytes", strconv.FormatInt(o.MaxBytes, 10), "a number of bytes, or 0 for the default")
	case o.MinFree < 0:
		return nil, invalid("MinFree", strconv.FormatInt(o.MinFree, 10), "a number of bytes, or 0 for none")
	case o.SegmentBytes < 0:
		return nil, invalid("SegmentBytes", strconv.FormatInt(o.SegmentBytes, 10), "a number of bytes, or 0 for the default")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("record: spool: %w", err)
	}
	s := &Spool{o: o}
	if s.lock, err = os.OpenFile(filepath.Join(o.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("record: spool: %w", err)
	}
	if err := disk.Lock(s.lock); err != nil {
		return nil, errors.Join(fmt.Errorf("record: the spool in %s is in use by another process: each needs a directory of its own: %w", o.Dir, err), s.lock.Close())
	}
	if err := s.list(); err != nil {
		return nil, errors.Join(fmt.Errorf("record: spool: %w", err), s.lock.Close())
	}
	return s, nil
}

// list finds the segments that are there.
func (s *Spool) list() error {
	entries, err := os.ReadDir(s.o.Dir) // by name, and so by number
	if err != nil {
		return err
	}
	for _, entry := range entries {
		ending := filepath.Ext(entry.Name())
		number, err := strconv.ParseUint(strings.TrimSuffix(entry.Name(), ending), 10, 64)
		if err != nil || ending != segmentEnding && ending != badEnding {
			continue // not ours
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		s.last = max(s.last, number)
		s.total += info.Size()
		if ending == badEnding {
			s.bad++
		} else {
			s.segments = append(s.segments, segment{number, info.Size()})
		}
	}
	return nil
}

func (s *Spool) name(number uint64, ending string) string {
	return filepath.Join(s.o.Dir, fmt.Sprintf("%020d%s", number, ending))
}

// Empty reports whether there is nothing to read.
func (s *Spool) Empty() bool { return len(s.segments) == 0 }

// Bytes is how large all files are together.
func (s *Spool) Bytes() int64 { return s.total }

// Bad is how many segments are in quarantine.
func (s *Spool) Bad() int { return s.bad }

// Append adds events. If it returns no error they are synced to disk; otherwise they are not in
// the queue, though a later process may find some of them.
func (s *Spool) Append(b Batch) error {
	if s.total+int64(len(b)+len(segmentHeader)) > s.o.MaxBytes {
		return fmt.Errorf("record: the spool in %s is full: %d bytes of at most %d are used", s.o.Dir, s.total, s.o.MaxBytes)
	}
	if err := enough(s.name(0, segmentEnding), s.o.MinFree); err != nil {
		return fmt.Errorf("record: spool: %w", err)
	}
	b.seal()
	if s.w == nil || s.segments[len(s.segments)-1].size >= s.o.SegmentBytes {
		if err := s.begin(); err != nil {
			return fmt.Errorf("record: spool: %w", err)
		}
	}
	last := &s.segments[len(s.segments)-1]
	_, err := s.w.WriteAt(b, last.size)
	if err == nil {
		err = s.w.Sync()
	}
	if err != nil {
		// It is unknown how much of this is on disk, so nothing is added after it.
		_ = s.w.Truncate(last.size)
		s.closeLast()
		if last.size == int64(len(segmentHeader)) {
			_ = os.Remove(s.name(last.number, segmentEnding))
			s.total -= last.size
			s.segments = s.segments[:len(s.segments)-1]
		}
		return fmt.Errorf("record: spool: %w", err)
	}
	last.size += int64(len(b))
	s.total += int64(len(b))
	return nil
}

// begin begins a segment.
func (s *Spool) begin() error {
	s.closeLast()
	name := s.name(s.last+1, segmentEnding)
	w, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s.last++ // even if the rest fails
	_, err = w.WriteString(segmentHeader)
	if err == nil {
		err = syncDir(s.o.Dir)
	}
	if err != nil {
		return errors.Join(err, w.Close(), os.Remove(name))
	}
	s.w = w
	s.segments = append(s.segments, segment{s.last, int64(len(segmentHeader))})
	s.total += int64(len(segmentHeader))
	return nil
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (s *Spool) closeLast() {
	if s.w != nil {
		_ = s.w.Close() // it was synced
		s.w = nil
	}
}

// Next returns the oldest events that are not done, about a MiB of them, or none if there are
// no more. They are valid until the next call.
func (s *Spool) Next() (Batch, error) {
	for !s.Empty() {
		b, ok, err := s.read()
		switch {
		case err != nil:
			return nil, fmt.Errorf("record: spool: %w", err)
		case len(b) > 0:
			return b, nil
		case ok:
			s.drop()
		default:
			s.Quarantine()
		}
	}
	return nil, nil
}

// read returns the next records of the first segment. If there are none, ok reports whether it
// ends as it should, or in the middle of a record that was being written.
func (s *Spool) read() (_ Batch, ok bool, err error) {
	first := s.segments[0]
	if s.r == nil {
		r, err := os.Open(s.name(first.number, segmentEnding))
		if err != nil {
			return nil, false, ignoreMissing(err)
		}
		s.r, s.at = r, max(s.at, int64(len(segmentHeader)))
		header := make([]byte, len(segmentHeader))
		if n, _ := r.ReadAt(header, 0); string(header[:n]) != segmentHeader {
			return nil, strings.HasPrefix(segmentHeader, string(header[:n])), nil
		}
	}
	if s.chunk == nil {
		s.chunk = make([]byte, chunkBytes)
	}
	left := first.size - s.at
	chunk := s.chunk[:min(left, chunkBytes)]
	if _, err := s.r.ReadAt(chunk, s.at); err != nil {
		return nil, false, nil // the disk is damaged, or the file was changed
	}
	n, ok := Batch(chunk).intact()
	// After a crash, a file may end with zeros that were never written.
	ok = ok || left == int64(len(chunk)) && len(bytes.Trim(chunk[n:], "\x00")) == 0
	return chunk[:n], ok, nil
}

// ignoreMissing ignores that a file is missing: the other segments can still be read.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Done marks the first n bytes that Next has returned, or that were appended first, as done.
func (s *Spool) Done(n int) {
	s.at = max(s.at, int64(len(segmentHeader))) + int64(n)
	if s.at == s.segments[0].size {
		s.drop()
	}
}

// drop deletes the first segment.
func (s *Spool) drop() {
	_ = os.Remove(s.name(s.segments[0].number, segmentEnding)) // if it stays it is read again later, which does no harm
	s.total -= s.segments[0].size
	s.next()
}

// Quarantine renames the first segment to .bad.
func (s *Spool) Quarantine() {
	number := s.segments[0].number
	_ = os.Rename(s.name(number, segmentEnding), s.name(number, badEnding)) // if it fails, the file keeps its name
	s.bad++
	s.next()
}

// next moves to the second segment.
func (s *Spool) next() {
	if s.r != nil {
		_ = s.r.Close() // it was only read
	}
	if len(s.segments) == 1 {
		s.closeLast()
	}
	s.r, s.at, s.segments = nil, 0, s.segments[1:]
}

// Close unlocks the directory. Its files stay.
func (s *Spool) Close() error {
	s.closeLast()
	if s.r != nil {
		_ = s.r.Close() // it was only read
	}
	return errors.Join(disk.Unlock(s.lock), s.lock.Close())
}
