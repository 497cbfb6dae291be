package capture

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/kit/disk"
)

// A file is magic, chunks with their length, the length 0, the summary as JSON, its length, and magic again. A chunk is frames,
// compressed. The first has the header.
const magic = "STCAPTR\x01"

const (
	// maxChunk is how many bytes a chunk may have, before it is compressed, and maxHeader how many the first may.
	maxChunk = 256 << 20
	// trailer is room for what follows the chunks.
	trailer = 4 << 10
	// Part is the ending of a file that is not finished.
	Part = ".part"
)

var (
	errFull = errors.New("the file is as large as it may be")
	errDisk = errors.New("the disk has no more room")
)

// file is a file that is written.
type file struct {
	f       *os.File
	path    string
	max     int64
	minFree int64
	size    int64
	zip     *zstd.Encoder
	out     []byte
}

// create begins a file.
func create(path string, most, minFree int64, h *Header) (_ *file, err error) {
	f := &file{path: path, max: most - trailer, minFree: minFree}
	if f.zip, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1)); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	header, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	if f.f, err = openPart(path); err != nil {
		return nil, err
	}
	w := wire{b: []byte(magic)}
	if _, err = f.f.Write(w.b); err == nil {
		f.size = int64(len(w.b))
		w.b = w.b[:0]
		from := w.begin(headerFrame)
		w.b = append(w.b, header...)
		w.end(from)
		err = f.write(w.b)
	}
	if err != nil {
		f.drop()
		return nil, fmt.Errorf("capture: %w", err)
	}
	return f, nil
}

// openPart opens and locks the file that is not finished, and empties it.
func openPart(path string) (*os.File, error) {
	f, err := os.OpenFile(path+Part, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	if err := disk.Lock(f); err != nil {
		return nil, errors.Join(ErrRunning, f.Close())
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(fmt.Errorf("capture: %w", err), f.Close())
	}
	return f, nil
}

// drop removes the file.
func (f *file) drop() {
	_ = f.f.Close() // it is of no use
	_ = os.Remove(f.path + Part)
}

// write writes a chunk, or nothing. The error is errFull or errDisk if there is no room for it.
func (f *file) write(chunk []byte) error {
	const length = 4
	f.out = f.zip.EncodeAll(chunk, append(f.out[:0], make([]byte, length)...))
	size := int64(len(f.out))
	if f.size+size > f.max {
		return errFull
	}
	if free, ok := disk.Free(f.path); ok && f.minFree > 0 && free-size < f.minFree {
		return errDisk
	}
	binary.BigEndian.PutUint32(f.out, uint32(len(f.out)-length))
	if _, err := f.f.Write(f.out); err != nil {
		return errors.Join(err, f.f.Truncate(f.size))
	}
	f.size += size
	return nil
}

// finish ends the file, and gives it its name.
func (f *file) finish(s *Summary) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	end := append([]byte{0, 0, 0, 0}, text...)
	end = append(binary.BigEndian.AppendUint32(end, uint32(len(text))), magic...)
	if _, err = f.f.Seek(f.size, io.SeekStart); err == nil {
		_, err = f.f.Write(end)
	}
	if err == nil {
		err = f.f.Sync()
	}
	if err != nil {
		f.drop()
		return err
	}
	f.size += int64(len(end))
	if err := f.f.Close(); err != nil {
		return errors.Join(err, os.Remove(f.path+Part))
	}
	return os.Rename(f.path+Part, f.path)
}

// Reader reads a file.
type Reader struct {
	Header  Header
	Summary Summary

	f     *os.File
	in    *bufio.Reader
	terms terms
	chunk []byte
}

// Record is a call, or a decision with its facts. One without either is a mark: records after it are of calls that had not returned
// when those before it were made, or not long before: by [Summary].Lag.
type Record struct {
	Call    *Call
	Facts   *engine.Facts
	Verdict *Verdict
}

// Open opens a file. Close it.
func Open(path string) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	r := &Reader{f: f}
	if err := r.begin(); err != nil {
		_ = f.Close() // the first error counts
		return nil, fmt.Errorf("capture: %s: %w", path, err)
	}
	return r, nil
}

// Close closes the file.
func (r *Reader) Close() error { return r.f.Close() }

var errNone = errors.New("it is not a finished capture, as stint record full writes it")

