package meter

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"io"
	"iter"
	"runtime"
	"sync"
)

const (
	// MaxDecoded is how many bytes of a body are decoded.
	MaxDecoded = 64 << 20
	// MaxRatio is how many times larger a body may be than what was sent of it. The first
	// megabyte is free: a short body may be larger.
	MaxRatio = 200
)

// freeRatio is how much of a body is decoded whatever its ratio.
const freeRatio = 1 << 20

// Decoder decodes a body in pieces: what a piece completes is passed on during Write.
//
// The standard library can only pull. So its decoder runs in a coroutine ([iter.Pull]) that
// is resumed by Write, and suspended when it wants more than was written. Caller and decoder
// never run at the same time, so nothing is locked, nothing waits, and Write takes as long as
// decoding does. A decoder that was forgotten without Close ends when it is collected: the
// coroutine knows nothing of it.
type Decoder struct {
	to   func([]byte)
	in   *input
	next func() ([]byte, bool)
	stop func()
}

// input is the part of a decoder that the coroutine has.
type input struct {
	encoding string
	yield    func([]byte) bool // suspends the coroutine, with what it has decoded
	p        []byte
	read     int64 // of the encoded body
	written  int64
	ended    bool // no more comes
	why      Why
}

// NewDecoder returns a decoder of an encoding, in lower case: gzip, x-gzip or deflate. It
// returns nil for others. The decoder must be closed.
func NewDecoder(encoding string, to func([]byte)) *Decoder {
	switch encoding {
	case "gzip", "x-gzip", "deflate":
	default:
		return nil
	}
	in := &input{encoding: encoding}
	d := &Decoder{to: to, in: in}
	d.next, d.stop = iter.Pull(in.run)
	runtime.AddCleanup(d, func(stop func()) { stop() }, d.stop)
	return d
}

// Write decodes a piece. What follows the end of the encoded body is ignored.
func (d *Decoder) Write(p []byte) {
	d.in.read += int64(len(p))
	d.in.p = p
	d.resume()
	d.in.p = nil
}

// resume decodes until more is wanted, or the body ends.
func (d *Decoder) resume() {
	for {
		out, _ := d.next()
		if len(out) == 0 {
			return
		}
		d.to(out)
	}
}

// Close ends the body, whole or not, and passes on what is left. Further calls do nothing.
func (d *Decoder) Close() {
	d.in.ended = true
	d.resume()
	d.stop()
}

// Why returns why the body cannot be decoded to its end, or Exact.
func (d *Decoder) Why() Why { return d.in.why }

// run decodes until the body ends. It yields what it has decoded, or nothing if it wants
// more.
func (in *input) run(yield func([]byte) bool) {
	in.yield = yield
	if !in.more() {
		return // nothing came
	}
	pool := &gzips
	if in.encoding == "deflate" {
		pool = &deflates
	}
	w := pool.Get().(*work)
	defer pool.Put(w)
	r, err := w.open(in)
	for err == nil {
		var n int
		n, err = r.Read(w.out[:])
		if in.written += int64(n); in.written > min(MaxDecoded, freeRatio+MaxRatio*in.read) {
			in.why = TooLarge
			return
		}
		if n > 0 && !yield(w.out[:n]) {
			return
		}
	}
	if !errors.Is(err, io.EOF) {
		in.why = Encoded
	}
}

// more waits until there is something to read, and reports whether there is.
func (in *input) more() bool {
	for len(in.p) == 0 {
		if in.ended || !in.yield(nil) {
			return false
		}
	}
	return true
}

// Read implements [io.Reader].
func (in *input) Read(p []byte) (int, error) {
	if !in.more() {
		return 0, io.EOF
	}
	n := copy(p, in.p)
	in.p = in.p[n:]
	return n, nil
}

// ReadByte implements [io.ByteReader], without which flate would allocate a buffer.
func (in *input) ReadByte() (byte, error) {
	if !in.more() {
		return 0, io.EOF
	}
	c := in.p[0]
	in.p = in.p[1:]
	return c, nil
}

// gzips and deflates have decoders that were used before.
var (
	gzips    = sync.Pool{New: func() any { return &work{gzip: new(gzip.Reader)} }}
	deflates = sync.Pool{New: func() any { return &work{flate: flate.NewReader(nil)} }}
)

// work is what decoding needs.
type work struct {
	gzip  *gzip.Reader // or else
	flate io.ReadCloser
	out   [4 << 10]byte
}

// open begins to decode a body.
func (w *work) open(in *input) (io.Reader, error) {
	if w.gzip != nil {
		return w.gzip, w.gzip.Reset(in)
	}
	// Most send deflate as RFC 9110 has it, in the form of zlib, and some without.
	var head [2]byte
	for i := range head {
		c, err := in.ReadByte()
		if err != nil {
			return nil, io.ErrUnexpectedEOF
		}
		head[i] = c
	}
	const method, preset = 8, 1 << 5
	isZlib := head[0]&0x0f == method && head[1]&preset == 0 && (int(head[0])<<8|int(head[1]))%31 == 0
	if !isZlib {
		in.p = append(head[:], in.p...)
	}
	return w.flate, w.flate.(flate.Resetter).Reset(in, nil)
}