// begin reads the summary at the end, and the header.
func (r *Reader) begin() error {
	const tail = 4 + len(magic)
	end := make([]byte, tail)
	size, err := r.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if size < int64(2*tail) {
		return errNone
	}
	if _, err := r.f.ReadAt(end, size-int64(tail)); err != nil {
		return err
	}
	length := int64(binary.BigEndian.Uint32(end))
	if string(end[4:]) != magic || length > trailer || length > size-int64(tail) {
		return errNone
	}
	text := make([]byte, length)
	if _, err := r.f.ReadAt(text, size-int64(tail)-length); err != nil {
		return err
	}
	if err := json.Unmarshal(text, &r.Summary); err != nil {
		return errNone
	}
	if _, err := r.f.ReadAt(end[:len(magic)], 0); err != nil || string(end[:len(magic)]) != magic {
		return errNone
	}
	if _, err := r.f.Seek(int64(len(magic)), io.SeekStart); err != nil {
		return err
	}
	r.in = bufio.NewReader(r.f)
	r.terms.limitOf, r.terms.plans, r.terms.penaltyOf = map[uint64]stint.Limit{}, map[stint.Limit]*stint.Plan{}, map[uint64]*stint.Penalty{}
	if err := r.next(); err != nil {
		return err
	}
	kind, record, _, err := cut(r.chunk)
	if err != nil || kind != headerFrame {
		return errNone
	}
	if err := json.Unmarshal(record, &r.Header); err != nil {
		return fmt.Errorf("the rules in it cannot be read: %w", err)
	}
	if r.Header.Format != format {
		return fmt.Errorf("it has the format %d, want %d: another version of stint has written it", r.Header.Format, format)
	}
	return nil
}

// unzip reads what is compressed, at most maxChunk bytes.
var unzip = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxChunk), zstd.WithDecoderConcurrency(1))
})

// next reads a chunk. The error is io.EOF after the last.
func (r *Reader) next() error {
	var length [4]byte
	if _, err := io.ReadFull(r.in, length[:]); err != nil {
		return errRecord
	}
	n := binary.BigEndian.Uint32(length[:])
	switch {
	case n == 0:
		return io.EOF
	case n > maxChunk:
		return errRecord
	}
	zip, err := unzip()
	if err != nil {
		return err
	}
	packed := make([]byte, n)
	if _, err := io.ReadFull(r.in, packed); err != nil {
		return errRecord
	}
	if r.chunk, err = zip.DecodeAll(packed, r.chunk[:0]); err != nil {
		return errRecord
	}
	return nil
}

// cut cuts the first frame off.
func cut(b []byte) (kind byte, record, rest []byte, err error) {
	if len(b) < frameBytes {
		return 0, nil, nil, errRecord
	}
	n := int64(binary.BigEndian.Uint32(b[1:]))
	if n > int64(len(b)-frameBytes) {
		return 0, nil, nil, errRecord
	}
	return b[0], b[frameBytes : frameBytes+n], b[frameBytes+n:], nil
}

// Records iterates over what was captured: those of one decision in order, its calls before it; and others in no order, but for marks.
// It can be called once. What it yields is the caller's.
func (r *Reader) Records() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for {
			switch err := r.next(); {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(Record{}, err)
				return
			}
			for rest := r.chunk; len(rest) > 0; {
				kind, record, after, err := cut(rest)
				if err != nil {
					yield(Record{}, err)
					return
				}
				rest = after
				out, err := r.read(kind, record)
				if err != nil {
					yield(Record{}, err)
					return
				}
				if out != (Record{}) && !yield(out, nil) {
					return
				}
			}
			if !yield(Record{}, nil) {
				return
			}
		}
	}
}

func (r *Reader) read(kind byte, record []byte) (out Record, err error) {
	w := wire{b: record, reading: true, terms: &r.terms}
	switch kind {
	case termFrame:
		r.terms.learn(&w)
	case callFrame:
		out.Call = new(Call)
		w.call(out.Call)
	case factsFrame:
		out.Facts, out.Verdict = new(engine.Facts), new(Verdict)
		w.facts(out.Facts)
		w.verdict(out.Verdict)
	default:
		w.bad = true
	}
	if w.bad || len(w.b) > 0 {
		return Record{}, errRecord
	}
	return out, nil
}
